"""The maintenance lock and its reserve: entries can be removed from a disk that is full."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.gc import plan_gc
from precook.maintain.lock import keep_reserve, make_reserve
from precook.store.layout import Layout
from tests.support.snapshots import put_packs


def fill(disk: Path) -> None:
    """Leave not a byte free."""
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_full_disk_can_be_collected_from_with_a_reserve(small_disk: Path, recipe: precook.Recipe) -> None:
    """Without one the removal cannot begin; with one it frees its own room first, and nothing else is harmed."""
    with precook.open(small_disk / "cache") as store:
        put_packs(store, recipe, [[number] for number in range(4)], size=50_000)
        with store.lease("kept") as lease:
            lease.protect(np.frombuffer(recipe.key(0).bytes, np.uint8).reshape(1, 32))
            layout = Layout(store.path)
            make_reserve(layout, 1 << 20)
            fill(small_disk)
            with pytest.raises(precook.NoSpaceError):
                store.put(recipe.key(9), np.zeros(50_000))
            assert plan_gc(store, grace=0).execute().entries == 3
            assert not layout.reserve.exists()
            assert store.get(recipe.key(0))["number"] == 0
    with precook.open(small_disk / "cache") as store:
        assert len(store) == 1
        assert store.verify().clean


def test_a_full_disk_without_a_reserve_is_a_named_error(small_disk: Path, recipe: precook.Recipe) -> None:
    """Exit code 14, and everything is still there."""
    with precook.open(small_disk / "cache") as store:
        put_packs(store, recipe, [[number] for number in range(4)], size=50_000)
        fill(small_disk)
        with pytest.raises(precook.NoSpaceError) as caught:
            plan_gc(store, grace=0).execute()
        assert caught.value.exit_code == 14
        (small_disk / "ballast").unlink()
        assert [store.get(recipe.key(number))["number"] for number in range(4)] == [0, 1, 2, 3]


def test_a_small_store_keeps_no_reserve(store: precook.Store, recipe: precook.Recipe) -> None:
    """A reserve takes a hundredth of a store at most; one that is large enough gets it, once."""
    store.put(recipe.key(1), 1)
    layout = Layout(store.path)
    assert not layout.reserve.exists()
    assert not keep_reserve(layout, 99 << 20, size=1 << 20)
    assert keep_reserve(layout, 100 << 20, size=1 << 20)
    assert layout.reserve.stat().st_size == 1 << 20
    assert keep_reserve(layout, 100 << 20, size=1 << 20)
