"""Sweeping: packs without a living entry are unlinked, their rows first and their files after.

Dropping the last entry of a pack marks it as doomed in the same transaction. So a process that dies before the file is
gone leaves a mark, and whoever opens the store next goes on.
"""

from __future__ import annotations

import contextlib
import sqlite3

from precook.errors import LockedError
from precook.store import database, files
from precook.store.index import Index
from precook.store.layout import Layout


def doomed_packs(index: Index) -> list[tuple[str, int]]:
    """Packs of which every entry was dropped, with their sizes."""

    def look(db: sqlite3.Connection) -> list[tuple[str, int]]:
        found = db.execute("SELECT id, bytes, entries FROM pack WHERE doomed ORDER BY id").fetchall()
        # Only on the word of a record that carries a checksum: a torn page must not cost a pack.
        return [(name.hex(), size) for name, size, rows in found if database.read_dropped(db, name, rows).all()]

    return index.query(look)


def unlink_doomed(layout: Layout, index: Index) -> list[tuple[str, int]]:
    """Remove the files of doomed packs and forget them; which they were. Readers keep what they have mapped."""
    with index.exclusive():
        found = doomed_packs(index)
        folders = set()
        with files.explained(layout.root):
            for name, _ in found:
                path = layout.pack(name)
                files.unlink_inside(layout.root, path)
                folders.add(path.parent)
            # A name that came back after a power cut would be taken for a new pack, once its mark is gone.
            for folder in sorted(folders):
                with contextlib.suppress(FileNotFoundError):
                    files.sync_directory(folder)

        def change(db: sqlite3.Connection) -> None:
            database.forget_packs(db, [bytes.fromhex(name) for name, _ in found])

        if found:
            index.transact(change)
    return found


def sweep_doomed(layout: Layout, index: Index) -> None:
    """The same at open, unless somebody else is at it or has the lock."""
    if doomed_packs(index):
        with contextlib.suppress(LockedError), index.exclusive(patience=0):
            unlink_doomed(layout, index)
