"""File systems: whether their file times can be relied on, what time it is there, and errors that are not a file's.

A file is not read again while its stamp stays the same. That is safe only on a file system that gives every edit
another change time, and only for files that were last changed a while ago by that file system's own clock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.errors import SourceError
from precook.fs.stamps import DEVICE, Stamps, settled
from precook.fs.system import system
from precook.values import Flags

_TRUSTED = frozenset(
    [
        "bcachefs",
        "btrfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "nilfs2",
        "ntfs",
        "ntfs3",
        "overlay",
        "ramfs",
        "refs",
        "reiserfs",
        "rootfs",
        "tmpfs",
        "ufs",
        "xfs",
        "zfs",
    ]
)
"""Local ones with a change time of their own. FAT, HFS, squashfs and other images keep none, and a rebuilt image can
show another content under the same stamp; behind FUSE may be anything; elsewhere the clock and the cache are somebody
else's."""
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_RESOURCE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What is to be known about a file system before any of its files is read."""

    now: int
    """The file system's clock, read before any file."""
    trusted: bool
    """Whether stamps may be believed and remembered."""
    device: int | None = None
    """The device this is about; files on others, behind links and mounts, are judged on their own. None: all files."""

    @classmethod
    def of(cls, folder: Path, *, trust: bool = False) -> FileSystem:
        """The file system that holds a folder; with `trust`, stamps are believed on every file system."""
        now = file_system_time(folder)
        if trust:
            return cls(now, trusted=True)
        return cls(now, stamps_are_reliable(folder), folder.stat().st_dev)


class FileSystems:
    """The file systems that hold some files: the main one, and one for each other device, found by a link or mount."""

    def __init__(self, main: FileSystem, stamps: Stamps, path_of: Callable[[int], str]) -> None:
        self._main = main
        self._others: dict[int, FileSystem] = {}
        if main.device is not None:
            elsewhere = np.flatnonzero(stamps[:, DEVICE] != main.device)
            for device, first in zip(*np.unique(stamps[elsewhere, DEVICE], return_index=True), strict=True):
                folder = Path(os.path.realpath(path_of(int(elsewhere[first])))).parent
                self._others[int(device)] = FileSystem(
                    file_system_time(folder), stamps_are_reliable(folder), int(device)
                )

    def trusted(self, stamps: Stamps) -> Flags:
        """Which stamps can be believed."""
        trusted = np.full(len(stamps), self._main.trusted)
        if self._main.device is not None:
            trusted &= stamps[:, DEVICE] == self._main.device
        for device, other in self._others.items():
            trusted |= (stamps[:, DEVICE] == device) & other.trusted
        return trusted

    def lasting(self, stamps: Stamps) -> Flags:
        """Which stamps can be believed from now on: any later edit would give the file another one."""
        lasting = settled(stamps, self._main.now)
        for device, other in self._others.items():
            lasting = np.where(stamps[:, DEVICE] == device, settled(stamps, other.now), lasting)
        return np.asarray(lasting & self.trusted(stamps))


def stamps_are_reliable(path: Path) -> bool:
    """Whether a stamp that has not changed means content that has not changed.

    On macOS, where nothing tells what a file system is, it is taken for a local one.
    """
    kind = file_system_type(path)
    return kind in _TRUSTED if kind or sys.platform in ("linux", "win32") else True


def file_system_type(path: Path) -> str:
    """The type of the file system that holds a path, or nothing where the system does not tell."""
    if sys.platform == "win32":
        return system.volume_type(path)
    mount = find_mount(path)
    return mount.kind if mount is not None else ""


@dataclass(frozen=True, slots=True)
class Mount:
    """Where, as what and how a file system is mounted."""

    point: str
    kind: str
    options: str


def find_mount(path: Path) -> Mount | None:
    """The mount that holds a path; None where the system does not tell."""
    try:
        lines = Path("/proc/self/mounts").read_bytes().split(b"\n")
    except OSError:
        return None
    real = os.fsencode(os.path.realpath(path))
    longest, mount = b"", None
    for line in filter(None, lines):
        _, escaped, kind, options, *_ = line.split(b" ")
        # Spaces and the like are written as octal escapes.
        point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), escaped)
        inside = real == point or real.startswith(point.rstrip(b"/") + b"/")
        # Of two mounts at the same place the later one hides the other.
        if inside and len(point) >= len(longest):
            longest, mount = point, Mount(*map(os.fsdecode, (point, kind, options)))
    return mount


def file_system_time(folder: Path) -> int:
    """Now, in nanoseconds, by the file system that holds a folder: its stamps are compared with nothing else."""
    now = _time_of_new_file(folder)
    if now is None:
        # Nothing can be made there. Local file systems all go by the kernel's clock, and any of them can tell it; what
        # this process is told may be another time.
        with contextlib.suppress(FileNotFoundError):
            now = _time_of_new_file(Path(tempfile.gettempdir()))
    return time.time_ns() if now is None else now


def _time_of_new_file(folder: Path) -> int | None:
    """The time that a file made in a folder gets; None where none can be made."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):
        # A file without a name leaves no trace, not even in its folder's times.
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
    return None


def resource_error(path: Path, number: int) -> SourceError | None:
    """The error for an errno that says something about this machine and nothing about a file; None for others.

    A source must not be reported as unusable, and left out, because the process has too many files open.
    """
    if number not in _RESOURCE_ERRORS:
        return None
    hint = "free some memory" if number == errno.ENOMEM else "close some files or raise `ulimit -n`"
    return SourceError(path, f"cannot be read just now: {os.strerror(number)}", hint=hint)
