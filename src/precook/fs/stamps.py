"""Stamps: how files look without reading them, and when an unchanged stamp proves that a file is unchanged."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from precook.fs.stat_names import numbers
from precook.fs.system import calls
from precook.memo.columns import Kind
from precook.values import Bytes, Flags, Numbers

Stamps = Numbers
"""Inode, device, size, mtime and ctime in nanoseconds, a file per row."""
Stamp = tuple[int, int, int, int, int]
"""The same of one file."""

COLUMNS = 5
DEVICE, SIZE = 1, 2
"""Columns of a stamp."""
FILES = Kind("files", key=8 * COLUMNS, value=32, slot=16)
"""Digests by stamp; of one inode only the newest is kept."""
_MTIME, _CTIME = 3, 4
_RACY = 2_000_000_000
"""Nanoseconds: no file system we trust has coarser times."""
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def stamp_keys(stamps: Stamps) -> Bytes:
    """Stamps as the keys of what is remembered about files."""
    return np.ascontiguousarray(stamps, "<i8").view(np.uint8).reshape(len(stamps), 8 * COLUMNS)


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp in a stat result, as `stat_names` gives it."""
    return numbers(status)[1:]


def why_not_a_file(mode: int) -> str | None:
    """What something is that is no regular file; None for a regular file."""
    return None if stat.S_ISREG(mode) else f"{_KINDS.get(stat.S_IFMT(mode), 'a device')}, not a file"


def settled(stamps: Stamps, now: int) -> Flags:
    """Which files would get another stamp by an edit from now on: those that were last changed a while ago.

    A younger one could be edited within the same tick of the clock, so what was read of it is not remembered. Git calls
    such files racy.
    """
    return np.asarray(stamps[:, [_MTIME, _CTIME]].max(axis=1) <= now - _RACY)


def read_stamps(paths: Sequence[Path]) -> Stamps:
    """The stamps of a few files; an `OSError` where one is not there or no regular file."""
    stamps = []
    for path in paths:
        status = calls.stat(path)
        if reason := why_not_a_file(status.st_mode):
            raise OSError(errno.EINVAL, reason, str(path))
        stamps.append(stamp_of(status))
    return np.array(stamps, np.int64).reshape(-1, COLUMNS)
