"""Writes that the disk begins with early, and groups that nobody waits for."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.store import files


@pytest.mark.parametrize("sizes", [[100] * 1000, [5 << 20] * 5, [20 << 20, 1, 0, 9 << 20, 7]])
def test_a_file_written_in_parts_has_every_byte(tmp_path: Path, sizes: list[int]) -> None:
    """However a large file is shared out to writes, its content is that of the buffers, end to end."""
    rng = np.random.default_rng(0)
    buffers = [rng.bytes(size) for size in sizes]
    files.publish(tmp_path / "file", buffers)
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)


def test_hurry_commits_without_waiting_for_more(path: Path, recipe: precook.Recipe) -> None:
    """Entries become durable by themselves after `hurry`, though the group is neither full nor old."""
    keys = [recipe.key(number) for number in range(3)]
    with precook.open(path, flush_seconds=3600) as store, store.writer() as writer:
        writer.hurry()  # nothing to do
        for key in keys:
            writer.put(key, np.zeros(4))
            assert key not in store
        writer.hurry()
        for thread in threading.enumerate():
            if thread.name == "precook-writer":
                thread.join(60)  # it ends when there is nothing left to commit
        assert store.missing(keys) == []
        with precook.open(path, read_only=True) as other:
            assert other.missing(keys) == []
