"""The SQLite file behind the index: its schema, how it is opened, checked and filled.

Whoever writes to it holds the store's lock; `index` sees to that.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precook.errors import LockedError, NoSpaceError, ReadOnlyError, StoreError, StoreWriteError
from precook.identity.recipe import recipe_digest
from precook.store import files
from precook.store.pack import Head

_APPLICATION = 0x70726563  # "prec"
_VERSION = 3
CHUNK = 30_000
"""Values bound at a time; SQLite takes 32,766."""
_SCHEMA = """
CREATE TABLE store (id TEXT NOT NULL, made BLOB NOT NULL, removals INTEGER NOT NULL);
CREATE TABLE pack (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE, created INTEGER NOT NULL, bytes INTEGER NOT NULL, entries INTEGER NOT NULL
);
CREATE TABLE recipe (number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, form BLOB NOT NULL);
CREATE TABLE entry (
    key BLOB NOT NULL, pack INTEGER NOT NULL, row INTEGER NOT NULL, recipe INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (key, pack, row)
) WITHOUT ROWID;
CREATE TABLE damage (
    key BLOB NOT NULL, pack BLOB NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (key, pack)
) WITHOUT ROWID;
CREATE TABLE memory (
    kind TEXT NOT NULL, number INTEGER NOT NULL, keys BLOB NOT NULL, contents BLOB NOT NULL, checksum BLOB NOT NULL,
    PRIMARY KEY (kind, number)
);
CREATE TABLE claim (key BLOB NOT NULL PRIMARY KEY, owner BLOB NOT NULL, expires REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE note (
    kind TEXT NOT NULL, key BLOB NOT NULL, text BLOB NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID;
"""


class DoubtError(Exception):
    """The index is not what we wrote: time for a rebuild."""


class NoIndexError(DoubtError):
    """There is no index yet, or no longer: nothing to worry about."""


def connect(path: str, *, settings: Sequence[str] = (), uri: bool = False) -> sqlite3.Connection:
    """A connection that any thread may use, under a lock of its owner's."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False, uri=uri)
    # A database from somewhere else gets no say: no code in its schema, no trust in its cells, no mapping to fault on.
    safe = ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY")
    try:
        for setting in (*safe, *settings):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def check(db: sqlite3.Connection, store_id: str) -> None:
    """Doubt an index of another version or of another store."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if (application, version) != (_APPLICATION, _VERSION):
        raise DoubtError("another index version")
    if db.execute("SELECT id FROM store").fetchall() != [(store_id,)]:
        raise DoubtError("the index of another store")


def fill(db: sqlite3.Connection, store_id: str, heads: Iterable[Head]) -> None:
    """Turn an empty database into the index of these packs."""
    db.executescript(_SCHEMA)
    db.execute("BEGIN")
    db.execute("INSERT INTO store VALUES (?, randomblob(16), 0)", (store_id,))
    for head in heads:
        add(db, head)
    db.execute("COMMIT")
    db.execute(f"PRAGMA application_id={_APPLICATION}")
    db.execute(f"PRAGMA user_version={_VERSION}")


def take_over(db: sqlite3.Connection, source: sqlite3.Connection) -> None:
    """Copy what precook remembers from the index that is replaced, as far as it can be read: it carries checksums."""
    try:
        if source.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            return
    except sqlite3.DatabaseError:
        return
    segments = _readable(source, "SELECT kind, number, keys, contents, checksum FROM memory")
    notes = _readable(source, "SELECT kind, key, text, checksum FROM note")
    db.execute("BEGIN")
    db.executemany("INSERT OR IGNORE INTO memory VALUES (?, ?, ?, ?, ?)", segments)
    db.executemany("INSERT OR IGNORE INTO note VALUES (?, ?, ?, ?)", notes)
    db.execute("COMMIT")


def _readable(source: sqlite3.Connection, query: str) -> Iterator[tuple[object, ...]]:
    """The rows of a query, up to the first that is too damaged to be read."""
    with contextlib.suppress(sqlite3.DatabaseError):
        yield from source.execute(query)


def removed(db: sqlite3.Connection) -> None:
    """Count a removal of entries; the caller has begun a transaction."""
    db.execute("UPDATE store SET removals = removals + 1")


def add(db: sqlite3.Connection, head: Head) -> None:
    """Add the rows of one pack, unless they are there already; the caller has begun a transaction."""
    pack = bytes.fromhex(head.id)
    row = (pack, head.created, head.file_bytes, head.rows)
    if not db.execute("INSERT OR IGNORE INTO pack (id, created, bytes, entries) VALUES (?, ?, ?, ?)", row).rowcount:
        return
    number = db.execute("SELECT number FROM pack WHERE id = ?", (pack,)).fetchone()[0]
    recipes = [0]
    for form in head.recipes:
        digest = recipe_digest(form).bytes
        db.execute("INSERT OR IGNORE INTO recipe (digest, form) VALUES (?, ?)", (digest, form))
        recipes.append(db.execute("SELECT number FROM recipe WHERE digest = ?", (digest,)).fetchone()[0])
    first = 0
    for table in head.tables:
        keys = table.keys.tobytes()
        db.executemany(
            "INSERT OR IGNORE INTO entry VALUES (?, ?, ?, ?, ?)",
            (
                (keys[32 * i : 32 * i + 32], number, first + i, recipe, size)
                for i, recipe, size in zip(
                    range(table.rows),
                    np.asarray(recipes)[table.recipes].tolist(),
                    table.row_bytes().tolist(),
                    strict=True,
                )
            ),
        )
        first += table.rows


def select(db: sqlite3.Connection, query: str, keys: Sequence[bytes]) -> list[Any]:
    """All rows of a query whose `{}` takes any number of keys, a chunk of them at a time."""
    rows: list[Any] = []
    for at in range(0, len(keys), CHUNK):
        chunk = keys[at : at + CHUNK]
        rows += db.execute(query.format(",".join("?" * len(chunk))), chunk).fetchall()
    return rows


def in_order(keys: Sequence[bytes]) -> list[bytes]:
    """Keys in the order of their first bytes, which is nearly the index's: neighbours then share its pages."""
    first = np.frombuffer(b"".join(keys), ">u8")[::4]
    return [keys[i] for i in np.argsort(first).tolist()]


def named_error(path: Path, reason: str) -> StoreError | DoubtError:
    """SQLite's complaint as ours; whatever casts doubt on the file itself becomes a `DoubtError`."""
    # By message: Python 3.10 does not pass SQLite's error codes on.
    if "locked" in reason or "busy" in reason:
        return LockedError(path, f"the index is locked: {reason}")
    if "full" in reason:
        return NoSpaceError(path, f"no space left for the index: {reason}")
    if "readonly" in reason and not os.access(path, os.W_OK):
        return ReadOnlyError(path, f"the index cannot be written: {reason}")
    if "readonly" in reason or "unable to open" in reason:
        # SQLite says so, too, when the process has no descriptors left.
        hint = "close some files or raise `ulimit -n`, and look at what lies there"
        return StoreWriteError(path, f"the index cannot be opened: {reason}", hint=hint)
    if "disk I/O error" in reason:
        return StoreWriteError(path, f"the index could not be read or written: {reason}")
    return DoubtError(reason)


def companions(path: Path) -> tuple[Path, Path]:
    """SQLite's log and shared memory beside a database."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def sync(path: Path) -> None:
    """Make a whole database file durable."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        files.sync_file(descriptor)
    finally:
        os.close(descriptor)
