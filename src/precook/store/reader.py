"""Reads: from a key to its tree, by the packs' own word.

The index proposes a place, the pack's key column confirms it, the checksum vouches for the bytes. After the first read
of an entry nothing here touches SQL or the disk.
"""

from __future__ import annotations

import enum
import functools
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedEntryError, DamagedPackError, MissingEntryError, StoreError
from precook.store.copy import StackedBatch, Verify
from precook.store.dtypes import DType
from precook.store.format.pack import Head
from precook.store.index.index import Index, Place
from precook.store.keysets import beginnings, keyset
from precook.store.layout import Layout
from precook.store.leaves import Library
from precook.store.packfile import RECORDED, USED, Guard, PackFile, RowDamagedError, TableFile, damage_reason
from precook.store.tree import Tree, read_values
from precook.store.uses import Marks
from precook.values import Array, Key


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A leaf whose shape and type are known and whose bytes are still in the store.

    `load()` reads it anew each time; the first load of any leaf of an entry checks the whole entry.
    """

    shape: tuple[int, ...]
    _type: DType = field(repr=False)
    _library: Library = field(repr=False)
    _load: Callable[[], Any] = field(repr=False)

    @property
    def dtype(self) -> Any:
        """The type the loaded tensor will have: torch's, or numpy's."""
        return self._type.torch_type() if self._library == "torch" else self._type.numpy_type()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self._type.size

    def load(self) -> Any:
        """The tensor, torch or numpy as it was put, in memory that may be written to."""
        return self._load()

    def __repr__(self) -> str:
        return f"LazyTensor(shape={self.shape}, dtype={self._type.name})"


@dataclass(frozen=True, slots=True)
class Located:
    """One entry and where it lies."""

    key: Key
    table: TableFile
    row: int
    """Its row in the table."""
    copies: int
    """How many packs hold it."""

    @property
    def pack(self) -> Path:
        """The file that holds it."""
        return self.table.pack.path

    @property
    def pack_row(self) -> int:
        """Its row in the pack."""
        return self.table.pack.first_row(self.table) + self.row

    @property
    def created(self) -> int:
        """When its pack was written, in seconds since 1970."""
        return self.table.pack.head.created

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and plain values."""
        return int(self.table.table.row_bytes()[self.row])

    @property
    def recipe(self) -> bytes:
        """The canonical form of what made it, empty where that was not said."""
        number = int(self.table.table.recipes[self.row])
        return self.table.pack.head.recipes[number - 1] if number else b""

    @property
    def labels(self) -> bytes:
        """Its labels: a JSON object, or null."""
        return self.table.table.labels.row(self.row)


_log = logging.getLogger("precook")

_HEADS = 256 << 20
"""Bytes of heads kept in memory."""
_PLACES = 1_000_000
"""Keys whose place is remembered."""
_GIVEN = 1 << 30
"""Bytes handed out before private mappings are let go: a bound on what tensors that were written to keep in memory."""
_READ_AHEAD = 64 << 20
"""Bytes announced to the system before a bulk read."""
_TOUCHES = 1000
"""Lists of what was used that are kept apart before they become one."""
_ATTEMPTS = 3
"""How often a place is looked up when the index turns out to be behind."""


class Admission(enum.Enum):
    """What became of a place that the index proposed."""

    ADMITTED = enum.auto()
    REFUSED = enum.auto()
    """Its pack or row is damaged."""
    STALE = enum.auto()
    """The index was wrong and has been mended: ask it again."""


class Reader:
    """Reads entries of one store; safe to use from several threads and after a fork."""

    def __init__(self, layout: Layout, *, read_only: bool, verify: Verify) -> None:
        self._layout = layout
        self._read_only = read_only
        self._verify = verify
        self._lock = threading.Lock()
        self._guard = Guard()
        self._packs: OrderedDict[str, PackFile] = OrderedDict()
        self._head_bytes = 0
        self._places: dict[bytes, tuple[TableFile, int]] = {}
        self._given = 0
        self._given_from: set[TableFile] = set()
        self._uses: Marks = {}
        """What was used of packs that were forgotten since, until it is recorded."""
        self._touched: list[npt.NDArray[np.uint64]] = []
        self.bad_packs: dict[str, str] = {}
        """Packs that could not be used, and why."""
        self.bad_rows: set[Place] = set()
        """Damaged rows found by this process, which a read-only store cannot note in its index."""

    def after_fork(self) -> None:
        """Replace the locks, which another thread may have held in the parent."""
        self._lock = threading.Lock()
        self._guard.after_fork()

    def heads(self, ids: Iterable[str]) -> Iterator[Head]:
        """The heads of packs, passing over those that are damaged or gone."""
        for name in ids:
            try:
                yield PackFile(self._layout.pack(name), name, Guard()).head
                self.bad_packs.pop(name, None)
            except FileNotFoundError:
                continue
            except (DamagedPackError, OSError) as error:
                self._note_bad_pack(name, error)

    def get(self, index: Index, key: Key, *, tensors: Library | None = None, lazy: bool = False) -> Tree:
        """The tree under a key; `MissingEntryError`, or `DamagedEntryError` if all copies of it are damaged."""
        damaged: DamagedEntryError | None = None
        while True:
            place = self._places.get(key.bytes) or self._find(index, key)
            if place is None:
                raise damaged or MissingEntryError(key)
            table, row = place
            try:
                table.used[row] = USED
                if lazy:
                    return build_tree(table, row, self._lazy_leaves(index, key, table, row, tensors))
                return self._tree(table, row, tensors)
            except FileNotFoundError:
                self.forget_pack(index, table)
            except (RowDamagedError, OSError) as error:
                damaged = self.damaged(index, key, table, row, error)

    def stack(self, index: Index, keys: Sequence[Key], *, tensors: Library | None = None) -> Tree:
        """One tree for all keys: each tensor stacked along a new first dimension, each plain part a list."""
        self.resolve(index, keys)
        stack: StackedBatch | None = None
        for number, key in enumerate(keys):
            damaged: DamagedEntryError | None = None
            while True:
                place = self._places.get(key.bytes) or self._find(index, key)
                if place is None:
                    raise damaged or MissingEntryError(key)
                try:
                    stack = stack or StackedBatch(*place, rows=len(keys), verify=self._verify)
                    stack.fill(number, key, *place)
                    place[0].used[place[1]] = USED
                    break
                except FileNotFoundError:
                    self.forget_pack(index, place[0])
                except (RowDamagedError, OSError) as error:
                    damaged = self.damaged(index, key, *place, error)
        assert stack is not None
        return stack.tree(tensors)

    def resolve(self, index: Index, keys: Sequence[Key]) -> None:
        """Look up the places of all keys at once."""
        unknown = [key.bytes for key in keys if key.bytes not in self._places]
        for place in index.find(unknown) if unknown else ():
            if place.key not in self._places and self._admit(index, place) is Admission.STALE:
                break  # what else it said is behind, too: each key is looked up again when it is read
        if len(keys) > 1:
            self._announce(keys)

    def _announce(self, keys: Sequence[Key]) -> None:
        """Tell the system what will be read from the disk next, so that it need not wait for each entry in turn."""
        budget = _READ_AHEAD
        for key in keys:
            place = self._places.get(key.bytes)
            if place is not None and not place[0].checked[place[1]]:
                budget -= place[0].row_bytes(place[1])
                if budget < 0:
                    return
                try:
                    place[0].announce(place[1])
                except OSError:
                    return  # reading it will say what is wrong

    def checksum(self, index: Index, key: Key) -> bytes | None:
        """The checksum of what is stored under a key, once its bytes are known to match it; None where nothing is."""
        while True:
            place = self._places.get(key.bytes) or self._find(index, key)
            if place is None:
                return None
            table, row = place
            try:
                table.used[row] = USED
                if not table.checked[row] or self._verify is False:
                    table.read(row, check=True)
                return bytes(table.table.checksums[row])
            except FileNotFoundError:
                self.forget_pack(index, table)
            except (RowDamagedError, OSError) as error:
                self.damaged(index, key, table, row, error)

    def _lazy_leaves(
        self, index: Index, key: Key, table: TableFile, row: int, tensors: Library | None
    ) -> list[LazyTensor]:
        def load(number: int) -> Any:
            at = (table, row)
            while True:
                try:
                    array = self._arrays(*at)[number]
                except FileNotFoundError:
                    # Moved to another pack since it was asked for.
                    self.forget_pack(index, at[0])
                    found = self._places.get(key.bytes) or self._find(index, key)
                    if found is None:
                        raise MissingEntryError(key) from None
                    at = found
                except (RowDamagedError, OSError) as error:
                    raise self.damaged(index, key, *at, error) from error
                else:
                    return at[0].converters(tensors)[number](array)

        return [
            LazyTensor(leaf.row_shape(row), leaf.dtype, tensors or leaf.library, functools.partial(load, number))
            for number, leaf in enumerate(table.table.leaves)
        ]

    def locate(self, index: Index, key: Key) -> Located:
        """Where an entry lies; `MissingEntryError`, or `DamagedEntryError` if it is known to be damaged."""
        place = self._places.get(key.bytes) or self._find(index, key)
        places = index.find([key.bytes])
        if place is not None:
            return Located(key, *place, copies=len(places))
        for proposed in places:
            reason = self.bad_packs.get(proposed.pack)
            if reason is not None:
                raise DamagedEntryError(key, self._layout.pack(proposed.pack), reason)
        for damaged, pack, reason in index.damage():
            if damaged == key.bytes:
                raise DamagedEntryError(key, self._layout.pack(pack), reason)
        raise MissingEntryError(key, hint="`precook ls` lists the entries")

    def damaged(self, index: Index, key: Key, table: TableFile, row: int, error: Exception) -> DamagedEntryError:
        """Make a damaged place a miss, here and in the index, and say so once."""
        reason = damage_reason(error, table.pack.path)
        self._places.pop(key.bytes, None)
        pack = table.pack
        first = pack.first_row(table)
        place = Place(key.bytes, pack.head.id, first + row)
        found = DamagedEntryError(key, pack.path, reason)
        if place not in self.bad_rows:
            _log.warning("%s", found)
        self.bad_rows.add(place)
        if not self._read_only and isinstance(error, RowDamagedError):
            # A read error may pass; bytes that differ from their checksum will not.
            try:
                index.mark_damaged(place, reason)
            except StoreError as refused:
                _log.warning("cannot note the damage: %s", refused)
        return found

    def pack(self, name: str) -> PackFile:
        """An opened pack, kept while there is room for its head."""
        pack = self._packs.get(name)
        if pack is None:
            opened = PackFile(self._layout.pack(name), name, self._guard)
            with self._lock:
                # Another thread may have been quicker: rows are handed out by one object only.
                pack = self._packs.setdefault(name, opened)
                if pack is opened:
                    self._head_bytes += pack.head.nbytes
                while self._head_bytes > _HEADS and len(self._packs) > 1:
                    self._drop(next(iter(self._packs)))
        return pack

    def _tree(self, table: TableFile, row: int, tensors: Library | None) -> Tree:
        arrays = self._arrays(table, row)
        convert = table.converters(tensors)
        return build_tree(table, row, [make(array) for make, array in zip(convert, arrays, strict=True)])

    def _arrays(self, table: TableFile, row: int) -> list[Array]:
        if not table.checked[row] or not table.pack.whole:
            return table.read(row, check=self._verify is not False)
        try:
            arrays, fresh = table.take(row)
        except OSError:
            # No mappings left to give, or the pack is gone: reading it works, or says what is wrong.
            return table.read(row, check=self._verify is not False)
        if self._verify == "always":
            table.check(row, arrays)
        if fresh:
            self._given_from.add(table)
        self._given += table.most_bytes
        if self._given > _GIVEN:
            self._forget_mappings()
        return arrays

    def _forget_mappings(self) -> None:
        tables, self._given_from, self._given = self._given_from, set(), 0
        for table in tables:
            table.forget()

    def _find(self, index: Index, key: Key) -> tuple[TableFile, int] | None:
        for _ in range(_ATTEMPTS):
            outcomes = []
            for place in index.find([key.bytes]):
                outcomes.append(self._admit(index, place))
                if outcomes[-1] is Admission.ADMITTED:
                    return self._places[key.bytes]
            if Admission.STALE not in outcomes:
                break
        return None

    def _admit(self, index: Index, place: Place) -> Admission:
        """Believe a place once its pack confirms it."""
        found = self.confirm(index, place)
        if isinstance(found, Admission):
            return found
        if len(self._places) >= _PLACES:
            with self._lock:
                self._places = {}
                for other in self._packs.values():
                    other.placed = []
        found[0].pack.placed.append(place.key)
        self._places[place.key] = found
        return Admission.ADMITTED

    def confirm(self, index: Index, place: Place) -> tuple[TableFile, int] | Admission:
        """The table and row of a place, if its pack's own key column agrees."""
        if self.is_bad(place):
            return Admission.REFUSED
        try:
            pack = self.pack(place.pack)
            table, row = pack.locate(place.row)
        except FileNotFoundError:
            index.refresh()
            return Admission.STALE
        except (DamagedPackError, OSError) as error:
            self._note_bad_pack(place.pack, error)
            if not self._read_only and isinstance(error, DamagedPackError):
                index.drop_packs([place.pack])
            return Admission.REFUSED
        except RowDamagedError:
            table, row = pack.tables[0], -1
        if row < 0 or table.key(row) != place.key:
            _log.warning("the index of %s names a wrong row and is made anew", self._layout.root)
            index.rebuild()
            return Admission.STALE
        table.used[row] = USED
        return table, row

    def confirm_all(
        self, name: str, keys: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]
    ) -> list[tuple[TableFile, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """The same for many places in one pack: by table, which of them lie there, and their rows.

        Nothing where a single one is in doubt: `confirm` then tells which, and what is wrong with it.
        """
        # A copy, made in one step: other threads may find more of them meanwhile.
        if name in self.bad_packs or any(place.pack == name for place in self.bad_rows.copy()):
            return []
        try:
            pack = self.pack(name)
        except (DamagedPackError, OSError):
            return []
        found = []
        for table in pack.tables:
            first = pack.first_row(table)
            at = np.flatnonzero((rows >= first) & (rows < first + table.table.rows))
            if len(at):
                inside = rows[at] - first
                if (table.table.keys[inside] != keys[at]).any():
                    return []
                found.append((table, at, inside))
        if sum(len(at) for _, at, _ in found) < len(rows):
            return []
        for table, _, inside in found:
            np.frombuffer(table.used, np.uint8)[inside] = USED
        return found

    def is_bad(self, place: Place) -> bool:
        """Whether this process has seen that a place cannot be read."""
        return place in self.bad_rows or place.pack in self.bad_packs

    def forget_pack(self, index: Index, table: TableFile) -> None:
        """A pack is gone, its entries perhaps moved to another: forget it and ask the index again."""
        with self._lock:
            self._drop(table.pack.head.id)
            # Also where it had been forgotten already, while a thread was about to remember a place in it.
            self._forget_places(table.pack)
        index.refresh()

    def take_uses(self) -> Marks:
        """What was used since this was asked for before; `give_back` where that could not be recorded."""
        with self._lock:
            marks, self._uses = self._uses, {}
            for name, pack in self._packs.items():
                used = [np.frombuffer(table.used, np.uint8) for table in pack.tables]
                # What is marked and nothing else: meanwhile other threads mark more.
                seen = [states == USED for states in used]
                for states, rows in zip(used, seen, strict=True):
                    states[rows] = RECORDED
                _mark(marks, name, np.concatenate(seen))
            return marks

    def give_back(self, marks: Marks) -> None:
        """Have these uses recorded some other time."""
        with self._lock:
            for name, used in marks.items():
                _mark(self._uses, name, used)

    def touch(self, keys: npt.NDArray[np.uint8]) -> None:
        """Count entries as used by this process, which has just written them."""
        with self._lock:
            self._touched.append(beginnings(keys))

    def touched(self) -> npt.NDArray[np.uint64]:
        """Of every entry that this process has used, the beginning of its key."""
        with self._lock:
            packs = [_touched(pack) for pack in self._packs.values()]
            return np.concatenate([np.zeros(0, np.uint64), *self._touched, *packs])

    def let_go(self, names: Iterable[str]) -> None:
        """Forget packs that have lost entries: what was removed here is a miss here, too. Mappings stay valid."""
        with self._lock:
            for name in names:
                self._drop(name)

    def _drop(self, name: str) -> None:
        """Forget a pack and the places in it; the caller holds the lock."""
        pack = self._packs.pop(name, None)
        if pack is not None:
            _mark(self._uses, name, _bits(pack, USED))
            self._touched.append(_touched(pack))
            if len(self._touched) > _TOUCHES:
                self._touched = [keyset(self._touched)]
            self._head_bytes -= pack.head.nbytes
            self._forget_places(pack)

    def _forget_places(self, pack: PackFile) -> None:
        for key in pack.placed:
            self._places.pop(key, None)

    def _note_bad_pack(self, name: str, error: Exception) -> None:
        path = self._layout.pack(name)
        reason = damage_reason(error, path)
        if name not in self.bad_packs:
            _log.warning("%s", DamagedPackError(path, reason))
        self.bad_packs[name] = reason


def _bits(pack: PackFile, *states: int) -> npt.NDArray[np.bool_]:
    """Which rows of a pack are in one of these states of use."""
    used = np.concatenate([np.frombuffer(bytes(table.used), np.uint8) for table in pack.tables])
    return np.isin(used, states)


def _touched(pack: PackFile) -> npt.NDArray[np.uint64]:
    keys = np.concatenate([table.table.keys for table in pack.tables])
    return beginnings(keys[_bits(pack, USED, RECORDED)])


def _mark(marks: Marks, name: str, used: npt.NDArray[np.bool_]) -> None:
    if used.any():
        marks[name] = marks[name] | used if name in marks else used


def build_tree(table: TableFile, row: int, leaves: list[Any]) -> Tree:
    """A row's tree around its leaves."""
    try:
        return table.table.build(leaves, read_values(table.table.values.row(row)))
    except (ValueError, IndexError, TypeError, RecursionError) as error:
        raise RowDamagedError(f"its plain values cannot be read: {error}") from error
