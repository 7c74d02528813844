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
import numpy.typing as npt

from precook.errors import LockedError, NoSpaceError, ReadOnlyError, StoreError, StoreWriteError
from precook.identity.recipe import recipe_digest
from precook.memo.columns import checksum
from precook.store import files
from precook.store.format.pack import Head
from precook.store.keysets import split

_APPLICATION = 0x70726563  # "prec"
_VERSION = 4
_KIN = (3, _VERSION)
"""Versions whose memory and notes are ours to take over."""
CHUNK = 30_000
"""Values bound at a time; SQLite takes 32,766."""
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


def fill(db: sqlite3.Connection, heads: Iterable[Head]) -> None:
    """Add these packs to a new index, which is then one that `check` accepts."""
    db.execute("BEGIN")
    for head in heads:
        add(db, head)
    for table in ("dropped", "used"):
        db.execute(f"DELETE FROM {table} WHERE pack NOT IN (SELECT id FROM pack)")  # noqa: S608 - our own words
    db.execute("COMMIT")
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


def removed(db: sqlite3.Connection) -> None:
    """Count a removal of entries; the caller has begun a transaction."""
    db.execute("UPDATE store SET removals = removals + 1")


def add(db: sqlite3.Connection, head: Head) -> None:
    """Add the rows of one pack but for those dropped from it, unless they are there; in the caller's transaction."""
    pack = bytes.fromhex(head.id)
    if db.execute("SELECT 1 FROM pack WHERE id = ?", (pack,)).fetchone():
        return
    live = ~read_dropped(db, pack, head.rows)
    sizes = [table.row_bytes() for table in head.tables]
    payload, rows = sum(int(one.sum()) for one in sizes), int(live.sum())
    number = db.execute(
        "INSERT INTO pack (id, created, bytes, entries, payload, live, doomed) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (pack, head.created, head.file_bytes, head.rows, payload, rows, int(not rows)),
    ).lastrowid
    recipes = [0]
    for form in head.recipes:
        digest = recipe_digest(form).bytes
        db.execute("INSERT OR IGNORE INTO recipe (digest, form) VALUES (?, ?)", (digest, form))
        recipes.append(db.execute("SELECT number FROM recipe WHERE digest = ?", (digest,)).fetchone()[0])
    first = 0
    for table, nbytes in zip(head.tables, sizes, strict=True):
        keys = table.keys.tobytes()
        here = np.flatnonzero(live[first : first + table.rows])
        # In the order of the keys, as far as that is quick to tell: neighbours share the index's pages.
        here = here[np.argsort(table.keys[here, :8].copy().view(">u8").reshape(-1))]
        db.executemany(
            "INSERT OR IGNORE INTO entry VALUES (?, ?, ?, ?, ?)",
            (
                (keys[32 * i : 32 * i + 32], number, first + i, recipe, size)
                for i, recipe, size in zip(
                    here.tolist(),
                    np.asarray(recipes)[table.recipes[here]].tolist(),
                    nbytes[here].tolist(),
                    strict=True,
                )
            ),
        )
        first += table.rows
    _forget_damage(db, head, live)


def _forget_damage(db: sqlite3.Connection, head: Head, live: npt.NDArray[np.bool_]) -> None:
    """Entries that were damaged and have now been added, whole, are damaged no longer."""
    damaged = [key for (key,) in db.execute("SELECT DISTINCT key FROM damage")]
    if damaged:
        added = set(split(np.concatenate([table.keys for table in head.tables])[live]))
        db.executemany("DELETE FROM damage WHERE key = ?", [(key,) for key in damaged if key in added])


def read_dropped(db: sqlite3.Connection, pack: bytes, rows: int) -> npt.NDArray[np.bool_]:
    """Which of the rows of a pack were dropped; a record that is damaged is as good as none: its rows come back."""
    found = db.execute("SELECT rows, checksum FROM dropped WHERE pack = ?", (pack,)).fetchone()
    if found is None or not isinstance(found[0], bytes) or _dropped_checksum(pack, rows, found[0]) != found[1]:
        return np.zeros(rows, bool)
    return np.unpackbits(np.frombuffer(found[0], np.uint8), count=rows, bitorder="little").astype(bool)


def write_dropped(db: sqlite3.Connection, pack: bytes, dropped: npt.NDArray[np.bool_]) -> None:
    """Record which rows of a pack are dropped."""
    raw = np.packbits(dropped, bitorder="little").tobytes()
    row = (pack, raw, _dropped_checksum(pack, len(dropped), raw))
    db.execute("INSERT OR REPLACE INTO dropped VALUES (?, ?, ?)", row)


def _dropped_checksum(pack: bytes, rows: int, raw: bytes) -> bytes:
    # The number of rows is part of it: a pack goes for good on the word of this record.
    return checksum(b"dropped", pack, rows.to_bytes(8, "little"), raw)


def read_used(db: sqlite3.Connection, pack: bytes, rows: int) -> npt.NDArray[np.int64]:
    """When each row of a pack was last used, in nanoseconds; zeros where nobody says."""
    found = db.execute("SELECT times, checksum FROM used WHERE pack = ?", (pack,)).fetchone()
    if found is None or not isinstance(found[0], bytes) or checksum(b"used", pack, found[0]) != found[1]:
        return np.zeros(rows, np.int64)
    times = np.frombuffer(found[0], "<i8")
    return times.astype(np.int64) if len(times) == rows else np.zeros(rows, np.int64)


def write_used(db: sqlite3.Connection, pack: bytes, times: npt.NDArray[np.int64]) -> None:
    """Record when each row of a pack was last used."""
    raw = times.astype("<i8").tobytes()
    db.execute("INSERT OR REPLACE INTO used VALUES (?, ?, ?)", (pack, raw, checksum(b"used", pack, raw)))


def drop(
    db: sqlite3.Connection, pack: bytes, keys: Sequence[bytes], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Drop rows of a pack for good, and mark it as doomed with its last one; which of them were still there.

    The caller has begun a transaction.
    """
    found = db.execute("SELECT number, entries, live FROM pack WHERE id = ?", (pack,)).fetchone()
    if found is None:
        return np.zeros(len(rows), bool)
    number, entries, live = found
    there = {row for at, row in select(db, "SELECT pack, row FROM entry WHERE key IN ({})", keys) if at == number}
    # In the order of the keys: neighbours share the index's pages.
    places = sorted((key, number, row) for key, row in zip(keys, rows.tolist(), strict=True))
    db.executemany("DELETE FROM entry WHERE key = ? AND pack = ? AND row = ?", places)
    dropped = read_dropped(db, pack, entries)
    dropped[rows] = True
    gone = np.array([row in there for row in rows.tolist()], bool)
    left = live - int(gone.sum())
    if left <= 0:
        # Also those that were damaged: nothing of it is wanted any more.
        dropped[:] = True
    write_dropped(db, pack, dropped)
    db.execute("UPDATE pack SET live = ?, doomed = ? WHERE number = ?", (left, int(left <= 0), number))
    return gone


def doom(db: sqlite3.Connection, packs: Iterable[bytes]) -> None:
    """Mark packs as doomed of which nothing is left to use; the caller has begun a transaction."""
    for pack in packs:
        query = "SELECT number, entries FROM pack WHERE id = ? AND live <= 0 AND NOT doomed"
        found = db.execute(query, (pack,)).fetchone()
        if found and not db.execute("SELECT 1 FROM entry WHERE pack = ? LIMIT 1", (found[0],)).fetchone():
            write_dropped(db, pack, np.ones(found[1], bool))
            db.execute("UPDATE pack SET live = 0, doomed = 1 WHERE number = ?", (found[0],))


def forget_packs(db: sqlite3.Connection, packs: Iterable[bytes]) -> None:
    """Forget packs whose files are gone; the caller has begun a transaction and seen to their rows."""
    for pack in packs:
        for table in ("dropped", "used"):
            db.execute(f"DELETE FROM {table} WHERE pack = ?", (pack,))  # noqa: S608 - our own words
        db.execute("DELETE FROM pack WHERE id = ?", (pack,))


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
