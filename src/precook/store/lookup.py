"""The look-up: from keys to the packs and rows that hold them. There is no other way.

The index proposes places, and a pack confirms by its own key column what it is said to hold. Where it does not, the
index was behind or wrong: it is mended and asked again. Here keys are found one by one or a few at a time;
`entry_table` finds very many at once, and asks here for those that are in doubt.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from precook.errors import DamagedEntryError, DamagedPackError, MissingEntryError, NoSpaceError, StoreError
from precook.store.index.index import Index, Place
from precook.store.layout import Layout
from precook.store.pack_cache import PackCache
from precook.store.packfile import USED, PackFile, RowDamagedError, TableFile, damage_reason
from precook.values import Bytes, Key, Numbers

_log = logging.getLogger("precook")

_Result = TypeVar("_Result")

_ATTEMPTS = 3
"""How often a key is looked for when the index turns out to be behind: compaction may have moved its entry."""

Places = dict[bytes, tuple[TableFile, int]]
"""The table and row of an entry, by its key."""


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
                return use_row(*place, use)
            except (RowDamagedError, OSError) as error:
                damaged = self.failed(key, *place, error) or damaged
            place = None

    def failed(self, key: Key, table: TableFile, row: int, error: Exception) -> DamagedEntryError | None:
        """Correct what is known after a read has failed, so that the caller can look the key up again.

        The error to raise if no other place is found; None where the pack is gone, and with it nothing is said about
        the entry.
        """
        if isinstance(error, FileNotFoundError):
            self.forget_pack(table.pack)
            return None
        if isinstance(error, RowDamagedError) and self.packs.home.fetch_again(table.pack):
            self.packs.forget(table.pack)
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
            # For good only what bytes say, read once more: a read error may pass, and so may what memory made of them.
            try:
                if any(not bad.refused for bad in table.pack.damage([place.row])):
                    self.index.mark_damaged(place, reason)
            except (StoreError, OSError) as refused:
                _log.warning("cannot note the damage: %s", refused)
        return damaged

    def forget_pack(self, pack: PackFile) -> None:
        """A pack is gone, its entries perhaps moved to another, or has changed: bring what is known up to date."""
        # Once: every row of it may come here, one after the other.
        if self.packs.forget(pack):
            self.index.refresh()

    def present(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of the keys that have an entry, by the word of the index."""
        if not (self.packs.bad_rows or self.packs.bad_packs):
            return self.index.present(keys)
        # A read-only store cannot drop what it found damaged from its index.
        return {place.key for place in self.index.find(keys) if not self.packs.is_bad(place)}

    def find_some(self, keys: Iterable[bytes], refused: dict[bytes, str] | None = None) -> Places:
        """The tables and rows of those of some keys that have an entry, as their packs confirm it.

        `refused` takes the keys that were found where nothing can be read, with the pack.
        """
        places: Places = {}
        pending = set(keys)
        for left in reversed(range(_ATTEMPTS)):
            if not pending or not self._ask(pending, places, refused, last=not left):
                break
            pending -= places.keys()
        return places

    def _ask(self, keys: set[bytes], places: Places, refused: dict[bytes, str] | None, *, last: bool) -> bool:
        """Ask the index for some keys; whether it was wrong and should be asked again.

        At once, unless it is the `last` time: what else it said is wrong, too, and would be mended row by row.
        """
        proposed, names = self.index.find_rows(list(keys))
        if len(proposed) > 1:
            proposed = self._confirm_packs(proposed, names.packs, places)
        doubtful = [Place(key, names.packs[pack], row) for key, pack, row in proposed]
        return self._confirm_each(doubtful, places, refused, last=last)

    def _confirm_packs(
        self, proposed: list[tuple[bytes, int, int]], names: dict[int, str], places: Places
    ) -> list[tuple[bytes, int, int]]:
        """Have each pack confirm all that it is said to hold at once; what is left is in doubt."""
        by_pack: dict[int, list[tuple[bytes, int, int]]] = {}
        for place in proposed:
            by_pack.setdefault(place[1], []).append(place)
        doubtful = []
        for pack, some in by_pack.items():
            keys = np.frombuffer(b"".join(key for key, _, _ in some), np.uint8).reshape(-1, 32)
            confirmed = self.confirm_all(names[pack], keys, np.array([row for _, _, row in some], np.int64))
            for table, numbers, rows in confirmed:
                for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
                    places[some[number][0]] = table, row
            if not confirmed:
                doubtful += some
        return doubtful

    def _confirm_each(
        self, doubtful: Iterable[Place], places: Places, refused: dict[bytes, str] | None, *, last: bool
    ) -> bool:
        """Go through places in doubt one by one; whether the index was wrong, as above."""
        stale = False
        for place in doubtful:
            verdict = self.confirm(place) if place.key not in places else None
            if isinstance(verdict, tuple):
                places[place.key] = verdict
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
        table: TableFile | None
        try:
            pack = self.packs.open(place.pack)
            table, row = pack.locate(place.row)
        except FileNotFoundError:
            self.index.refresh()
            return Verdict.STALE
        except (DamagedPackError, OSError) as error:
            self.packs.note_bad_pack(place.pack, error)
            if not self.index.read_only and isinstance(error, DamagedPackError):
                # On a full disk the next one who meets it will.
                with contextlib.suppress(NoSpaceError):
                    self.index.drop_packs([place.pack])
            return Verdict.REFUSED
        except RowDamagedError:
            table = None
        if table is None or row < 0 or table.key(row) != place.key:
            self.index.make_anew("it names a wrong row")
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


def use_row(table: TableFile, row: int, use: Callable[[TableFile, int], _Result]) -> _Result:
    """What a use of a row gives, at the second try where the system refuses the first: much of that passes.

    A place that is given up is a miss for as long as its store is open.
    """
    try:
        return use(table, row)
    except FileNotFoundError:
        raise
    except OSError:
        return use(table, row)
