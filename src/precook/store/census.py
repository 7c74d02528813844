"""The census: every entry of a store with its size, its age and its last use, as columns, some at a time.

Entries come in the order of their keys, so the places of one key lie together. Ages go by the file system's own clock:
when a pack was written says its file, and a time that lies in the future counts as now.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.sources.filesystems import clock
from precook.store import database
from precook.store.index import Index
from precook.store.keysets import beginnings
from precook.store.layout import Layout

Numbers = npt.NDArray[np.int64]

_PAGE = 20_000
"""Rows fetched at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some entries, one per row."""

    keys: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.uint64]
    """The beginning of each key."""
    packs: Numbers
    """Number of each entry's pack in the census."""
    rows: Numbers
    recipes: Numbers
    nbytes: Numbers
    born: Numbers
    """When its pack was written, in nanoseconds."""
    used: Numbers
    """When it was last used, zero where nobody says."""
    fresh: npt.NDArray[np.bool_]
    """Whether the entry before it, in this or the last chunk, has another key."""

    @property
    def touched(self) -> Numbers:
        """When each entry was last written or used."""
        return np.maximum(self.born, self.used)


class Census:
    """What lies in a store at one moment; what is added later is not part of it."""

    def __init__(self, layout: Layout, index: Index) -> None:
        self._index = index
        self.now = clock(layout.root)
        """The moment, in nanoseconds, by the file system's clock."""
        found = index.query(_packs)
        self.numbers = np.array([row[0] for row in found], np.int64)
        """The index's own number of each pack, in order."""
        self.ids = [row[1].hex() for row in found]
        self.nbytes = np.array([row[2] for row in found], np.int64)
        """Size of each pack's file."""
        self.entries = np.array([row[3] for row in found], np.int64)
        self.payload = np.array([row[4] for row in found], np.int64)
        """Bytes of all rows of each pack, the living and the dead."""
        self.born = np.array([self._born(layout, name) for name in self.ids], np.int64)
        self._first = np.cumsum(self.entries) - self.entries
        self._used = np.zeros(int(self.entries.sum()), np.int64)
        self._load_uses(index)

    @property
    def packs(self) -> int:
        """Number of packs."""
        return len(self.ids)

    def uses(self, pack: int) -> Numbers:
        """When each row of a pack was last used, as it was recorded."""
        return self._used[self._first[pack] : self._first[pack] + self.entries[pack]]

    def chunks(self) -> Iterator[Chunk]:
        """Every entry, a page at a time."""
        query = (
            "SELECT key, pack, row, recipe, bytes FROM entry"
            " WHERE (key, pack, row) > (?, ?, ?) ORDER BY key, pack, row LIMIT ?"
        )
        last: tuple[Any, ...] = (b"", 0, 0)
        before = b""
        while True:
            page = self._index.query(lambda db, last=last: db.execute(query, (*last, _PAGE)).fetchall())  # type: ignore[misc]
            if not page:
                return
            chunk = self._chunk(page, before)
            if len(chunk.keys):
                before = chunk.keys[-1].tobytes()
                yield chunk
            last = page[-1][:3]

    def _chunk(self, page: list[tuple[bytes, int, int, int, int]], before: bytes) -> Chunk:
        keys = np.frombuffer(b"".join(row[0] for row in page), np.uint8).reshape(-1, 32)
        numbers, rows, recipes, nbytes = np.array([row[1:] for row in page], np.int64).T
        at = np.searchsorted(self.numbers, numbers)
        # A pack that was added meanwhile, or a row that no pack of ours has: not part of this census.
        known = at < self.packs
        known[known] = self.numbers[at[known]] == numbers[known]
        known[known] &= (rows[known] >= 0) & (rows[known] < self.entries[at[known]])
        keys, at, rows = keys[known], at[known], rows[known]
        starts = beginnings(keys)
        fresh = np.ones(len(keys), bool)
        if len(keys):
            fresh[0] = keys[0].tobytes() != before
            fresh[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        return Chunk(
            keys=keys,
            starts=starts,
            packs=at,
            rows=rows,
            recipes=recipes[known],
            nbytes=nbytes[known],
            born=self.born[at],
            used=np.minimum(self._used[self._first[at] + rows], self.now),
            fresh=fresh,
        )

    def _born(self, layout: Layout, name: str) -> int:
        try:
            written = layout.pack(name).stat().st_mtime_ns
        except OSError:
            return self.now  # nothing is known about it, and nothing is taken from it
        return min(written, self.now)

    def _load_uses(self, index: Index) -> None:
        def load(db: sqlite3.Connection) -> None:
            for at, name in enumerate(self.ids):
                entries = int(self.entries[at])
                times = database.read_used(db, bytes.fromhex(name), entries)
                self._used[self._first[at] : self._first[at] + entries] = times

        index.query(load)


def _packs(db: sqlite3.Connection) -> list[tuple[int, bytes, int, int, int]]:
    return db.execute("SELECT number, id, bytes, entries, payload FROM pack ORDER BY number").fetchall()
