"""The scan: places of entries in the order of their keys, a page at a time. Nothing else pages through the index.

`read_pages` walks through all places, `find_pages` asks for some keys. On top of them stand `read_entries`, for people,
and `EntryScan`, for whoever decides what goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from precook.fs.trust import file_system_time
from precook.store.index.index import Index
from precook.store.index.schema import Names
from precook.store.keysets import beginnings, split
from precook.store.layout import Layout
from precook.values import Bytes, Flags, Numbers

_PAGE = 20_000
"""Places that are read at a time."""
_LAST = (1 << 63) - 1


class Page(NamedTuple):
    """Some places, in columns, and what the index's numbers in them stand for."""

    keys: Bytes
    packs: Numbers
    rows: Numbers
    recipes: Numbers
    nbytes: Numbers
    names: Names


def read_pages(index: Index, *, after: bytes = b"", details: bool = False) -> Iterator[Page]:
    """Every place whose key comes after some bytes, in the order of keys, packs and rows.

    `details`: with recipes and bytes, which are empty columns otherwise.
    """
    last = (after, _LAST, _LAST)
    while True:
        columns, names = index.page(last, _PAGE, details=details)
        if not columns.keys:
            return
        keys = np.frombuffer(columns.keys, np.uint8).reshape(-1, 32)
        yield Page(keys, columns.packs, columns.rows, columns.recipes, columns.nbytes, names)
        last = (columns.keys[-32:], int(columns.packs[-1]), int(columns.rows[-1]))


def find_pages(index: Index, keys: Callable[[int, int], Bytes], count: int) -> Iterator[Page]:
    """Every place of `count` keys, of which `keys` gives those from one number to another; without details."""
    none = np.zeros(0, np.int64)
    for start in range(0, count, _PAGE):
        places, names = index.find_rows(list(dict.fromkeys(split(keys(start, start + _PAGE)))))
        raw = b"".join(key for key, _, _ in places)
        packs, rows = (np.array([place[part] for place in places], np.int64) for part in (1, 2))
        yield Page(np.frombuffer(raw, np.uint8).reshape(-1, 32), packs, rows, none, none, names)


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry as the index knows it."""

    key: bytes
    nbytes: int
    created: int
    recipe: bytes
    """The recipe's canonical form, empty where there is none."""
    pack: str


def read_entries(index: Index, after: bytes = b"") -> Iterator[EntryRow]:
    """Every place of every entry in order of keys, beginning after some bytes."""
    for page in read_pages(index, after=after, details=True):
        names = page.names
        columns = (page.packs.tolist(), page.recipes.tolist(), page.nbytes.tolist())
        for key, pack, recipe, nbytes in zip(split(page.keys), *columns, strict=True):
            if pack in names.packs:
                form = names.recipes.get(recipe, b"")
                yield EntryRow(key, nbytes, names.created[pack], form, names.packs[pack])


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some entries of a scan, one per row."""

    keys: Bytes
    starts: npt.NDArray[np.uint64]
    """The beginning of each key."""
    packs: Numbers
    """Number of each entry's pack in the scan."""
    rows: Numbers
    recipes: Numbers
    """Number of each entry's recipe in the scan."""
    nbytes: Numbers
    born: Numbers
    """When its pack was written, in nanoseconds."""
    moments: Numbers
    """Number of the moment when it was last used, in the scan."""
    used: Numbers
    """That moment, zero where nobody says."""
    fresh: Flags
    """Whether the entry before it, in this or the last chunk, has another key."""

    @property
    def touched(self) -> Numbers:
        """When each entry was last written or used: what every age is counted from."""
        return np.maximum(self.born, self.used)

    def take(self, chosen: Flags) -> Chunk:
        """Some of these entries."""
        return Chunk(*(getattr(self, column.name)[chosen] for column in fields(self)))

    @staticmethod
    def join(chunks: Sequence[Chunk]) -> Chunk:
        """The entries of several chunks as one."""
        columns = ([getattr(chunk, column.name) for chunk in chunks] for column in fields(Chunk))
        return Chunk(*map(np.concatenate, columns))


class AgedRow(NamedTuple):
    """A place of an entry, with its age, for people."""

    key: bytes
    nbytes: int
    recipe: bytes
    """The recipe's canonical form, empty where there is none."""
    pack: str
    born: int
    touched: int
    """When it was last written or used: the one age that commands and removals go by."""


class EntryScan:
    """What lies in a store at one moment, with sizes, ages and last uses; what is added later is not part of it.

    Ages go by the file system's own clock: when a pack was written says its file, and a time that lies in the future
    counts as now.
    """

    def __init__(self, layout: Layout, index: Index) -> None:
        self._index = index
        self.now = file_system_time(layout.root)
        """The moment, in nanoseconds, by the file system's clock."""
        packs = index.pack_sizes()
        self.ids = [pack[0] for pack in packs]
        self.nbytes = np.array([pack[1] for pack in packs], np.int64)
        """Size of each pack's file."""
        self.entries = np.array([pack[2] for pack in packs], np.int64)
        self.payload = np.array([pack[3] for pack in packs], np.int64)
        """Bytes of all rows of each pack, the living and the dead."""
        self.born = np.array([self._born(layout, name) for name in self.ids], np.int64)
        self.first = np.cumsum(self.entries) - self.entries
        """Where the rows of each pack begin, where all rows of all packs are numbered through."""
        self._codes, moments = self._read_uses()
        """Each row's number among the moments at which its pack was used."""
        sizes = np.array([len(times) for times in moments], np.int64)
        self._first_moment = np.cumsum(sizes) - sizes
        self.moments = np.concatenate([np.zeros(0, np.int64), *moments])
        """The moments at which rows of a pack were last used, pack by pack, as they were recorded."""
        self.moment_packs = np.repeat(np.arange(self.packs), sizes)
        """The pack of each."""
        self._recipes: dict[bytes, int] = {}
        """The number of each recipe that was met, by its canonical form."""
        self._names = Names({}, {}, {})
        self._numbers, self._positions = np.zeros((2, 0), np.int64)
        """The index's own numbers of these packs, in order, and the number of each in the scan."""

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
        before = b""
        for page in read_pages(self._index, details=True):
            chunk = self._chunk(page, before)
            if len(chunk.keys):
                before = chunk.keys[-1].tobytes()
                yield chunk

    def rows(self) -> Iterator[AgedRow]:
        """The same, one by one."""
        for chunk in self.chunks():
            forms = list(self._recipes)
            numbers = (chunk.packs, chunk.recipes, chunk.nbytes, chunk.born, chunk.touched)
            columns = zip(split(chunk.keys), *(column.tolist() for column in numbers), strict=True)
            for key, pack, recipe, nbytes, born, touched in columns:
                yield AgedRow(key, nbytes, forms[recipe], self.ids[pack], born, touched)

    def _chunk(self, page: Page, before: bytes) -> Chunk:
        known, packs = self._find_packs(page)
        rows = page.rows
        # A pack that was added meanwhile, or a row that no pack of ours has, is not part of this scan.
        known[known] &= (rows[known] >= 0) & (rows[known] < self.entries[packs[known]])
        keys, packs, rows = page.keys[known], packs[known], rows[known]
        moments = self._first_moment[packs] + self._codes[self.first[packs] + rows]
        fresh = np.ones(len(keys), bool)
        if len(keys):
            fresh[0] = keys[0].tobytes() != before
            fresh[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        return Chunk(
            keys=keys,
            starts=beginnings(keys),
            packs=packs,
            rows=rows,
            recipes=self._number_recipes(page)[known],
            nbytes=page.nbytes[known],
            born=self.born[packs],
            moments=moments,
            used=np.minimum(self.moments[moments], self.now),
            fresh=fresh,
        )

    def _find_packs(self, page: Page) -> tuple[Flags, Numbers]:
        """Which places lie in packs of this scan, and the number of each one's pack in it."""
        if page.names is not self._names:
            # By their names: an index that was made anew meanwhile numbers packs its own way.
            positions = {name: position for position, name in enumerate(self.ids)}
            known = sorted((number, positions[name]) for number, name in page.names.packs.items() if name in positions)
            self._numbers, self._positions = np.array(known, np.int64).reshape(-1, 2).T
            self._names = page.names
        nearest = np.searchsorted(self._numbers, page.packs)
        ours = nearest < len(self._numbers)
        ours[ours] = self._numbers[nearest[ours]] == page.packs[ours]
        packs = np.zeros(len(page.packs), np.int64)
        packs[ours] = self._positions[nearest[ours]]
        return ours, packs

    def recipe_numbers(self, forms: Collection[bytes]) -> list[int]:
        """The numbers, in chunks that were read so far, of those of some recipes that were met."""
        return [self._recipes[form] for form in forms if form in self._recipes]

    def _number_recipes(self, page: Page) -> Numbers:
        """The recipe of each place by a number of our own: an index that was made anew meanwhile has other numbers."""
        numbers, positions = np.unique(page.recipes, return_inverse=True)
        forms = [page.names.recipes.get(number, b"") for number in numbers.tolist()]
        own = [self._recipes.setdefault(form, len(self._recipes)) for form in forms]
        return np.array(own, np.int64)[positions]

    def _born(self, layout: Layout, name: str) -> int:
        try:
            written = layout.written(name).stat().st_mtime_ns
        except OSError:
            return self.now  # nothing is known about it, and nothing is taken from it
        return min(written, self.now)

    def _read_uses(self) -> tuple[npt.NDArray[np.uint32], list[Numbers]]:
        """The moments at which rows of each pack were last used, each once, and the number of each row's among them."""
        # Of packs that were used as a whole, which most are, nothing is written here: zeros that take no memory.
        codes = np.zeros(int(self.entries.sum()), np.uint32)
        moments = []
        for name, first, rows in zip(self.ids, self.first.tolist(), self.entries.tolist(), strict=True):
            times = self._index.uses(name, rows)
            different = times[:1]
            if len(times) and (times != times[0]).any():
                different, numbers = np.unique(times, return_inverse=True)
                codes[first : first + rows] = numbers
            moments.append(different)
        return codes, moments
