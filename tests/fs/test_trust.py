"""File systems: their clock, and whether their stamps can be relied on."""

from __future__ import annotations

import ctypes
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precook.fs.trust import file_system_time, file_system_type, stamps_are_reliable
from precook.sources.walk import walk
from tests.support.listings import ROLES, make


def test_the_clock_is_the_file_systems_and_leaves_no_trace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies between two files written around it, whatever time the process believes in."""
    monkeypatch.setattr(time, "time_ns", lambda: 12345)
    for folder in (root, Path("/proc")):  # in the second, nothing can be made
        make(root, "before")
        looks = os.stat(root)
        now = file_system_time(folder)
        if folder == root:
            assert os.stat(root) == looks
            assert os.listdir(root) == ["before"]
        make(root, "after")
        assert (root / "before").stat().st_mtime_ns <= now <= (root / "after").stat().st_mtime_ns
        (root / "after").unlink()


def test_file_systems_that_keep_no_change_time_are_not_trusted(root: Path) -> None:
    """A kind that nobody has vouched for is not believed."""
    assert file_system_type(Path("/proc/self/status")) == "proc"
    assert not stamps_are_reliable(Path("/proc/self"))
    if file_system_type(root) in ("ext4", "xfs", "btrfs", "tmpfs", "overlay"):
        assert stamps_are_reliable(root)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, mounted under a name with a space, an umlaut and a backslash."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    libc = ctypes.CDLL(None, use_errno=True)
    target = tmp_path / "B\u00fccher und\\Bilder"
    target.mkdir()
    if libc.mount(b"none", bytes(target), b"ramfs", 0, None) != 0:
        pytest.skip(f"no permission to mount here: {os.strerror(ctypes.get_errno())}")
    try:
        yield target
    finally:
        libc.umount2(bytes(target), 2)


def test_a_mount_is_recognised_whatever_its_name(mounted: Path, tmp_path: Path) -> None:
    """A network drive under a name that is not ASCII must not be taken for the disk it is mounted on."""
    make(mounted, "sub/a.png")
    assert file_system_type(mounted) == file_system_type(mounted / "sub/a.png") == "ramfs"
    (tmp_path / "link").symlink_to(mounted / "sub")
    assert file_system_type(tmp_path / "link") == "ramfs"
    assert file_system_type(tmp_path) != "ramfs"
    assert file_system_type(tmp_path / "B\u00fccher") != "ramfs"
    assert file_system_type(mounted.with_name(mounted.name + " 2")) != "ramfs"
    assert stat.S_ISREG(int(walk(mounted, ROLES, recursive=True).modes[0]))
