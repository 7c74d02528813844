"""Compaction: the same entries in fewer packs, whatever they hold, whoever reads them meanwhile."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.maintain import compact as compact_module
from precook.maintain.compact import CompactPlan, plan_compact
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from precook.maintain.prune import plan_clear
from precook.maintain.remove import Thresholds
from precook.store import files
from tests.support.snapshots import disk_bytes, freeze, make_older, packs, put_packs
from tests.support.trees import same, trees


def compact(store: precook.Store, **options: Any) -> CompactPlan:
    """Plan and execute, and compare the two with each other and with the disk."""
    before = disk_bytes(store.path)
    plan = plan_compact(store, **options)
    assert disk_bytes(store.path) == before
    done = plan.execute()
    assert done.freed == plan.freed == before - disk_bytes(store.path)
    assert done.copies == plan.copies
    assert len(packs(store.path)) == plan.packs_after
    return plan


def copy_packs(source: Path, to: Path) -> None:
    """Put packs of one store into another, as two builders of the same entries do."""
    for pack in packs(source):
        folder = to / "packs" / pack.parent.name
        folder.mkdir(exist_ok=True)
        shutil.copyfile(pack, folder / pack.name)


@settings(max_examples=30)
@given(
    groups=st.lists(st.lists(trees, min_size=1, max_size=6), min_size=1, max_size=5), dead=st.sets(st.integers(0, 30))
)
def test_every_tree_survives_compaction(groups: list[list[Any]], dead: set[int]) -> None:
    """All kinds of trees, recipes and labels come out as they went in; dead ones stay dead; one pack is left."""
    recipes = [precook.Recipe("one", {}), precook.Recipe("other", {"n": 1}), None]
    key = recipes[0].key  # type: ignore[union-attr]
    folder = Path(tempfile.mkdtemp(prefix="precook-compact-"))
    try:
        with precook.open(folder / "cache") as store:
            put: list[Any] = []
            for group in groups:
                with store.writer() as writer:
                    for tree in group:
                        number = len(put)
                        labels = {"n": number} if number % 2 else None
                        writer.put(key(number), tree, recipe=recipes[number % 3], labels=labels)
                        put.append(tree)
            live = [number for number in range(len(put)) if number not in dead]
            if live:
                freeze(store, "live", [key(number) for number in live])
                plan_gc(store, grace=0).execute()
            else:
                plan_clear(store, everything=True).execute()
            compact(store)
            assert len(packs(store.path)) == min(len(live), 1)
            assert store.missing([key(n) for n in range(len(put))]) == [key(n) for n in range(len(put)) if n in dead]
            for number in live:
                assert same(store.get(key(number)), put[number])
                located = store.locate(key(number))
                recipe = recipes[number % 3]
                assert located.recipe == (recipe.form if recipe else b"")
                assert located.labels == (b'{"n":%d}' % number if number % 2 else b"null")
            assert store.verify().clean
            assert store.reindex() == len(live)
            assert plan_compact(store).empty
    finally:
        shutil.rmtree(folder)


def test_small_packs_are_merged_up_to_the_size_of_one(store: precook.Store, recipe: precook.Recipe) -> None:
    """No new pack is larger than asked for, large ones are left alone."""
    put_packs(store, recipe, [[number] for number in range(12)])
    put_packs(store, recipe, [range(100, 110)])
    *_, small, large = sorted(packs(store.path), key=lambda pack: pack.stat().st_size)
    target = small.stat().st_size * 5
    plan = compact(store, target=target)
    assert all(pack.stat().st_size <= target for pack in packs(store.path) if pack != large)
    assert large.exists()
    assert plan.packs_after < 6
    assert plan_compact(store, target=target).groups == ()


def test_an_entry_in_two_packs_is_kept_once(store: precook.Store, recipe: precook.Recipe, tmp_path: Path) -> None:
    """Two builders that made the same entry leave one of it."""
    put_packs(store, recipe, [range(6)])
    with precook.open(tmp_path / "other") as other:
        put_packs(other, recipe, [range(3, 9)])
    copy_packs(tmp_path / "other", store.path)
    with precook.open(store.path) as again:
        assert compact(again).copies == 3
        assert len(again) == 9
        assert [again.locate(recipe.key(number)).copies for number in range(9)] == [1] * 9
        assert [again.get(recipe.key(number))["number"] for number in range(9)] == list(range(9))


def test_of_two_copies_the_sound_one_stays(store: precook.Store, recipe: precook.Recipe, tmp_path: Path) -> None:
    """A copy that went bad is not what is kept, whichever was first."""
    put_packs(store, recipe, [range(3)])
    with precook.open(tmp_path / "other") as other:
        put_packs(other, recipe, [range(3)])
    for number, pack in ((0, packs(store.path)[0]), (2, packs(tmp_path / "other")[0])):
        content = bytearray(pack.read_bytes())
        content[content.find(np.full(1000, number).tobytes()) + 80] ^= 1
        pack.write_bytes(content)
    copy_packs(tmp_path / "other", store.path)
    with precook.open(store.path) as again:
        plan_compact(again).execute()
        assert [again.get(recipe.key(number))["number"] for number in range(3)] == [0, 1, 2]
        plan_compact(again).execute()  # what was found to be damaged is dead by now
        assert again.verify().clean
        assert len(packs(store.path)) == 1


def test_damage_is_left_behind_and_becomes_a_miss(store: precook.Store, recipe: precook.Recipe) -> None:
    """A row that is not what was put is not carried into a new pack."""
    put_packs(store, recipe, [range(3), range(3, 6)])
    (pack,) = [pack for pack in packs(store.path) if np.full(1000, 1).tobytes() in pack.read_bytes()]
    content = bytearray(pack.read_bytes())
    content[content.find(np.full(1000, 1).tobytes()) + 80] ^= 1
    pack.write_bytes(content)
    with precook.open(store.path) as other:
        plan_compact(other).execute()
        assert other.missing([recipe.key(number) for number in range(6)]) == [recipe.key(1)]
        assert other.verify().clean


def test_readers_go_on_through_a_compaction(store: precook.Store, recipe: precook.Recipe) -> None:
    """What was handed out, what was looked up and what is still lazy: all of it reads the same later."""
    put_packs(store, recipe, [range(4), range(4, 8)], size=20_000)
    with precook.open(store.path) as reader, precook.open(store.path, read_only=True) as other:
        given_out = reader.get(recipe.key(0))["x"]
        again = reader.get(recipe.key(0))["x"]
        lazy = reader.get(recipe.key(1), lazy=True)["x"]
        other.get(recipe.key(2))
        before = set(packs(store.path))
        compact(store)
        assert before.isdisjoint(packs(store.path))
        assert (given_out == 0).all()
        assert (again == 0).all()
        assert (lazy.load() == 1).all()
        for number in range(8):
            assert (reader.get(recipe.key(number))["x"] == number).all()
            assert (other.get(recipe.key(number))["x"] == number).all()
        stacked = reader.stack([recipe.key(number) for number in range(8)])
        assert (stacked["x"][:, 0] == np.arange(8)).all()


def test_compaction_keeps_ages_and_the_order_of_use(path: Path, recipe: precook.Recipe) -> None:
    """An entry is as old after it as before, and the least recently used one is still that."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[0], [1], [2]])
    with precook.open(path) as store:
        store.get(recipe.key(0))
    newest = packs(path)[-1].stat().st_mtime_ns
    with precook.open(path) as store:
        compact(store)
        assert packs(path)[0].stat().st_mtime_ns == newest
        plan_evict(store, disk_bytes(path) - 1).execute()
        assert store.missing([recipe.key(number) for number in range(3)]) == [recipe.key(1)]


def test_what_a_compaction_takes_in_memory_does_not_grow_with_the_store(
    tmp_path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times as many packs take hardly more: it makes one new pack at a time, of a bounded number of entries."""
    monkeypatch.setattr(compact_module, "_MOST_ROWS", 2000)
    peaks = []
    for number, count in enumerate((4, 4, 20)):  # the first one imports what is needed
        with precook.open(tmp_path / f"{number}") as store:
            for pack in range(count):
                with store.writer(flush_bytes=1 << 40, flush_seconds=3600) as writer:
                    for row in range(500):
                        writer.put(recipe.key(pack, row), row, recipe=recipe)
            plan = plan_compact(store)
            tracemalloc.start()
            try:
                plan.execute()
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
            assert len(packs(store.path)) == count // 4
            assert len(store) == 500 * count
    assert peaks[2] < 1.5 * peaks[1]


def test_a_compaction_without_room_does_not_begin(small_disk: Path, recipe: precook.Recipe) -> None:
    """The space for a new pack is looked for first; nothing is touched where there is none."""
    with precook.open(small_disk / "cache") as store:
        put_packs(store, recipe, [[0], [1]], size=200_000)
        before = packs(store.path)
        with pytest.raises(precook.NoSpaceError, match="rewriting a pack takes") as caught:
            plan_compact(store).execute()
        assert caught.value.exit_code == 14
        assert packs(store.path) == before
        assert store.get(recipe.key(1))["number"] == 1


def test_a_place_that_was_found_while_its_pack_was_forgotten_is_looked_up_again(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that remembers a place in a pack which another thread forgets meanwhile still finds what was moved."""
    with precook.open(path) as store, precook.open(path) as other:
        put_packs(store, recipe, [range(2), range(2, 4)])
        lookup = store.internals().lookup
        confirm = lookup.confirm

        def confirm_and_forget(place: Any) -> Any:
            verdict = confirm(place)
            lookup.packs.let_go([place.pack])
            return verdict

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(lookup, "confirm", confirm_and_forget)
            store.get(recipe.key(0))
        plan_compact(other).execute()
        looks = itertools.count()
        refresh = store.internals().index.refresh

        def refresh_and_count() -> None:
            assert next(looks) < 5, "it looks for ever"
            refresh()

        monkeypatch.setattr(store.internals().index, "refresh", refresh_and_count)
        assert store.get(recipe.key(0))["number"] == 0


@pytest.mark.parametrize("point", ["maintenance.locked", "compact.published", "compact.switched"])
def test_a_pack_that_vanishes_meanwhile_takes_no_other_with_it(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Somebody removes a file by hand: its entries are misses or were copied already, and all others are there."""
    put_packs(store, recipe, [range(3), range(3, 6), range(6, 9)])
    victim = packs(store.path)[1]

    def vanish(reached: str) -> None:
        if reached == point:
            victim.unlink(missing_ok=True)

    monkeypatch.setattr(files, "reached", vanish)
    plan_compact(store).execute()
    lost = range(3, 6) if point == "maintenance.locked" else ()
    for number in range(9):
        found = store.get(recipe.key(number), None)
        assert found is None if number in lost else found["number"] == number
    assert victim not in packs(store.path)
    assert store.verify().clean
    put_packs(store, recipe, [lost])
    assert store.missing([recipe.key(number) for number in range(9)]) == []


@pytest.mark.parametrize(("dead", "rewritten"), [(1, False), (2, True)])
def test_a_pack_is_rewritten_from_a_tenth_on(
    store: precook.Store, recipe: precook.Recipe, *, dead: int, rewritten: bool
) -> None:
    """Exactly a tenth is enough, as the guide says; less stays where it is."""
    # Of two digits each: all entries have as many bytes.
    put_packs(store, recipe, [range(10, 30)])
    kept = [recipe.key(number) for number in range(10 + dead, 30)]
    freeze(store, "cats", kept)
    make_older(store.path, 48 * 3600)
    # Only dropped: a removal may itself rewrite a pack.
    plan_gc(store, thresholds=Thresholds(1.0, 1.0)).execute()
    assert len(store) == 20 - dead
    plan = plan_compact(store, target=1)
    assert [len(group.packs) for group in plan.groups] == ([1] if rewritten else [])
    plan.execute()
    assert store.missing(kept) == []
