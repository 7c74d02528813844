"""Private mappings of a file: what is written to one stays there, and one that nobody wrote to is used again."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precook.fs.system import system
from precook.values import Bytes

_SIZE = 5 * 4096 + 7

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows' mappings are Python's own")


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    """A file of more than one page."""
    path = tmp_path / "file"
    path.write_bytes(_content().tobytes())
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


def _content() -> Bytes:
    return np.arange(_SIZE).astype(np.uint8)


def _address(array: Bytes) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="this system does not tell what was written to")
def test_a_mapping_that_was_only_read_is_used_again(descriptor: int) -> None:
    """Its pages are there already: nobody waits for the system to find them once more."""
    spares: deque[Any] = deque(maxlen=1)
    first = system.map_file(descriptor, _SIZE, private=True, spares=spares)
    address = _address(first)
    assert np.array_equal(first, _content())
    view = first[4096:]
    del first
    assert not spares, "a part of it is still in use"
    other = system.map_file(descriptor, _SIZE, private=True, spares=spares)
    assert _address(other) != address
    del view
    assert len(spares) == 1
    again = system.map_file(descriptor, _SIZE, private=True, spares=spares)
    assert _address(again) == address
    assert np.array_equal(again, _content())


@pytest.mark.parametrize("place", [0, 3 * 4096 + 5, _SIZE - 1])
def test_what_was_written_is_seen_by_nobody_else(descriptor: int, place: int) -> None:
    """A mapping that was written to, at any place of it, is gone when its last array is, and the file is as it was."""
    spares: deque[Any] = deque(maxlen=1)
    for _ in range(3):
        mapped = system.map_file(descriptor, _SIZE, private=True, spares=spares)
        assert np.array_equal(mapped, _content())
        mapped[place] ^= 0xFF
        del mapped
        assert not spares
    assert os.pread(descriptor, _SIZE, 0) == _content().tobytes()


def test_what_was_written_before_a_fork_is_known_after_it(descriptor: int) -> None:
    """A forked process looks at memory of its own."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    spares: deque[Any] = deque(maxlen=1)
    mapped = system.map_file(descriptor, _SIZE, private=True, spares=spares)
    assert mapped.sum()
    child = os.fork()
    if not child:
        mapped[5] ^= 0xFF
        del mapped
        os._exit(len(spares))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert mapped[5] == 5
