"""Places: where many entries lie, found once in bulk and then read from without asking the index again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedEntryError, MissingEntryError
from precook.store.index import Index, Place
from precook.store.packfile import Array, RowDamagedError, TableFile
from precook.store.reader import Admission, Reader
from precook.store.stack import Verify
from precook.values import Key

Numbers = npt.NDArray[np.int64]

_CHUNK = 100_000
"""Keys that are looked up at a time: Python objects are made for so many only."""
_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1
_NOWHERE = -1
_ATTEMPTS = 3
"""How often an entry is looked for again when its pack is gone: compaction may have moved it."""


class Places:
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
        self._at = np.full(len(keys), _NOWHERE, np.int64)
        self._read = np.zeros(len(keys), bool)
        """Which entries were copied before: those need not be read ahead."""
        for at in range(0, len(keys), _CHUNK):
            self._find(np.arange(at, min(at + _CHUNK, len(keys))))

    @property
    def missing(self) -> Numbers:
        """Which of the keys have no entry."""
        return np.flatnonzero(self._at < 0)

    @property
    def table(self) -> Numbers:
        """The number of each entry's table; -1 where there is no entry."""
        return self._at >> _ROW_BITS

    def there(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of some entries are there."""
        return self._at[numbers] >= 0

    def locate(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """For each of some entries the number of its table, -1 where there is none, and its row."""
        at = self._at[numbers]
        return at >> _ROW_BITS, at & _ROW_MASK

    def look_again(self, numbers: Numbers) -> None:
        """Look some entries up anew: they were made, or moved, meanwhile."""
        self._find(numbers)

    def place(self, number: int) -> tuple[TableFile, int]:
        """An entry's table and row; `MissingEntryError` where there is none."""
        at = int(self._at[number])
        if at < 0:
            raise MissingEntryError(self._key(number))
        return self.tables[at >> _ROW_BITS], at & _ROW_MASK

    def place_all(self, numbers: Numbers) -> list[tuple[TableFile, int]]:
        """The same for many entries."""
        tables, rows = self.locate(numbers)
        if (tables < 0).any():
            raise MissingEntryError(self._key(int(numbers[tables < 0][0])))
        return [(self.tables[table], row) for table, row in zip(tables.tolist(), rows.tolist(), strict=True)]

    def copy(self, number: int, arrays: Sequence[Array]) -> None:
        """Copy an entry's leaves into arrays of their shapes, checked as the store is told to check.

        `DamagedEntryError` and `MissingEntryError` name the entry.
        """
        damaged: DamagedEntryError | None = None
        for _ in range(_ATTEMPTS):
            try:
                table, row = self.place(number)
            except MissingEntryError:
                raise damaged or MissingEntryError(self._key(number)) from None
            try:
                self._copy(table, row, arrays)
            except FileNotFoundError:
                self._reader.forget_pack(self._index, table)
                self.look_again(np.array([number]))
            except (RowDamagedError, OSError) as error:
                damaged = self._reader.damaged(self._index, self._key(number), table, row, error)
                self.look_again(np.array([number]))
            else:
                return
        raise damaged or MissingEntryError(self._key(number))

    def copy_all(
        self, numbers: Numbers, found: Sequence[tuple[TableFile, int]], arrays: Sequence[Sequence[Array]]
    ) -> None:
        """The same for many entries that `place_all` found: a pack is opened once for all that come from the disk."""
        unread: dict[TableFile, list[int]] = {}
        for at, (table, row) in enumerate(found):
            if not table.checked[row] or not table.pack.whole:
                unread.setdefault(table, []).append(at)
                continue
            try:
                self._copy_mapped(table, row, arrays[at])
            except (RowDamagedError, OSError):
                self.copy(int(numbers[at]), arrays[at])  # which looks for it elsewhere, or says what is wrong
        for table, some in unread.items():
            for at in self._read_all(table, found, some, arrays):
                self.copy(int(numbers[at]), arrays[at])
        self._read[numbers] = True

    def announce(self, numbers: npt.NDArray[np.int64]) -> None:
        """Ask the system to read entries ahead that were not read yet."""
        read = self._read[numbers]
        if read.all():
            return
        tables, rows = self.locate(numbers[~read])
        for number in np.unique(tables[tables >= 0]).tolist():
            table = self.tables[number]
            try:
                table.announce(*(row for row in rows[tables == number].tolist() if not table.checked[row]))
            except OSError:
                return  # whoever reads it finds out what is wrong, and says so

    def _read_all(
        self,
        table: TableFile,
        found: Sequence[tuple[TableFile, int]],
        some: list[int],
        arrays: Sequence[Sequence[Array]],
    ) -> list[int]:
        """Read entries of one table from the disk; those that remain, from the first on where that went wrong."""
        check = self._verify is not False
        done = 0
        try:
            with table.pack.open() as descriptor:
                for at in some:
                    one, row = arrays[at], found[at][1]
                    if all(array.flags.c_contiguous for array in one):
                        table.read_from(descriptor, row, list(one), check=check)
                    else:
                        self._copy(table, row, one)
                    done += 1
        except (RowDamagedError, OSError):
            return some[done:]
        return []

    def _copy(self, table: TableFile, row: int, arrays: Sequence[Array]) -> None:
        check = self._verify is not False
        if table.checked[row] and table.pack.whole:
            self._copy_mapped(table, row, arrays)
        elif all(array.flags.c_contiguous for array in arrays):
            table.read_into(row, list(arrays), check=check)
        else:
            for array, source in zip(arrays, table.read(row, check=check), strict=True):
                array[...] = source

    def _copy_mapped(self, table: TableFile, row: int, arrays: Sequence[Array]) -> None:
        """Copy an entry that this process has checked before."""
        if table.signature is not None:
            for array, column in zip(arrays, table.columns(), strict=True):
                array[...] = column[row]
        else:
            for array, source in zip(arrays, table.view(row), strict=True):
                array[...] = source
        if self._verify == "always":
            # The copy, which is still in the processor's cache.
            table.check(row, [np.ascontiguousarray(array) for array in arrays])

    def _find(self, numbers: Numbers) -> None:
        """Look keys up, equal ones once; a place counts once its pack's own key column confirms it."""
        keys = self.keys[numbers]
        raw = keys.tobytes()
        asked: dict[bytes, int] = {}
        alike = [asked.setdefault(raw[at : at + 32], at // 32) for at in range(0, len(raw), 32)]
        asked.pop(bytes(32), None)  # no key: nobody has asked for an entry there
        found = np.full(len(numbers), _NOWHERE, np.int64)
        for _ in range(_ATTEMPTS):
            if not asked or not self._find_some(keys, asked, found):
                break
            asked = {key: at for key, at in asked.items() if found[at] < 0}
        self._read[numbers] = False
        self._at[numbers] = found[alike]

    def _find_some(self, keys: npt.NDArray[np.uint8], asked: dict[bytes, int], found: Numbers) -> bool:
        """Look up where some rows of `keys` lie; whether the index was wrong and should be asked again."""
        listed, packs = self._index.find_rows(list(asked))
        numbers = np.array([asked[key] for key, _, _ in listed], np.int64)
        owners = np.array([pack for _, pack, _ in listed], np.int64)
        rows = np.array([row for _, _, row in listed], np.int64)
        order = np.argsort(owners, kind="stable")
        stale = False
        for some in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if listed else ():
            name, inside = packs[int(owners[some[0]])], numbers[some]
            sure = self._reader.confirm_all(name, keys[inside], rows[some])
            for table, at, row in sure:
                found[inside[at]] = self._number(table) << _ROW_BITS | row
            for at, row in zip(inside.tolist(), rows[some].tolist(), strict=True) if not sure else ():
                place = self._reader.confirm(self._index, Place(keys[at].tobytes(), name, row))
                stale |= place is Admission.STALE
                if not isinstance(place, Admission):
                    found[at] = self._number(place[0]) << _ROW_BITS | place[1]
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
