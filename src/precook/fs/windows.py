"""The half of `system.py` for Windows.

Files are opened so that others may rename and remove them meanwhile, as POSIX does by itself. What cannot be had:

- A file that is mapped, or that SQLite or another program has open, cannot be removed or replaced. The error is told
  (`refuses_removal`), and whoever looks after the store leaves the file for the next time.
- A directory cannot be synced. A rename is written through instead, and NTFS keeps the order of such changes in its
  journal: after a power cut the newest names may be missing, never older ones.
- Users and groups are not as on POSIX: what is made in a folder inherits the folder's rights, and who may write there
  is the folder's affair.

Locks are made by `LockFileEx`: `msvcrt.locking` and the libraries over it have exclusive locks only, and whoever asks
whether a lease is held must not look like its holder. They end with their process, and exclude a second descriptor of
the same process, too. As Windows keeps others from reading what is locked, one byte far beyond the end of every file
is locked, which nobody reads.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import msvcrt
import os
import stat as modes
import sys
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import wintypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.values import Bytes

assert sys.platform == "win32"

KEEPS_REMOVED_FILES = False
"""Whether a file can be removed or replaced while somebody has it open or mapped, who keeps it as it was."""

O_CLOEXEC = os.O_NOINHERIT
O_NONBLOCK = 0
"""There are no FIFOs among files."""
O_NOFOLLOW = 1 << 30
"""A flag of `open` below: none of the system's own has this number."""

advise: Callable[[int, int, int, int], None] | None = None
"""Tells the system which part of a file is read next, or never again; None where there is no such call."""
WILL_NEED = DONT_NEED = 0

_LOCKED_BYTE = (1 << 63) - 2
_LOCK_NAME = "lock"
_MOST = 1 << 30
"""Bytes of one read: its number has 32 bits."""

_READ, _WRITE, _DELETE = 0x80000000, 0x40000000, 0x00010000
_SHARE_ALL = 1 | 2 | 4
_CREATE_NEW, _OPEN_EXISTING, _OPEN_ALWAYS = 1, 3, 4
_NORMAL_ATTRIBUTES, _FOLDER_TOO = 0x80, 0x02000000
_READ_ATTRIBUTES = 0x80
_FIRST_TIME = 116_444_736_000_000_000
"""1970 in tenths of a microsecond since 1601."""
_LOCAL_DRIVES = (2, 3)
_LONGEST_PATH = 32_768
_INVALID = ctypes.c_void_p(-1).value
_LOCK_NOW, _LOCK_EXCLUSIVE = 1, 2
_MOVE_OVER, _MOVE_THROUGH = 1, 8
_DENIED, _SHARING, _LOCKED, _END, _PENDING, _MAPPED = 5, 32, 33, 38, 997, 1224
"""Numbers of the system's errors."""


class _Overlapped(ctypes.Structure):
    """Where in a file something is to be done."""

    _fields_ = (
        ("Internal", ctypes.c_void_p),
        ("InternalHigh", ctypes.c_void_p),
        ("Offset", wintypes.DWORD),
        ("OffsetHigh", wintypes.DWORD),
        ("hEvent", wintypes.HANDLE),
    )


class _BasicInfo(ctypes.Structure):
    """The times of a file, in tenths of a microsecond since 1601."""

    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("CreationTime", "LastAccessTime", "LastWriteTime", "ChangeTime")),
        ("FileAttributes", wintypes.DWORD),
    )


class _MemoryCounters(ctypes.Structure):
    """What a process takes."""

    _fields_ = (
        ("cb", wintypes.DWORD),
        ("PageFaultCount", wintypes.DWORD),
        *((name, ctypes.c_size_t) for name in ("PeakWorkingSetSize", "WorkingSetSize")),
        *((f"Quota{number}", ctypes.c_size_t) for number in range(4)),
        *((name, ctypes.c_size_t) for name in ("PagefileUsage", "PeakPagefileUsage")),
    )


def _find_calls() -> Any:
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    handle, number, place = wintypes.HANDLE, wintypes.DWORD, ctypes.POINTER(_Overlapped)
    kernel.CreateFileW.argtypes = [wintypes.LPCWSTR, number, number, ctypes.c_void_p, number, number, handle]
    kernel.CreateFileW.restype = handle
    kernel.CloseHandle.argtypes = [handle]
    kernel.LockFileEx.argtypes = [handle, number, number, number, number, place]
    kernel.UnlockFileEx.argtypes = [handle, number, number, number, place]
    kernel.ReadFile.argtypes = [handle, ctypes.c_void_p, number, ctypes.POINTER(number), place]
    kernel.MoveFileExW.argtypes = [wintypes.LPCWSTR, wintypes.LPCWSTR, number]
    kernel.GetFileInformationByHandleEx.argtypes = [handle, ctypes.c_int, ctypes.POINTER(_BasicInfo), number]
    kernel.GetVolumePathNameW.argtypes = [wintypes.LPCWSTR, wintypes.LPWSTR, number]
    kernel.GetDriveTypeW.argtypes = [wintypes.LPCWSTR]
    kernel.GetVolumeInformationW.argtypes = [
        *(wintypes.LPCWSTR, wintypes.LPWSTR, number),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
        *(wintypes.LPWSTR, number),
    ]
    kernel.GetCurrentProcess.restype = handle
    kernel.K32GetProcessMemoryInfo.argtypes = [handle, ctypes.POINTER(_MemoryCounters), number]
    return kernel


_KERNEL = _find_calls()


def _error(path: str | os.PathLike[str] | None = None) -> OSError:
    """What the system said last, as the error that Python would raise for it."""
    error = ctypes.WinError(ctypes.get_last_error())
    if path is not None:
        error.filename = os.fspath(path)
    return error


def _at(offset: int) -> _Overlapped:
    return _Overlapped(Offset=offset & 0xFFFFFFFF, OffsetHigh=offset >> 32)


def _create_file(
    path: str | os.PathLike[str], access: int, disposition: int, attributes: int = _NORMAL_ATTRIBUTES
) -> int:
    handle = _KERNEL.CreateFileW(os.fspath(path), access, _SHARE_ALL, None, disposition, attributes, None)
    if handle is None or handle == _INVALID:
        error = _error(path)
        if isinstance(error, PermissionError) and os.path.isdir(path):  # noqa: PTH112
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise error
    return int(handle)


def open(path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:  # noqa: A001, ARG001 - as os.open
    """`os.open`, but others may rename and remove the file meanwhile; what it holds is bytes, and no child inherits it.

    With `O_NOFOLLOW`, a link is looked for just before: nobody is kept from making one at that very moment, for which
    Windows wants the rights of an administrator.
    """
    if flags & O_NOFOLLOW and os.path.islink(path):  # noqa: PTH114
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    access = _READ | _WRITE if flags & os.O_RDWR else _WRITE if flags & os.O_WRONLY else _READ
    disposition = _OPEN_EXISTING
    if flags & os.O_CREAT:
        disposition = _CREATE_NEW if flags & os.O_EXCL else _OPEN_ALWAYS
    handle = _create_file(path, access, disposition)
    try:
        return msvcrt.open_osfhandle(handle, flags & os.O_APPEND | os.O_NOINHERIT | os.O_BINARY)
    except BaseException:
        _KERNEL.CloseHandle(handle)
        raise


def stat(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> os.stat_result:
    """`os.stat`, but with the time at which a file was last changed where Python has that at which it was made."""
    status = os.stat(path, dir_fd=dir_fd)
    handle = _create_file(path, _READ_ATTRIBUTES, _OPEN_EXISTING, _FOLDER_TOO)
    try:
        return _with_change_time(status, handle)
    finally:
        _KERNEL.CloseHandle(handle)


def fstat(descriptor: int) -> os.stat_result:
    """The same of an open file."""
    return _with_change_time(os.fstat(descriptor), msvcrt.get_osfhandle(descriptor))


def _with_change_time(status: os.stat_result, handle: int) -> os.stat_result:
    info = _BasicInfo()
    if not _KERNEL.GetFileInformationByHandleEx(handle, 0, ctypes.byref(info), ctypes.sizeof(info)):
        raise _error()
    changed = (info.ChangeTime - _FIRST_TIME) * 100
    named = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    return os.stat_result(status[:10], {**named, "st_ctime": changed / 1e9, "st_ctime_ns": changed})


def volume_type(path: Path) -> str:
    """The type of the local file system that holds a path, such as `ntfs`; nothing where it is none, or not told."""
    root, name = (ctypes.create_unicode_buffer(_LONGEST_PATH) for _ in range(2))
    if not _KERNEL.GetVolumePathNameW(os.path.realpath(path), root, _LONGEST_PATH):
        return ""
    if _KERNEL.GetDriveTypeW(root.value) not in _LOCAL_DRIVES:
        return ""
    told = _KERNEL.GetVolumeInformationW(root.value, None, 0, None, None, None, name, _LONGEST_PATH)
    return name.value.lower() if told else ""


def preadv(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
    """Read into the first of some buffers at a place of a file; how many bytes, fewer than asked for where it ends."""
    view = memoryview(buffers[0]).cast("B")
    size = min(view.nbytes, _MOST)
    if not size:
        return 0
    memory, read = (ctypes.c_char * size).from_buffer(view), wintypes.DWORD()
    if not _KERNEL.ReadFile(
        msvcrt.get_osfhandle(descriptor), memory, size, ctypes.byref(read), ctypes.byref(_at(offset))
    ):
        if ctypes.get_last_error() != _END:
            raise _error()
        return 0
    return int(read.value)


def pread(descriptor: int, size: int, offset: int) -> bytes:
    """So many bytes at a place of a file, or fewer."""
    buffer = bytearray(min(size, _MOST))
    return bytes(memoryview(buffer)[: preadv(descriptor, [buffer], offset)])


def pwrite(descriptor: int, data: bytes, offset: int) -> int:
    """Write at a place of a file that nobody else writes to meanwhile."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def writev(descriptor: int, buffers: Sequence[memoryview]) -> int:
    """Write the first of some buffers: who writes several goes on with the next, as after any short write."""
    return os.write(descriptor, buffers[0])


def lock(descriptor: int, *, shared: bool, wait: bool) -> None:
    """Lock an open file until it is closed; `BlockingIOError` where another one holds it."""
    flags = (0 if shared else _LOCK_EXCLUSIVE) | (0 if wait else _LOCK_NOW)
    if not _KERNEL.LockFileEx(msvcrt.get_osfhandle(descriptor), flags, 0, 1, 0, ctypes.byref(_at(_LOCKED_BYTE))):
        error = _error()
        if ctypes.get_last_error() in (_LOCKED, _PENDING):
            raise BlockingIOError(errno.EAGAIN, error.strerror)
        raise error


def unlock(descriptor: int) -> None:
    """Let go of a lock before the file is closed."""
    if not _KERNEL.UnlockFileEx(msvcrt.get_osfhandle(descriptor), 0, 1, 0, ctypes.byref(_at(_LOCKED_BYTE))):
        raise _error()


def sync_file(descriptor: int) -> None:
    """Make a file's content durable."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Nothing: names are written through when they are given; `FileNotFoundError` where there is no such directory."""
    os.stat(path)  # noqa: PTH116


def rename(durable: Path, path: Path) -> None:
    """Give a file or folder another name, whatever had it before; it is on the disk when this returns."""
    over = _MOVE_OVER if not os.path.isdir(durable) else 0  # noqa: PTH112 - a folder never takes another's place
    if not _KERNEL.MoveFileExW(os.fspath(durable), os.fspath(path), over | _MOVE_THROUGH):
        raise _error(path)


def check_removable(path: Path) -> None:
    """Raise the system's error where a file could not be removed because it is in use."""
    try:
        handle = _create_file(path, _DELETE, _OPEN_EXISTING)
    except FileNotFoundError:
        return
    _KERNEL.CloseHandle(handle)


def refuses_removal(error: OSError) -> bool:
    """Whether an error may say that a file cannot be removed just now because it is mapped or in use.

    A mapped file is told as one that is closed to us, which may be the truth as well: either way it stays.
    """
    return getattr(error, "winerror", None) in (_DENIED, _SHARING, _LOCKED, _MAPPED)


def has_name(descriptor: int, path: Path) -> bool:
    """Whether an open file that had this name has it still, and was not removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(_locked_file(path)))  # noqa: PTH116
    except OSError:
        return False


def set_modified(descriptor: int, path: Path, modified: int) -> None:  # noqa: ARG001 - as on POSIX
    """Give an open file a time of change, in nanoseconds."""
    os.utime(path, ns=(modified, modified))


def preallocate(descriptor: int, size: int) -> None:
    """Take so much space from the disk for a new file."""
    piece = bytes(1 << 20)
    while size:
        size -= os.write(descriptor, piece[:size])


def open_inside(folder: Path, name: str, flags: int) -> int:
    """Open a file by its name in a folder that is no link."""
    _refuse_link(folder)
    return open(folder / name, flags)


def unlink_inside(root: Path, path: Path) -> None:
    """Remove a file below `root`; no link below it is followed on the way."""
    folder = root
    for name in path.relative_to(root).parts[:-1]:
        folder = folder / name
        _refuse_link(folder)
    os.unlink(path)  # noqa: PTH108


def _refuse_link(folder: Path) -> None:
    # A junction is no symbolic link, and leads elsewhere all the same.
    status = os.lstat(folder)
    if not modes.S_ISDIR(status.st_mode) or getattr(status, "st_reparse_tag", 0) == modes.IO_REPARSE_TAG_MOUNT_POINT:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))


def open_folder_to_lock(path: Path) -> int:
    """A descriptor to lock a folder by: of a file in it, because a folder cannot be locked."""
    _refuse_link(path)
    return open(_locked_file(path), os.O_RDWR | os.O_CREAT)


def _locked_file(path: Path) -> Path:
    return path / _LOCK_NAME if os.path.isdir(path) else path  # noqa: PTH112


def share(made: int | str, status: os.stat_result, folder: Path) -> None:
    """Nothing: what is made in a folder inherits its rights."""


def share_folder(path: Path) -> None:
    """Nothing, likewise."""


def group_may_write(status: os.stat_result) -> bool:  # noqa: ARG001 - as on POSIX
    """Whether others of its group may write to a file or directory: its mode says nothing about that here."""
    return False


def everybody_may_write(status: os.stat_result) -> bool:  # noqa: ARG001 - as on POSIX
    """Whether anybody may: likewise."""
    return False


def is_anothers(status: os.stat_result) -> bool:  # noqa: ARG001 - as on POSIX
    """Whether a file or directory belongs to another user: its status does not say."""
    return False


def is_superuser() -> bool:
    """Whether this user may do everything: nobody does."""
    return False


def has_no_inodes(path: Path) -> bool:  # noqa: ARG001 - as on POSIX
    """Whether no file can be made on a file system, however much space it has."""
    return False


def is_read_only(path: Path) -> bool:
    """Whether a file system is mounted so that nobody writes to it, as far as it says so."""
    return not os.access(path, os.W_OK)


def peak_memory() -> int:
    """The most bytes of memory that this process has had."""
    counters = _MemoryCounters(cb=ctypes.sizeof(_MemoryCounters))
    process = _KERNEL.GetCurrentProcess()
    if not _KERNEL.K32GetProcessMemoryInfo(process, ctypes.byref(counters), ctypes.sizeof(counters)):
        raise _error()
    return int(counters.PeakWorkingSetSize)


def release_memory() -> None:
    """Give memory back to the system that was freed: here that is its own business."""


def map_file(
    descriptor: int,
    length: int,
    *,
    private: bool,
    spares: deque[Any] | None = None,  # noqa: ARG001 - as on POSIX
) -> Bytes:
    """The first `length` bytes of a file as an array.

    A private mapping may be written to: the writes stay in this process and this mapping, the file never sees them.
    Python's own mapping keeps a handle of the file, of which a process may have millions.
    """
    access = mmap.ACCESS_COPY if private else mmap.ACCESS_READ
    return np.frombuffer(mmap.mmap(descriptor, length, access=access), np.uint8)


def gather(spans: npt.NDArray[np.uint64], into: int) -> bool:  # noqa: ARG001 - as on POSIX
    """Copy memory of this process in one call; False: there is none."""
    return False
