"""Two at once, step by step: each process stops at some step while the other does what would hurt it most."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.fs.system import system
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.compact import plan_compact
from precook.maintain.gc import plan_gc
from precook.store import files
from precook.store.entry_table import EntryTable
from precook.store.index import schema
from tests.support.projects import picture
from tests.support.snapshots import columns, disk_bytes, freeze, make_older, packs, put_packs
from tests.support.stopped import Stopped

GC = """
import sys, precook
from precook.maintain.gc import plan_gc
with precook.open(sys.argv[1]) as store:
    done = plan_gc(store, grace=float(sys.argv[2])).execute()
    print(done.entries, done.spared)
"""
COMPACT = """
import sys, precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.compact import plan_compact
with precook.open(sys.argv[1]) as store:
    print(plan_compact(store).execute().packs_rewritten)
"""
DAY = 24 * 3600.0


def test_a_lease_taken_after_the_plan_is_seen_by_the_sweep(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """A builder that comes between condemnation and sweep keeps what it asks for."""
    put_packs(store, recipe, [range(6)])
    with Stopped(tmp_path, "removal.planned", GC, store.path, 0) as gc, store.lease("builder") as lease:
        gc.arrive()
        lease.protect(columns([recipe.key(2)]))
        assert recipe.key(2) in store
        assert gc.go() == "5 1\n"
        assert store.get(recipe.key(2))["number"] == 2


def test_a_lease_that_comes_too_late_finds_a_miss_and_never_half_an_answer(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """While the sweep has looked and not yet dropped, a builder waits for it; then it looks up and misses."""
    put_packs(store, recipe, [range(6)])
    found: list[bool] = []

    def build() -> None:
        with precook.open(store.path) as builder, builder.lease("builder") as lease:
            lease.protect(columns([recipe.key(2)]))
            found.append(recipe.key(2) in builder)

    with Stopped(tmp_path, "removal.checked", GC, store.path, 0) as gc:
        gc.arrive()
        thread = threading.Thread(target=build)
        thread.start()
        assert recipe.key(2) in store
        assert gc.go() == "6 0\n"
        thread.join()
    assert found == [False]


def test_a_snapshot_frozen_meanwhile_is_seen_by_the_sweep(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """A build that ends while a collection runs keeps its entries."""
    put_packs(store, recipe, [range(6)])
    with Stopped(tmp_path, "removal.planned", GC, store.path, 0) as gc:
        gc.arrive()
        freeze(store, "cats", [recipe.key(1), recipe.key(3)])
        assert gc.go() == "4 2\n"
    assert [key in store for key in (recipe.key(1), recipe.key(3))] == [True, True]


def test_a_snapshot_never_names_what_was_removed_since_it_was_planned(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """Freezing looks again where something was removed after the look-up, and says what is gone."""
    put_packs(store, recipe, [range(4)])
    content = freeze(store, "cats", [recipe.key(0)]).content
    keys, seen = columns([recipe.key(number) for number in range(4)]), store.generation()
    plan_gc(store, grace=0).execute()
    with pytest.raises(precook.IncompleteError, match="3 entries of dogs were removed"):
        store.freeze("dogs", content, needs=keys, seen=seen)
    assert [file.dataset for file in store.snapshots()] == ["cats"]


def test_what_was_used_between_condemnation_and_sweep_stays(path: Path, recipe: precook.Recipe, tmp_path: Path) -> None:
    """A reader without a lease that has read and closed keeps what it read."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(6)])
        make_older(path, 2 * DAY)
    with Stopped(tmp_path, "removal.planned", GC, path, DAY) as gc:
        gc.arrive()
        with precook.open(path) as reader:
            reader.get(recipe.key(4))
        assert gc.go() == "5 1\n"
    with precook.open(path) as store:
        assert recipe.key(4) in store


def test_a_collection_beside_a_reader_gives_the_bytes_or_a_clean_miss(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """A reader without a lease keeps what it has in hand; what it comes for too late is a miss."""
    put_packs(store, recipe, [range(4), range(4, 8)], size=20_000)
    with precook.open(store.path) as reader:
        held = [reader.get(recipe.key(number)) for number in range(2) for _ in range(2)]
        lazy = reader.get(recipe.key(2), lazy=True)["x"]
        with Stopped(tmp_path, "removal.dropped", GC, store.path, 0) as gc:
            gc.arrive()
            assert reader.get(recipe.key(5), None) is None
            gc.go()
        assert packs(store.path) == []
        assert all((tree["x"] == tree["number"]).all() for tree in held)
        with pytest.raises(precook.MissingEntryError):
            lazy.load()
        with pytest.raises(precook.MissingEntryError):
            reader.get(recipe.key(3))


@pytest.mark.parametrize("point", ["compact.published", "compact.switched"])
def test_a_reader_during_compaction_sees_the_old_place_or_the_new_one(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path, point: str
) -> None:
    """Never neither: before the index points to the new pack, between that and the unlink, and after."""
    put_packs(store, recipe, [range(4), range(4, 8)])
    with Stopped(tmp_path, point, COMPACT, store.path) as process:
        process.arrive()
        with precook.open(store.path) as reader, precook.open(store.path, read_only=True) as other:
            for number in range(8):
                assert reader.get(recipe.key(number))["number"] == number
                assert other.get(recipe.key(number))["number"] == number
            assert process.go() == "2\n"
            for number in range(8):
                assert reader.get(recipe.key(number))["number"] == number
                assert other.get(recipe.key(number))["number"] == number
    assert len(packs(store.path)) == 1


def test_an_entry_removed_while_it_was_moved_stays_removed(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """A compaction that has copied a row does not bring it back after somebody found it damaged and dropped it."""
    put_packs(store, recipe, [range(4), range(4, 8)])
    with Stopped(tmp_path, "compact.published", COMPACT, store.path) as process:
        process.arrive()
        index = store.internals().index
        (place,) = [place for place in index.find([recipe.key(3).bytes]) if place.pack]
        index.mark_damaged(place, "found by somebody")
        process.go()
    with precook.open(store.path) as again:
        assert again.missing([recipe.key(number) for number in range(8)]) == [recipe.key(3)]
        assert again.reindex() == 7


def test_the_second_collection_names_the_first(store: precook.Store, recipe: precook.Recipe, tmp_path: Path) -> None:
    """Two at once exclude each other, and the one that waits in vain says for whom; builders do not wait."""
    put_packs(store, recipe, [range(4)])
    with Stopped(tmp_path, "maintenance.locked", GC, store.path, 0) as gc:
        gc.arrive()
        store.put(recipe.key(100), "written meanwhile")
        with pytest.raises(precook.LockedError, match=f"pid {gc.process.pid}") as caught:
            plan_compact(store).execute()
        assert caught.value.exit_code == 11
        assert gc.go() == "4 0\n"
    assert plan_gc(store, grace=0).execute().entries == 1


@pytest.mark.parametrize("point", ["removal.planned", "removal.checked", "removal.batch", "removal.dropped"])
def test_a_collection_killed_anywhere_is_finished_by_the_next(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path, point: str
) -> None:
    """Nothing that is needed is lost, the next open works at once, and the space is freed in the end."""
    put_packs(store, recipe, [range(6), range(6, 12)])
    freeze(store, "cats", [recipe.key(number) for number in range(3)])
    with Stopped(tmp_path, point, GC, store.path, 0) as gc:
        gc.arrive()
        gc.kill()
    with precook.open(store.path) as again:
        if point == "removal.dropped":
            assert len(packs(store.path)) == 1
        plan_gc(again, grace=0).execute()
        assert len(again) == 3
        assert disk_bytes(store.path / "packs") < 30_000
        assert again.verify().clean
        assert again.reindex() == 3


PUT = """
import sys, numpy, precook
recipe = precook.Recipe("test", {"version": 1})
with precook.open(sys.argv[1], max_bytes=int(sys.argv[2])) as store:
    store.put(recipe.key(100), {"x": numpy.full(1000, 100), "number": 100}, recipe=recipe)
    print("put")
"""


@pytest.mark.parametrize("point", ["compact.published", "compact.switched", "removal.dropped"])
def test_a_bounded_run_killed_in_its_eviction_is_followed_by_one_that_fits(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path, point: str
) -> None:
    """The pack that was just written anew does not count twice: the next run finds room, and loses nothing."""
    put_packs(store, recipe, [range(10)])
    needed = [recipe.key(number) for number in range(6)]
    freeze(store, "cats", needed)
    bound = disk_bytes(store.path / "packs") + 1000
    with Stopped(tmp_path, point, PUT, store.path, bound) as process:
        process.arrive()
        process.kill()
    again = subprocess.run(
        [sys.executable, "-c", PUT, str(store.path), str(bound)], capture_output=True, text=True, check=False
    )
    assert again.stdout == "put\n", again.stderr
    assert disk_bytes(store.path / "packs") <= bound
    with precook.open(store.path) as after:
        assert after.missing([*needed, recipe.key(100)]) == []
        assert after.verify().clean


HOLD_LOCK = """
import sys, precook
with precook.open(sys.argv[1]) as store, store.internals().index.exclusive():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_writer_is_free_at_once(store: precook.Store, recipe: precook.Recipe) -> None:
    """The kernel lets go of it: the next writer neither waits nor repairs."""
    store.put(recipe.key(1), 1)
    command = [sys.executable, "-c", HOLD_LOCK, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(precook.LockedError), store.internals().index.exclusive(patience=0):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with store.internals().index.exclusive(patience=0):
            pass


BUILD = """
import sys, precook
with precook.load(sys.argv[1]) as project:
    report = project.build()
    print(sum(report.encoded.values()))
"""


def make_project(folder: Path) -> Path:
    for number in range(3):
        picture(folder / "data" / f"cat{number}.png", number, (64, 64))
    config_file = folder / "precook.yaml"
    config_file.write_text(
        "dataset: cats\nconcepts: [{name: cats, path: data}]\nimage: {resolutions: [64]}\n"
        "text: {empty_prompt: false}\nencoders: {pixels: {uses: image}}\n"
    )
    return config_file


def test_a_collection_beside_a_builder_that_has_looked_up_and_not_frozen(tmp_path: Path) -> None:
    """What the builder found ready is there when it freezes, however old it is and although no snapshot names it."""
    file = make_project(tmp_path)
    with precook.load(file) as project:
        project.build()
        store = project.store
        store.remove_snapshot(store.snapshots()[0])
        make_older(store.path, 2 * DAY)
        assert plan_gc(store).entries == 3
        with Stopped(tmp_path, "plan.looked_up", BUILD, file) as builder:
            builder.arrive()
            plan = plan_gc(store)
            assert plan.entries == 0
            assert "build of cats" in plan.kept[0].name
            os.kill(builder.process.pid, signal.SIGSTOP)
            plan.execute()
            os.kill(builder.process.pid, signal.SIGCONT)
            assert builder.go() == "0\n"
        assert store.snapshot("cats").samples == 3
        assert store.present(store.snapshot("cats").entry_keys()).all()


def test_a_builder_whose_lease_was_broken_while_it_slept_stops(tmp_path: Path) -> None:
    """After the break nothing is frozen: what it counted on may be gone, and it says so."""
    file = make_project(tmp_path)
    with precook.load(file) as project:
        project.build()
        store = project.store
        store.remove_snapshot(store.snapshots()[0])
        with Stopped(tmp_path, "plan.looked_up", BUILD, file) as builder:
            builder.arrive()
            (holder,) = store.leases()
            store.break_lease(holder.id)
            plan_gc(store, grace=0).execute()
            with pytest.raises(AssertionError, match="LostLeaseError"):
                builder.go()
        assert store.snapshots() == []


def test_a_plan_built_after_a_collection_makes_what_is_gone(tmp_path: Path) -> None:
    """A plan holds nothing; its build notices that what was ready is no more, and encodes it."""
    file = make_project(tmp_path)
    with precook.load(file) as project:
        project.build()
        plan = project.plan()
        assert len(plan.ready) == 3
        store = project.store
        store.remove_snapshot(store.snapshots()[0])
        plan_gc(store, grace=0).execute()
        assert plan.build().encoded == {"pixels": 3}
        assert np.all(store.present(store.snapshot("cats").entry_keys()))


SYNC_FAILS = """
import errno, os, stat, sys, precook
from precook.maintain.bundle import import_bundle
from precook.store import files

sync = os.fsync

def fail(descriptor):
    folder = os.readlink(f"/proc/self/fd/{descriptor}")
    if folder.split("/")[-2] == "packs" or os.path.exists(f"{folder}/store.toml") and sys.argv[2] == "create":
        files.reached("file.named")
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)

os.fsync = fail
recipe = precook.Recipe("test", {"version": 1})
with precook.open(sys.argv[1]) as store:
    try:
        if sys.argv[2] in ("put", "create"):
            store.put(recipe.key(1), "one")
        else:
            with open(sys.argv[2], "rb") as archive:
                import_bundle(store, archive)
    except precook.StoreWriteError:
        print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the descriptor of a directory is known by /proc")
@pytest.mark.parametrize("adopted", [True, False])
def test_a_pack_that_another_process_counts_on_is_not_taken_back(
    path: Path, recipe: precook.Recipe, tmp_path: Path, adopted: bool
) -> None:
    """One whose name could not be made durable goes again, unless somebody has found and synced it meanwhile."""
    with precook.open(path) as store:
        store.put(recipe.key(0), "zero")
    with Stopped(tmp_path, "file.named", SYNC_FAILS, path, "put") as process:
        process.arrive()
        if adopted:
            with precook.open(path) as second:
                second.put(recipe.key(1), "one")
        assert process.go() == "refused\n"
    assert len(packs(path)) == (2 if adopted else 1)
    with precook.open(path) as store:
        assert store.missing([recipe.key(0), recipe.key(1)]) == ([] if adopted else [recipe.key(1)])
        assert store.verify().clean
        store.put(recipe.key(1), "one")
        assert store.get(recipe.key(1)) == "one"


@pytest.mark.skipif(sys.platform != "linux", reason="the descriptor of a directory is known by /proc")
def test_a_put_beside_an_import_that_fails_at_its_last_step_stays(
    path: Path, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """Whoever wants the entry meanwhile waits for the import and then stores its own; the next import goes through."""
    with precook.open(tmp_path / "other") as other:
        other.put(recipe.key(1), "one", recipe=recipe)
        freeze(other, "cats", [recipe.key(1)])
        export_bundle(other, "cats", tmp_path / "archive.tar")
    with precook.open(path) as store:
        store.put(recipe.key(0), "zero")

    def put() -> None:
        with precook.open(path) as second:
            second.put(recipe.key(1), "one")

    with Stopped(tmp_path, "file.named", SYNC_FAILS, path, tmp_path / "archive.tar") as process:
        process.arrive()
        thread = threading.Thread(target=put)
        thread.start()
        assert process.go() == "refused\n"
        thread.join()
    with precook.open(path) as store:
        assert store.get(recipe.key(1)) == "one"
        with (tmp_path / "archive.tar").open("rb") as archive:
            assert import_bundle(store, archive).reused == 1
        assert store.verify().clean


@pytest.mark.skipif(sys.platform != "linux", reason="the descriptor of a directory is known by /proc")
def test_a_store_that_another_process_has_opened_keeps_its_marker(
    path: Path, recipe: precook.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it could not make its name durable; the second, who has read it, does that with its first pack."""
    flock, waiting = fcntl.flock, threading.Event()

    def notice(descriptor: int, operation: int) -> None:
        try:
            flock(descriptor, operation)
        except BlockingIOError:
            waiting.set()
            raise

    monkeypatch.setattr(fcntl, "flock", notice)

    def put() -> None:
        with precook.open(path) as second:
            second.put(recipe.key(2), "two")

    with Stopped(tmp_path, "file.named", SYNC_FAILS, path, "create") as process:
        process.arrive()
        thread = threading.Thread(target=put)
        thread.start()
        assert waiting.wait(60)
        assert process.go() == "refused\n"
        thread.join()
    with precook.open(path) as store:
        assert store.get(recipe.key(2)) == "two"
        store.put(recipe.key(1), "one")
        assert len(store) == 2


def test_who_only_reads_finds_what_is_moved_while_its_index_is_made(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock of its own keeps others from merging the packs that it has listed: then it lists them once more."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[0], [1], [2]])
    (path / "index.sqlite").unlink()
    merged: list[int] = []

    def merge(point: str) -> None:
        if point == "index.listed" and not merged:
            with precook.open(path) as other:
                merged.append(plan_compact(other).execute().packs_rewritten)

    monkeypatch.setattr(files, "reached", merge)
    with precook.open(path, read_only=True) as reader:
        assert [reader.get(recipe.key(number))["number"] for number in range(3)] == [0, 1, 2]
    assert merged == [3]


def test_a_file_that_another_user_makes_at_this_moment_is_closed_to_nobody(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's files come and go: one that was not there to be written to does not make the store read-only."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[0]])
    log = path / "index.sqlite-wal"
    really = os.access

    def look(place: Path, mode: int) -> bool:
        allowed = really(place, mode)
        if Path(place) == log and not allowed:
            log.touch()
        return allowed

    monkeypatch.setattr(os, "access", look)
    monkeypatch.setattr(system, "is_anothers", lambda status: True)
    with precook.open(path) as store:
        assert not store.read_only
        put_packs(store, recipe, [[1]])
    assert len(packs(path)) == 2


@pytest.mark.parametrize("many", [False, True])
def test_what_is_moved_while_the_index_is_asked_for_it_is_found(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """Packs are merged after the index has told their numbers and before it tells their names."""
    with precook.open(path) as store:
        put_packs(store, recipe, [[0], [1], [2], range(3, 60)])  # so many that not all of the index is read
    keys, merged, names = [recipe.key(number) for number in range(3)], [], schema.names

    def merge(db: sqlite3.Connection) -> schema.Names:
        if not merged:
            merged.append(0)
            with precook.open(path) as other:
                merged[0] = plan_compact(other).execute().packs_rewritten
        return names(db)

    with precook.open(path) as store:
        monkeypatch.setattr(schema, "names", merge)
        if many:
            (table,) = EntryTable.find_all(store.internals().lookup, [columns(keys)], verify=True)
            assert not len(table.missing)
        else:
            assert [store.get(key)["number"] for key in keys] == [0, 1, 2]
    assert merged == [4]
