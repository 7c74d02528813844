"""The opened packs of one store: which of them cannot be used, where known keys lie in them, and what was read.

A read marks a byte in memory and nothing else; `take_uses` gathers the marks for the index. What a killed process had
not recorded is lost, and its entries look unused a little longer than they are.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError
from precook.store.format.pack import Head
from precook.store.home import PackHome
from precook.store.index.index import Place
from precook.store.keysets import beginnings, keyset
from precook.store.layout import Layout
from precook.store.packfile import RECORDED, USED, Guard, PackFile, TableFile, damage_reason
from precook.values import Bytes, Flags

_log = logging.getLogger("precook")

_HEADS = 256 << 20
"""Bytes of heads kept in memory."""
_KNOWN = 1_000_000
"""Keys whose place is remembered."""
LOOK_EVERY = 400e-6
"""Seconds from one look at a mapped pack to the next, for each pack that is open: so a look, which takes about 2 µs,
costs a reader a two-hundredth of its time at most, however many packs it reads from."""
_TOUCHES = 1000
"""Lists of what was used that are kept apart before they become one."""

Marks = dict[str, Flags]
"""Rows that were used, by pack."""


class PackCache:
    """Packs that are opened, and what is known about them; safe to use from several threads and after a fork."""

    def __init__(self, layout: Layout, home: PackHome) -> None:
        self._layout = layout
        self.home = home
        self._lock = threading.Lock()
        self._guard = Guard()
        self._packs: OrderedDict[str, PackFile] = OrderedDict()
        self._head_bytes = 0
        self.known: dict[bytes, tuple[TableFile, int]] = {}
        """The table and row of keys that were looked up, until their pack is forgotten."""
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
                yield self.home.head(name)
                self.bad_packs.pop(name, None)
            except FileNotFoundError:
                continue
            except (DamagedPackError, OSError) as error:
                self.note_bad_pack(name, error)

    def open(self, name: str) -> PackFile:
        """An opened pack, kept while there is room for its head."""
        pack = self._packs.get(name)
        if pack is None:
            opened = self.home.open(name, self._guard)
            with self._lock:
                # Another thread may have been quicker: rows are handed out by one object only.
                pack = self._packs.setdefault(name, opened)
                if pack is opened:
                    self._head_bytes += pack.head.nbytes
                while self._head_bytes > _HEADS and len(self._packs) > 1:
                    self._drop(next(iter(self._packs)))
                self._guard.pause = LOOK_EVERY * len(self._packs)
        return pack

    def remember(self, key: bytes, table: TableFile, row: int) -> None:
        """Remember where a key lies, until its pack is forgotten."""
        if self._packs.get(table.pack.head.id) is not table.pack:
            # Forgotten since it was looked up: nobody would take this place back when its row is removed.
            return
        if len(self.known) >= _KNOWN:
            with self._lock:
                self.known.clear()
                for other in self._packs.values():
                    other.placed = []
        table.pack.placed.append(key)
        self.known[key] = table, row

    def forget(self, pack: PackFile) -> bool:
        """Forget a pack that is gone or has changed, and the places in it; whether it was not opened anew already."""
        with self._lock:
            current = self._packs.get(pack.head.id) in (None, pack)
            if current:
                self._drop(pack.head.id)
            # Also where it had been forgotten already, while a thread was about to remember a place in it.
            self._forget_places(pack)
            return current

    def let_go(self, names: Iterable[str]) -> None:
        """Forget packs that have lost entries: what was removed here is a miss here, too. Mappings stay valid."""
        with self._lock:
            for name in names:
                self._drop(name)

    def is_bad(self, place: Place) -> bool:
        """Whether this process has seen that a place cannot be read."""
        return place in self.bad_rows or place.pack in self.bad_packs

    def note_bad_pack(self, name: str, error: Exception) -> None:
        """Remember that a pack cannot be used, and say so once."""
        path = self._layout.pack(name)
        reason = damage_reason(error, path)
        if name not in self.bad_packs:
            _log.warning("%s", DamagedPackError(path, reason))
        self.bad_packs[name] = reason

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

    def touch(self, keys: Bytes) -> None:
        """Count entries as used by this process, which has just written them."""
        with self._lock:
            self._touched.append(beginnings(keys))

    def touched(self) -> npt.NDArray[np.uint64]:
        """Of every entry that this process has used, the beginning of its key."""
        with self._lock:
            packs = [_touched(pack) for pack in self._packs.values()]
            return np.concatenate([np.zeros(0, np.uint64), *self._touched, *packs])

    def _drop(self, name: str) -> None:
        """Forget a pack and the places in it; the caller holds the lock."""
        pack = self._packs.pop(name, None)
        if pack is not None:
            _mark(self._uses, name, _rows_in_state(pack, USED))
            self._touched.append(_touched(pack))
            if len(self._touched) > _TOUCHES:
                self._touched = [keyset(self._touched)]
            self._head_bytes -= pack.head.nbytes
            self._forget_places(pack)

    def _forget_places(self, pack: PackFile) -> None:
        for key in pack.placed:
            self.known.pop(key, None)


def _rows_in_state(pack: PackFile, *states: int) -> Flags:
    """Which rows of a pack are in one of these states of use."""
    used = np.concatenate([np.frombuffer(bytes(table.used), np.uint8) for table in pack.tables])
    return np.isin(used, states)


def _touched(pack: PackFile) -> npt.NDArray[np.uint64]:
    keys = np.concatenate([table.table.keys for table in pack.tables])
    return beginnings(keys[_rows_in_state(pack, USED, RECORDED)])


def _mark(marks: Marks, name: str, used: Flags) -> None:
    if used.any():
        marks[name] = marks[name] | used if name in marks else used
