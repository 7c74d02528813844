"""The look-up: from keys to the packs and rows that hold them. There is no other way.

The index proposes places, and a pack confirms by its own key column what it is said to hold. Where it does not, the
index was behind or wrong: it is mended and asked again. `Lookup.find` finds one key, an `EntryTable` very many at once:
keys are then told apart by how they begin until their pack confirms them whole, and nothing is made for a single key.
"""

from __future__ import annotations

import enum
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from precook.errors import DamagedEntryError, DamagedPackError, MissingEntryError, StoreError
from precook.store.copy import Verify, copy_leaves, copy_mapped, copy_row, read_rows
from precook.store.index.index import Index, Place
from precook.store.index.scan import find_pages, read_pages
from precook.store.keysets import beginnings
from precook.store.layout import Layout
from precook.store.pack_cache import PackCache
from precook.store.packfile import USED, PackFile, RowDamagedError, TableFile, damage_reason
from precook.values import Array, Bytes, Flags, Key, Numbers

_log = logging.getLogger("precook")

_Result = TypeVar("_Result")

NOWHERE = -1
_DENSE = 6
"""Walking past an entry takes so much less time than looking for one."""
_CHUNK = 100_000
"""Keys that are looked up one by one at a time: Python objects are made for so many only."""
_ATTEMPTS = 3
"""How often an entry is looked for when the index turns out to be behind: compaction may have moved it."""
_NO_KEY = bytes(32)

_ROW_BITS = 32
"""Bits of a row, where it stands in one number with its pack or table."""
_ROW_MASK = (1 << _ROW_BITS) - 1
_READ = 1 << 62
"""Set where this process has read the entry from the disk, checked it, and may take it from the mapped file."""
_TABLE_MASK = (_READ >> _ROW_BITS) - 1


class Verdict(enum.Enum):
    """Why a place that the index proposed is not one."""

    REFUSED = enum.auto()
    """Its pack or row is damaged."""
    STALE = enum.auto()
    """The index was wrong and has been mended: ask it again."""


class Lookup:
    """Finds the entries of one store; safe to use from several threads and after a fork."""

    def __init__(self, layout: Layout, index: Index, packs: PackCache) -> None:
        self.index = index
        self.packs = packs
        self._layout = layout
        self._known = packs.known

    def find(self, key: bytes) -> tuple[TableFile, int] | None:
        """The table and row of a key's entry, None where there is none."""
        place = self._known.get(key)
        if place is None:
            place = self.find_some([key]).get(key)
            if place is not None:
                self.packs.remember(key, *place)
        return place

    def find_many(self, keys: Iterable[bytes]) -> None:
        """Find many keys at once, so that `find` knows them."""
        unknown = [key for key in keys if key not in self._known]
        for key, place in (self.find_some(unknown) if unknown else {}).items():
            self.packs.remember(key, *place)

    def visit(
        self, key: Key, use: Callable[[TableFile, int], _Result], *, place: tuple[TableFile, int] | None = None
    ) -> _Result:
        """Use an entry where it lies, first at a `place`; where that is gone or damaged, look for it elsewhere.

        `MissingEntryError`, or `DamagedEntryError` if all copies of it are damaged.
        """
        damaged: DamagedEntryError | None = None
        while True:
            place = place or self.find(key.bytes)
            if place is None:
                raise damaged or MissingEntryError(key)
            try:
                return use(*place)
            except (RowDamagedError, OSError) as error:
                damaged = self.failed(key, *place, error) or damaged
            place = None

    def failed(self, key: Key, table: TableFile, row: int, error: Exception) -> DamagedEntryError | None:
        """Mend what is known after a read that failed: look again. None where the pack is gone, not the entry."""
        if isinstance(error, FileNotFoundError):
            self.forget_pack(table.pack)
            return None
        # A damaged place becomes a miss, here and in the index.
        reason = damage_reason(error, table.pack.path)
        self._known.pop(key.bytes, None)
        place = Place(key.bytes, table.pack.head.id, table.pack.first_row(table) + row)
        damaged = DamagedEntryError(key, table.pack.path, reason)
        if place not in self.packs.bad_rows:
            _log.warning("%s", damaged)
        self.packs.bad_rows.add(place)
        if not self.index.read_only and isinstance(error, RowDamagedError):
            # A read error may pass; bytes that differ from their checksum will not.
            try:
                self.index.mark_damaged(place, reason)
            except StoreError as refused:
                _log.warning("cannot note the damage: %s", refused)
        return damaged

    def forget_pack(self, pack: PackFile) -> None:
        """A pack is gone, its entries perhaps moved to another: forget it and bring the index up to date."""
        self.packs.forget(pack)
        self.index.refresh()

    def present(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of the keys that have an entry, by the word of the index."""
        if not (self.packs.bad_rows or self.packs.bad_packs):
            return self.index.present(keys)
        # A read-only store cannot drop what it found damaged from its index.
        return {place.key for place in self.index.find(keys) if not self.packs.is_bad(place)}

    def find_some(
        self, keys: Iterable[bytes], refused: dict[bytes, str] | None = None
    ) -> dict[bytes, tuple[TableFile, int]]:
        """The tables and rows of those of some keys that have an entry, as their packs confirm it.

        `refused` takes the keys that were found where nothing can be read, with the pack.
        """
        found: dict[bytes, tuple[TableFile, int]] = {}
        pending = set(keys) - {_NO_KEY}
        for left in reversed(range(_ATTEMPTS)):
            if not pending or not self._ask(pending, found, refused, last=not left):
                break
            pending -= found.keys()
        return found

    def _ask(
        self,
        keys: set[bytes],
        found: dict[bytes, tuple[TableFile, int]],
        refused: dict[bytes, str] | None,
        *,
        last: bool,
    ) -> bool:
        """Ask the index for some keys; whether it was wrong and should be asked again.

        At once, unless it is the `last` time: what else it said is wrong, too, and would be mended row by row.
        """
        proposed, names = self.index.find_rows(list(keys))
        by_pack: dict[int, list[tuple[bytes, int]]] = {}
        for key, pack, row in proposed:
            by_pack.setdefault(pack, []).append((key, row))
        doubtful: list[Place] = []
        for pack, places in by_pack.items():
            name = names.packs[pack]
            confirmed = self.confirm_all(name, *_columns(places)) if len(places) > 1 else []
            for table, numbers, rows in confirmed:
                for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
                    found[places[number][0]] = table, row
            if not confirmed:
                doubtful += [Place(key, name, row) for key, row in places]
        stale = False
        for place in doubtful:
            verdict = self.confirm(place) if place.key not in found else None
            if isinstance(verdict, tuple):
                found[place.key] = verdict
            elif verdict is Verdict.REFUSED and refused is not None:
                refused[place.key] = place.pack
            stale |= verdict is Verdict.STALE
            if stale and not last:
                return True
        return stale

    def confirm(self, place: Place) -> tuple[TableFile, int] | Verdict:
        """The table and row of a place, if its pack's own key column agrees."""
        if self.packs.is_bad(place):
            return Verdict.REFUSED
        try:
            pack = self.packs.open(place.pack)
            table, row = pack.locate(place.row)
        except FileNotFoundError:
            self.index.refresh()
            return Verdict.STALE
        except (DamagedPackError, OSError) as error:
            self.packs.note_bad_pack(place.pack, error)
            if not self.index.read_only and isinstance(error, DamagedPackError):
                self.index.drop_packs([place.pack])
            return Verdict.REFUSED
        except RowDamagedError:
            table, row = pack.tables[0], -1
        if row < 0 or table.key(row) != place.key:
            _log.warning("the index of %s names a wrong row and is made anew", self._layout.root)
            self.index.rebuild()
            return Verdict.STALE
        table.used[row] = USED
        return table, row

    def confirm_all(self, name: str, keys: Bytes, rows: Numbers) -> list[tuple[TableFile, Numbers, Numbers]]:
        """The same for many places in one pack: by table, the numbers of those that lie there, and their rows.

        Nothing where a single one is in doubt: `confirm` then tells which, and what is wrong with it.
        """
        packs = self.packs
        # A copy, made in one step: other threads may find more of them meanwhile.
        if name in packs.bad_packs or any(place.pack == name for place in packs.bad_rows.copy()):
            return []
        try:
            pack = packs.open(name)
        except (DamagedPackError, OSError):
            return []
        confirmed = []
        for table in pack.tables:
            first = pack.first_row(table)
            numbers = np.flatnonzero((rows >= first) & (rows < first + table.table.rows))
            if len(numbers):
                inside = rows[numbers] - first
                if (table.table.keys[inside] != keys[numbers]).any():
                    return []
                confirmed.append((table, numbers, inside))
        if sum(len(numbers) for _, numbers, _ in confirmed) < len(rows):
            return []
        for table, _, inside in confirmed:
            np.frombuffer(table.used, np.uint8)[inside] = USED
        return confirmed


def _columns(places: Sequence[tuple[bytes, int]]) -> tuple[Bytes, Numbers]:
    keys = np.frombuffer(b"".join(key for key, _ in places), np.uint8).reshape(-1, 32)
    return keys, np.array([row for _, row in places], np.int64)


class ReshapedError(Exception):
    """An entry was made anew, in another shape, since it was looked up; its place is known by now."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"entry {key.hex[:16]} has another shape than the place it is read into")


class FoundRows(NamedTuple):
    """Some entries, and the table and row of each at one moment."""

    numbers: Numbers
    codes: Numbers
    """Table and row in one number, as the `EntryTable` keeps them."""
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
        proposed, names = _propose(lookup.index, columns)
        edges = np.cumsum([0, *map(len, columns)])
        doubtful: list[list[Numbers]] = [[] for _ in entries]
        for pack, numbers in _by_pack(proposed):
            owners = np.searchsorted(edges, numbers, side="right") - 1
            for owner in np.unique(owners).tolist():
                here = numbers[owners == owner]
                inside = here - edges[owner]
                rows = proposed[here] & _ROW_MASK
                confirmed = lookup.confirm_all(names[pack], columns[owner][inside], rows) if pack in names else []
                for table, some, table_rows in confirmed:
                    entries[owner]._set(inside[some], table, table_rows)  # noqa: SLF001 - its own class
                if not confirmed:
                    doubtful[owner].append(inside)
        for entry_table, parts in zip(entries, doubtful, strict=True):
            # Key by key: what the index says is behind, or wrong, or the pack is damaged.
            for numbers in parts:
                for start in range(0, len(numbers), _CHUNK):
                    entry_table.look_again(numbers[start : start + _CHUNK])
        return entries

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
        raw = self.keys[numbers].tobytes()
        keys = [raw[start : start + 32] for start in range(0, len(raw), 32)]
        found = self._lookup.find_some(keys, self.refused)
        codes = {key: self._number(table) << _ROW_BITS | row for key, (table, row) in found.items()}
        self._codes[numbers] = [codes.get(key, NOWHERE) for key in keys]

    def place(self, number: int) -> tuple[TableFile, int]:
        """An entry's table and row; `MissingEntryError` where there is none."""
        places = self.place_all(np.array([number]))
        return places.tables[0], places.rows[0]

    def place_all(self, numbers: Numbers) -> FoundRows:
        """The same for many entries."""
        codes = self._codes[numbers]
        lowest = codes.min(initial=_READ)
        if lowest < 0:
            raise MissingEntryError(self._key(int(numbers[codes < 0][0])))
        tables = [self.tables[table] for table in (codes >> _ROW_BITS & _TABLE_MASK).tolist()]
        return FoundRows(numbers, codes, tables, (codes & _ROW_MASK).tolist(), read=bool(lowest >= _READ))

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
            except (RowDamagedError, OSError) as error:
                damaged = self._lookup.failed(self._key(number), table, row, error) or damaged
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

    def announce(self, numbers: Numbers) -> None:
        """Ask the system to read entries ahead that were not read yet."""
        codes = self._codes[numbers]
        unread = codes[(codes >= 0) & (codes & _READ == 0)]
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
        for position, (table, row) in enumerate(zip(found.tables, found.rows, strict=True)):
            if not table.checked[row] or not table.pack.whole:
                unread.setdefault(table, []).append(position)
                continue
            try:
                copy_mapped(table, row, entries[position], check=always)
            except (RowDamagedError, OSError):
                again.append(position)
        for table, some in unread.items():
            again += read_rows(table, found.rows, some, entries, check=self._verify is not False)
        for position in again:
            self.copy(int(found.numbers[position]), entries[position])
        if found.read:
            return
        read = [table.pack.whole and table.checked[row] for table, row in zip(found.tables, found.rows, strict=True)]
        # Of those that are still there: in another place the entry has to be checked first.
        now = self._codes[found.numbers]
        self._codes[found.numbers] = np.where((now == found.codes) & np.array(read, bool), now | _READ, now)

    def _set(self, numbers: Numbers, table: TableFile, rows: Numbers) -> None:
        """Say that some entries lie in rows of a table."""
        self._codes[numbers] = self._number(table) << _ROW_BITS | rows

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


def _split(codes: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers of tables and the rows in them; -1 and whatever where there is no entry."""
    return np.where(codes < 0, NOWHERE, codes >> _ROW_BITS & _TABLE_MASK), codes & _ROW_MASK


def _propose(index: Index, columns: Sequence[Bytes]) -> tuple[Numbers, dict[int, str]]:
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
        places = page.packs << _ROW_BITS | page.rows
        first, last = np.searchsorted(starts, begins), np.searchsorted(starts, begins, side="right")
        counts = last - first
        # Each place, once for every time that its key was asked for.
        positions = np.repeat(np.arange(len(begins)), counts)
        numbers = order[np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts - first, counts)]
        new = proposed[numbers] == NOWHERE
        # Backwards: of several the first one stays.
        proposed[numbers[new][::-1]] = places[positions[new]][::-1]
    return proposed, names


def _by_pack(places: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The packs of some places, each with the numbers of those that lie in it, in the order of their rows."""
    order = np.argsort(places)
    order = order[np.searchsorted(places, 0, sorter=order) :]
    packs = places[order] >> _ROW_BITS
    edges = np.flatnonzero(np.diff(packs, prepend=-1))
    for begin, end in itertools.pairwise([*edges.tolist(), len(order)]):
        yield int(packs[begin]), order[begin:end]
