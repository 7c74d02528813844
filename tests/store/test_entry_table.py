"""Places: many entries found once and copied again and again, each as it was put."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.fs.system import system
from precook.maintain.compact import plan_compact
from precook.store.entry_table import EntryTable
from precook.store.index.index import Index, Place
from tests.support.snapshots import packs, put_packs

SHAPES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=12)


def places_of(store: precook.Store, keys: list[precook.Key]) -> EntryTable:
    found = store.places(np.array([list(key.bytes) for key in keys], np.uint8))
    assert found is not None
    return found


def copied(places: EntryTable, *, prepared: bool = False) -> list[list[Any]]:
    """Every entry's leaves; prepared here, and copied when that is asked for."""
    found = places.place_all(np.arange(len(places.keys)))
    count = len(found.tables[0].table.leaves)
    leaves: list[list[Any]] = [
        [
            np.full(table.table.leaves[number].row_shape(row), 77, table.table.leaves[number].dtype.bits)
            for table, row in zip(found.tables, found.rows, strict=True)
        ]
        for number in range(count)
    ]
    if prepared:
        places.prepare_copy(found, leaves)()
    else:
        places.copy_all(found, leaves)
    return [list(leaf) for leaf in zip(*leaves, strict=True)]


@pytest.mark.parametrize("verify", [True, False, "always"])
@settings(max_examples=15)
@given(shapes=SHAPES, cut=st.integers(0, 12), prepared=st.booleans())
def test_every_copy_is_what_was_put(
    verify: Any, shapes: list[tuple[int, int]], cut: int, tmp_path_factory: Any, *, prepared: bool
) -> None:
    """From the disk at first and from the mapped file then: leaves of any rank, of one length or of many."""
    recipe = precook.Recipe("shapes", {})
    trees = [
        {
            "rows": np.arange(first * second, dtype=np.int32).reshape(first, second) + number,
            "ids": np.arange(first, dtype=np.int16) - number,
            "scalar": np.array(number, np.float32),
            "fixed": np.full((2, 3), number, np.uint8),
        }
        for number, (first, second) in enumerate(shapes)
    ]
    keys = [recipe.key(number) for number in range(len(trees))]
    with precook.open(tmp_path_factory.mktemp("store"), verify_reads=verify) as store:
        for part in (range(len(trees))[:cut], range(len(trees))[cut:]):
            with store.writer() as writer:
                for number in part:
                    writer.put(keys[number], trees[number], recipe=recipe)
        places = places_of(store, keys)
        for _ in range(3):
            for tree, leaves in zip(trees, copied(places, prepared=prepared), strict=True):
                for array, leaf in zip(tree.values(), leaves, strict=True):
                    assert np.array_equal(array, leaf)


@pytest.mark.parametrize("prepared", [False, True])
def test_rows_are_copied_side_by_side_into_one_array(
    store: precook.Store, recipe: precook.Recipe, *, prepared: bool
) -> None:
    """Of leaves in tables of one length and of many: each row of the array is its entry's, in the order asked for."""
    keys = [recipe.key(number) for number in range(9)]
    trees = [np.arange(40_000, dtype=np.int32).reshape(4, -1) * number for number in range(9)]
    for part in (range(3), range(3, 9)):
        with store.writer() as writer:
            for number in part:
                writer.put(keys[number], trees[number], recipe=recipe)
            # Beside it lies one of another length: the second pack says of each row where it begins.
            if part.start:
                writer.put(recipe.key("other"), trees[0][:3], recipe=recipe)
    places = places_of(store, keys)
    copied(places)
    found = places.place_all(np.array([7, 0, 3, 8, 3]))
    whole = np.full((5, 4, 10_000), 77, np.int32)
    if prepared:
        places.prepare_copy(found, [whole])()
    else:
        places.copy_all(found, [whole])
    assert np.array_equal(whole, np.stack([trees[number] for number in (7, 0, 3, 8, 3)]))


def test_a_prepared_copy_goes_another_way_where_the_system_refuses_its_own(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are there all the same, and nobody is told."""
    put_packs(store, recipe, [range(3)])
    places = places_of(store, [recipe.key(number) for number in range(3)])
    before = copied(places)
    asked: list[int] = []
    monkeypatch.setattr(system, "gather", lambda spans, _: asked.append(len(spans)) or False)
    for one, leaves in zip(before, copied(places, prepared=True), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, leaves, strict=True))
    assert asked


def test_a_table_is_mapped_once_by_threads_that_ask_at_once(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is prepared knows addresses: they must not go because another thread has mapped the table as well."""
    put_packs(store, recipe, [range(2)])
    places = places_of(store, [recipe.key(number) for number in range(2)])
    copied(places)
    table = places.place_all(np.arange(1)).tables[0]
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.append(table.columns()))

    class Lock:
        """The pack's lock; who asks for it while it is held is let through once its holder is done."""

        asked = threading.Event()
        lock = threading.Lock()

        def __enter__(self) -> None:
            if threading.current_thread() is other:
                self.asked.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    real = table.pack.map

    def map_slowly(*, private: bool) -> Any:
        if not other.ident:
            other.start()
            assert Lock.asked.wait(60)
        return real(private=private)

    monkeypatch.setattr(table.pack.guard, "lock", Lock())
    monkeypatch.setattr(type(table.pack), "map", lambda _, private: map_slowly(private=private))
    first = table.columns()
    other.join()
    assert found[0] is first
    assert table.columns() is first


def test_a_prepared_copy_finds_entries_whose_pack_is_gone(store: precook.Store, recipe: precook.Recipe) -> None:
    """Packs that were never mapped are compacted away: what is left to be copied is found in the new one."""
    put_packs(store, recipe, [range(3), range(3, 6)])
    places = places_of(store, [recipe.key(number) for number in range(6)])
    before = copied(places)
    with precook.open(store.path) as other:
        plan_compact(other).execute()
    for one, leaves in zip(before, copied(places, prepared=True), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, leaves, strict=True))


def test_a_file_that_changes_under_a_feed_is_noticed_if_asked(path: Path, recipe: precook.Recipe) -> None:
    """With verify_reads="always", also entries that were read before are checked, and the bad one is named."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(3)])
    with precook.open(path, verify_reads="always") as store:
        places = places_of(store, [recipe.key(number) for number in range(3)])
        copied(places)
        copied(places)
        flip(packs(path)[0], np.full(1000, 1).tobytes())
        with pytest.raises(precook.DamagedEntryError, match=recipe.key(1).hex[:16]):
            copied(places)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("damaged", [0, 3, 4])
def test_rows_that_are_copied_side_by_side_are_checked_each(
    path: Path, recipe: precook.Recipe, damaged: int, *, plain: bool
) -> None:
    """With verify_reads="always" a byte that changed is noticed in whichever row it lies, also before the file is
    looked at again; the other rows are copied as they were put.
    """
    with precook.open(path) as store:
        for group in (range(3), range(3, 5)):
            with store.writer() as writer:
                for number in group:
                    tree = np.full(1000, number)
                    writer.put(recipe.key(number), {"x": tree, "number": number} if plain else tree, recipe=recipe)
    with precook.open(path, verify_reads="always") as store:
        places = places_of(store, [recipe.key(number) for number in range(5)])
        copied(places)
        found = places.place_all(np.arange(5))
        whole = np.zeros((5, *found.tables[0].table.leaves[0].row_shape(0)), found.tables[0].table.leaves[0].dtype.bits)
        places.copy_all(found, [whole])
        assert [int(row[0]) for row in whole] == [0, 1, 2, 3, 4]
        for table in found.distinct:
            table.pack.look_at = float("inf")
        flip(found.tables[damaged].pack.path, np.full(1000, damaged).tobytes())
        with pytest.raises(precook.DamagedEntryError, match=recipe.key(damaged).hex[:16]):
            places.copy_all(found, [whole])
        sound = np.array([number for number in range(5) if number != damaged])
        places.copy_all(places.place_all(sound), [whole[:4]])
        assert [int(row[0]) for row in whole[:4]] == sound.tolist()


def test_what_was_moved_is_checked_where_it_lies_now(store: precook.Store, recipe: precook.Recipe) -> None:
    """An entry that was read before, but not mapped, and then moved is not believed unseen in its new pack."""
    put_packs(store, recipe, [range(2), range(2, 4), range(4, 6)])
    places = places_of(store, [recipe.key(number) for number in range(6)])
    before = copied(places)
    with precook.open(store.path) as other:
        plan_compact(other).execute()
    (pack,) = packs(store.path)
    flip(pack, np.full(1000, 4).tobytes())
    with pytest.raises(precook.DamagedEntryError, match=recipe.key(4).hex[:16]):
        copied(places)
    others = places_of(store, [recipe.key(number) for number in (0, 1, 2, 3, 5)])
    for one, leaves in zip([*before[:4], before[5]], copied(others), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, leaves, strict=True))


def flip(pack: Path, content: bytes) -> None:
    """Change a byte of a pack in place, as a failing disk does."""
    with pack.open("r+b") as file:
        at = file.read().find(content)
        assert at > 0
        file.seek(at + 80)
        byte = file.read(1)
        file.seek(at + 80)
        file.write(bytes([byte[0] ^ 1]))


def test_damage_that_another_thread_finds_disturbs_no_look_up(store: precook.Store, recipe: precook.Recipe) -> None:
    """While one thread finds damaged entries, others go on looking theirs up."""
    put_packs(store, recipe, [range(3)])
    places = places_of(store, [recipe.key(number) for number in range(3)])
    bad = store.internals().packs.bad_rows
    found = threading.Thread(target=lambda: bad.update(Place(bytes(32), "elsewhere", row) for row in range(20_000)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        found.start()
        while found.is_alive():
            places.look_again(np.arange(3))
    finally:
        sys.setswitchinterval(interval)
        found.join()
    assert len(places.missing) == 0


def test_what_was_dropped_is_not_found_again_in_its_pack(store: precook.Store, recipe: precook.Recipe) -> None:
    """Who asks for most of a store asks its packs; but a row that the index has let go of is missing all the same."""
    put_packs(store, recipe, [range(3), range(3, 6)])
    keys = [recipe.key(number) for number in range(6)]
    assert len(places_of(store, keys).missing) == 0
    index = store.internals().index
    (place,) = index.find([keys[4].bytes])
    index.mark_damaged(place, "somebody says so")
    assert places_of(store, keys).missing.tolist() == [4]


def test_most_of_a_store_is_found_without_a_look_at_each_place(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packs say where everything is, also what lies in two of them or is asked for twice."""
    put_packs(store, recipe, [range(5), range(3, 8)])
    monkeypatch.delattr(Index, "page")
    keys = [recipe.key(number) for number in (7, 0, 1, 2, 3, 4, 5, 6, 7, 99)]
    places = places_of(store, keys)
    assert places.missing.tolist() == [9]
    found = [places.place(number) for number in range(9)]
    assert [table.key(row) for table, row in found] == [key.bytes for key in keys[:9]]


@pytest.mark.parametrize("many", [True, False])
def test_an_index_that_is_wrong_everywhere_is_made_anew_once(
    path: Path, recipe: precook.Recipe, caplog: pytest.LogCaptureFixture, *, many: bool
) -> None:
    """Every row that it names is another entry's: all entries are found all the same, and not at a rebuild for each."""
    keys = [recipe.key(number) for number in range(30)]
    with precook.open(path) as store:
        put_packs(store, recipe, [range(10), range(10, 30)])
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as db:
        db.execute("CREATE TEMP TABLE wrong AS SELECT key, pack, (row + 1) % 10 AS row, recipe, bytes FROM entry")
        db.execute("DELETE FROM entry")
        db.execute("INSERT INTO entry SELECT * FROM wrong")
        db.commit()
    with precook.open(path) as store, caplog.at_level(logging.WARNING, "precook"):
        if many:
            # Not all of them: who asks for most is told by the packs alone.
            assert len(places_of(store, keys[:15]).missing) == 0
        else:
            assert [tree["number"] for tree in store.get_many(keys)] == list(range(30))
    assert sum("names a wrong row" in record.message for record in caplog.records) == 1
