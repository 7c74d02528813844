"""Reading a file that should be small: it is read whole, or refused for what it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from precook.fs.read import NotAFileError, TooLargeError, read_small


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
