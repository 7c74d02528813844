"""Health: the packs that an epoch needs are there and sound, found out before the epoch begins.

In the middle of an epoch a damaged entry could only be an error: the encoders are no longer where they can be used.
A pack that was read and checked once is believed for as long as its stamp stays the same, also by later runs.
"""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from precook.errors import DamagedPackError
from precook.fs.stamps import Stamps, look, settled, stamp_keys
from precook.fs.trust import clock, trusted
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.store.internals import StoreInternals
from precook.store.packfile import TableFile
from precook.store.store import Store
from precook.values import Bytes

_SOUND = Kind("sound packs/1", key=72, value=0)
"""Packs that were checked, each with the stamp it had."""


class Health:
    """What this process knows about the packs of a store."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def check(self, store: Store, keys: Bytes, memory: Memory, executor: Executor, *, written: bool = False) -> None:
        """Make misses of entries that are gone or damaged; `written`: the packs not known yet are our own."""
        places = store.places(keys)
        if places is None:
            return
        tables = {
            places.tables[at].pack.head.id: places.tables[at] for at in np.unique(places.table).tolist() if at >= 0
        }
        if not tables:
            return
        internals = store.internals()
        now, firm = clock(internals.layout.packs), trusted(internals.layout.packs)
        doubtful: list[tuple[TableFile, bytes]] = []
        lasting: list[bytes] = []
        for name, table in tables.items():
            stamp = _stamp(table.pack.path)
            row = bytes.fromhex(name) + stamp_keys(stamp).tobytes() if stamp is not None else b""
            if stamp is None or self._known.get(name, row) != row:
                # Gone, or written to: what was opened before is not what lies there now.
                internals.reader.forget_pack(internals.index, table)
            if stamp is None:
                continue
            if self._known.get(name) == row or (written and name not in self._known):
                self._known[name] = row
                if settled(stamp, now)[0]:
                    lasting.append(row)
            else:
                doubtful.append((table, row))
        doubtful = [pair for pair in doubtful if not (firm and self._is_remembered(pair, memory))]
        for (table, row), damaged in zip(
            doubtful, executor.map(lambda pair: _damaged(internals, pair[0]), doubtful), strict=True
        ):
            name = table.pack.head.id
            if damaged:
                self._known.pop(name, None)
                internals.reader.forget_pack(internals.index, table)
                for key in damaged:
                    internals.is_sound(key)  # makes it a miss, here and for everybody
            else:
                self._known[name] = row
                if settled(np.frombuffer(row[32:], "<i8").reshape(1, -1), now)[0]:
                    lasting.append(row)
        if lasting and firm:
            memory.remember(_SOUND, np.frombuffer(b"".join(lasting), np.uint8).reshape(-1, _SOUND.key))

    def _is_remembered(self, pair: tuple[TableFile, bytes], memory: Memory) -> bool:
        table, row = pair
        known, _ = memory.recall(_SOUND, np.frombuffer(row, np.uint8).reshape(1, -1))
        if known[0]:
            self._known[table.pack.head.id] = row
        return bool(known[0])


def _stamp(path: Path) -> Stamps | None:
    try:
        return look([path])
    except OSError:
        return None


def _damaged(internals: StoreInternals, table: TableFile) -> list[bytes]:
    """The keys of a pack's entries that are not what was put, read from the disk."""
    try:
        pack = internals.open_pack(table.pack.head.id)
        with pack.open() as descriptor:
            return [one.key(row) for one in pack.tables for row, _ in one.damage(descriptor)]
    except (FileNotFoundError, DamagedPackError):
        return [one.key(row) for one in table.pack.tables for row in range(one.table.rows)]
