"""Small entries that lie together are checked together, once two of them were read; each stands for itself still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.errors import DamagedEntryError
from precook.fs.system import calls
from precook.store.format.pack import row_checksums
from precook.store.packfile import Guard, PackFile, TableFile
from tests.support.trees import same

_RECIPES = [precook.Recipe("test", {"number": number}) for number in range(3)]
_ROWS = 150


def _tree(kind: str, number: int) -> Any:
    ids = np.arange(number % 7 * 100) + number
    return {
        "fixed": {"x": np.arange(300) + number, "y": np.float32(number).reshape(())},
        "lengths": {"ids": ids, "mask": (ids % 2).astype(np.int8)},
        "shapes": [np.full((number % 3, 4, number % 5), number, np.int16)],
        "plain": {"x": np.arange(300) + number, "name": f"number {number}", "same": None},
        "one": np.arange(200) + number,
    }[kind]


KINDS = ["fixed", "lengths", "shapes", "plain", "one"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A sort of tree."""
    return str(request.param)


def _key(number: int) -> precook.Key:
    return _RECIPES[number % 3].key(number)


def _fill(path: Path, kind: str, rows: int = _ROWS) -> Path:
    """A store with one pack of small entries; the pack."""
    with precook.open(path) as store, store.writer() as writer:
        for number in range(rows):
            labels = {"number": number} if number % 2 else None
            writer.put(_key(number), _tree(kind, number), recipe=_RECIPES[number % 3], labels=labels)
    (pack,) = path.rglob("*.safetensors")
    return pack


def test_checksums_of_many_rows_are_those_of_each(path: Path, kind: str) -> None:
    """However rows are checked, they are checked for the same thing."""
    file = _fill(path, kind)
    pack = PackFile(file, file.stem, Guard())
    (table,) = pack.tables
    data = memoryview(file.read_bytes())
    for rows in (slice(0, _ROWS), slice(0, 1), slice(7, 40), slice(_ROWS - 1, _ROWS)):
        spans = [(leaf.span(rows.start)[0], sum(leaf.span(rows.stop - 1))) for leaf in table.table.leaves]
        leaves = [data[begin:end] for begin, end in spans]
        found = row_checksums(table.table, pack.head.recipe_digests, rows, leaves)
        assert np.array_equal(found, table.table.checksums[rows])


def test_all_small_entries_come_as_they_were_put(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, and most of them without a read of their own."""
    _fill(path, kind)
    alone = []
    read = TableFile.read
    monkeypatch.setattr(TableFile, "read", lambda *args, **options: alone.append(args) or read(*args, **options))
    order = np.random.default_rng(0).permutation(_ROWS).tolist()
    with precook.open(path) as store:
        assert all(same(store.get(_key(number)), _tree(kind, number)) for number in order)
        assert all(same(store.get(_key(number)), _tree(kind, number)) for number in order)
    assert len(alone) <= _ROWS // 5


def test_a_damaged_entry_is_found_among_others_that_are_sound(path: Path, kind: str) -> None:
    """Whoever reads it is told, and nobody else."""
    file = _fill(path, kind)
    damaged = 76
    table, row = PackFile(file, file.stem, Guard()).locate(damaged)
    begin = next(begin for begin, size in (leaf.span(row) for leaf in table.table.leaves) if size)
    with file.open("r+b") as opened:
        opened.seek(begin)
        byte = opened.read(1)
        opened.seek(begin)
        opened.write(bytes([byte[0] ^ 1]))
    with precook.open(path) as store:
        lost = []
        for number in range(_ROWS):
            try:
                assert same(store.get(_key(number)), _tree(kind, number))
            except DamagedEntryError as error:
                lost.append(error.key.bytes)
    assert lost == [table.key(row)]


@pytest.mark.parametrize("size", [20_000, 130_000])
def test_large_entries_are_read_once(path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is read with its neighbours: they would be read from the disk twice."""
    with precook.open(path) as store, store.writer() as writer:
        for number in range(12):
            writer.put(_key(number), np.full(size, number, np.uint8))
    taken = []
    preadv = calls.preadv

    def read(descriptor: int, buffers: Any, offset: int) -> int:
        taken.append(preadv(descriptor, buffers, offset))
        return taken[-1]

    monkeypatch.setattr(calls, "preadv", read)
    with precook.open(path) as store:
        for number in range(12):
            assert np.array_equal(store.get(_key(number)), np.full(size, number, np.uint8))
    assert taken == [size] * 12


def test_what_lies_near_a_cut_is_read_as_far_as_it_goes(path: Path) -> None:
    """A pack that was cut short gives the entries before the cut."""
    file = _fill(path, "one")
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 400)
    with precook.open(path) as store:
        assert all(same(store.get(_key(number)), _tree("one", number)) for number in range(_ROWS - 1))
        with pytest.raises(DamagedEntryError):
            store.get(_key(_ROWS - 1))


def test_who_reads_here_and_there_reads_no_more_than_that(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of many does not cost the others."""
    rows = 2000
    _fill(path, "one", rows)
    sizes = []
    preadv = calls.preadv

    def watched(descriptor: int, buffers: Any, offset: int) -> int:
        sizes.append(preadv(descriptor, buffers, offset))
        return sizes[-1]

    with precook.open(path) as store:
        monkeypatch.setattr(calls, "preadv", watched)
        for number in range(0, rows, 200):
            assert same(store.get(_key(number)), _tree("one", number))
    assert sum(sizes) == 10 * 200 * 8
