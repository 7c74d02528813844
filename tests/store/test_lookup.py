"""Very many keys at once: sets that stay on disk, one pass through the index, places that packs confirm."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.maintain.compact import plan_compact
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from precook.maintain.prune import plan_clear
from precook.store import entry_table, keysets, pack_cache
from precook.store.entry_table import ReshapedError
from precook.store.format.build import build_pack
from precook.store.index import scan, schema
from precook.store.layout import Layout
from tests.support.snapshots import columns, freeze, make_older, packs, put_packs

KEYS = st.binary(min_size=2, max_size=2).map(lambda ends: ends[:1] + bytes(6) + ends[1:] + bytes(24))
"""Keys of which many begin alike, all over the range."""


def rows(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)


@given(
    held=st.lists(st.lists(KEYS, max_size=20), max_size=3), asked=st.lists(KEYS, max_size=20), part=st.integers(1, 9)
)
def test_a_set_of_keys_answers_from_a_part_of_them_at_a_time(
    held: list[list[bytes]], asked: list[bytes], part: int
) -> None:
    """However few are held in order at a time, and in whatever order one asks, the answer is that of a plain set."""
    with mock.patch.object(keysets, "_PART", part), mock.patch.object(keysets, "BLOCK", 3):
        many = keysets.in_columns([rows(keys) for keys in held])
        found = [many.among(keysets.beginnings(rows(asked[at : at + 5]))).tolist() for at in range(0, len(asked), 5)]
    there = {key for keys in held for key in keys}
    assert [answer for some in found for answer in some] == [key in there for key in asked]


def test_a_snapshot_of_any_size_is_read_in_bounded_memory(store: precook.Store) -> None:
    """Reading and checking 13 MB of samples takes a few of them; a column that is written to is a copy of one's own."""
    numbers = np.random.default_rng(0).integers(0, 256, (100_000, 32), np.uint8)
    freeze(store, "large", [precook.Key(key.tobytes()) for key in numbers])
    tracemalloc.start()
    try:
        snapshot = store.snapshot("large")
        assert tracemalloc.get_traced_memory()[1] < 4e6
        plan_gc(store, grace=0)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
    assert (np.sort(snapshot.all_keys(), axis=0) == np.sort(numbers, axis=0)).all()
    snapshot.content.picture_keys["latent"][:] = 0
    assert (store.snapshot("large").content.picture_keys["latent"] == numbers).all()


@settings(max_examples=30)
@given(
    groups=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=15, unique=True), min_size=1, max_size=4),
    asked=st.lists(st.lists(st.integers(-1, 60), max_size=30), max_size=3),
    walk=st.booleans(),
    page=st.integers(1, 9),
)
def test_one_pass_through_the_index_finds_what_a_look_up_finds(
    groups: list[list[int]], asked: list[list[int]], *, walk: bool, page: int
) -> None:
    """Walking past every entry or asking for each, in pages of any size: every key gets its entry, once or often."""
    recipe = precook.Recipe("property", {})
    with tempfile.TemporaryDirectory() as folder, precook.open(Path(folder) / "cache") as store:
        put_packs(store, recipe, groups, size=3)
        keys = [[bytes(32) if one < 0 else recipe.key(one).bytes for one in column] for column in asked]
        with (
            mock.patch.object(entry_table, "_DENSE", 10**9 if walk else 0),
            mock.patch.object(scan, "_PAGE", page),
        ):
            found = store.places_of([rows(column) for column in keys])
        assert found is not None
        there = {number for group in groups for number in group}
        for column, places in zip(asked, found, strict=True):
            assert places.there(np.arange(len(column))).tolist() == [number in there for number in column]
            for at, number in enumerate(column):
                if number in there:
                    array = np.empty(3, np.int64)
                    places.copy(at, [array])
                    assert array.tolist() == [number] * 3


def test_a_pack_that_is_not_what_the_index_says_is_looked_into_key_by_key(
    path: Path, recipe: precook.Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three packs one is gone and one is damaged: what they held is missing, all the rest is found."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(3), range(3, 6), range(6, 9)])
    gone, damaged, _ = packs(path)
    with precook.open(path) as store:
        len(store)
        gone.unlink()
        content = bytearray(damaged.read_bytes())
        content[20] ^= 1
        damaged.write_bytes(content)
        places = store.places(columns([recipe.key(number) for number in range(9)]))
        assert places is not None
        assert places.missing.tolist() == list(range(6))
    assert str(damaged) in caplog.text


def put_tableless_pack(path: Path) -> Path:
    """A pack that says it has no tables, as nobody writes it."""
    image = build_pack([], created=5, salt="0" * 16)
    pack = Layout(path).pack(image.id)
    pack.parent.mkdir(parents=True, exist_ok=True)
    pack.write_bytes(b"".join(bytes(part) for part in (image.head, *image.body)))
    return pack


def test_a_pack_without_tables_holds_nothing(path: Path, recipe: precook.Recipe) -> None:
    """Whoever may only read passes over it, and whoever opens the store to write sweeps it."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(2)])
    pack = put_tableless_pack(path)
    with precook.open(path, read_only=True) as store:
        assert (len(store), store.get(recipe.key(1))["number"]) == (2, 1)
        assert store.verify().clean
    with precook.open(path) as store:
        assert (len(store), store.get(recipe.key(1))["number"]) == (2, 1)
    assert not pack.exists()


@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize("many", [True, False])
def test_an_index_that_names_a_pack_without_tables_is_made_anew(
    path: Path, recipe: precook.Recipe, *, row: int, many: bool
) -> None:
    """A place that no pack can have is a sign of damage like any other: entries are found all the same."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(2)])
    pack = put_tableless_pack(path)
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as db:
        size = pack.stat().st_size
        db.execute("INSERT INTO pack VALUES (99, ?, 5, ?, 2, 100, 2, 0)", (bytes.fromhex(pack.stem), size))
        db.execute("UPDATE entry SET pack = 99, row = ?", (row,))
        db.commit()
    keys = [recipe.key(number) for number in range(2)]
    with precook.open(path, read_only=True) as store:
        trees = store.get_many(keys) if many else [store.get(key) for key in keys]
        assert [tree["number"] for tree in trees] == [0, 1]


def test_keys_that_are_asked_for_again_and_again_are_no_sign_of_damage(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many there are: the index is not made anew for them."""
    put_packs(store, recipe, [range(3)])
    monkeypatch.setattr(schema, "_CHUNK", 2)
    keys = [recipe.key(number) for number in (1, 2, 1, 5, 2, 1)]
    assert store.present(columns(keys)).tolist() == [True, True, True, False, True, True]
    assert [tree["number"] for tree in store.get_many([keys[0], keys[1], keys[0]])] == [1, 2, 1]
    assert caplog.text == ""


def test_an_entry_made_anew_in_another_shape_is_not_taken_for_damage(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """Whoever knows its old place is told that it has changed; its bytes are never read into a place of other size."""
    keys = [recipe.key(number) for number in range(2)]
    store.put(keys[0], np.zeros(4))
    places = store.places(columns(keys[:1]))
    assert places is not None
    plan_clear(store, everything=True).execute()
    store.put(keys[0], np.ones(6))
    with pytest.raises(ReshapedError, match=keys[0].hex[:16]):
        places.copy(0, [np.empty(4)])
    array = np.empty(6)
    places.copy(0, [array])
    assert array.tolist() == [1] * 6
    assert store.damaged() == {}


def test_a_feed_goes_on_with_an_entry_that_was_made_anew_in_another_shape(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """On a store that it may only read nothing protects what it uses: the batch has the shapes that lie there now."""
    keys = [recipe.key(number) for number in range(2)]
    for key in keys:
        store.put(key, np.zeros(4))
    freeze(store, "cats", keys)
    with (
        precook.open(store.path, read_only=True) as reader,
        reader.snapshot("cats").feed(batch_size=2, tensors="numpy", threads=0) as feed,
    ):
        plan_clear(store, everything=True).execute()
        for key in keys:
            store.put(key, np.ones(6))
        (batch,) = feed.epoch(0)
        assert batch["latent"].tolist() == [[1] * 6] * 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"x": np.int16([1, 2])}, {"x": np.float16([0.5, 1.5])}),
        ({"x": np.int16([1, 2])}, {"x": np.float64([0.5, 1.5])}),
        ({"x": np.int16([1, 2]), "length": 2}, {"x": np.int16([3, 0]), "length": 1}),
    ],
    ids=["type of the same size", "type of another size", "plain value"],
)
def test_an_entry_made_anew_is_never_half_of_the_old_one(
    store: precook.Store, recipe: precook.Recipe, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Its numbers are of the type that lies there now, beside the plain values that belong to them; none is damaged."""
    keys = [recipe.key(number) for number in range(2)]
    for key in keys:
        store.put(key, before)
    freeze(store, "cats", keys)
    with (
        precook.open(store.path, read_only=True) as reader,
        reader.snapshot("cats").feed(batch_size=2, tensors="numpy", threads=0) as feed,
    ):
        plan_clear(store, everything=True).execute()
        for key in keys:
            store.put(key, after)
        (batch,) = feed.epoch(0)
        latent = batch["latent"]
        assert (latent["x"].dtype, latent["x"].tolist()) == (after["x"].dtype, [after["x"].tolist()] * 2)
        assert latent.get("length") == ([after["length"]] * 2 if "length" in after else None)
        assert reader.damaged() == {}


def test_a_plan_outlives_a_new_index(store: precook.Store, recipe: precook.Recipe) -> None:
    """An index made anew numbers its packs in another order; the plan still takes what it said, and nothing else."""
    groups = [[number, number + 100] for number in range(12)]
    put_packs(store, recipe, groups)
    kept = [recipe.key(number) for number in range(0, 12, 2)]
    freeze(store, "cats", kept)
    plan = plan_gc(store, grace=0)
    before = store.internals().index._read(schema.names).packs
    with precook.open(store.path) as other:
        other.reindex()
    assert store.internals().index._read(schema.names).packs != before
    done = plan.execute()
    assert (done.entries, done.freed) == (plan.entries, plan.freed) == (18, plan.freed)
    assert store.missing(kept) == []
    assert len(store) == store.reindex() == 6


def test_what_was_used_of_a_part_of_a_pack_keeps_its_order(path: Path, recipe: precook.Recipe) -> None:
    """Entries of one pack that were used at different times go in that order, also after a merge of packs."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(4), range(4, 8)])
        make_older(path, 3600)
    for number in (6, 1, 4):
        with precook.open(path) as store:
            store.get(recipe.key(number))
    with precook.open(path) as store:
        plan_compact(store).execute()
    with precook.open(path) as store:
        size = sum(pack.stat().st_size for pack in packs(path))
        # Six of eight: the five that nobody used, and of the others the one that was used first.
        plan_evict(store, size - 5 * 8000 - 4000).execute()
        assert store.missing([recipe.key(number) for number in range(8)]) == [
            recipe.key(number) for number in (0, 2, 3, 5, 6, 7)
        ]


def test_what_was_removed_is_a_miss_however_few_packs_are_kept_open(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack that was let go between the look-up and the read leaves no place behind that outlives its row."""
    other = precook.Recipe("other", {"version": 1})
    keys = [other.key(number) for number in range(4)]
    with precook.open(path) as store:
        for number, key in enumerate(keys):
            with store.writer() as writer:
                for row in range(30):
                    writer.put(recipe.key([number, row]), np.arange(3000), recipe=recipe)
                writer.put(key, np.arange(3000), recipe=other)
    monkeypatch.setattr(pack_cache, "_HEADS", 1)
    with precook.open(path) as store:
        assert len(store.get_many(keys)) == 4
        plan_clear(store, recipe="other").execute()
        for key in keys:
            with pytest.raises(precook.MissingEntryError):
                store.get(key)


def test_a_key_of_zeros_is_a_key(store: precook.Store) -> None:
    """Zeros stand for a mask that nobody has in a column of keys; whoever puts under them gets it back."""
    key = precook.Key(bytes(32))
    store.put(key, {"x": np.arange(3)})
    store.put(key, {"x": np.arange(3)})
    assert store.get(key)["x"].tolist() == [0, 1, 2]
    assert store.stats().packs == 1
