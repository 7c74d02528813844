"""`precook compact`: fewer and fuller packs."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import run
from tests.support.snapshots import packs


def test_compact_merges_what_is_small(cache: Path) -> None:
    """Two packs become one, and the document says what that freed."""
    assert "2 → 1" in run("compact", "--store", cache).out
    preview = run("compact", "--store", cache, "--json").document
    assert len(packs(cache)) == 2
    done = run("compact", "--store", cache, "--json", "--yes").document
    assert done["done"]["freed_bytes"] == preview["freed_bytes"]
    assert len(packs(cache)) == 1
    assert "nothing to compact" in run("compact", "--store", cache, "--yes").out
