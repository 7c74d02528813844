"""Connections to SQLite that trust nothing in the file they open, and what SQLite's complaints mean.

A database may come from somewhere else, and one of ours may have been torn: no code in its schema is run, no statement
goes on for ever, and no value takes all memory.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import length_hint
from pathlib import Path
from typing import Any

from precook.errors import LockedError, NoSpaceError, ReadOnlyError, StoreError, StoreReadError, StoreWriteError
from precook.fs.system import calls
from precook.store import files
from precook.store.layout import Layout

_STEPS_AT_ONCE = 100_000
"""Steps of SQLite's machine between two looks at how many are left: a few milliseconds."""
_STEPS = 2_000_000
"""Steps that every statement may take: a search for as many keys as go into one takes 400,000."""
_STEPS_PER_BYTE = 4
"""... and more for every byte of the file: the sums over all entries, the longest of our walks, take one."""
_LONGEST_VALUE = 320 << 20
"""Bytes of the longest row that is read; segments of what is remembered take 256 MiB at most."""
_ROOM = 64 << 10
"""Bytes that a disk must have to open the index: SQLite's shared memory, and something to spare."""
_SCARCE = 1 << 20
"""Free bytes below which it is tried whether there is so much."""
_BLOCK = 1 << 20

_LOCKED = ("database is locked", "database table is locked", "database schema is locked", "locking protocol")
_FULL = "database or disk is full"
_READ_ONLY = "attempt to write a readonly database"
_MALFORMED = "database disk image is malformed"
_REFUSED = ("disk I/O error", "unable to open database file", _READ_ONLY)
_ENDLESS = "interrupted"


class DoubtError(Exception):
    """The index is not what we wrote: time for a rebuild."""


class NoIndexError(DoubtError):
    """There is no index yet, or no longer: nothing to worry about."""


class SystemRefusedError(Exception):
    """The system refused to read or write the index, for a reason that may pass; `error` tells it in our words."""

    def __init__(self, error: StoreError, *, lost: bool = False) -> None:
        super().__init__(error.reason)
        self.error = error
        self.lost = lost
        """Whether the disk itself cannot read these bytes any more."""


class Connection(sqlite3.Connection):
    """A connection each of whose statements comes to an end: pages that lead back to others would not."""

    nbytes = 0
    """What the file takes, as far as that is known: who has much may look at much."""
    _looks = repeat(0, 0)
    """Gives SQLite a zero each time that it asks whether to go on, and ends where it is to stop."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement, which may take no more steps than a file of this size can need, or twice as many."""
        looks = (_STEPS + _STEPS_PER_BYTE * self.nbytes) // _STEPS_AT_ONCE
        # Twice as many, so that a short statement need not begin with new ones.
        if length_hint(self._looks) < looks:
            self._looks = repeat(0, 2 * looks)
            # What SQLite asks is no Python code: Ctrl-C would come out inside of that, where it is lost, and end the
            # statement as one that does not come to its end.
            self.set_progress_handler(self._looks.__next__, _STEPS_AT_ONCE)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Run a statement once for each of some rows; how many they are is the caller's affair."""
        self._looks = repeat(0, 0)
        self.set_progress_handler(None, _STEPS_AT_ONCE)
        return super().executemany(sql, parameters)

    def close(self) -> None:
        """Close it."""
        _LOCKED_FILES.pop(id(self), None)
        super().close()


_LOCKED_FILES: dict[int, tuple[int, int]] = {}
"""Device and inode of the files on which connections of this process have locks. Those belong to the process and the
file: whoever closes any other descriptor of the file ends them."""


def is_connected(status: os.stat_result) -> bool:
    """Whether this process has locks on a file."""
    return (status.st_dev, status.st_ino) in list(_LOCKED_FILES.values())


def connect(uri: str, *, settings: Sequence[str] = (), place: os.stat_result | None = None) -> Connection:
    """A connection that any thread may use, under a lock of its owner's; nothing of the file has been read yet.

    `place` is the file, where the connection locks it.
    """
    connection = sqlite3.connect(
        uri, timeout=10, isolation_level=None, check_same_thread=False, uri=True, factory=Connection
    )
    try:
        if place is not None:
            _LOCKED_FILES[id(connection)] = place.st_dev, place.st_ino
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        # A database from somewhere else gets no say: no code in its schema, no trust in its cells, no mapping to fault
        # on.
        for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY", *settings):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def defend(connection: Connection) -> None:
    """Let nothing change the schema or the settings of a database that is only used, where this Python can say so."""
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # noqa: FBT003 - SQLite's own way to say it
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)  # noqa: FBT003
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)  # noqa: FBT003


def explain(path: Path, error: Exception) -> StoreError | DoubtError | SystemRefusedError:
    """SQLite's complaint about the database at `path` as ours; what casts doubt on its content is a `DoubtError`."""
    # By message: Python 3.10 does not pass SQLite's error codes on. By its beginning: what follows may quote the file.
    reason = str(error)
    if reason.startswith(_LOCKED):
        return LockedError(path, f"the index is locked: {reason}")
    if reason.startswith(_FULL):
        return NoSpaceError(path, f"no space left for the index: {reason}")
    if reason.startswith(_REFUSED):
        return _explain_refusal(path, reason)
    if reason.startswith(_MALFORMED):
        # SQLite says so, too, where a read ended with an I/O error.
        refused = _try_reading(path)
        if refused is not None:
            return refused
    return DoubtError("a search in it does not end" if reason == _ENDLESS else reason)


def _explain_refusal(path: Path, reason: str) -> StoreError | DoubtError | SystemRefusedError:
    """Ask the system itself: to SQLite a full disk, a failing one and a lack of descriptors are much the same."""
    refused = _try_reading(path)
    if refused is not None:
        return refused
    try:
        _take_room(path.parent)
    except OSError as error:
        explained = files.explain(path, error)
        return explained if isinstance(explained, (NoSpaceError, ReadOnlyError)) else SystemRefusedError(explained)
    if reason == _READ_ONLY:
        closed = [file for file in (path, *companions(path)) if not os.access(file, os.W_OK) and file.exists()]
        if path in closed:
            return ReadOnlyError(path, f"the index cannot be written: {reason}")
        if not closed:
            return DoubtError(reason)  # nobody keeps us from writing: it is what the file says of itself
    return SystemRefusedError(StoreWriteError(path, f"the index could not be read or written: {reason}"))


def check_room(path: Path) -> None:
    """Raise `NoSpaceError` where the disk has no room for what SQLite puts beside a database.

    Before it tries: it maps its shared memory, and where blocks are smaller than pages, or are never written in place,
    a page that the disk has no room for ends the process with SIGBUS.
    """
    try:
        if shutil.disk_usage(path.parent).free < _SCARCE:
            _take_room(path.parent)
    except OSError as error:
        explained = files.explain(path, error)
        if isinstance(explained, NoSpaceError):
            raise explained from error
        # Anything else hears who opens the file.


def _take_room(folder: Path) -> None:
    """Write as much as SQLite needs to a file without a name; what the file system says is free may not be for us."""
    with tempfile.TemporaryFile(dir=folder) as scrap:
        scrap.write(bytes(_ROOM))


def _try_reading(path: Path) -> StoreError | DoubtError | SystemRefusedError | None:
    """What the system says about a database and its log; None where it gives all of them."""
    try:
        if not is_connected(path.lstat()):
            _read_through(path)
        _read_through(companions(path)[0])
    except FileNotFoundError:
        return NoIndexError("there is no index")
    except OSError as error:
        return explain_read(path, error)
    return None


def explain_read(path: Path, error: OSError) -> StoreError | SystemRefusedError:
    """What the system says about reading the index, as ours."""
    if error.errno in files.MEDIUM:
        try:
            _read_through(Layout(path.parent).marker)
        except OSError:
            lost = False  # a disk that gives nothing back for a while may have lost nothing
        else:
            lost = True
        return SystemRefusedError(StoreReadError(path, f"the index cannot be read: {error.strerror}"), lost=lost)
    explained = files.explain(path, error)
    return explained if isinstance(explained, ReadOnlyError) else SystemRefusedError(explained)


def _read_through(path: Path) -> None:
    """Read a file to its end, for what the system says about it."""
    try:
        descriptor = calls.open(path, os.O_RDONLY | calls.O_NOFOLLOW | calls.O_NONBLOCK | calls.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        while os.read(descriptor, _BLOCK):
            pass
    finally:
        os.close(descriptor)


def companions(path: Path) -> tuple[Path, Path, Path]:
    """What SQLite may put beside a database: its log, its shared memory, and the journal of one without a log."""
    log, shared, journal = (path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal"))
    return log, shared, journal


def bounded(db: sqlite3.Connection, query: str, parameters: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
    """The rows of a query, and no more of them than the file can hold: pages that lead back to others never end."""
    pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    left = pages * size
    for row in db.execute(query, parameters):
        left -= 1 + sum(len(value) for value in row if isinstance(value, (bytes, str)))
        if left < 0:
            raise DoubtError("it holds more than there is room for in its file")
        yield row
