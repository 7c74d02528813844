"""Stamps: how files look without reading them, and when that says enough."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.fs.stat_names import numbers
from precook.memo.columns import Kind
from precook.values import Bytes

Stamps = npt.NDArray[np.int64]
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


def settled(stamps: Stamps, now: int) -> npt.NDArray[np.bool_]:
    """Which files an edit from now on would give another stamp: those last changed a while ago.

    A younger one could be edited within the same tick of the clock, so what was read of it is not remembered.
    """
    return np.asarray(stamps[:, [_MTIME, _CTIME]].max(axis=1) <= now - _RACY)


def look(paths: Sequence[Path]) -> Stamps:
    """The stamps of a few files; an `OSError` where one is not there or no regular file."""
    return np.array([_look(path) for path in paths], np.int64).reshape(-1, COLUMNS)


def _look(path: Path) -> Stamp:
    status = path.stat()
    if reason := why_not_a_file(status.st_mode):
        raise OSError(errno.EINVAL, reason, str(path))
    return stamp_of(status)
