"""What is remembered: found again exactly, written in small pieces, and never believed when it is damaged."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import precook
from precook.memo import columns
from precook.memo.columns import Kind, Segment, append, cut, dump, load, make_segment, merge
from precook.memo.memo import Memory
from precook.store.index import memo as memo_module
from precook.store.store import Store
from precook.values import Bytes

PLAIN = Kind("plain", key=16, value=4)
SLOTTED = Kind("slotted", key=16, value=4, slot=8)
OTHER = Kind("other", key=16, value=4)
ALONE = Kind("alone", key=16, value=0)

Row = tuple[int, int, int]
"""A key's slot, the rest of the key, and the value."""


def keys_of(rows: list[Any]) -> Bytes:
    """Keys of 16 bytes: a slot of 8, and 8 more."""
    return np.array([row[:2] for row in rows], "<u8").reshape(-1, 2).view(np.uint8).reshape(len(rows), 16)


def values_of(rows: list[Row]) -> Bytes:
    return np.array([row[2] for row in rows], "<u4").reshape(-1, 1).view(np.uint8)


def some_rows(count: int, *, start: int = 0) -> list[Row]:
    return [(number, 7, number) for number in range(start, start + count)]


def numbers(values: Bytes) -> list[int]:
    found: list[int] = np.ascontiguousarray(values).view("<u4").ravel().tolist()
    return found


def collide(patch: pytest.MonkeyPatch) -> None:
    real = columns._hashes
    patch.setattr(columns, "_hashes", lambda kind, keys: real(kind, keys) % np.uint64(3))


def find(found: list[Segment], keys: Bytes) -> list[int | None]:
    """The newest value of each key in several segments, the newest segment last."""
    answers: list[int | None] = [None] * len(keys)
    for segment in found:
        for at, row in enumerate(segment.find(keys).tolist()):
            if row >= 0:
                answers[at] = numbers(segment.values[[row]])[0]
    return answers


batches = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2**32 - 1)), max_size=12), max_size=8
)
ALL_KEYS = [(slot, rest) for slot in range(6) for rest in range(5)]


@pytest.mark.parametrize("kind", [PLAIN, SLOTTED])
@pytest.mark.parametrize("collisions", [False, True])
@given(batches=batches, merges=st.lists(st.booleans(), min_size=8, max_size=8))
@example(batches=[], merges=[False] * 8)
@example(batches=[[]], merges=[True] * 8)
@example(batches=[[(0, 0, 1), (1, 0, 2), (0, 0, 3)]], merges=[False] * 8)
def test_segments_answer_like_a_dict(
    kind: Kind, collisions: bool, batches: list[list[Row]], merges: list[bool]
) -> None:
    """Whatever is put in, in one segment or many, merged or not: the newest value of a key comes out, absent keys none.

    Where only the newest key of a slot is to be kept, an older one may be forgotten, but never gets another's value.
    """
    if kind.slot:
        batches = [[(slot, rest, 10 * slot + rest) for slot, rest, _ in batch] for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        if collisions:
            collide(patch)
        kept: list[Segment] = []
        stacked: list[Segment] = []
        memory = Memory(None)
        model: dict[tuple[int, int], int] = {}
        newest: dict[int, int] = {}
        for batch, join in zip(batches, merges, strict=False):
            made = make_segment(kind, keys_of(batch), values_of(batch))
            kept.append(made)
            if join and len(kept) > 1:
                newer = kept.pop()
                kept.append(merge(kind, kept.pop(), newer))
            append(stacked, made)
            memory.remember(kind, keys_of(batch), values_of(batch))
            for slot, rest, value in batch:
                model[slot, rest] = value
                newest[slot] = rest
        keys = keys_of(ALL_KEYS)
        reread = [load(kind, *dump(segment)) for segment in kept]
        assert None not in reread
        known, values = memory.recall(kind, keys)
        recalled = [value if yes else None for yes, value in zip(known, numbers(values), strict=True)]
        for answers in (find(kept, keys), find(stacked, keys), find(reread, keys), recalled):  # type: ignore[arg-type]
            for (slot, rest), answer in zip(ALL_KEYS, answers, strict=True):
                forgettable = kind.slot and newest.get(slot) != rest
                assert answer == model.get((slot, rest)) or (forgettable and answer is None)


def test_only_the_newest_key_of_a_slot_stays() -> None:
    """A file that changes a thousand times is remembered once."""
    kept: list[Segment] = []
    for version in range(1000):
        append(kept, make_segment(SLOTTED, keys_of([(1, version)]), values_of([(1, version, version)])))
    assert sum(segment.rows for segment in kept) <= 2
    assert find(kept, keys_of([(1, 999)])) == [999]


def test_there_are_few_segments_however_often_something_is_added() -> None:
    """A look-up after a day of learning passes through a handful of segments, not thousands."""
    memory = Memory(None)
    for number in range(2000):
        memory.remember(PLAIN, keys_of([(number, 0)]), values_of([(number, 0, number)]))
    assert len(memory._loaded(PLAIN)) <= 12
    known, values = memory.recall(PLAIN, keys_of([(number, 0) for number in range(2001)]))
    assert known.tolist() == [True] * 2000 + [False]
    assert numbers(values) == [*range(2000), 0]


def test_every_flipped_byte_and_every_cut_of_a_segment_is_noticed() -> None:
    """No change to the bytes that were kept goes unseen."""
    parts = dump(make_segment(PLAIN, keys_of(some_rows(5)), values_of(some_rows(5))))
    assert load(PLAIN, *parts) is not None
    for number, part in enumerate(parts):
        for at in range(len(part)):
            flipped = bytearray(part)
            flipped[at] ^= 0x10
            assert load(PLAIN, *parts[:number], bytes(flipped), *parts[number + 1 :]) is None
            assert load(PLAIN, *parts[:number], part[:at], *parts[number + 1 :]) is None
        assert load(PLAIN, *parts[:number], part + b"\0", *parts[number + 1 :]) is None
        for value in (None, 5, "text", 0.5):
            assert load(PLAIN, *parts[:number], value, *parts[number + 1 :]) is None


def test_a_segment_is_never_taken_for_one_of_another_kind() -> None:
    """Also where both have rows of the same width: the checksum covers the kind."""
    parts = dump(make_segment(PLAIN, keys_of(some_rows(5)), values_of(some_rows(5))))
    assert load(OTHER, *parts) is None
    assert load(Kind("plain", key=8, value=2), *parts) is None


def test_an_empty_segment_comes_back() -> None:
    """No rows are rows too, and keys alone need no values."""
    empty = load(PLAIN, *dump(make_segment(PLAIN, keys_of([]), values_of([]))))
    assert empty is not None
    assert empty.find(keys_of(ALL_KEYS)).tolist() == [-1] * len(ALL_KEYS)
    alone = load(ALONE, *dump(make_segment(ALONE, keys_of(some_rows(3)), np.zeros((3, 0), np.uint8))))
    assert alone is not None
    assert (alone.find(keys_of(some_rows(3))) >= 0).all()


@given(count=st.integers(0, 40), nbytes=st.integers(1, 200))
def test_pieces_of_a_segment_hold_all_of_it(count: int, nbytes: int) -> None:
    """A segment too large for one row is kept in pieces that answer for their keys."""
    whole = make_segment(PLAIN, keys_of(some_rows(count)), values_of(some_rows(count)))
    pieces = list(cut(whole, nbytes))
    assert all(piece.rows * 20 <= max(nbytes, 20) for piece in pieces)
    assert find(pieces, keys_of(some_rows(count))) == list(range(count))


def remember(store: Store, kind: Kind, rows: list[Row], **notes: str | None) -> None:
    """Remember rows, and notes under the names given."""
    memory = store.memory()
    memory.remember(kind, keys_of(rows), values_of(rows))
    for key, text in notes.items():
        memory.write_note("notes", key.encode(), text)
    store.remember(memory)


def recalled(store: Store, kind: Kind, rows: list[Row]) -> list[int | None]:
    known, values = store.memory().recall(kind, keys_of(rows))
    return [value if yes else None for yes, value in zip(known, numbers(values), strict=True)]


def test_what_is_remembered_is_there_when_the_store_is_opened_again(path: Path) -> None:
    """Rows and notes; a newer value, a removed note and a forgotten kind are gone for good."""
    rows = some_rows(1000)
    with precook.open(path) as store:
        remember(store, PLAIN, rows, a="one", b="two", c="lone \udcff surrogate\0")
        remember(store, PLAIN, [(5, 7, 99)], a="three", b=None)
        remember(store, OTHER, rows)
        memory = store.memory()
        memory.forget(OTHER)
        memory.remember(OTHER, keys_of(rows[:2]), values_of(rows[:2]))
        store.remember(memory)
    with precook.open(path) as store:
        assert recalled(store, PLAIN, rows) == [99 if number == 5 else number for number in range(1000)]
        assert recalled(store, OTHER, rows[:4]) == [0, 1, None, None]
        assert store.memory().notes("notes") == {b"a": "three", b"c": "lone \udcff surrogate\0"}
        assert store.memory().note("notes", b"b") is None


def test_nothing_is_written_for_what_is_remembered_already(store: Store) -> None:
    """Reading files again that say the same again, as on a network drive, changes nothing."""
    remember(store, PLAIN, some_rows(100), a="one")
    memory = store.memory()
    memory.remember(PLAIN, keys_of(some_rows(100)), values_of(some_rows(100)))
    memory.write_note("notes", b"a", "one")
    memory.write_note("notes", b"never there", None)
    assert not memory.changed
    memory.remember(PLAIN, keys_of([(5, 7)]), values_of([(5, 7, 6)]))
    assert memory.changed


def test_a_memory_works_without_a_store_and_makes_one_when_kept(path: Path) -> None:
    """The first plan of a new project learns before there is anything on disk."""
    with precook.open(path) as store:
        memory = store.memory()
        memory.remember(PLAIN, keys_of(some_rows(3)), values_of(some_rows(3)))
        assert memory.recall(PLAIN, keys_of(some_rows(4)))[0].tolist() == [True, True, True, False]
        assert not path.exists()
        store.remember(memory)
        assert not memory.changed
        assert recalled(store, PLAIN, some_rows(4)) == [0, 1, 2, None]


def written(path: Path, work: Any) -> int:
    """Bytes that some work adds to the index's log, which is emptied before."""
    with sqlite3.connect(path / "index.sqlite") as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    db.close()
    log = path / "index.sqlite-wal"
    assert not log.exists() or log.stat().st_size == 0
    work()
    return log.stat().st_size


def test_one_more_row_is_one_small_write(path: Path) -> None:
    """After 100,000 rows, another one, or a note, does not rewrite them (B7)."""
    with precook.open(path) as store:
        remember(store, PLAIN, some_rows(100_000))
        assert written(path, lambda: remember(store, PLAIN, some_rows(500_000, start=200_000))) > 1 << 20
        for number in range(5):
            more = some_rows(1, start=150_000 + number)
            assert 0 < written(path, lambda more=more: remember(store, PLAIN, more)) < 64 << 10
        assert 0 < written(path, lambda: remember(store, PLAIN, [], a="note")) < 64 << 10
        assert recalled(store, PLAIN, some_rows(1, start=150_004)) == [150_004]


def test_many_single_additions_stay_few_segments(path: Path) -> None:
    """Small segments are merged as they come: a look-up never passes through one for each addition."""
    with precook.open(path) as store:
        memory = store.memory()
        index = store._created().index
        for number in range(100):
            memory.remember(PLAIN, keys_of([(number, 7)]), values_of([(number, 7, number)]))
            memory.flush(index)
        assert recalled(store, PLAIN, some_rows(101)) == [*range(100), None]
        assert len(index.segments(PLAIN)) <= 8


def add_rows(path: Path, process: int) -> None:
    with precook.open(path) as store:
        for turn in range(10):
            start = 1000 * process + 10 * turn
            remember(store, PLAIN, some_rows(10, start=start), **{f"note-{process}-{turn}": str(start)})


def test_processes_that_remember_at_the_same_time_lose_nothing(path: Path) -> None:
    """Four of them, on a store that does not exist yet: every row and every note of each is there."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=add_rows, args=(path, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    with precook.open(path) as store:
        for number in range(4):
            rows = some_rows(100, start=1000 * number)
            assert recalled(store, PLAIN, rows) == [row[2] for row in rows]
        assert len(store.memory().notes("notes")) == 40


def test_rows_too_large_for_one_database_row_are_kept_in_several(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite has a limit for one row; what is remembered has none."""
    monkeypatch.setattr(memo_module, "_SEGMENT_BYTES", 1000)
    with precook.open(path) as store:
        remember(store, PLAIN, some_rows(400))
        remember(store, PLAIN, some_rows(300, start=400))
        remember(store, PLAIN, [(5, 7, 77)])
    with precook.open(path) as store:
        assert recalled(store, PLAIN, some_rows(700)) == [77 if number == 5 else number for number in range(700)]
    with sqlite3.connect(path / "index.sqlite") as db:
        sizes = [row[0] for row in db.execute("SELECT length(keys) + length(contents) FROM memory")]
    db.close()
    assert max(sizes) <= 1000


def test_a_new_index_keeps_what_was_remembered(path: Path, recipe: precook.Recipe) -> None:
    """`reindex` makes the rows of entries anew and carries the rest over."""
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
        remember(store, PLAIN, some_rows(100), a="one")
        store.reindex()
        assert recalled(store, PLAIN, some_rows(101)) == [*range(100), None]
        assert store.memory().notes("notes") == {b"a": "one"}
        assert store.get(recipe.key(1)) == 1
    with precook.open(path) as store:
        assert recalled(store, PLAIN, some_rows(100)) == list(range(100))


def test_without_its_index_a_store_has_forgotten_and_works(path: Path, recipe: precook.Recipe) -> None:
    """What is remembered is derived: deleting the index costs reading, and nothing else."""
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
        remember(store, PLAIN, some_rows(100), a="one")
    for leftover in path.glob("index.sqlite*"):
        leftover.unlink()
    with precook.open(path) as store:
        assert recalled(store, PLAIN, some_rows(2)) == [None, None]
        assert store.memory().notes("notes") == {}
        assert store.get(recipe.key(1)) == 1
        remember(store, PLAIN, some_rows(2))
        assert recalled(store, PLAIN, some_rows(2)) == [0, 1]


def test_an_index_that_goes_while_a_store_is_open_takes_nothing_else_with_it(store: Store, path: Path) -> None:
    """A memory that was loaded before goes on answering, and what it learns afterwards is kept."""
    remember(store, PLAIN, some_rows(10))
    memory = store.memory()
    assert memory.recall(PLAIN, keys_of(some_rows(10)))[0].all()
    for leftover in path.glob("index.sqlite*"):
        leftover.unlink()
    memory.remember(PLAIN, keys_of(some_rows(1, start=10)), values_of(some_rows(1, start=10)))
    assert memory.recall(PLAIN, keys_of(some_rows(11)))[0].all()
    store.remember(memory)
    assert recalled(store, PLAIN, some_rows(11)) == [None] * 10 + [10]


def test_a_read_only_store_remembers_and_writes_nothing(path: Path, recipe: precook.Recipe) -> None:
    """Also where its index does not fit its packs and had to be made anew, in memory."""
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
        store.put(recipe.key(2), 2)
        remember(store, PLAIN, some_rows(10), a="one")
    for gone in ("nothing", "a pack"):
        if gone == "a pack":
            next(path.glob("packs/*/*")).unlink()
        before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
        with precook.open(path, read_only=True) as store:
            assert len(store) == (2 if gone == "nothing" else 1)
            assert recalled(store, PLAIN, some_rows(11)) == [*range(10), None]
            assert store.memory().notes("notes") == {b"a": "one"}
            remember(store, PLAIN, some_rows(20), a="two")
            assert recalled(store, PLAIN, some_rows(11)) == [*range(10), None]
        assert {file: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


def damage(path: Path, statement: str) -> None:
    with sqlite3.connect(path / "index.sqlite") as db:
        assert db.execute(statement).rowcount
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE memory SET contents = x'00' || substr(contents, 2) WHERE kind = 'plain'",
        "UPDATE memory SET keys = substr(keys, 17), contents = substr(contents, 5) WHERE kind = 'plain'",
        "UPDATE memory SET checksum = x'' WHERE kind = 'plain'",
        "UPDATE memory SET keys = 5 WHERE kind = 'plain'",
        "UPDATE memory SET contents = 'text' WHERE kind = 'plain'",
        (
            "UPDATE memory SET (keys, contents, checksum) ="
            " (SELECT keys, contents, checksum FROM memory WHERE kind = 'other') WHERE kind = 'plain'"
        ),
    ],
)
def test_a_damaged_segment_is_forgotten_with_a_warning(
    path: Path, recipe: precook.Recipe, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    """Nothing of it is believed, everything else works, and it is not complained about for ever."""
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
        remember(store, PLAIN, some_rows(100, start=1), a="one")
        remember(store, OTHER, [(number, 7, number + 500) for number in range(100)])
    damage(path, statement)
    with precook.open(path) as store, caplog.at_level(logging.WARNING, "precook"):
        assert recalled(store, PLAIN, some_rows(100, start=1)) == [None] * 100
        assert any("damaged" in record.message for record in caplog.records)
        assert recalled(store, OTHER, some_rows(1)) == [500]
        assert store.memory().notes("notes") == {b"a": "one"}
        assert store.get(recipe.key(1)) == 1
        caplog.clear()
        assert recalled(store, PLAIN, some_rows(1)) == [None]
        remember(store, PLAIN, some_rows(100, start=1))
        assert recalled(store, PLAIN, some_rows(100, start=1)) == list(range(1, 101))
        assert not caplog.records


@pytest.mark.parametrize(
    "change", ["text = x'7b7d'", "text = 'text'", "text = 5", "key = x'62'", "checksum = x''", "kind = 'failures'"]
)
def test_a_damaged_note_is_forgotten_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    """A note that is not word for word what was written is not read to anybody."""
    with precook.open(path) as store:
        remember(store, PLAIN, [], a="one", c="three")
    damage(path, f"UPDATE note SET {change} WHERE key = x'61'")
    with precook.open(path) as store, caplog.at_level(logging.WARNING, "precook"):
        notes = {**store.memory().notes("notes"), **store.memory().notes("failures")}
        assert notes == {b"c": "three"}
        assert any("damaged" in record.message for record in caplog.records)
        caplog.clear()
        store.reindex()
        assert store.memory().notes("notes") == {b"c": "three"}
        assert not caplog.records


def test_a_damaged_page_never_gives_a_wrong_answer(path: Path, recipe: precook.Recipe) -> None:
    """Bytes flipped all over the index: each row, note and entry is as it was or forgotten."""
    rows = some_rows(60)
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
        remember(store, PLAIN, rows, **{f"key{number}": f"text {number}" for number in range(20)})
        remember(store, OTHER, [(number, 7, number + 500) for number in range(60)])
    good = (path / "index.sqlite").read_bytes()
    inside = good.index(keys_of(rows[:1]).tobytes())
    places = [*range(16, len(good), len(good) // 40), *range(inside - 40, inside + 40, 5)]
    notes = {f"key{number}".encode(): f"text {number}" for number in range(20)}
    forgotten = 0
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 0x41
        for leftover in path.glob("index.sqlite*"):
            leftover.unlink()
        (path / "index.sqlite").write_bytes(bad)
        with precook.open(path) as store:
            plain, other = recalled(store, PLAIN, rows), recalled(store, OTHER, rows)
            found = store.memory().notes("notes")
            assert all(value in (None, number) for number, value in enumerate(plain)), f"byte {place}"
            assert all(value in (None, number + 500) for number, value in enumerate(other)), f"byte {place}"
            assert found.items() <= notes.items(), f"byte {place}"
            assert store.get(recipe.key(1), None) in (None, 1), f"byte {place}"
            forgotten += None in plain or None in other or found != notes
            remember(store, PLAIN, rows)
            assert recalled(store, PLAIN, rows) == list(range(60))
    assert 0 < forgotten < len(places)


def test_an_index_of_which_half_is_lost_gives_up_what_can_be_read(path: Path, recipe: precook.Recipe) -> None:
    """Zeros where the end of the file was: the index is made anew, and nothing wrong is taken over."""
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
        remember(store, PLAIN, some_rows(5000), a="one")
    index = path / "index.sqlite"
    size = index.stat().st_size
    for kept in (size // 4, size // 2, size - 4096):
        copy = path.with_name(f"cache-{kept}")
        shutil.copytree(path, copy)
        os.truncate(copy / "index.sqlite", kept)
        os.truncate(copy / "index.sqlite", size)
        with precook.open(copy) as store:
            assert store.get(recipe.key(1)) == 1
            assert all(value in (None, number) for number, value in enumerate(recalled(store, PLAIN, some_rows(5000))))
            remember(store, PLAIN, some_rows(5000), a="one")
            assert recalled(store, PLAIN, some_rows(5000)) == list(range(5000))


def test_the_generation_changes_when_entries_may_be_gone_and_only_then(path: Path, recipe: precook.Recipe) -> None:
    """Added entries and remembered rows leave it alone; damage, removed packs and a new index change it."""
    seen = []
    with precook.open(path) as store:
        assert store.generation() == ""
        for number in range(3):
            store.put(recipe.key(number), np.arange(3000) + number)
            seen.append(store.generation())
        remember(store, PLAIN, some_rows(10), a="one")
        seen.append(store.generation())
    with precook.open(path) as store:
        store.get(recipe.key(1))
        assert {*seen, store.generation()} == {seen[0]}
        store.reindex()
        rebuilt = store.generation()
        assert rebuilt != seen[0]
        pack = store.locate(recipe.key(0)).pack
        content = bytearray(pack.read_bytes())
        at = content.index(np.arange(3000).tobytes())
        content[at] ^= 1
        pack.write_bytes(content)
    with precook.open(path) as store:
        assert store.generation() == rebuilt
        assert store.get(recipe.key(0), None) is None
        damaged = store.generation()
        assert damaged != rebuilt
        gone = store.locate(recipe.key(1)).pack
    gone.unlink()
    with precook.open(path) as store:
        removed = store.generation()
        assert removed not in (rebuilt, damaged)
        assert store.missing([recipe.key(number) for number in range(3)]) == [recipe.key(0), recipe.key(1)]
        store.put(recipe.key(1), np.arange(3000) + 1)
        assert store.generation() == removed
    (path / "index.sqlite").unlink()
    with precook.open(path) as store:
        assert store.generation() not in (seen[0], rebuilt, damaged, removed)


def test_a_pack_that_vanishes_under_an_open_store_changes_the_generation(
    store: Store, path: Path, recipe: precook.Recipe
) -> None:
    """Whoever notices first tells everybody."""
    store.put(recipe.key(1), np.arange(3000))
    with precook.open(path) as other:
        before = other.generation()
        store.locate(recipe.key(1)).pack.unlink()
        with precook.open(path) as third:
            assert third.get(recipe.key(1), None) is None
        assert other.generation() != before
