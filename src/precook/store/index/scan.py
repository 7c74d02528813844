"""The scan: every entry of a store with its size, its age and its last use, as columns, some at a time.

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

from precook.fs.trust import clock
from precook.store.index import schema
from precook.store.index.index import Index
from precook.store.keysets import beginnings
from precook.store.layout import Layout
from precook.values import Numbers

_PAGE = 20_000
"""Rows fetched at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some entries, one per row."""

    keys: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.uint64]
    """The beginning of each key."""
    packs: Numbers
    """Number of each entry's pack in the scan."""
    rows: Numbers
    recipes: Numbers
    nbytes: Numbers
    born: Numbers
    """When its pack was written, in nanoseconds."""
    moments: Numbers
    """Number of the moment when it was last used, in the scan."""
    used: Numbers
    """That moment, zero where nobody says."""
    fresh: npt.NDArray[np.bool_]
    """Whether the entry before it, in this or the last chunk, has another key."""

    @property
    def touched(self) -> Numbers:
        """When each entry was last written or used."""
        return np.maximum(self.born, self.used)


class EntryScan:
    """What lies in a store at one moment; what is added later is not part of it."""

    def __init__(self, layout: Layout, index: Index) -> None:
        self._index = index
        self.now = clock(layout.root)
        """The moment, in nanoseconds, by the file system's clock."""
        self._made, found = index.query(_packs)
        self.numbers = np.array([row[0] for row in found], np.int64)
        """The index's own number of each pack, in order."""
        self.ids = [row[1].hex() for row in found]
        self.nbytes = np.array([row[2] for row in found], np.int64)
        """Size of each pack's file."""
        self.entries = np.array([row[3] for row in found], np.int64)
        self.payload = np.array([row[4] for row in found], np.int64)
        """Bytes of all rows of each pack, the living and the dead."""
        self.born = np.array([self._born(layout, name) for name in self.ids], np.int64)
        self.first = np.cumsum(self.entries) - self.entries
        """Where the rows of each pack begin, where all rows of all packs are numbered through."""
        self._codes, found_moments = index.query(self._load_uses)
        """Each row's number among the moments at which its pack was used."""
        sizes = np.array([len(moments) for moments in found_moments], np.int64)
        self._first_moment = np.cumsum(sizes) - sizes
        self.moments = np.concatenate([np.zeros(0, np.int64), *found_moments])
        """The moments at which rows of a pack were last used, pack by pack, as they were recorded."""
        self.moment_packs = np.repeat(np.arange(self.packs), sizes)
        """The pack of each."""
        self._known = self.numbers, np.arange(self.packs)

    @property
    def packs(self) -> int:
        """Number of packs."""
        return len(self.ids)

    def uses(self, pack: int) -> Numbers:
        """When each row of a pack was last used, as it was recorded."""
        return self.moments[self.moments_of(pack)]

    def moments_of(self, pack: int) -> Numbers:
        """The number of that moment, for each row of a pack."""
        first = self.first[pack]
        numbers: Numbers = self._first_moment[pack] + self._codes[first : first + self.entries[pack]].astype(np.int64)
        return numbers

    def chunks(self) -> Iterator[Chunk]:
        """Every entry, a page at a time."""
        query = (
            "SELECT key, pack, row, recipe, bytes FROM entry"
            " WHERE (key, pack, row) > (?, ?, ?) ORDER BY key, pack, row LIMIT ?"
        )
        last: tuple[Any, ...] = (b"", 0, 0)
        before = b""

        def look(db: sqlite3.Connection) -> tuple[bytes, list[Any]]:
            page = db.execute(query, (*last, _PAGE)).fetchall()
            if page and page[-1][:3] <= last:
                raise schema.DoubtError("keys that are not in order")  # a torn page leads anywhere, also back
            return db.execute("SELECT made FROM store").fetchone()[0], page

        while True:
            made, page = self._index.query(look)
            if made != self._made:
                # Another index, made anew meanwhile, which numbers packs its own way.
                self._renumber()
                continue
            if not page:
                return
            chunk = self._chunk(page, before)
            if len(chunk.keys):
                before = chunk.keys[-1].tobytes()
                yield chunk
            last = page[-1][:3]

    def _renumber(self) -> None:
        """Find the packs again by their names."""
        self._made, found = self._index.query(_packs)
        places = {name: at for at, name in enumerate(self.ids)}
        known = [(number, places[name.hex()]) for number, name, *_ in found if name.hex() in places]
        numbers, at = np.array(known, np.int64).reshape(-1, 2).T
        self._known = numbers, at

    def _chunk(self, page: list[tuple[bytes, int, int, int, int]], before: bytes) -> Chunk:
        keys = np.frombuffer(b"".join(row[0] for row in page), np.uint8).reshape(-1, 32)
        numbers, rows, recipes, nbytes = np.array([row[1:] for row in page], np.int64).T
        ours, places = self._known
        found = np.searchsorted(ours, numbers)
        # A pack that was added meanwhile, or a row that no pack of ours has: not part of this scan.
        known = found < len(ours)
        known[known] = ours[found[known]] == numbers[known]
        at = np.zeros(len(numbers), np.int64)
        at[known] = places[found[known]]
        known[known] &= (rows[known] >= 0) & (rows[known] < self.entries[at[known]])
        keys, at, rows = keys[known], at[known], rows[known]
        starts = beginnings(keys)
        moments = self._first_moment[at] + self._codes[self.first[at] + rows]
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
            moments=moments,
            used=np.minimum(self.moments[moments], self.now),
            fresh=fresh,
        )

    def _born(self, layout: Layout, name: str) -> int:
        try:
            written = layout.pack(name).stat().st_mtime_ns
        except OSError:
            return self.now  # nothing is known about it, and nothing is taken from it
        return min(written, self.now)

    def _load_uses(self, db: sqlite3.Connection) -> tuple[npt.NDArray[np.uint32], list[Numbers]]:
        """The moments at which rows of each pack were last used, each once, and the number of each row's among them."""
        # Of packs that were used as a whole, which most are, nothing is written here: zeros that take no memory.
        numbers = np.zeros(int(self.entries.sum()), np.uint32)
        moments = []
        for at, name in enumerate(self.ids):
            times = schema.read_used(db, bytes.fromhex(name), int(self.entries[at]))
            if len(times) and (times != times[0]).any():
                found, codes = np.unique(times, return_inverse=True)
                numbers[self.first[at] : self.first[at] + len(times)] = codes
            else:
                found = times[:1]
            moments.append(found)
        return numbers, moments


def _packs(db: sqlite3.Connection) -> tuple[bytes, list[tuple[int, bytes, int, int, int]]]:
    """What tells this index from one that is made anew, and its packs."""
    made = db.execute("SELECT made FROM store").fetchone()[0]
    return made, db.execute("SELECT number, id, bytes, entries, payload FROM pack ORDER BY number").fetchall()
