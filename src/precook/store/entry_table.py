"""Entry tables: where the entries of very many keys lie, found in one pass and read from there.

Nothing is made for a single key: keys are told apart by how they begin until their pack confirms them whole. What it
does not confirm is left to `lookup`, which finds out key by key what is wrong.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from precook.errors import DamagedEntryError, DamagedPackError, MissingEntryError
from precook.store.copy import (
    Places,
    Verify,
    all_mapped,
    copy_checked,
    copy_leaves,
    copy_mapped,
    copy_row,
    gather_leaves,
    read_rows,
)
from precook.store.format.pack import Table
from precook.store.index.scan import find_pages, read_pages
from precook.store.keysets import beginnings, split
from precook.store.lookup import Lookup, use_row
from precook.store.packfile import PackFile, RowDamagedError, TableFile
from precook.values import Array, Bytes, Flags, Key, Numbers

_Result = TypeVar("_Result")

_Page = tuple[Bytes, Numbers, dict[int, str]]
"""Some keys, the place of each, and the names of the packs that places have numbers of."""

NOWHERE = -1
_NO_KEY = bytes(32)
"""Stands in a column of keys where a sample has no entry."""
_DENSE = 6
"""Walking past an entry takes a sixth of the time of looking for one."""
_MOST = 1.5
"""Where so many times the keys are more than all entries, most packs are needed whichever way they are found."""
_HEADS = 4_000_000
"""Entries of a store whose packs' heads are all kept open."""
_CHUNK = 100_000
"""Keys that are looked up one by one at a time: Python objects are made for so many only."""
_ATTEMPTS = 10
"""How often an entry is looked for when its pack is gone or changed, or it is damaged there: another may hold it."""

_ROW_BITS = 32
"""Bits of a row, where it stands in one number with its pack or table."""
_ROW_MASK = (1 << _ROW_BITS) - 1
_READ = 1 << 62
"""Set where this process has read the entry from the disk, checked it, and may take it from the mapped file."""
_TABLE_MASK = (_READ >> _ROW_BITS) - 1


class ReshapedError(Exception):
    """An entry was made anew since it was looked up, and is another tree now; its place is known by now."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"entry {key.hex[:16]} has another shape or type than the place it is read into")


class FoundRows(NamedTuple):
    """Some entries, and the table and row of each at one moment."""

    numbers: Numbers
    codes: list[int]
    """Table and row in one number, as the `EntryTable` keeps them."""
    tables: list[TableFile]
    distinct: list[TableFile]
    """Each table once."""
    rows: list[int]
    read: bool
    """Whether all of them may be taken from mapped files."""


class EntryTable:
    """Where the entries of some keys lie, as columns; safe to use from several threads."""

    def __init__(self, lookup: Lookup, keys: Bytes, *, verify: Verify) -> None:
        self._lookup = lookup
        self._verify = verify
        self.keys = keys
        self.tables: dict[int, TableFile] = {}
        self._numbers: dict[int, int] = {}
        self._fresh = itertools.count()
        # Table and row in one number: whoever reads it while another thread looks again gets both of one moment.
        self._codes = np.full(len(keys), NOWHERE, np.int64)
        self.refused: dict[bytes, str] = {}
        """Keys that were found only where nothing can be read, with the pack."""

    @classmethod
    def find_all(cls, lookup: Lookup, columns: Sequence[Bytes], *, verify: Verify) -> list[EntryTable]:
        """The places of several columns of keys, found in one pass through the index."""
        entries = [cls(lookup, keys, verify=verify) for keys in columns]
        proposed, names = _propose(lookup, columns)
        edges = np.cumsum([0, *map(len, columns)])
        doubtful: list[list[Numbers]] = [[] for _ in entries]
        for pack, numbers in _by_pack(proposed):
            owners = np.searchsorted(edges, numbers, side="right") - 1
            for owner in np.unique(owners).tolist():
                here = numbers[owners == owner]
                inside = here - edges[owner]
                if not entries[owner].accept(names.get(pack, ""), inside, proposed[here] & _ROW_MASK):
                    doubtful[owner].append(inside)
        for entry_table, parts in zip(entries, doubtful, strict=True):
            # Key by key: what the index says is behind, or wrong, or the pack is damaged.
            for numbers in parts:
                for start in range(0, len(numbers), _CHUNK):
                    entry_table.look_again(numbers[start : start + _CHUNK])
        return entries

    def accept(self, pack: str, numbers: Numbers, rows: Numbers) -> bool:
        """Believe that some entries lie in rows of a pack if its own key column says so of all; whether it does."""
        confirmed = self._lookup.confirm_all(pack, self.keys[numbers], rows) if pack else []
        for table, some, table_rows in confirmed:
            self._codes[numbers[some]] = self._number(table) << _ROW_BITS | table_rows
        return bool(confirmed)

    @property
    def missing(self) -> Numbers:
        """Which of the keys have no entry."""
        return np.flatnonzero(self._codes < 0)

    @property
    def unread(self) -> bool:
        """Whether an entry was not read from the disk yet."""
        return bool(((self._codes >= 0) & (self._codes & _READ == 0)).any())

    @property
    def most_bytes(self) -> int:
        """What an entry takes at most."""
        return max((table.most_bytes for table in list(self.tables.values())), default=0)

    @property
    def table(self) -> Numbers:
        """The number of each entry's table; -1 where there is no entry."""
        return _split(self._codes)[0]

    def there(self, numbers: Numbers) -> Flags:
        """Which of some entries are there."""
        return self._codes[numbers] >= 0

    def locate(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """For each of some entries the number of its table, -1 where there is none, and its row."""
        return _split(self._codes[numbers])

    def look_again(self, numbers: Numbers) -> None:
        """Look some entries up anew, equal ones once: they were made, or moved, meanwhile.

        A place counts once its pack's own key column confirms it.
        """
        keys = split(self.keys[numbers])
        places = self._lookup.find_some(set(keys) - {_NO_KEY}, self.refused)
        codes = {key: self._number(table) << _ROW_BITS | row for key, (table, row) in places.items()}
        self._codes[numbers] = [codes.get(key, NOWHERE) for key in keys]

    def place(self, number: int) -> tuple[TableFile, int]:
        """An entry's table and row; `MissingEntryError` where there is none."""
        places = self.place_all(np.array([number]))
        return places.tables[0], places.rows[0]

    def place_all(self, numbers: Numbers) -> FoundRows:
        """The same for many entries."""
        # Few calls of numpy: their code is out of the processor's cache after each batch that was copied.
        codes = self._codes[numbers].tolist()
        lowest = min(codes, default=_READ)
        if lowest < 0:
            raise MissingEntryError(self._key(int(numbers[codes.index(lowest)])))
        tables = [self.tables[code >> _ROW_BITS & _TABLE_MASK] for code in codes]
        rows = [code & _ROW_MASK for code in codes]
        return FoundRows(numbers, codes, tables, list(dict.fromkeys(tables)), rows, read=lowest >= _READ)

    def copy(self, number: int, arrays: Sequence[Array], *, found: tuple[Table, int] | None = None) -> None:
        """Copy an entry's leaves into arrays of their shapes and types, checked as the store is told to check.

        `found` is the table and row for which the arrays were made. `DamagedEntryError` and `MissingEntryError` name
        the entry. `ReshapedError` where it turns out to lie elsewhere, and to have other shapes, types or plain values
        there.
        """

        def fill(table: TableFile, row: int) -> None:
            now = table.table
            shaped = [(leaf.row_shape(row), leaf.dtype.bits) for leaf in now.leaves]
            # Else bytes of another entry would be read and taken for damage, or those of another type for numbers.
            same = shaped == [(array.shape, array.dtype) for array in arrays]
            if same and found is not None:
                # Types that share their bits, and what the caller has taken from the table it found.
                same = (now.skeleton, now.values.row(row)) == (found[0].skeleton, found[0].values.row(found[1]))
            if not same:
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
                return use_row(table, row, use)
            except (RowDamagedError, OSError) as error:
                damaged = self._lookup.failed(self._key(number), table, row, error) or damaged
                self.look_again(np.array([number]))
        raise damaged or MissingEntryError(self._key(number))

    def copy_all(self, located: FoundRows, leaves: Sequence[Places]) -> None:
        """The same for many entries that `place_all` found; `leaves` says of each leaf where every entry's goes."""
        read = located.read or _all_checked(located)
        if read and all_mapped(located.distinct):
            try:
                if self._verify == "always":
                    copy_checked(located.tables, located.rows, leaves)
                else:
                    copy_leaves(located.tables, located.rows, leaves)
            except (RowDamagedError, OSError):
                pass  # each for itself: what is damaged is looked for elsewhere, or named
            else:
                self._note_read(located)
                return
        self._copy_each(located, list(zip(*leaves, strict=True)) if leaves else [()] * len(located.rows))

    def prepare_copy(self, located: FoundRows, leaves: Sequence[Places]) -> Callable[[], None]:
        """The same, left to a thread that has little time for Python: all that can be done before is done now."""
        gather = None
        if located.read and self._verify != "always" and all_mapped(located.distinct):
            # A pack that cannot be mapped: whoever copies looks for its entries elsewhere, or names them.
            with contextlib.suppress(RowDamagedError, OSError):
                gather = gather_leaves(located.tables, located.rows, leaves)

        def copy() -> None:
            # Once more: the copy may have waited for long, and a pack be overwritten meanwhile.
            if gather is None or not all_mapped(located.distinct) or not gather():
                self.copy_all(located, leaves)

        return copy

    def announce(self, numbers: Numbers) -> None:
        """Ask the system to read entries ahead that were not read yet."""
        codes = self._codes[numbers]
        unread = codes[(codes >= 0) & (codes & _READ == 0)]
        if not len(unread):
            return
        tables, rows = _split(unread)
        for number in np.unique(tables).tolist():
            table = self.tables[number]
            some = [row for row in rows[tables == number].tolist() if not table.checked[row]]
            if not some:
                continue
            try:
                table.announce(*some)
            except OSError:
                return  # whoever reads it finds out what is wrong, and says so

    def _copy_each(self, located: FoundRows, entries: Sequence[Sequence[Array]]) -> None:
        """Copy entries one by one; of those that come from the disk, a pack is opened once for all."""
        always = self._verify == "always"
        unread: dict[TableFile, list[int]] = {}
        again: list[int] = []
        for position, (table, row) in enumerate(zip(located.tables, located.rows, strict=True)):
            if not table.is_mapped(row):
                unread.setdefault(table, []).append(position)
                continue
            try:
                copy_mapped(table, row, entries[position], check=always)
            except (RowDamagedError, OSError):
                again.append(position)
        for table, some in unread.items():
            again += read_rows(table, located.rows, some, entries, verify=self._verify)
        for position in again:
            found = located.tables[position].table, located.rows[position]
            self.copy(int(located.numbers[position]), entries[position], found=found)
        self._note_read(located)

    def _note_read(self, located: FoundRows) -> None:
        """Keep in mind which entries were checked by now."""
        if located.read:
            return
        read = [
            table.pack.whole and table.checked[row] for table, row in zip(located.tables, located.rows, strict=True)
        ]
        # Of those that are still there: in another place the entry has to be checked first.
        now = self._codes[located.numbers]
        same = now == np.array(located.codes, np.int64)
        self._codes[located.numbers] = np.where(same & np.array(read, bool), now | _READ, now)

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


def _all_checked(located: FoundRows) -> bool:
    """Whether this process has checked all of some rows by now, perhaps because it has read others near them."""
    return all([table.checked[row] for table, row in zip(located.tables, located.rows, strict=True)])  # noqa: C419 - quicker


def _split(codes: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers of tables and the rows in them; where there is no entry, -1 and a row that means nothing."""
    return np.where(codes < 0, NOWHERE, codes >> _ROW_BITS & _TABLE_MASK), codes & _ROW_MASK


def _propose(lookup: Lookup, columns: Sequence[Bytes]) -> tuple[Numbers, dict[int, str]]:
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
    index, count = lookup.index, lookup.index.places()
    pages: Iterator[_Page] | None = None
    if len(starts) * _MOST > count and count < _HEADS:
        pages = _read_heads(lookup)
    if pages is None:
        dense = len(starts) * _DENSE > count
        found = read_pages(index) if dense else find_pages(index, in_order, len(order))
        pages = ((page.keys, page.packs << _ROW_BITS | page.rows, page.names.packs) for page in found)
    for page_keys, places, page_names in pages:
        names = page_names
        begins = beginnings(page_keys)
        first, last = np.searchsorted(starts, begins), np.searchsorted(starts, begins, side="right")
        counts = last - first
        # Each place, once for every time that its key was asked for.
        positions = np.repeat(np.arange(len(begins)), counts)
        numbers = order[np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts - first, counts)]
        new = proposed[numbers] == NOWHERE
        # Backwards: of several the first one stays.
        proposed[numbers[new][::-1]] = places[positions[new]][::-1]
    return proposed, names


def _read_heads(lookup: Lookup) -> Iterator[_Page] | None:
    """Every place of a store of whose packs nothing was dropped, by their own key columns; None where that is not so.

    Whoever asks for most entries opens these packs anyway, and SQLite makes objects of every place.
    """
    names = lookup.index.whole_packs()
    if names is None:
        return None
    try:
        packs = [(number, lookup.packs.open(name)) for number, name in names.items()]
    except (DamagedPackError, OSError):
        return None  # the look-up finds out what is wrong
    return _head_pages(packs, names)


def _head_pages(packs: list[tuple[int, PackFile]], names: dict[int, str]) -> Iterator[_Page]:
    for number, pack in packs:
        for table in pack.tables:
            keys = table.table.keys
            # In order: then they are found by steps through memory that are short.
            rows = np.argsort(beginnings(keys))
            yield keys[rows], number << _ROW_BITS | rows + pack.first_row(table), names


def _by_pack(places: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The packs of some places, each with the numbers of those that lie in it, in the order of their rows."""
    order = np.argsort(places)
    order = order[np.searchsorted(places, 0, sorter=order) :]
    packs = places[order] >> _ROW_BITS
    edges = np.flatnonzero(np.diff(packs, prepend=-1))
    for begin, end in itertools.pairwise([*edges.tolist(), len(order)]):
        yield int(packs[begin]), order[begin:end]
