"""Writeback: the disk begins with the first part of a file while the next is still being written."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_WRITE = 2
"""SYNC_FILE_RANGE_WRITE: begin, and wait for nothing."""


def begin_writeback(descriptor: int) -> None:
    """Have the disk begin with what was written to a file so far, where the system can; the sync at the end is shorter.

    No promise is made here and no error is told: what goes wrong with the data, fsync reports, because only waiting for
    pages would use an error up.
    """
    if _CALL is not None:
        _CALL(descriptor, 0, 0, _WRITE)  # from the beginning to the end: what is on its way is not written twice


def _find() -> Any:
    if sys.platform != "linux":
        return None
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_CALL = _find()
