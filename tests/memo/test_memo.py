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

import precook
from precook.memo.columns import Kind
from precook.store.index import memo as memo_module
from precook.store.store import Store
from tests.support.memos import OTHER, PLAIN, Row, keys_of, numbers, some_rows, values_of


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
