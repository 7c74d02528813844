"""A stand-in for what Windows offers, as its documentation says, in a process that has nothing of POSIX left.

`install` hides `fcntl` and its like, takes the calls out of `os` that Windows does not have, and puts an `msvcrt` and a
`kernel32` in their place which behave as documented:

- A file is opened by `CreateFileW`, and may be renamed and removed meanwhile only where all who have it open allow it.
  SQLite does not: whatever has `index.sqlite` in its name and is open stays.
- Nor may a file that any process has mapped.
- `MoveFileExW` replaces a file only if it is told to.
- What is locked by `LockFileEx` cannot be read by others, so nobody locks what they read; the lock is of one handle.
- A read at the end of a file is an error of its own.
- `os.stat` has the time at which a file was made where POSIX has that of its last change.

It is called before precook is imported, and after the libraries that would look for Windows in their own way.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - before this process looks like Windows
import ctypes
import errno
import fcntl
import importlib
import os
import shutil
import sqlite3  # noqa: F401
import stat
import subprocess  # noqa: F401
import sys
import tempfile
import types
from ctypes import wintypes
from pathlib import Path
from typing import Any

import blake3  # noqa: F401
import numpy as np  # noqa: F401
import pydantic  # noqa: F401
import safetensors  # noqa: F401
import xxhash  # noqa: F401
import yaml  # noqa: F401
from PIL import Image  # noqa: F401

HIDDEN_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "posix", "syslog", "crypt")
HIDDEN_CALLS = (
    *("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_PATH", "O_TMPFILE", "O_SYNC", "O_NOATIME"),
    *("pread", "preadv", "pwrite", "pwritev", "readv", "writev", "sendfile", "fdatasync", "sync"),
    *("chown", "fchown", "lchown", "fchmod", "fchdir", "getuid", "geteuid", "getgid", "getegid", "getgroups"),
    *("statvfs", "fstatvfs", "ST_RDONLY", "posix_fallocate", "posix_fadvise", "POSIX_FADV_WILLNEED"),
    *("POSIX_FADV_DONTNEED", "register_at_fork", "fork", "SEEK_DATA", "SEEK_HOLE", "sched_getaffinity", "uname"),
)
_NUMBERS = {2: errno.ENOENT, 3: errno.ENOENT, 5: errno.EACCES, 32: errno.EACCES, 33: errno.EACCES, 183: errno.EEXIST}
_FIRST_HANDLE = 0x1000

_open, _close, _unlink, _rename, _preadv = os.open, os.close, os.unlink, os.rename, os.preadv
_flock, _statvfs, _fstat = fcntl.flock, os.statvfs, os.fstat
_last_error = [0]
VOLUME = ["NTFS", 3]
"""The file system of every folder, and whether its drive is a local one (3) or elsewhere (4)."""


def windows_error(number: int) -> OSError:
    """As `ctypes.WinError` makes it."""
    code = _NUMBERS.get(number, errno.EINVAL)
    error = OSError(code, f"[WinError {number}] {os.strerror(code)}")
    error.winerror = number
    return error


def _fail(number: int) -> int:
    _last_error[0] = number
    return 0


class _Call:
    """A function of a library, which takes notes of its types."""

    argtypes: Any = None
    restype: Any = None

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        if self.argtypes is not None:
            assert len(arguments) == len(self.argtypes)
        return self._function(*arguments)


def _create_file(
    path: str, access: int, share: int, _: None, disposition: int, attributes: int, __: None
) -> int | None:
    assert isinstance(path, str)
    assert share == 1 | 2 | 4, "others could not rename or remove it"
    if os.path.isdir(path) and attributes != 0x02000000:
        return _fail(5) or None
    if access == 0x00010000:  # to be removed
        number = _reason_to_stay(path)
        if number:
            return _fail(number) or None
    mode = {0x80000000: os.O_RDONLY, 0x40000000: os.O_WRONLY, 0xC0000000: os.O_RDWR}.get(access, os.O_RDONLY)
    flags = {1: os.O_CREAT | os.O_EXCL, 3: 0, 4: os.O_CREAT}[disposition]
    try:
        return _FIRST_HANDLE + _open(path, mode | flags, 0o666)
    except FileNotFoundError:
        return _fail(2) or None
    except FileExistsError:
        return _fail(183) or None
    except PermissionError:
        return _fail(5) or None


def _reason_to_stay(path: str) -> int:
    """The number of the error that keeps a file from being removed or replaced; 0 where none does."""
    real = os.path.realpath(path)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if real in (process / "maps").read_text():
                return 5
            if "index.sqlite" in real and any(os.readlink(entry) == real for entry in (process / "fd").iterdir()):
                return 32
        except OSError:
            continue  # it has ended
    return 0


def _checked(function: Any) -> Any:
    def remove(path: Any, *paths: Any, **options: Any) -> Any:
        for one in (path, *paths):
            number = _reason_to_stay(os.fspath(one)) if os.path.isfile(one) else 0
            if number:
                error = windows_error(number)
                error.filename = os.fspath(one)
                raise error
        return function(path, *paths, **options)

    return remove


def _move_file(old: str, new: str, flags: int) -> int:
    assert flags & 8, "a name that is not written through may be gone after a power cut"
    if os.path.exists(new) and not flags & 1:
        return _fail(183)
    if not os.path.exists(old):
        return _fail(2)
    for path in (old, new):
        number = _reason_to_stay(path) if os.path.isfile(path) else 0
        if number:
            return _fail(number)
    _rename(old, new)
    return 1


def _offset(place: Any) -> int:
    overlapped = place._obj
    return int(overlapped.Offset | overlapped.OffsetHigh << 32)


def _lock_file(handle: int, flags: int, _: int, low: int, high: int, place: Any) -> int:
    assert (low, high) == (1, 0)
    assert _offset(place) > 1 << 62, "what is locked cannot be read by anybody else"
    kind = fcntl.LOCK_EX if flags & 2 else fcntl.LOCK_SH
    try:
        _flock(handle - _FIRST_HANDLE, kind | (fcntl.LOCK_NB if flags & 1 else 0))
    except BlockingIOError:
        return _fail(33)
    return 1


def _unlock_file(handle: int, _: int, low: int, high: int, place: Any) -> int:
    _flock(handle - _FIRST_HANDLE, fcntl.LOCK_UN)
    return 1


def _read_file(handle: int, memory: Any, size: int, read: Any, place: Any) -> int:
    count = _preadv(handle - _FIRST_HANDLE, [memoryview(memory)[:size]], _offset(place))
    read._obj.value = count
    return 1 if count else _fail(38)


def _basic_info(handle: int, kind: int, info: Any, size: int) -> int:
    assert (kind, size) == (0, ctypes.sizeof(info._obj))
    info._obj.ChangeTime = _fstat(handle - _FIRST_HANDLE).st_ctime_ns // 100 + 116_444_736_000_000_000
    return 1


def _made_long_ago(function: Any) -> Any:
    def look(*arguments: Any, **options: Any) -> Any:
        status = function(*arguments, **options)
        named = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return os.stat_result(status[:10], {**named, "st_ctime": 1.0, "st_ctime_ns": 10**9})

    return look


def _volume_path(path: str, root: Any, size: int) -> int:
    assert len(path) < size
    root.value = "C:\\"
    return 1


def _volume_information(*arguments: Any) -> int:
    assert arguments[0] == "C:\\"
    arguments[6].value = VOLUME[0]
    return 1


def _memory_info(_: int, counters: Any, size: int) -> int:
    assert size == ctypes.sizeof(counters._obj)
    counters._obj.PeakWorkingSetSize = 123 << 20
    return 1


def _close_handle(handle: int) -> int:
    _close(handle - _FIRST_HANDLE)
    return 1


def _open_handle(handle: int, flags: int) -> int:
    assert flags & os.O_BINARY, "a text file would end at its first Ctrl-Z"
    descriptor = handle - _FIRST_HANDLE
    if flags & os.O_APPEND:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def _disk_usage(path: Any) -> Any:
    status = _statvfs(path)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    return shutil._ntuple_diskusage(total, total - free, free)


def install() -> None:
    """Make this process one on Windows, as far as files go."""
    kernel = types.SimpleNamespace(
        CreateFileW=_Call(_create_file),
        CloseHandle=_Call(_close_handle),
        LockFileEx=_Call(_lock_file),
        UnlockFileEx=_Call(_unlock_file),
        ReadFile=_Call(_read_file),
        MoveFileExW=_Call(_move_file),
        GetFileInformationByHandleEx=_Call(_basic_info),
        GetVolumePathNameW=_Call(_volume_path),
        GetDriveTypeW=_Call(lambda root: VOLUME[1]),
        GetVolumeInformationW=_Call(_volume_information),
        GetCurrentProcess=_Call(lambda: -1),
        K32GetProcessMemoryInfo=_Call(_memory_info),
    )
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.get_osfhandle = lambda descriptor: _FIRST_HANDLE + descriptor
    msvcrt.open_osfhandle = _open_handle
    ctypes.WinDLL = lambda name, use_last_error: {"kernel32": kernel}[name]  # type: ignore[misc, assignment]
    ctypes.WinError = windows_error
    ctypes.get_last_error = lambda: _last_error[0]
    stat.IO_REPARSE_TAG_MOUNT_POINT = 0xA0000003
    os.O_BINARY, os.O_NOINHERIT = 1 << 28, 1 << 27
    os.stat, os.fstat, os.lstat = (_made_long_ago(function) for function in (os.stat, os.fstat, os.lstat))
    os.unlink = os.remove = _checked(_unlink)
    os.rename = _checked(_rename)
    os.replace = _checked(os.replace)
    shutil.disk_usage, shutil._use_fd_functions = _disk_usage, False  # type: ignore[attr-defined]
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # type: ignore[misc, assignment]
    for name in HIDDEN_CALLS:
        if hasattr(os, name):
            delattr(os, name)
    sys.modules.update(dict.fromkeys(HIDDEN_MODULES))  # type: ignore[arg-type]
    sys.modules["msvcrt"] = msvcrt
    sys.platform = "win32"
    assert importlib.import_module("precook.fs.system").system.__name__ == "precook.fs.windows"
    assert wintypes
