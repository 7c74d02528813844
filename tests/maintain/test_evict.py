"""Bounds: least recently used first, down to a size, by age, or all of a kind; never what the run itself needs."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.maintain import prune
from precook.maintain.evict import plan_evict
from precook.maintain.prune import plan_clear, plan_prune
from precook.maintain.remove import Removal, RemovalPlan
from precook.store import internals, pack_cache
from precook.store.index.index import Index
from precook.store.index.scan import EntryScan
from precook.store.index.schema import Names
from precook.store.layout import Layout
from tests.support.snapshots import columns, disk_bytes, freeze, make_older, packs, put_packs

DAY = 24 * 3600.0


def executed(store: precook.Store, plan: RemovalPlan) -> RemovalPlan:
    """Execute a plan and compare what it did with what it said."""
    before = disk_bytes(store.path)
    done = plan.execute()
    assert (done.entries, done.nbytes, done.freed) == (plan.entries, plan.nbytes, plan.freed)
    assert before - disk_bytes(store.path) == plan.freed
    assert sum(pack.stat().st_size for pack in packs(store.path)) == plan.size_after
    return plan


def left(store: precook.Store, recipe: precook.Recipe, numbers: range) -> list[int]:
    return [number for number in numbers if recipe.key(number) in store]


def test_the_least_recently_used_go_first_whatever_pack_they_lie_in(path: Path, recipe: precook.Recipe) -> None:
    """Entries that were read since they were written outlive those that were not, entry by entry."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(5), range(5, 10)])
    with precook.open(path) as store:
        for number in (1, 3, 7):
            store.get(recipe.key(number))
    with precook.open(path) as store:
        one = disk_bytes(path) // 10
        plan = executed(store, plan_evict(store, 5 * one))
        assert plan.size_after <= 5 * one
        # Of those that nobody read, the first pack is the older one.
        assert left(store, recipe, range(10)) in ([1, 3, 7, 9], [1, 3, 7, 8, 9])
        assert store.verify().clean
        executed(store, plan_evict(store, 0))
        assert len(store) == 0


def test_a_store_that_fits_is_left_alone(store: precook.Store, recipe: precook.Recipe) -> None:
    """Nothing is rewritten for the sake of it."""
    put_packs(store, recipe, [range(5)])
    assert plan_evict(store, disk_bytes(store.path)).empty


def test_snapshots_and_leases_are_not_evicted(store: precook.Store, recipe: precook.Recipe) -> None:
    """Where they leave no room, the plan says what stays and that it is more than was asked for."""
    put_packs(store, recipe, [range(10)])
    freeze(store, "cats", [recipe.key(number) for number in range(4)])
    with precook.open(store.path) as other, store.lease("feed") as lease:
        lease.protect(columns([recipe.key(5)]))
        plan = executed(other, plan_evict(other, 1))
        assert plan.size_after > 1
        assert sorted(share.entries for share in plan.kept) == [1, 4]
        assert left(other, recipe, range(10)) == [0, 1, 2, 3, 5]


def test_max_bytes_bounds_the_packs_while_writing(path: Path, recipe: precook.Recipe) -> None:
    """Older runs' entries make room for this one's, and the packs never take more."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[number] for number in range(20)])
    bound = disk_bytes(path) + 100
    with precook.open(path, max_bytes=bound) as store:
        for number in range(20, 35):
            put_packs(store, recipe, [[number]])
            assert disk_bytes(path) <= bound
        assert left(store, recipe, range(20, 35)) == list(range(20, 35))
        gone = [number for number in range(20) if recipe.key(number) not in store]
        assert gone == list(range(len(gone)))
        assert len(gone) >= 15
        assert store.verify().clean


def test_what_this_run_read_is_not_evicted_by_what_it_writes(path: Path, recipe: precook.Recipe) -> None:
    """Entries read in this run stay although others are younger."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[number] for number in range(10)])
    with precook.open(path, max_bytes=disk_bytes(path)) as store:
        for number in (0, 1):
            store.get(recipe.key(number))
        put_packs(store, recipe, [[10], [11], [12]])
        assert left(store, recipe, range(2)) == [0, 1]
        assert left(store, recipe, range(10, 13)) == [10, 11, 12]


def test_a_run_that_does_not_fit_stops_before_it_eats_itself(path: Path, recipe: precook.Recipe) -> None:
    """Writing ends with a clear error, everything written before it is there, and nothing was evicted for it."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[0], [1]])
        one = disk_bytes(path) // 2
    with precook.open(path, max_bytes=4 * one) as store:
        freeze(store, "cats", [recipe.key(0)])
        with pytest.raises(precook.StoreFullError, match="max_bytes") as caught:
            put_packs(store, recipe, [[number] for number in range(2, 20)])
        assert isinstance(caught.value, precook.NoSpaceError)
        assert caught.value.exit_code == 14
        written = left(store, recipe, range(2, 20))
        assert written == list(range(2, 2 + len(written)))
        assert len(written) == 3
        assert left(store, recipe, range(2)) == [0]
        assert store.verify().clean
        with pytest.raises(precook.StoreFullError):
            store.put(recipe.key(100), np.zeros(100 * one, np.uint8))
        assert left(store, recipe, range(2)) == [0]


def test_prune_takes_what_nobody_used_for_a_while(path: Path, recipe: precook.Recipe) -> None:
    """By last use, not by age alone; what a snapshot names stays."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(6)])
        freeze(store, "cats", [recipe.key(0)])
        make_older(path, 40 * DAY)
    with precook.open(path) as store:
        store.get(recipe.key(1))
    with precook.open(path) as store:
        put_packs(store, recipe, [[6]])
        plan = executed(store, plan_prune(store, 30 * DAY))
        assert plan.goes[0].name == "not used for 30 d"
        assert left(store, recipe, range(7)) == [0, 1, 6]


def test_clear_takes_one_recipe_one_dataset_or_everything(store: precook.Store, recipe: precook.Recipe) -> None:
    """However young; pinned snapshots keep what they name."""
    other = precook.Recipe("other", {})
    put_packs(store, recipe, [range(6)])
    put_packs(store, other, [range(6)])
    cats = freeze(store, "cats", [recipe.key(0), recipe.key(1), other.key(0)]).file
    freeze(store, "dogs", [recipe.key(1), recipe.key(2)])
    with pytest.raises(precook.StoreError, match="no recipe"):
        plan_clear(store, recipe="nonsense")
    with pytest.raises(precook.NoSnapshotError):
        plan_clear(store, dataset="nonsense")
    with pytest.raises(ValueError, match="one of"):
        plan_clear(store, dataset="cats", everything=True)
    executed(store, plan_clear(store, dataset="cats"))
    assert [file.dataset for file in store.snapshots()] == ["dogs"]
    assert left(store, recipe, range(6)) == [1, 2, 3, 4, 5]
    assert left(store, other, range(6)) == [1, 2, 3, 4, 5]
    dogs = store.snapshots()[0]
    store.pin(dogs)
    executed(store, plan_clear(store, recipe="test"))
    assert left(store, recipe, range(6)) == [1, 2]
    executed(store, plan_clear(store, recipe=other.hex[:8]))
    assert left(store, other, range(6)) == []
    assert executed(store, plan_clear(store, everything=True)).empty
    store.unpin(dogs)
    executed(store, plan_clear(store, everything=True))
    assert (len(store), store.snapshots(), packs(store.path)) == (0, [], [])
    assert cats.dataset == "cats"


@settings(max_examples=25)
@given(
    sizes=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), min_size=1, max_size=5),
    share=st.floats(0, 1.2),
)
def test_an_eviction_takes_as_little_as_it_must(sizes: list[list[int]], share: float) -> None:
    """What stays fits, the oldest are gone first, and the last one that went did not fit."""
    recipe = precook.Recipe("property", {})
    folder = Path(tempfile.mkdtemp(prefix="precook-evict-"))
    try:
        with precook.open(folder / "cache") as store:
            number = 0
            for group in sizes:
                with store.writer() as writer:
                    for size in group:
                        writer.put(recipe.key(number), np.zeros(size, np.uint8))
                        number += 1
        with precook.open(folder / "cache") as store:
            bound = int(disk_bytes(folder) * share)
            plan = executed(store, plan_evict(store, bound))
            assert plan.size_after <= bound or not len(store)
            there = left(store, recipe, range(number))
            assert there == list(range(number - len(there), number))
            if share >= 1:
                assert plan.empty
    finally:
        shutil.rmtree(folder)


def test_max_bytes_holds_when_somebody_comes_to_need_what_was_to_go(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is taken while room is made spares its entries; others go in their place."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[number] for number in range(10)])
    bound = disk_bytes(path)
    leases: list[Any] = []
    execute = RemovalPlan.execute

    def lease_and_execute(plan: RemovalPlan, *args: Any) -> Removal:
        if not leases:
            leases.append(other.lease("somebody"))
            leases[0].protect(columns([recipe.key(number) for number in range(4)]))
        return execute(plan, *args)

    monkeypatch.setattr(RemovalPlan, "execute", lease_and_execute)
    with precook.open(path) as other, precook.open(path, max_bytes=bound) as store:
        put_packs(store, recipe, [[10]])
        assert disk_bytes(path) <= bound
        assert left(store, recipe, range(4)) == [0, 1, 2, 3]
        assert recipe.key(10) in store


def test_a_use_that_cannot_be_recorded_is_not_tried_at_every_read(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody holds the lock, reading waits for it once and then goes on until the next record is due."""
    tries = []

    def refuse(*_: object, **__: object) -> None:
        tries.append(1)
        raise precook.LockedError(path, "held")

    with precook.open(path) as store:
        put_packs(store, recipe, [range(2)])
        store.get(recipe.key(0))
        monkeypatch.setattr(Index, "record_uses", refuse)
        later = time.monotonic() + 2 * internals._RECORD_SECONDS
        monkeypatch.setattr(internals, "time", SimpleNamespace(monotonic=lambda: later))
        for _ in range(5):
            store.get_many([recipe.key(0)])
        assert tries == [1]


def test_what_was_used_is_remembered_in_bounded_memory(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that opens and forgets packs for ever keeps each key that it used once, not each use."""
    monkeypatch.setattr(pack_cache, "_HEADS", 0)
    monkeypatch.setattr(pack_cache, "_TOUCHES", 20)
    with precook.open(path) as store:
        put_packs(store, recipe, [[0], [1]])
        for number in range(100):
            store.get(recipe.key(number % 2))
        assert len(store.internals().packs.touched()) < 30


def test_an_index_made_anew_meanwhile_does_not_mix_up_recipes(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another index numbers recipes its own way: what goes is what the named recipe made, and nothing else."""
    other = precook.Recipe("other", {"version": 1})
    with store.writer() as writer:
        writer.put(recipe.key(0), np.arange(3), recipe=recipe)
        writer.put(other.key(0), np.arange(3), recipe=other)

    def renumber(layout: Layout, index: Index) -> EntryScan:
        def swap(db: sqlite3.Connection) -> None:
            for statement in (
                "UPDATE entry SET recipe = 3 - recipe",
                "UPDATE recipe SET number = -number",
                "UPDATE recipe SET number = 3 + number",
            ):
                db.execute(statement)

        with index.exclusive():
            index._write(swap)
        index._names = Names({}, {}, {})
        return EntryScan(layout, index)

    monkeypatch.setattr(prune, "EntryScan", renumber)
    plan_clear(store, recipe="other").execute()
    assert recipe.key(0) in store
    assert other.key(0) not in store
