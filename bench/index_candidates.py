"""What may hold the index of a store in a bucket: sorted columns beside SQLite, SlateDB, Lance and Delta.

    python bench/index_candidates.py [--rows 10000000] [--only columns,lance] [--quick]

Each gets the same keys (their first 128 bits) with a place of eight bytes, makes its files in a folder, is opened anew,
and is asked for keys at random, all of which it has. What is not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import importlib.util
import os
import shutil
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

if not __package__:
    import script  # noqa: F401

from bench.measure import disk_use, median
from bench.script import facts, fill, folder, parser, some_of, tell, versions
from bench.table import Column, Section

Words = npt.NDArray[np.uint64]
_BULK, _SOME = 1_000_000, 10_000


class Candidate(ABC):
    """One way to keep places by key."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules and the packages that bring them."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @abstractmethod
    def make(self, keys: Words, places: Words) -> None:
        """Write everything; `keys` has two words a row."""

    @abstractmethod
    def find(self, keys: Words) -> Words:
        """The places of keys, in the order asked; opened anew."""


class Columns(Candidate):
    """Columns sorted by the first word of the key, mapped and searched: what REMOTE calls a volume."""

    name = "columns"

    def make(self, keys: Words, places: Words) -> None:
        order = np.argsort(keys[:, 0], kind="stable")
        for name, column in (("first", keys[:, 0]), ("rest", keys[:, 1]), ("place", places)):
            column[order].tofile(self.place / name)

    def find(self, keys: Words) -> Words:
        first, rest, place = (np.memmap(self.place / name, np.uint64, "r") for name in ("first", "rest", "place"))
        order = np.argsort(keys[:, 0])
        at = np.searchsorted(first, keys[order, 0])
        if (first[at] != keys[order, 0]).any() or (rest[at] != keys[order, 1]).any():
            raise AssertionError("a key is missing")
        found = np.empty(len(keys), np.uint64)
        found[order] = place[at]
        return found


class Sqlite(Candidate):
    """A table in the order of keys, as the index of a store in a folder has."""

    name = "sqlite"

    def make(self, keys: Words, places: Words) -> None:
        order = _byte_order(keys)
        data, values = keys[order].tobytes(), places[order].tolist()
        with sqlite3.connect(self.place / "index") as database:
            database.execute("CREATE TABLE entries (key BLOB PRIMARY KEY, place INTEGER) WITHOUT ROWID")
            rows = ((data[16 * row : 16 * row + 16], place) for row, place in enumerate(values))
            database.executemany("INSERT INTO entries VALUES (?, ?)", rows)
        database.close()

    def find(self, keys: Words) -> Words:
        order = _byte_order(keys)  # neighbours share pages
        data = keys[order].tobytes()
        database = sqlite3.connect(self.place / "index")
        ask = "SELECT place FROM entries WHERE key = ?"
        found = np.empty(len(keys), np.uint64)
        found[order] = [database.execute(ask, (data[at : at + 16],)).fetchone()[0] for at in range(0, len(data), 16)]
        database.close()
        return found


class SlateDb(Candidate):
    """A log-structured tree in an object store; one writer at a time."""

    name = "slatedb"
    needs = ("slatedb",)
    _batch, _flight = 10_000, 64

    def make(self, keys: Words, places: Words) -> None:
        asyncio.run(self._make(keys.tobytes(), places.tobytes()))

    async def _make(self, keys: bytes, places: bytes) -> None:
        slate, database = await self._open()
        for start in range(0, len(places) // 8, self._batch):
            batch = slate.WriteBatch()
            for row in range(start, min(start + self._batch, len(places) // 8)):
                batch.put(keys[16 * row : 16 * row + 16], places[8 * row : 8 * row + 8])
            await database.write(batch)
        await database.flush()
        await database.shutdown()

    async def _open(self) -> tuple[Any, Any]:
        slate = importlib.import_module("slatedb.uniffi")
        path = str(self.place).lstrip("/")
        return slate, await slate.DbBuilder(path, slate.ObjectStore.resolve("file:///")).build()

    def find(self, keys: Words) -> Words:
        return np.frombuffer(b"".join(asyncio.run(self._find(keys.tobytes()))), np.uint64)

    async def _find(self, keys: bytes) -> list[bytes]:
        _, database = await self._open()
        found: list[bytes] = []
        for start in range(0, len(keys), 16 * self._flight):
            some = range(start, min(start + 16 * self._flight, len(keys)), 16)
            found += await asyncio.gather(*(database.get(keys[at : at + 16]) for at in some))
        await database.shutdown()
        return found


class Lance(Candidate):
    """A table in the Lance format with its index of sorted values."""

    name = "lance"
    needs = ("lance", "pyarrow")
    _batch = 10_000

    def make(self, keys: Words, places: Words) -> None:
        lance, arrow = map(importlib.import_module, self.needs)
        table = arrow.table({"key": _binary(keys), "place": arrow.array(places)})
        lance.write_dataset(table, str(self.place / "table")).create_scalar_index("key", "BTREE")

    def find(self, keys: Words) -> Words:
        lance, compute = map(importlib.import_module, ("lance", "pyarrow.compute"))
        dataset = lance.dataset(str(self.place / "table"))
        parts = []
        for start in range(0, len(keys), self._batch):
            wanted = compute.field("key").isin(_binary(keys[start : start + self._batch]))
            parts.append(dataset.to_table(columns=["key", "place"], filter=wanted))
        table = importlib.import_module("pyarrow").concat_tables(parts).combine_chunks()
        data = b"".join(table["key"].to_pylist())
        return _in_order(keys, np.frombuffer(data, np.uint64).reshape(-1, 2), table["place"].to_numpy())


class Delta(Candidate):
    """Parquet files of a Delta table in the order of keys, joined by DuckDB with what is asked."""

    name = "delta"
    needs = ("deltalake", "pyarrow", "duckdb")

    def make(self, keys: Words, places: Words) -> None:
        delta, arrow, _ = map(importlib.import_module, self.needs)
        order = _byte_order(keys)
        # Delta has no unsigned numbers.
        columns = {"first": keys[order, 0], "rest": keys[order, 1], "place": places[order]}
        table = arrow.table({name: arrow.array(column.view(np.int64)) for name, column in columns.items()})
        delta.write_deltalake(str(self.place / "table"), table)

    def find(self, keys: Words) -> Words:
        delta, arrow, duckdb = map(importlib.import_module, self.needs)
        files = delta.DeltaTable(str(self.place / "table")).file_uris()
        asked = arrow.table({"first": keys[:, 0].copy().view(np.int64), "rest": keys[:, 1].copy().view(np.int64)})
        with duckdb.connect() as connection:
            connection.register("asked", asked)
            query = "SELECT first, rest, place FROM read_parquet(?) JOIN asked USING (first, rest)"
            found = connection.execute(query, [files]).fetchnumpy()
        rows = np.stack([found["first"].view(np.uint64), found["rest"].view(np.uint64)], axis=1)
        return _in_order(keys, rows, found["place"].view(np.uint64))


CANDIDATES: tuple[type[Candidate], ...] = (Columns, Sqlite, SlateDb, Lance, Delta)


def _byte_order(keys: Words) -> npt.NDArray[np.intp]:
    """The order of keys as bytes."""
    return np.lexsort((keys[:, 1].byteswap(), keys[:, 0].byteswap()))


def _binary(keys: Words) -> Any:
    arrow = importlib.import_module("pyarrow")
    return arrow.FixedSizeBinaryArray.from_buffers(
        arrow.binary(16), len(keys), [None, arrow.py_buffer(np.ascontiguousarray(keys).tobytes())]
    )


def _in_order(asked: Words, keys: Words, places: Words) -> Words:
    """Places that came in any order, in that of what was asked."""
    found = np.empty(len(asked), np.uint64)
    found[np.argsort(asked[:, 0])] = places[np.argsort(keys[:, 0])]
    return found


def compare(place: Path, options: argparse.Namespace) -> Section:
    """Make and ask each, one after the other."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, (options.rows, 2), dtype=np.uint64)
    rows = np.arange(options.rows, dtype=np.uint64)
    places = rows // np.uint64(160) << np.uint64(32) | rows % np.uint64(160)
    bulk, some = (min(count, options.rows // 10) for count in (_BULK, _SOME))
    columns = [Column("index"), Column("bytes a row", ".1f"), Column("made, s", ",.1f"), Column("made, CPU s", ",.1f")]
    columns += [Column(f"{count:,} look-ups, {what}", ".2f") for count in (bulk, some) for what in ("s", "CPU s")]
    section = Section("candidates", f"{options.rows:,} keys", columns)
    for kind in CANDIDATES:
        if kind.name not in options.only:
            continue
        if lacking := [name for name in kind.needs if importlib.util.find_spec(name) is None]:
            section.notes.append(f"{kind.name}: left out, {', '.join(lacking)} is not installed")
            continue
        section.rows.append(
            [kind.name, *_measure(kind(place / kind.name), keys, places, (bulk, some), options.repeats)]
        )
    return section


def _measure(candidate: Candidate, keys: Words, places: Words, counts: tuple[int, ...], repeats: int) -> list[float]:
    """Bytes a row, what making it takes, and what looking so many keys up takes: on the clock, and of all threads."""
    candidate.place.mkdir()
    found = [*_time(lambda: candidate.make(keys, places))]
    found.insert(0, disk_use(candidate.place).nbytes / len(keys))
    for count in counts:
        chosen = np.random.default_rng(count).choice(len(keys), count, replace=False)
        times = [_time(functools.partial(_ask, candidate, keys[chosen], places[chosen])) for _ in range(repeats)]
        found += [median(wall for wall, _ in times), median(busy for _, busy in times)]
    shutil.rmtree(candidate.place)
    return found


def _ask(candidate: Candidate, keys: Words, places: Words) -> None:
    if (candidate.find(keys) != places).any():
        raise AssertionError(f"{candidate.name} gave wrong places")


def _time(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of all threads."""
    start, busy = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - busy


def main(arguments: list[str] | None = None) -> int:
    """Print one table."""
    asked = parser(__doc__)
    asked.add_argument("--rows", type=int, help="keys in the index (default: 10,000,000)")
    asked.add_argument("--repeats", type=int, help="of look-ups, of which medians are taken (default: 3)")
    asked.add_argument("--only", **some_of([kind.name for kind in CANDIDATES]))
    options = fill(
        asked.parse_args(arguments), full={"rows": 10_000_000, "repeats": 3}, quick={"rows": 20_000, "repeats": 1}
    )
    here = [name for kind in CANDIDATES for name in kind.needs if importlib.util.find_spec(name) is not None]
    packages = versions("numpy", *({"lance": "pylance"}.get(name, name) for name in dict.fromkeys(here)))
    tell(facts(sqlite=sqlite3.sqlite_version, packages=packages, load=f"{os.getloadavg()[0]:.1f}"))
    with folder(options.dir) as place:
        print(compare(place, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
