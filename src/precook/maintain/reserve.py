"""The reserve: a little space kept free, so that entries can be removed from a disk that is full.

Dropping entries needs room for the index's log before it gives any back.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from precook.store import files
from precook.store.layout import Layout

SIZE = 64 << 20
_WORTH = 100
"""A store gets one when it is so many times as large: a hundredth more."""
_SCARCE = 16 << 20
"""Free bytes below which the reserve is needed."""


def keep_reserve(layout: Layout, pack_bytes: int, *, size: int = SIZE) -> bool:
    """Make the reserve of a store that is large enough for one, where the disk has room; whether there is one now."""
    if layout.reserve.exists():
        return True
    if pack_bytes < _WORTH * size or shutil.disk_usage(layout.root).free < 2 * size + _SCARCE:
        return False
    # Nothing depends on it: where it cannot be had, it is tried again when the store is next opened.
    with contextlib.suppress(OSError):
        make_reserve(layout, size)
        return True
    return False


def make_reserve(layout: Layout, size: int) -> None:
    """Take so much space from the disk."""
    descriptor = os.open(layout.reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except BaseException:
        with contextlib.suppress(OSError):
            layout.reserve.unlink()
        raise
    finally:
        os.close(descriptor)


def release_reserve(layout: Layout) -> bool:
    """Give the reserve back to a disk that is nearly full; whether that was done."""
    if shutil.disk_usage(layout.root).free >= _SCARCE:
        return False
    return files.unlink_inside(layout.root, layout.reserve)
