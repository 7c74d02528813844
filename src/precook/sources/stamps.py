"""Stamps: how files look without reading them, and when that says enough."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.sources.segments import Bytes, Kind

Stamps = npt.NDArray[np.int64]
"""Inode, device, size, mtime and ctime in nanoseconds, a file per row."""

COLUMNS = 5
FILES = Kind("files", key=8 * COLUMNS, value=32, slot=16)
"""Digests by stamp; of one inode only the newest is kept."""
_MTIME, _CTIME = 3, 4
_RACY = 2_000_000_000
"""Nanoseconds: no file system we trust has coarser times."""


def stamp_keys(stamps: Stamps) -> Bytes:
    """Stamps as the keys of what is remembered about files."""
    return np.ascontiguousarray(stamps, "<i8").view(np.uint8).reshape(len(stamps), 8 * COLUMNS)


def stamp_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """The stamp in a stat result, as `stat_names` gives it."""
    mask = (1 << 63) - 1
    return status.st_ino & mask, status.st_dev & mask, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def settled(stamps: Stamps, now: int) -> npt.NDArray[np.bool_]:
    """Which files an edit from now on would give another stamp: those last changed a while ago.

    A younger one could be edited within the same tick of the clock, so what was read of it is not remembered.
    """
    return np.asarray(stamps[:, [_MTIME, _CTIME]].max(axis=1) <= now - _RACY)


def look(paths: Sequence[Path]) -> Stamps:
    """The stamps of a few files; an `OSError` where one is not there."""
    return np.array([stamp_of(path.stat()) for path in paths], np.int64).reshape(-1, COLUMNS)
