"""Reading a file that should be small: it is read whole, or refused for what it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from precook.fs.read import NotAFileError, TooLargeError, bytes_there, open_source, read_small


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_file_up_to_the_limit_is_read(root: Path, size: int) -> None:
    """The limit itself is allowed."""
    (root / "a").write_bytes(b"x" * size)
    assert read_small(root / "a", 100) == b"x" * size


def test_a_file_that_says_it_is_empty_is_read_no_further_than_the_limit() -> None:
    """Files of /proc have no size, and may be long."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc here")
    with pytest.raises(TooLargeError):
        read_small("/proc/self/maps", 100)


def test_what_is_refused_is_named(root: Path) -> None:
    """One byte too many, a FIFO and a folder; a file that is not there is the system's own error."""
    (root / "large").write_bytes(b"x" * 101)
    os.mkfifo(root / "fifo")
    with pytest.raises(TooLargeError, match="larger than 100 bytes"):
        read_small(root / "large", 100)
    with pytest.raises(NotAFileError, match="a FIFO, not a file"):
        read_small(root / "fifo", 100)
    with pytest.raises(NotAFileError, match="a folder, not a file"):
        read_small(root, 100)
    with pytest.raises(FileNotFoundError) as missing:
        read_small(root / "nothing", 100)
    assert missing.value.errno == errno.ENOENT


def test_holes_are_no_bytes(tmp_path: Path) -> None:
    """A file that is long and takes no room has none; counting leaves the descriptor where it was."""
    path = tmp_path / "holes"
    path.write_bytes(b"x" * 5000)
    os.truncate(path, 1 << 40)
    with open_source(path) as (descriptor, status):
        os.lseek(descriptor, 3, os.SEEK_SET)
        assert 5000 <= bytes_there(descriptor, status.st_size) < 1 << 20
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 3
    path.write_bytes(b"")
    with open_source(path) as (descriptor, status):
        assert bytes_there(descriptor, status.st_size) == 0
