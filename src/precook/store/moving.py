"""Moving: living rows of packs go into a new pack, and the old packs become doomed.

The new pack is durable before anything points to it. One transaction then adds its rows and drops the old ones, so a
reader sees an entry at its old place or at its new one. What was removed while the bytes were copied stays removed.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precook.errors import DamagedEntryError, NoSpaceError
from precook.sources.filesystems import clock
from precook.store import database, files
from precook.store.index import Place
from precook.store.keysets import split
from precook.store.packfile import PackFile, RowDamagedError, damage_reason
from precook.store.repacking import Piece, Repack, Rows, repack
from precook.store.syncpoints import syncpoint
from precook.store.workings import Workings
from precook.units import format_size
from precook.values import Key

_log = logging.getLogger("precook")

_MARGIN = 1 << 20
"""Bytes that stay free beside a new pack: the index needs some."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of some packs."""

    pack: str | None
    """The new one, None where no row was left to move."""
    entries: int
    nbytes: int
    """Size of the new one."""


def live_rows(workings: Workings, pack: PackFile) -> Rows:
    """The rows of a pack that the index names."""
    name = pack.head.id
    return np.array(sorted(place.row for place in workings.index.find(_keys(pack)) if place.pack == name), np.int64)


def move(workings: Workings, pieces: Sequence[Piece]) -> Moved:
    """Put rows into a new pack, and drop every row of the packs they came from.

    Damaged rows are left behind and become misses. The old files go with the next `unlink_doomed`.
    """
    seen: set[bytes] = set()
    sound = [Piece(piece.pack, _sound(workings, piece, seen)) for piece in pieces]
    image = repack(sound) if any(len(piece.rows) for piece in sound) else None
    if image is not None:
        check_space(workings, image.nbytes)
        _publish(workings, image, [piece.pack for piece in pieces])
        syncpoint("compact.published")
    _switch(workings, image, [piece.pack for piece in pieces])
    syncpoint("compact.switched")
    return Moved(image.id, image.parsed.rows, image.nbytes) if image is not None else Moved(None, 0, 0)


def _sound(workings: Workings, piece: Piece, seen: set[bytes]) -> Rows:
    """The rows that are what was put, each key once; those that are not are told to the index."""
    keep = []
    with piece.pack.open() as descriptor:
        for row in piece.rows.tolist():
            table, number = piece.pack.locate(row)
            if table.key(number) in seen:
                continue
            try:
                table.verify(descriptor, number)
            except (RowDamagedError, OSError) as error:
                place = Place(table.key(number), piece.pack.head.id, row)
                reason = damage_reason(error, piece.pack.path)
                _log.warning("left behind: %s", DamagedEntryError(Key(place.key), piece.pack.path, reason))
                workings.index.mark_damaged(place, reason)
            else:
                keep.append(row)
                seen.add(table.key(number))
    return np.array(keep, np.int64)


def check_space(workings: Workings, nbytes: int) -> None:
    """Make sure that a new pack of this size fits on the disk; `NoSpaceError` where it does not."""
    free = shutil.disk_usage(workings.layout.root).free
    if free < nbytes + _MARGIN:
        hint = "free some space first; nothing was lost, and what could be freed without it was"
        message = f"rewriting a pack takes {format_size(nbytes)} and {format_size(free)} are free"
        raise NoSpaceError(workings.layout.root, message, hint=hint)


def _publish(workings: Workings, image: Repack, packs: Sequence[PackFile]) -> None:
    path = workings.layout.pack(image.id)
    # As old as the youngest of them: nothing in it may look older than it is.
    modified = min(max(pack.path.stat().st_mtime_ns for pack in packs), clock(workings.layout.root))
    with files.explained(workings.layout.root):
        workings.directories.make(workings.layout.packs)
        workings.directories.make(path.parent)
        # Closed also where writing fails: it may have a pack open.
        with contextlib.closing(image.buffers()) as buffers:
            files.publish(path, buffers, modified=modified)


def _switch(workings: Workings, image: Repack | None, packs: Sequence[PackFile]) -> None:
    old = {pack.head.id: pack for pack in packs}

    def change(db: sqlite3.Connection) -> None:
        if image is not None:
            _add_moved(db, image, old)
        for name, pack in old.items():
            database.drop(db, bytes.fromhex(name), _keys(pack), np.arange(pack.head.rows))

    workings.index.transact(change)


def _add_moved(db: sqlite3.Connection, image: Repack, old: dict[str, PackFile]) -> None:
    """Add the new pack; rows that were removed meanwhile are dropped from it, and last uses go over."""
    pack = bytes.fromhex(image.id)
    gone, times = [], []
    live: dict[str, set[int]] = {}
    used: dict[str, Rows] = {}
    for name, file in old.items():
        number = db.execute("SELECT number FROM pack WHERE id = ?", (bytes.fromhex(name),)).fetchone()
        found = database.select(db, "SELECT pack, row FROM entry WHERE key IN ({})", _keys(file)) if number else []
        live[name] = {row for at, row in found if at == number[0]}
        recorded = database.read_used(db, bytes.fromhex(name), file.head.rows)
        # Where nobody has used it since, the time it was written: merged packs keep the order of their entries.
        used[name] = np.where(recorded > 0, recorded, file.path.stat().st_mtime_ns)
    for name, rows in image.origins:
        gone += [row not in live[name] for row in rows.tolist()]
        times.append(used[name][rows])
    database.write_used(db, pack, np.concatenate(times))
    database.add(db, image.parsed)
    # Dropped after, not left out: somebody who found the new file before us may have added all its rows already.
    rows = np.flatnonzero(gone)
    if len(rows):
        moved = np.concatenate([table.keys for table in image.parsed.tables])[rows]
        database.drop(db, pack, [key.tobytes() for key in moved], rows)


def _keys(pack: PackFile) -> list[bytes]:
    """The key of every row."""
    return split(np.concatenate([table.keys for table in pack.head.tables]))
