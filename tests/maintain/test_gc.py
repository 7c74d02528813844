"""Collection: exactly what nobody needs goes, the preview is the run, and nothing comes back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.fs.trust import file_system_time
from precook.maintain.gc import plan_gc
from precook.maintain.remove import Removal, RemovalPlan, Thresholds
from precook.store import internals
from tests.support.commands import run
from tests.support.snapshots import columns, disk_bytes, freeze, make_older, packs, put_packs

DAY = 24 * 3600.0


def collect(store: precook.Store, **options: object) -> tuple[RemovalPlan, Removal]:
    """Plan and execute, and compare the two with each other and with the disk."""
    before = disk_bytes(store.path)
    plan = plan_gc(store, **options)  # type: ignore[arg-type]
    assert disk_bytes(store.path) == before
    done = plan.execute()
    assert (done.entries, done.nbytes, done.freed) == (plan.entries, plan.nbytes, plan.freed)
    assert (done.packs_unlinked, done.packs_rewritten) == (len(plan.unlink), len(plan.rewrite))
    assert done.snapshots == len(plan.snapshots)
    assert before - disk_bytes(store.path) == plan.freed
    return plan, done


def keys(recipe: precook.Recipe, numbers: object) -> list[precook.Key]:
    return [recipe.key(number) for number in numbers]  # type: ignore[attr-defined]


def test_what_the_latest_snapshot_names_stays_and_the_rest_goes(store: precook.Store, recipe: precook.Recipe) -> None:
    """Of three packs one stays as it is, one is rewritten, one is removed; the disk gains what the preview said."""
    put_packs(store, recipe, [range(10), range(10, 20), range(20, 30)])
    freeze(store, "cats", keys(recipe, range(15)))
    plan, _ = collect(store, grace=0)
    assert plan.entries == 15
    assert len(plan.unlink) == len(plan.rewrite) == 1
    assert [(share.name, share.entries) for share in plan.kept] == [("snapshot: cats 1", 15)]
    assert store.missing(keys(recipe, range(30))) == keys(recipe, range(15, 30))
    assert [store.get(key)["number"] for key in keys(recipe, range(15))] == list(range(15))
    assert store.verify().clean
    assert plan_gc(store, grace=0).empty


def test_what_was_removed_does_not_come_back(store: precook.Store, recipe: precook.Recipe) -> None:
    """A pack that stays keeps its dead rows out of the index, also when that is made anew or the store opened again."""
    put_packs(store, recipe, [range(100)])
    freeze(store, "cats", keys(recipe, range(95)))
    plan, _ = collect(store, grace=0)
    assert (plan.rewrite, plan.freed, plan.entries) == ((), 0, 5)
    assert plan.dead > 0
    with precook.open(store.path) as other:
        assert len(other) == 95
        assert other.reindex() == 95
    assert plan_gc(store, grace=0).entries == 0
    # More of it dies: then it is rewritten.
    freeze(store, "cats", keys(recipe, range(50)))
    plan, _ = collect(store, grace=0)
    assert len(plan.rewrite) == 1
    assert store.reindex() == 50


def test_without_the_record_of_what_was_dropped_it_comes_back_unharmed(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """Deleting the index costs the knowledge of dead rows: they are entries again, whole, until the next collection."""
    put_packs(store, recipe, [range(100)])
    freeze(store, "cats", keys(recipe, range(95)))
    collect(store, grace=0)
    store.close()
    for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
        (store.path / name).unlink(missing_ok=True)
    with precook.open(store.path) as again:
        assert len(again) == 100
        assert again.get(recipe.key(99))["number"] == 99
        assert collect(again, grace=0)[0].entries == 5


def test_thresholds_decide_when_a_pack_is_rewritten(store: precook.Store, recipe: precook.Recipe) -> None:
    """A dead share below the one asked for stays where it is."""
    put_packs(store, recipe, [range(10)])
    freeze(store, "cats", keys(recipe, range(7)))
    assert len(plan_gc(store, grace=0).rewrite) == 1
    assert plan_gc(store, grace=0, thresholds=Thresholds(of_pack=0.5)).rewrite == ()
    assert plan_gc(store, grace=0, thresholds=Thresholds(of_store=0.5)).rewrite == ()


def test_young_entries_stay_and_ages_go_by_the_files(store: precook.Store, recipe: precook.Recipe) -> None:
    """Grace counts from when a pack was written; a time in the future counts as now and protects no longer."""
    put_packs(store, recipe, [range(5)])
    make_older(store.path, 2 * DAY)
    put_packs(store, recipe, [range(5, 10)])
    plan = plan_gc(store)
    assert (plan.entries, plan.kept[0].entries) == (5, 5)
    assert "younger than 1 d" in plan.kept[0].name
    for pack in packs(store.path):
        os.utime(pack, ns=(2**62, 2**62))
    assert plan_gc(store).entries == 0
    assert plan_gc(store, grace=0).entries == 10


def test_what_was_read_lately_stays(path: Path, recipe: precook.Recipe) -> None:
    """A use counts like a write, once the store was closed; a use long ago does not."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(10)])
        make_older(path, 3 * DAY)
    with precook.open(path) as store:
        store.get(recipe.key(3))
        store.stack([recipe.key(4)])
        store.get(recipe.key(5), lazy=True)
    with precook.open(path) as store:
        collect(store)
        assert store.missing(keys(recipe, range(10))) == keys(recipe, [0, 1, 2, 6, 7, 8, 9])


def test_putting_an_old_entry_again_keeps_it(path: Path, recipe: precook.Recipe) -> None:
    """`put` promises that the entry is there when it returns, also when it was there before and nobody needed it."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(2)])
        make_older(path, 3 * DAY)
    writer, collector = precook.open(path), precook.open(path)
    with writer, collector:
        plan = plan_gc(collector)
        assert plan.entries == 2
        writer.put(recipe.key(0), {"x": np.full(1000, 0), "number": 0}, recipe=recipe)
        done = plan.execute()
        assert (done.entries, done.spared) == (1, 1)
        assert recipe.key(0) in writer


def test_a_newer_snapshot_releases_what_only_the_older_one_named(store: precook.Store, recipe: precook.Recipe) -> None:
    """The older one goes with its entries once it is old; pinned, both stay for good."""
    put_packs(store, recipe, [range(4), range(4, 8)])
    first = freeze(store, "cats", keys(recipe, range(4))).file
    freeze(store, "cats", keys(recipe, range(4, 8)))
    make_older(store.path, 2 * DAY)
    store.pin(first)
    assert [file.pinned for file in store.snapshots()] == [True, False]
    assert plan_gc(store).empty
    with pytest.raises(precook.PinnedError):
        store.remove_snapshot(first)
    store.unpin(first)
    plan, _ = collect(store)
    assert plan.snapshots == (first,)
    assert plan.entries == 4
    assert [file.number for file in store.snapshots()] == [2]


def test_a_young_snapshot_keeps_its_entries_although_a_newer_one_is_there(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """Whoever edits a dataset can go back to yesterday's."""
    put_packs(store, recipe, [range(4)])
    make_older(store.path, 2 * DAY)
    freeze(store, "cats", keys(recipe, range(4)))
    freeze(store, "cats", keys(recipe, range(1)))
    assert plan_gc(store).empty
    assert plan_gc(store, grace=0).entries == 3


def test_a_plan_that_is_executed_again_spares_the_same(store: precook.Store, recipe: precook.Recipe) -> None:
    """What was leased after the plan was made stays, however often the plan is executed, say after an interruption."""
    put_packs(store, recipe, [range(4)])
    plan = plan_gc(store, grace=0)
    with store.lease("late") as lease:
        lease.protect(columns(keys(recipe, [2])))
        assert (plan.execute().entries, plan.execute().entries) == (3, 0)
        assert store.missing(keys(recipe, [2])) == []


def test_a_snapshot_that_cannot_be_read_stops_a_collection(store: precook.Store, recipe: precook.Recipe) -> None:
    """Nobody knows what it keeps, so nothing is removed."""
    put_packs(store, recipe, [range(4)])
    file = freeze(store, "cats", keys(recipe, range(4))).file
    content = bytearray(file.path.read_bytes())
    content[-1] ^= 1
    file.path.write_bytes(content)
    with pytest.raises(precook.DamagedPackError):
        plan_gc(store, grace=0)
    assert len(store) == 4


def test_absent_sources_keep_everything(store: precook.Store, recipe: precook.Recipe) -> None:
    """A drive that is not mounted is named as what protects it all."""
    put_packs(store, recipe, [range(4)])
    plan = plan_gc(store, grace=0, absent=["cats (data/cats)"])
    assert plan.empty
    assert [(share.name, share.entries) for share in plan.kept] == [("not there: cats (data/cats)", 4)]


def test_a_pack_that_is_all_damaged_goes(store: precook.Store, recipe: precook.Recipe) -> None:
    """Damaged entries are misses already; a collection removes the pack that has nothing else."""
    put_packs(store, recipe, [[1]])
    (pack,) = packs(store.path)
    content = bytearray(pack.read_bytes())
    content[-1] ^= 1
    pack.write_bytes(content)
    with pytest.raises(precook.DamagedEntryError):
        store.get(recipe.key(1))
    assert pack.exists()
    plan, _ = collect(store, grace=DAY)
    assert (plan.entries, len(plan.unlink)) == (0, 1)
    assert not pack.exists()


def test_a_wrong_index_costs_no_pack(store: precook.Store, recipe: precook.Recipe) -> None:
    """A page that says a living pack is doomed is not believed without its record."""
    put_packs(store, recipe, [range(3)])
    store.close()
    with sqlite3.connect(store.path / "index.sqlite") as db:
        db.execute("UPDATE pack SET doomed = 1, live = 0")
    db.close()
    with precook.open(store.path) as again:
        assert len(packs(store.path)) == 1
        assert again.get(recipe.key(1))["number"] == 1


def test_a_wrong_directory_is_refused(tmp_path: Path) -> None:
    """Pointed at a home directory, no command removes anything."""
    home = tmp_path / "home"
    (home / "packs" / "ab").mkdir(parents=True)
    (home / "packs" / "ab" / f"{'ab' * 32}.safetensors").write_bytes(b"mine")
    (home / "letter.txt").write_text("dear")
    before = sorted(home.rglob("*"))
    for command in (
        ["gc", "--grace", "0s"],
        ["evict", "--max-size", "1B"],
        ["prune", "--older-than", "0s"],
        ["clear", "--all"],
        ["compact"],
    ):
        assert run(*command, "--store", home, "--yes").code == 10
    assert sorted(home.rglob("*")) == before


def test_no_link_leads_a_removal_out_of_the_store(store: precook.Store, recipe: precook.Recipe, tmp_path: Path) -> None:
    """Where a folder of packs was replaced by a link, the files behind it stay."""
    put_packs(store, recipe, [range(3)])
    (pack,) = packs(store.path)
    outside = tmp_path / "outside"
    shutil.move(pack.parent, outside)
    pack.parent.symlink_to(outside)
    with pytest.raises(precook.StoreError):
        plan_gc(store, grace=0).execute()
    assert (outside / pack.name).exists()


def test_leases_behind_a_link_are_refused(store: precook.Store, recipe: precook.Recipe, tmp_path: Path) -> None:
    """No lease is written to where a link leads, and none is removed from there."""
    put_packs(store, recipe, [range(3)])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("ab" * 16)).write_text("mine")
    (store.path / "leases").symlink_to(outside)
    with pytest.raises(precook.StoreError):
        store.lease("feed")
    with pytest.raises(precook.StoreError):
        plan_gc(store, grace=0).execute()
    assert [file.name for file in outside.iterdir()] == ["ab" * 16]


def test_collecting_a_read_only_store_is_a_preview(path: Path, recipe: precook.Recipe) -> None:
    """The plan can be made; executing it names the reason."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(3)])
    with precook.open(path, read_only=True) as store:
        plan = plan_gc(store, grace=0)
        assert plan.entries == 3
        with pytest.raises(precook.ReadOnlyError):
            plan.execute()


@settings(max_examples=30)
@given(
    places=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=60),
    named=st.sets(st.integers(0, 30)),
    leased=st.sets(st.integers(0, 30)),
    old=st.sets(st.integers(0, 4)),
)
def test_exactly_what_nobody_needs_goes(
    places: list[tuple[int, int]], named: set[int], leased: set[int], old: set[int]
) -> None:
    """Whatever lies where, an entry goes if no snapshot and no lease names it and its pack is old; equal bytes stay."""
    recipe = precook.Recipe("property", {})
    folder = tempfile.mkdtemp(prefix="precook-gc-")
    try:
        with precook.open(Path(folder) / "cache") as store:
            groups: dict[int, list[int]] = {}
            home: dict[int, int] = {}
            for group, number in places:
                if number not in home:
                    groups.setdefault(group, []).append(number)
                    home[number] = group
            for group, numbers in sorted(groups.items()):
                before = set(packs(store.path))
                put_packs(store, recipe, [numbers], size=7)
                (new,) = set(packs(store.path)) - before
                if group in old:
                    os.utime(new, (0, 0))
            freeze(store, "some", keys(recipe, sorted(named & home.keys()) or [next(iter(home))]))
            kept = (named & home.keys()) or {next(iter(home))}
            with store.lease("some") as lease:
                lease.protect(columns(keys(recipe, sorted(leased))))
                collect(store, grace=3600)
            stays = {number for number in home if number in kept | leased or home[number] not in old}
            assert store.missing(keys(recipe, sorted(home))) == keys(recipe, sorted(home.keys() - stays))
            for number in stays:
                assert store.get(recipe.key(number))["number"] == number
            assert store.verify().clean
            assert store.reindex() == len(stays)
    finally:
        shutil.rmtree(folder)


def test_putting_an_entry_again_and_again_keeps_it(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where this process put it long ago and knows its place by heart."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(2)])
        make_older(path, 3 * DAY)
    writer, collector = precook.open(path), precook.open(path)
    with writer, collector:
        with monkeypatch.context() as earlier:
            earlier.setattr(internals, "file_system_time", lambda root: file_system_time(root) - int(2 * DAY * 1e9))
            writer.put(recipe.key(0), {"x": np.full(1000, 0), "number": 0}, recipe=recipe)
        plan = plan_gc(collector)
        assert plan.entries == 2
        # At what the clock calls the same moment as the plan.
        monkeypatch.setattr(internals, "file_system_time", lambda _: plan._scan.now)
        writer.put(recipe.key(0), {"x": np.full(1000, 0), "number": 0}, recipe=recipe)
        done = plan.execute()
        assert (done.entries, done.spared) == (1, 1)
        assert recipe.key(0) in writer
