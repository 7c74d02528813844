"""Files mapped into memory without a descriptor that stays open.

Python's own `mmap` keeps a descriptor per mapping, and a training run may hold tensors from thousands of packs.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any, ClassVar

import numpy as np

from precook.values import Bytes


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


_FAILED = ctypes.c_void_p(-1).value
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)


class _Region:
    """Mapped memory that numpy can look at; unmapped when the last array over it is gone."""

    __slots__ = ("__weakref__", "_address", "_length", "_writable")

    _munmap: ClassVar[Any] = None

    def __init__(self, descriptor: int, length: int, *, private: bool) -> None:
        libc = _libc()
        _Region._munmap = libc.munmap
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if private else 0)
        flags = (mmap.MAP_PRIVATE | _NORESERVE) if private else mmap.MAP_SHARED
        address = libc.mmap(None, length, protection, flags, descriptor, 0)
        if address is None or address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._address = address
        self._length = length
        self._writable = private

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {
            "version": 3,
            "typestr": "|u1",
            "shape": (self._length,),
            "data": (self._address, not self._writable),
        }

    def __del__(self) -> None:
        address = getattr(self, "_address", None)
        if address is not None:
            self._munmap(address, self._length)  # not by the class's name, which is gone when Python ends


def map_file(descriptor: int, length: int, *, private: bool) -> Bytes:
    """The first `length` bytes of a file as an array.

    A private mapping may be written to: the writes stay in this process and this mapping, the file never sees them.
    Raises `OSError` where the system has no mappings left to give.
    """
    return np.asarray(_Region(descriptor, length, private=private))
