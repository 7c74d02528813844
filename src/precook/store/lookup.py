"""Looking up very many keys at once: one pass through the index, and each pack confirms what it is said to hold.

Nothing is made for a single key. Keys are told apart by how they begin until their pack confirms them whole; what it
does not confirm is left to a look-up key by key, which finds out what is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedEntryError, MissingEntryError
from precook.store.copy import Verify, copy_leaves, copy_mapped, copy_row, read_rows
from precook.store.index.index import Index, Place
from precook.store.index.scan import find_pages, read_pages
from precook.store.keysets import beginnings
from precook.store.packfile import RowDamagedError, TableFile
from precook.store.reader import Admission, Reader
from precook.values import Array, Bytes, Key, Numbers

_Result = TypeVar("_Result")

NOWHERE = -1
_DENSE = 6
"""Walking past an entry takes so much less time than looking for one."""
ROW_BITS = 32
"""Bits of a row, where it stands in one number with its pack."""


def propose(index: Index, columns: Sequence[Bytes]) -> tuple[Numbers, dict[int, str]]:
    """Where the index says each key of some columns lies, one column after the other: a place or `NOWHERE`.

    A place is the pack's number and the row in one; the packs' names come with them. Of the places of one key it is the
    first one in the index's order.
    """
    starts = np.concatenate([np.zeros(0, np.uint64), *(beginnings(keys) for keys in columns)])
    order = np.argsort(starts)
    starts = starts[order]
    edges = np.cumsum([0, *map(len, columns)])

    def in_order(begin: int, end: int) -> Bytes:
        numbers = order[begin:end]
        keys = np.empty((len(numbers), 32), np.uint8)
        for number, column in enumerate(columns):
            here = (numbers >= edges[number]) & (numbers < edges[number + 1])
            keys[here] = column[numbers[here] - edges[number]]
        return keys

    proposed = np.full(len(starts), NOWHERE, np.int64)
    names: dict[int, str] = {}
    dense = len(starts) * _DENSE > index.places()
    for page in read_pages(index) if dense else find_pages(index, in_order, len(order)):
        names = page.names.packs
        begins = beginnings(page.keys)
        places = page.packs << ROW_BITS | page.rows
        first, last = np.searchsorted(starts, begins), np.searchsorted(starts, begins, side="right")
        counts = last - first
        # Each place, once for every time that its key was asked for.
        at = np.repeat(np.arange(len(begins)), counts)
        numbers = order[np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts - first, counts)]
        new = proposed[numbers] == NOWHERE
        # Backwards: of several the first one stays.
        proposed[numbers[new][::-1]] = places[at[new]][::-1]
    return proposed, names


def by_pack(places: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The packs of some places, each with the numbers of those that lie in it, in the order of their rows."""
    order = np.argsort(places)
    order = order[np.searchsorted(places, 0, sorter=order) :]
    packs = places[order] >> ROW_BITS
    edges = np.flatnonzero(np.diff(packs, prepend=-1))
    for begin, end in itertools.pairwise([*edges.tolist(), len(order)]):
        yield int(packs[begin]), order[begin:end]


_CHUNK = 100_000
"""Keys that are looked up at a time: Python objects are made for so many only."""
_ROW_MASK = (1 << ROW_BITS) - 1
_READ = 1 << 62
"""Set where this process has read the entry from the disk, checked it, and may take it from the mapped file."""
_TABLE_MASK = (_READ >> ROW_BITS) - 1
_ATTEMPTS = 3
"""How often an entry is looked for again when its pack is gone: compaction may have moved it."""


class ReshapedError(Exception):
    """An entry was made anew, in another shape, since it was looked up; its place is known by now."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"entry {key.hex[:16]} has another shape than the place it is read into")


class FoundRows(NamedTuple):
    """Some entries, and the table and row of each at one moment."""

    numbers: Numbers
    at: Numbers
    tables: list[TableFile]
    rows: list[int]
    read: bool
    """Whether all of them may be taken from mapped files."""

    @property
    def distinct(self) -> list[TableFile]:
        """Each table once."""
        return list(dict.fromkeys(self.tables))


class EntryTable:
    """Where the entries of some keys lie, as columns; safe to use from several threads."""

    def __init__(self, reader: Reader, index: Index, keys: npt.NDArray[np.uint8], *, verify: Verify) -> None:
        self._reader = reader
        self._index = index
        self._verify = verify
        self.keys = keys
        self.tables: dict[int, TableFile] = {}
        self._numbers: dict[int, int] = {}
        self._fresh = itertools.count()
        # Table and row in one number: whoever reads it while another thread looks again gets both of one moment.
        self._at = np.full(len(keys), NOWHERE, np.int64)
        self.refused: dict[bytes, str] = {}
        """Keys that were found only where nothing can be read, with the pack."""

    @classmethod
    def find_all(
        cls, reader: Reader, index: Index, columns: Sequence[npt.NDArray[np.uint8]], *, verify: Verify
    ) -> list[EntryTable]:
        """The places of several columns of keys, found in one pass through the index."""
        found = [cls(reader, index, keys, verify=verify) for keys in columns]
        proposed, names = propose(index, columns)
        edges = np.cumsum([0, *map(len, columns)])
        doubtful: list[list[Numbers]] = [[] for _ in found]
        for pack, numbers in by_pack(proposed):
            name = names.get(pack)
            owners = np.searchsorted(edges, numbers, side="right") - 1
            for owner in np.unique(owners).tolist():
                here = numbers[owners == owner]
                inside = here - edges[owner]
                if not found[owner]._confirm_all(name, inside, proposed[here] & _ROW_MASK):  # noqa: SLF001
                    doubtful[owner].append(inside)
        for places, some in zip(found, doubtful, strict=True):
            # Key by key: what the index says is behind, or wrong, or the pack is damaged.
            for numbers in some:
                for at in range(0, len(numbers), _CHUNK):
                    places.look_again(numbers[at : at + _CHUNK])
        return found

    @property
    def missing(self) -> Numbers:
        """Which of the keys have no entry."""
        return np.flatnonzero(self._at < 0)

    @property
    def unread(self) -> bool:
        """Whether an entry was not read from the disk yet."""
        return bool(((self._at >= 0) & (self._at & _READ == 0)).any())

    @property
    def most_bytes(self) -> int:
        """What an entry takes at most."""
        return max((table.most_bytes for table in list(self.tables.values())), default=0)

    @property
    def table(self) -> Numbers:
        """The number of each entry's table; -1 where there is no entry."""
        return _split(self._at)[0]

    def there(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of some entries are there."""
        return self._at[numbers] >= 0

    def locate(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """For each of some entries the number of its table, -1 where there is none, and its row."""
        return _split(self._at[numbers])

    def look_again(self, numbers: Numbers) -> None:
        """Look some entries up anew, equal ones once: they were made, or moved, meanwhile.

        A place counts once its pack's own key column confirms it.
        """
        keys = self.keys[numbers]
        raw = keys.tobytes()
        asked: dict[bytes, int] = {}
        alike = [asked.setdefault(raw[at : at + 32], at // 32) for at in range(0, len(raw), 32)]
        asked.pop(bytes(32), None)  # no key: nobody has asked for an entry there
        found = np.full(len(numbers), NOWHERE, np.int64)
        for left in reversed(range(_ATTEMPTS)):
            if not asked or not self._find_some(keys, asked, found, last=not left):
                break
            asked = {key: at for key, at in asked.items() if found[at] < 0}
        self._at[numbers] = found[alike]

    def place(self, number: int) -> tuple[TableFile, int]:
        """An entry's table and row; `MissingEntryError` where there is none."""
        found = self.place_all(np.array([number]))
        return found.tables[0], found.rows[0]

    def place_all(self, numbers: Numbers) -> FoundRows:
        """The same for many entries."""
        at = self._at[numbers]
        lowest = at.min(initial=_READ)
        if lowest < 0:
            raise MissingEntryError(self._key(int(numbers[at < 0][0])))
        tables = [self.tables[table] for table in (at >> ROW_BITS & _TABLE_MASK).tolist()]
        return FoundRows(numbers, at, tables, (at & _ROW_MASK).tolist(), read=bool(lowest >= _READ))

    def copy(self, number: int, arrays: Sequence[Array]) -> None:
        """Copy an entry's leaves into arrays of their shapes, checked as the store is told to check.

        `DamagedEntryError` and `MissingEntryError` name the entry. `ReshapedError` where it turns out to lie elsewhere
        and to have other shapes there.
        """

        def fill(table: TableFile, row: int) -> None:
            # Else bytes of another entry would be read, and taken for damage.
            if [leaf.row_shape(row) for leaf in table.table.leaves] != [array.shape for array in arrays]:
                raise ReshapedError(self._key(number))
            copy_row(table, row, arrays, verify=self._verify)

        self._visit(number, fill)

    def read(self, number: int) -> tuple[TableFile, int, list[Array]]:
        """An entry's table, row and leaves, read from the disk and checked whatever the store is told to check."""
        return self._visit(number, lambda table, row: (table, row, table.read(row, check=True)))

    def _visit(self, number: int, use: Callable[[TableFile, int], _Result]) -> _Result:
        """Use an entry where it lies; where that is gone or damaged, look for it elsewhere."""
        damaged: DamagedEntryError | None = None
        for _ in range(_ATTEMPTS):
            try:
                table, row = self.place(number)
            except MissingEntryError:
                raise damaged or MissingEntryError(self._key(number)) from None
            try:
                return use(table, row)
            except FileNotFoundError:
                self._reader.forget_pack(self._index, table)
                self.look_again(np.array([number]))
            except (RowDamagedError, OSError) as error:
                damaged = self._reader.damaged(self._index, self._key(number), table, row, error)
                self.look_again(np.array([number]))
        raise damaged or MissingEntryError(self._key(number))

    def copy_all(self, found: FoundRows, leaves: Sequence[Sequence[Array]]) -> None:
        """The same for many entries that `place_all` found; `leaves` has of each leaf an array for every entry."""
        if found.read and self._verify != "always":
            try:
                copy_leaves(found.tables, found.rows, leaves)
            except (RowDamagedError, OSError):
                pass  # each for itself: what is damaged is looked for elsewhere, or named
            else:
                return
        self._copy_each(found, list(zip(*leaves, strict=True)) if leaves else [()] * len(found.rows))

    def announce(self, numbers: npt.NDArray[np.int64]) -> None:
        """Ask the system to read entries ahead that were not read yet."""
        at = self._at[numbers]
        unread = at[(at >= 0) & (at & _READ == 0)]
        if not len(unread):
            return
        tables, rows = _split(unread)
        for number in np.unique(tables).tolist():
            table = self.tables[number]
            try:
                table.announce(*(row for row in rows[tables == number].tolist() if not table.checked[row]))
            except OSError:
                return  # whoever reads it finds out what is wrong, and says so

    def _copy_each(self, found: FoundRows, entries: Sequence[Sequence[Array]]) -> None:
        """Copy entries one by one; of those that come from the disk, a pack is opened once for all."""
        always = self._verify == "always"
        unread: dict[TableFile, list[int]] = {}
        again: list[int] = []
        for at, (table, row) in enumerate(zip(found.tables, found.rows, strict=True)):
            if not table.checked[row] or not table.pack.whole:
                unread.setdefault(table, []).append(at)
                continue
            try:
                copy_mapped(table, row, entries[at], check=always)
            except (RowDamagedError, OSError):
                again.append(at)
        for table, some in unread.items():
            again += read_rows(table, found.rows, some, entries, check=self._verify is not False)
        for at in again:
            self.copy(int(found.numbers[at]), entries[at])
        if found.read:
            return
        read = [table.pack.whole and table.checked[row] for table, row in zip(found.tables, found.rows, strict=True)]
        # Of those that are still there: in another place the entry has to be checked first.
        now = self._at[found.numbers]
        self._at[found.numbers] = np.where((now == found.at) & np.array(read, bool), now | _READ, now)

    def _confirm_all(self, pack: str | None, numbers: Numbers, rows: Numbers) -> bool:
        """Believe that some entries lie in rows of a pack if all of its own keys say so; whether they do."""
        sure = self._reader.confirm_all(pack, self.keys[numbers], rows) if pack is not None else []
        for table, at, row in sure:
            self._at[numbers[at]] = self._number(table) << ROW_BITS | row
        return bool(sure)

    def _find_some(self, keys: npt.NDArray[np.uint8], asked: dict[bytes, int], found: Numbers, *, last: bool) -> bool:
        """Look up where some rows of `keys` lie; whether the index was wrong and should be asked again.

        At once, unless it is the `last` time: what else it said is wrong, too, and would be mended row by row.
        """
        listed, names = self._index.find_rows(list(asked))
        numbers = np.array([asked[key] for key, _, _ in listed], np.int64)
        owners = np.array([pack for _, pack, _ in listed], np.int64)
        rows = np.array([row for _, _, row in listed], np.int64)
        order = np.argsort(owners, kind="stable")
        stale = False
        for some in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if listed else ():
            name, inside = names.packs[int(owners[some[0]])], numbers[some]
            sure = self._reader.confirm_all(name, keys[inside], rows[some])
            for table, at, row in sure:
                found[inside[at]] = self._number(table) << ROW_BITS | row
            for at, row in zip(inside.tolist(), rows[some].tolist(), strict=True) if not sure else ():
                place = self._reader.confirm(self._index, Place(keys[at].tobytes(), name, row))
                stale |= place is Admission.STALE
                if stale and not last:
                    return True
                if place is Admission.REFUSED:
                    self.refused[keys[at].tobytes()] = name
                if not isinstance(place, Admission):
                    found[at] = self._number(place[0]) << ROW_BITS | place[1]
        return stale

    def _number(self, table: TableFile) -> int:
        number = self._numbers.get(id(table))
        if number is None:
            # No lock, which a fork could leave held: each step is one that other threads see whole.
            fresh = next(self._fresh)
            self.tables[fresh] = table
            number = self._numbers.setdefault(id(table), fresh)
        return number

    def _key(self, number: int) -> Key:
        return Key(self.keys[number].tobytes())


def _split(at: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers of tables and the rows in them; -1 and whatever where there is no entry."""
    return np.where(at < 0, NOWHERE, at >> ROW_BITS & _TABLE_MASK), at & _ROW_MASK
