"""File systems: which of them can be trusted about file times, and what time it is there."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_TRUSTED = frozenset(
    [
        "apfs",
        "bcachefs",
        "btrfs",
        "erofs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "fuseblk",
        "hfs",
        "iso9660",
        "jfs",
        "nilfs2",
        "ntfs",
        "ntfs3",
        "overlay",
        "ramfs",
        "reiserfs",
        "rootfs",
        "squashfs",
        "tmpfs",
        "udf",
        "ufs",
        "xfs",
        "zfs",
    ]
)
"""Local ones with a change time of their own. FAT keeps none; elsewhere the clock and the cache are somebody else's."""


def file_system(path: Path) -> str:
    """The type of the file system that holds a path, or nothing where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        # Spaces and the like are written as octal escapes.
        point = before.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape", "surrogateescape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return kind


def trusted(path: Path) -> bool:
    """Whether a stamp that has not changed means content that has not changed.

    Where the system does not tell what a file system is (outside Linux), it is taken for a local one.
    """
    kind = file_system(path)
    return not kind or kind in _TRUSTED


def clock(folder: Path) -> int:
    """Now, in nanoseconds, by the file system that holds a folder: its stamps are compared with nothing else."""
    with contextlib.suppress(OSError, AttributeError):
        # A file without a name leaves no trace, not even in its folder's times.
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
    # Nothing can be made there; a local file system takes its times from the kernel's clock.
    return time.time_ns()
