"""File systems: which of them can be trusted about file times, what time it is there, and what they cannot help."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from precook.errors import SourceError

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
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def file_system(path: Path) -> str:
    """The type of the file system that holds a path, or nothing where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    except OSError:
        return ""
    real = os.fsencode(os.path.realpath(path))
    best, kind = b"", b""
    for line in filter(None, lines):
        before, _, after = line.partition(b" - ")
        # Spaces and the like are written as octal escapes.
        point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), before.split(b" ")[4])
        inside = real == point or real.startswith(point.rstrip(b"/") + b"/")
        # Of two at the same place the later one hides the other.
        if inside and len(point) >= len(best):
            best, kind = point, after.split(b" ")[0]
    return os.fsdecode(kind)


def trusted(path: Path) -> bool:
    """Whether a stamp that has not changed means content that has not changed.

    Outside Linux, where nothing tells what a file system is, it is taken for a local one.
    """
    kind = file_system(path)
    return kind in _TRUSTED if kind or sys.platform == "linux" else True


def clock(folder: Path) -> int:
    """Now, in nanoseconds, by the file system that holds a folder: its stamps are compared with nothing else."""
    found = _time_in(folder)
    if found is None:
        # Nothing can be made there. Local file systems all go by the kernel's clock, and any of them can tell it; what
        # this process is told may be another time.
        with contextlib.suppress(FileNotFoundError):
            found = _time_in(Path(tempfile.gettempdir()))
    return time.time_ns() if found is None else found


def _time_in(folder: Path) -> int | None:
    """The time that a file made in a folder gets; None where none can be made."""
    with contextlib.suppress(OSError, AttributeError):
        # A file without a name leaves no trace, not even in its folder's times.
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
    return None


def exhausted(path: Path, number: int) -> SourceError | None:
    """The error for an errno that says something about this machine and nothing about a file; None for others.

    A source must not be reported as unusable, and left out, because the process has too many files open.
    """
    if number not in _EXHAUSTED:
        return None
    hint = "free some memory" if number == errno.ENOMEM else "close some files or raise `ulimit -n`"
    return SourceError(path, f"cannot be read just now: {os.strerror(number)}", hint=hint)
