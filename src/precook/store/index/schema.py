"""The SQLite file behind the index: its tables, how it is opened, checked, and taken over from an older one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from precook.errors import LockedError, NoSpaceError, ReadOnlyError, StoreError, StoreWriteError
from precook.store import files

_APPLICATION = 0x70726563  # "prec"
_VERSION = 4
_KIN = (3, _VERSION)
"""Versions whose memory and notes are ours to take over."""
_SCHEMA = """
CREATE TABLE store (id TEXT NOT NULL, made BLOB NOT NULL, removals INTEGER NOT NULL);
CREATE TABLE pack (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE, created INTEGER NOT NULL, bytes INTEGER NOT NULL, entries INTEGER NOT NULL,
    payload INTEGER NOT NULL, live INTEGER NOT NULL, doomed INTEGER NOT NULL
);
CREATE TABLE recipe (number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, form BLOB NOT NULL);
CREATE TABLE entry (
    key BLOB NOT NULL, pack INTEGER NOT NULL, row INTEGER NOT NULL, recipe INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (key, pack, row)
) WITHOUT ROWID;
CREATE TABLE damage (
    key BLOB NOT NULL, pack BLOB NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (key, pack)
) WITHOUT ROWID;
CREATE TABLE dropped (pack BLOB NOT NULL PRIMARY KEY, rows BLOB NOT NULL, checksum BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE used (pack BLOB NOT NULL PRIMARY KEY, times BLOB NOT NULL, checksum BLOB NOT NULL) WITHOUT ROWID;
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


def create(db: sqlite3.Connection, store_id: str) -> None:
    """Turn an empty database into an index without packs."""
    db.executescript(_SCHEMA)
    db.execute("INSERT INTO store VALUES (?, randomblob(16), 0)", (store_id,))


def seal(db: sqlite3.Connection) -> None:
    """Say that the index is whole: `check` accepts it from now on."""
    db.execute(f"PRAGMA application_id={_APPLICATION}")
    db.execute(f"PRAGMA user_version={_VERSION}")


def take_over(db: sqlite3.Connection, source: sqlite3.Connection) -> None:
    """Copy what the packs do not say from the index that is replaced, as far as it can be read: it has checksums.

    Before the packs are added: what was dropped from them stays dropped.
    """
    try:
        if source.execute("PRAGMA user_version").fetchone()[0] not in _KIN:
            return
    except sqlite3.DatabaseError:
        return
    db.execute("BEGIN")
    for table, columns in (
        ("memory", "kind, number, keys, contents, checksum"),
        ("note", "kind, key, text, checksum"),
        ("dropped", "pack, rows, checksum"),
        ("used", "pack, times, checksum"),
    ):
        rows = _readable(source, f"SELECT {columns} FROM {table}")  # noqa: S608 - our own words
        marks = ", ".join("?" * len(columns.split(", ")))
        db.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)  # noqa: S608
    db.execute("COMMIT")


def _readable(source: sqlite3.Connection, query: str) -> Iterator[tuple[object, ...]]:
    """The rows of a query, up to the first that is too damaged to be read."""
    with contextlib.suppress(sqlite3.DatabaseError):
        yield from source.execute(query)


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


def try_wal(path: Path) -> tuple[str, bool]:
    """Make a database with a write-ahead log; the journal mode it got, and whether a second connection sees a write."""
    with contextlib.closing(sqlite3.connect(path)) as writer, contextlib.closing(sqlite3.connect(path)) as reader:
        mode = writer.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        writer.execute("CREATE TABLE probe (number INTEGER)")
        writer.execute("INSERT INTO probe VALUES (7)")
        writer.commit()
        return mode, reader.execute("SELECT number FROM probe").fetchall() == [(7,)]
