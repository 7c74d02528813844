"""Checks that the packs which an epoch needs are there and sound, before the epoch begins.

In the middle of an epoch a damaged entry could only be an error: the encoders are no longer where they can be used.
A pack that was read and checked once is believed for as long as its stamp stays the same, also by later runs.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from precook.errors import DamagedPackError
from precook.fs.stamps import read_stamps, settled, stamp_keys
from precook.fs.trust import file_system_time, stamps_are_reliable
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.store.entry_table import EntryTable
from precook.store.internals import StoreInternals
from precook.store.keysets import split
from precook.store.packfile import TableFile
from precook.store.store import Store
from precook.values import Bytes, Numbers

_SOUND = Kind("sound packs/1", key=72, value=0)
"""Packs that were checked: the id of each and the stamp it had."""
_ID_BYTES = 32


class PackChecks:
    """What this process knows about the packs of a store: the stamps of those that it checked or wrote itself."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        """By id, the row of `_SOUND` that a pack had when it was found sound."""
        self._held: tuple[str, Bytes, list[TableFile]] | None = None
        """The keys that were all there last, at which generation of the store, and a table of each of their packs."""

    def absent(self, store: Store, keys: Bytes, memory: Memory, executor: Executor) -> Numbers:
        """The rows of keys without a sound entry."""
        generation = store.generation()
        if self._held is not None and self._held[0] == generation and np.array_equal(self._held[1], keys):
            # Nothing was removed since; what is left to ask is whether somebody has written to a pack.
            untouched = all(self._known.get(table.pack.head.id) == _row(table) for table in self._held[2])
            if untouched:
                return np.zeros(0, np.int64)
        places = store.places(keys)
        self._held = None
        if places is None:
            return np.arange(len(keys))
        used = _used(places)
        self._check(store, used, memory, executor)
        if not all(self._known.get(name) == _row(table) for name, table in used.items()):
            return np.flatnonzero(~store.present(keys))
        if not len(places.missing):
            self._held = (generation, keys.copy(), list(used.values()))
        return places.missing

    def check_written(self, store: Store, keys: Bytes, memory: Memory, executor: Executor) -> None:
        """Believe the packs of entries that were just written, and make misses of those that are gone or damaged."""
        places = store.places(keys)
        if places is not None:
            self._check(store, _used(places), memory, executor, written=True)

    def _check(
        self,
        store: Store,
        tables: dict[str, TableFile],
        memory: Memory,
        executor: Executor,
        *,
        written: bool = False,
    ) -> None:
        """Make misses of entries that are gone or damaged; `written`: the packs not known yet are our own."""
        if not tables:
            return
        internals = store.internals()
        # The clock first: a pack that is written to after this is young, and its stamp is not remembered.
        packs = internals.layout.packs
        now, reliable = file_system_time(packs), stamps_are_reliable(packs)
        sound: list[bytes] = []
        doubtful: list[tuple[TableFile, bytes]] = []
        for name, table in tables.items():
            row = _row(table)
            if row is None or self._known.get(name, row) != row:
                # Gone, or written to: what was opened before is not what lies there now.
                internals.lookup.forget_pack(table.pack)
            if row is None:
                continue
            if self._known.get(name) == row or (written and name not in self._known):
                sound.append(row)
            elif reliable and memory.recall(_SOUND, np.frombuffer(row, np.uint8).reshape(1, -1))[0].all():
                self._known[name] = row
            else:
                doubtful.append((table, row))
        sound += self._read_doubtful(internals, doubtful, executor)
        self._known.update((row[:_ID_BYTES].hex(), row) for row in sound)
        lasting = [row for row in sound if settled(np.frombuffer(row[_ID_BYTES:], "<i8").reshape(1, -1), now)[0]]
        if lasting and reliable:
            memory.remember(_SOUND, np.frombuffer(b"".join(lasting), np.uint8).reshape(-1, _SOUND.key))

    def _read_doubtful(
        self, internals: StoreInternals, packs: list[tuple[TableFile, bytes]], executor: Executor
    ) -> list[bytes]:
        """Read packs from the disk, several at a time; the rows of those that are sound."""
        sound = []
        damages = executor.map(lambda pair: _damaged_keys(internals, pair[0]), packs)
        for (table, row), damaged in zip(packs, damages, strict=True):
            if not damaged:
                sound.append(row)
                continue
            self._known.pop(table.pack.head.id, None)
            internals.lookup.forget_pack(table.pack)
            for key in damaged:
                internals.is_sound(key)  # makes it a miss, here and for everybody
        return sound


def _used(places: EntryTable) -> dict[str, TableFile]:
    """A table of each pack in which these entries lie, by the pack's id."""
    used = [places.tables[number] for number in np.unique(places.table).tolist() if number >= 0]
    return {table.pack.head.id: table for table in used}


def _row(table: TableFile) -> bytes | None:
    """The row of `_SOUND` for a pack as it lies there now; None where it is gone."""
    try:
        stamp = read_stamps([table.pack.path])
    except OSError:
        return None
    return bytes.fromhex(table.pack.head.id) + stamp_keys(stamp).tobytes()


def _damaged_keys(internals: StoreInternals, table: TableFile) -> list[bytes]:
    """The keys of a pack's entries that are not what was put, read from the disk."""
    try:
        pack = internals.open_pack(table.pack.head.id)
        keys = [key for other in pack.tables for key in split(other.table.keys)]
        return [keys[bad.row] for bad in pack.damage()]
    except (FileNotFoundError, DamagedPackError):
        return [other.key(row) for other in table.pack.tables for row in range(other.table.rows)]
