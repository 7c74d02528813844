"""The half of `system.py` for Linux and macOS."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import resource
import stat
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.values import Bytes

assert sys.platform != "win32"

KEEPS_REMOVED_FILES = True
"""Whether a file can be removed or replaced while somebody has it open or mapped, who keeps it as it was."""

_NOT_SUPPORTED = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""What is said of a hard link or of another group or mode by a file system, or to a user, that has none to give."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

advise: Callable[[int, int, int, int], None] | None
"""Tells the system which part of a file is read next, or never again; None where there is no such call."""
if sys.platform == "linux":
    advise = os.posix_fadvise
    WILL_NEED, DONT_NEED = os.POSIX_FADV_WILLNEED, os.POSIX_FADV_DONTNEED
else:
    advise = None
    WILL_NEED = DONT_NEED = 0


def lock(descriptor: int, *, shared: bool, wait: bool) -> None:
    """Lock an open file until its last descriptor is closed; `BlockingIOError` where another one holds it.

    Not by a library: filelock has exclusive locks of files that hold nothing else, and portalocker locks as here.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Let go of a lock before the file is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def sync_file(descriptor: int) -> None:
    """Make a file's content durable."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Make a directory's names durable."""
    descriptor = os.open(path, _FOLDER)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def rename(durable: Path, path: Path) -> None:
    """Give a file or folder another name, whatever had it before; its directory is not synced."""
    os.rename(durable, path)  # noqa: PTH104 - each step of the order of writes stands here by name


def check_removable(path: Path) -> None:
    """Raise the system's error where a file could not be removed because it is in use: here it always can."""


def refuses_removal(error: OSError) -> bool:  # noqa: ARG001 - as on Windows
    """Whether an error may say that a file cannot be removed just now because it is mapped or in use."""
    return False


def has_name(descriptor: int, path: Path) -> bool:  # noqa: ARG001 - as on Windows
    """Whether an open file that had this name has one still, and was not removed meanwhile."""
    return os.fstat(descriptor).st_nlink > 0


def set_modified(descriptor: int, path: Path, modified: int) -> None:  # noqa: ARG001 - as on Windows
    """Give an open file a time of change, in nanoseconds."""
    os.utime(descriptor, ns=(modified, modified))


def preallocate(descriptor: int, size: int) -> None:
    """Take so much space from the disk for a new file."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS has no such call, and a hole would take nothing.
    piece = bytes(1 << 20)
    while size:
        size -= os.write(descriptor, piece[:size])


def open_inside(folder: Path, name: str, flags: int) -> int:
    """Open a file by its name in a folder that is no link."""
    place = os.open(folder, _FOLDER | os.O_NOFOLLOW)
    try:
        return os.open(name, flags, 0o666, dir_fd=place)
    finally:
        os.close(place)


def unlink_inside(root: Path, path: Path) -> None:
    """Remove a file below `root`; no link below it is followed on the way."""
    folder = os.open(root, _FOLDER)
    try:
        for name in path.relative_to(root).parts[:-1]:
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.unlink(path.name, dir_fd=folder)
    finally:
        os.close(folder)


def open_folder_to_lock(path: Path) -> int:
    """A descriptor to lock a folder by: here the folder's own."""
    return os.open(path, _FOLDER | os.O_NOFOLLOW)


def share(made: int | str, status: os.stat_result, folder: Path) -> None:
    """Give a file or directory the group and the rights of the directory it lies in, if a group may write there.

    `made` is a descriptor, or a name under /proc for one. Where a file system or this user cannot, nothing is changed.
    """
    there = os.stat(folder)  # noqa: PTH116
    if not there.st_mode & stat.S_IWGRP:
        return
    meant = 0o2777 if stat.S_ISDIR(status.st_mode) else 0o666
    try:
        if status.st_gid != there.st_gid:
            os.chown(made, -1, there.st_gid)
        if (status.st_mode ^ there.st_mode) & meant:
            os.chmod(made, there.st_mode & meant)  # noqa: PTH101
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


def share_folder(path: Path) -> None:
    """The same for a directory that was just made; `FileNotFoundError` where somebody has removed it since."""
    descriptor = os.open(path, _FOLDER | os.O_NOFOLLOW)
    try:
        share(descriptor, os.fstat(descriptor), path.parent)
    finally:
        os.close(descriptor)


def group_may_write(status: os.stat_result) -> bool:
    """Whether others of its group may write to a file or directory."""
    return bool(status.st_mode & stat.S_IWGRP)


def everybody_may_write(status: os.stat_result) -> bool:
    """Whether anybody may."""
    return bool(status.st_mode & stat.S_IWOTH)


def is_anothers(status: os.stat_result) -> bool:
    """Whether a file or directory belongs to another user."""
    return status.st_uid != os.geteuid()


def is_superuser() -> bool:
    """Whether this user may do everything."""
    return os.geteuid() == 0


def has_no_inodes(path: Path) -> bool:
    """Whether no file can be made on a file system, however much space it has."""
    status = os.statvfs(path)
    return bool(status.f_files) and not status.f_favail


def is_read_only(path: Path) -> bool:
    """Whether a file system is mounted so that nobody writes to it."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def peak_memory() -> int:
    """The most bytes of memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def release_memory() -> None:
    """Give memory back to the system that was freed and is kept for later: after much was needed for a moment."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


# Mapping. Python's own `mmap` keeps a descriptor per mapping, and a training run may hold tensors from thousands of
# packs.


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
    if hasattr(libc, "process_vm_readv"):
        libc.process_vm_readv.restype = ctypes.c_ssize_t
        libc.process_vm_readv.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_ulong,
        ]
    return libc


_FAILED = ctypes.c_void_p(-1).value
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)


class _Mapping:
    """Mapped memory; unmapped when nobody refers to it any more."""

    __slots__ = ("_munmap", "address", "interface", "length")

    def __init__(self, descriptor: int, length: int, *, private: bool) -> None:
        libc = _libc()
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if private else 0)
        flags = (mmap.MAP_PRIVATE | _NORESERVE) if private else mmap.MAP_SHARED
        address = libc.mmap(None, length, protection, flags, descriptor, 0)
        if address is None or address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._munmap = libc.munmap
        self.address: int = address
        self.length = length
        self.interface = {"version": 3, "typestr": "|u1", "shape": (length,), "data": (address, not private)}

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None:
            self._munmap(address, self.length)  # not by the module's name, which is gone when Python ends


class _Loan:
    """A mapping lent to numpy. When the last array over it is gone, it is kept among the spares if it is as it was.

    No lock: this may happen in any thread and between any two steps, and a deque's steps are whole.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_is_ending", "_mapping", "_spares")

    def __init__(self, mapping: _Mapping, spares: deque[Any] | None) -> None:
        self._mapping = mapping
        self._spares = spares
        self._is_ending = sys.is_finalizing
        self.__array_interface__ = mapping.interface

    def __del__(self) -> None:
        if self._spares is not None and not self._is_ending() and _is_untouched(self._mapping):
            self._spares.append(self._mapping)


_PAGES = 8192
"""Pages whose state is asked for at a time: more would be memory that the system has to clear first."""
_STATE = 0b11100000
"""The bits, in the last byte of an item of Linux' pagemap, that say whether a page is there, swapped, of a file."""
_ABSENT, _OF_FILE = 0b00000000, 0b10100000


def _is_untouched(mapping: _Mapping) -> bool:
    """Whether no page of a private mapping was written to, as far as the system tells: it is then as good as new.

    Pages that were written to are no longer the file's. Where nothing is said of any page, nothing is believed.
    """
    first, pages = mapping.address // mmap.PAGESIZE, -(-mapping.length // mmap.PAGESIZE)
    of_file = absent = 0
    try:
        # Not kept open: in a forked process it would tell of its parent's memory.
        descriptor = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start in range(0, pages, _PAGES):
                items = os.pread(descriptor, min(_PAGES, pages - start) * 8, (first + start) * 8)
                states = (np.frombuffer(items, np.uint8)[7::8] & _STATE).tobytes()
                of_file += states.count(_OF_FILE)
                absent += states.count(_ABSENT)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return of_file > 0 and of_file + absent == pages


def map_file(descriptor: int, length: int, *, private: bool, spares: deque[Any] | None = None) -> Bytes:
    """The first `length` bytes of a file as an array.

    A private mapping may be written to: the writes stay in this process and this mapping, the file never sees them.
    `spares`, of this file alone, takes mappings that came back as they were given: one of them is given before a new
    one is made, for its pages are there already. Raises `OSError` where the system has no mappings left to give.
    """
    try:
        mapping = spares.pop() if spares is not None else None
    except IndexError:
        mapping = None
    return np.asarray(_Loan(mapping or _Mapping(descriptor, length, private=private), spares))


_MOST_SPANS = 1024
"""Linux takes so many places in one call, and so many others."""
_MOST_BYTES = 0x7FFFF000
"""More than that it copies in no call."""
_SPAN_BYTES = 16


def gather(spans: npt.NDArray[np.uint64], into: int) -> bool:
    """Copy memory of this process in one call, while other threads have Python; whether all of it was copied.

    Of `spans`, rows of an address and a length, the first `into` are filled, in order, with what the others hold.
    Memory that cannot be read ends the copy, not the process. False, too, where the system has no such call, or does
    not let us make it.
    """
    call = getattr(_libc(), "process_vm_readv", None)
    if call is None or max(into, len(spans) - into) > _MOST_SPANS or spans[:into, 1].sum() > _MOST_BYTES:
        return False
    first = spans.ctypes.data
    copied = call(os.getpid(), first, into, first + into * _SPAN_BYTES, len(spans) - into, 0)
    return bool(copied == spans[:into, 1].sum())
