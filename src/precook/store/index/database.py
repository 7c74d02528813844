"""The index file: how it is connected to, doubted, and made anew from the packs.

SQLite in WAL mode with `synchronous=FULL`; every write and checkpoint happens under the store's lock, because SQLite
before 3.51.3 has a rare race between two connections that write and checkpoint at the same moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from precook.errors import LockedError, NoSpaceError, ReadOnlyError, StoreError, StoreWriteError, printable
from precook.fs.system import calls, system
from precook.store import files
from precook.store.format.pack import Head
from precook.store.index import schema
from precook.store.index.connection import (
    Connection,
    DoubtError,
    NoIndexError,
    SystemRefusedError,
    check_room,
    companions,
    connect,
    defend,
    explain,
    explain_read,
    is_connected,
)
from precook.store.index.file import IndexFile, look
from precook.store.index.schema import Names, UnreadableIndexError
from precook.store.layout import Layout, list_packs
from precook.store.lock import PATIENCE, locked

_log = logging.getLogger("precook")

_CHECKPOINT_BYTES = 8 << 20
_WRITING = ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0")
_IN_MEMORY = "memory"
_ATTEMPTS = 3
"""How often the system is asked, each time by a new connection, before its refusal counts."""

_UNNAMED = (AttributeError, TypeError, ValueError, OverflowError, OSError, sqlite3.Error)
"""What comes out of a query where the file is not what we wrote, or cannot be read."""

_T = TypeVar("_T")

ReadHeads = Callable[[Iterable[str]], Iterator[Head]]
"""Reads the heads of packs, passing over those that are damaged or gone."""


class Database:
    """One process's connection to the index of one store; safe to use from several threads.

    The connection is opened when needed and closed before a fork, so that neither side inherits SQLite's state.
    """

    def __init__(self, layout: Layout, store_id: str, heads: ReadHeads, *, read_only: bool) -> None:
        self.lock = threading.RLock()
        self.read_only = read_only
        self._depth = 0
        """How often this thread has taken the store's lock."""
        self._layout = layout
        self._path = layout.index
        self._file = IndexFile(layout)
        self._store_id = store_id
        self._read_heads = heads
        self._connection: Connection | None = None
        self._signature: object = None
        """What the file looked like when the connection was opened."""
        self._disk_full = False
        """Whether the disk had no room for SQLite to open the index as who writes does: it is then only looked at."""
        self._log_bytes = 0
        """Size of the log when the connection was opened, or when we last wrote."""
        self._names = Names({}, {}, {})
        """What numbers stand for in the file of this connection."""

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def before_fork(self) -> None:
        """Wait until no thread is inside SQLite, and keep others out; an index in memory may be carried over."""
        self.lock.acquire()
        if not self.in_memory:
            self.close()

    def after_fork(self, *, child: bool) -> None:
        """Let threads in again; in the child nobody can be waiting."""
        if child:
            self.lock = threading.RLock()
        else:
            self.lock.release()

    @property
    def in_memory(self) -> bool:
        """Whether the index had to be made anew in memory, of a read-only store or on a full disk."""
        return self._signature == _IN_MEMORY

    @property
    def _only_looks(self) -> bool:
        """Whether nothing may be written beside the index, not even what SQLite needs to read it as who writes does."""
        return self.read_only or self._disk_full

    @contextlib.contextmanager
    def exclusive(self, *, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the store's lock, which every write to the index needs; the same thread may take it again."""
        with self.lock:
            if self.read_only:
                raise ReadOnlyError(self._layout.root, "opened read-only")
            with locked(self._layout.lock, patience=patience) if not self._depth else contextlib.nullcontext():
                self._depth += 1
                try:
                    if self._depth == 1:
                        self._finish()
                    yield
                finally:
                    self._depth -= 1

    def _read(self, query: Callable[[sqlite3.Connection], _T], *, writable: bool = False) -> _T:
        """The result of a query, which is called again where the index turns out to be damaged and is made anew.

        `writable`: by a connection that can also write; without it a full disk is no reason not to read.
        """
        with self.lock:
            try:
                return self._ask(query, writable=writable)
            except (DoubtError, SystemRefusedError):
                pass  # once more below
            with contextlib.nullcontext() if self.read_only else self.exclusive():
                # Once more under the lock: another process may have been replacing the index just now.
                try:
                    return self._ask_again(query, writable=writable)
                except DoubtError as doubt:
                    level = logging.DEBUG if isinstance(doubt, NoIndexError) else logging.WARNING
                    self.make_anew(str(doubt), level=level, writable=writable)
                with self._last_attempt():
                    return self._ask(query, writable=writable)

    def _ask(self, query: Callable[[sqlite3.Connection], _T], *, writable: bool) -> _T:
        """The result of a query."""
        try:
            return query(self._connected())
        except _UNNAMED as error:
            named = self._named(error)
            if not isinstance(named, NoSpaceError) or writable or self._only_looks:
                raise named from error
        except NoSpaceError:
            if writable or self._only_looks:
                raise
        self.close()
        self._disk_full = True
        with self._named_errors():
            return query(self._connected())

    def _ask_again(self, query: Callable[[sqlite3.Connection], _T], *, writable: bool) -> _T:
        """The result of a query that the system may have refused, each time by a new connection."""
        for left in reversed(range(_ATTEMPTS)):
            self.close()
            try:
                if not self.read_only:
                    self._settle()
                return self._ask(query, writable=writable)
            except SystemRefusedError as refused:
                if not left and refused.lost:
                    raise DoubtError(refused.error.reason) from refused
                if not left:
                    raise refused.error from refused
        raise AssertionError  # the loop ends by itself

    def _write(self, change: Callable[[sqlite3.Connection], _T]) -> _T:
        """Make a change in one transaction under the store's lock; it is called again as a query is."""
        with self.exclusive():
            try:
                with self._writing() as db:
                    result = change(db)
            except (DoubtError, SystemRefusedError) as doubt:
                # What was refused for another reason is not tried again: after a failed sync that would look well.
                if isinstance(doubt, SystemRefusedError) and not doubt.lost:
                    raise doubt.error from doubt
                self.make_anew(str(doubt), writable=True)
                with self._last_attempt(), self._writing() as db:
                    result = change(db)
            self._checkpoint()
            return result

    def make_anew(self, reason: str, *, level: int = logging.WARNING, writable: bool = False) -> None:
        """Make the index anew, which cannot be believed; on a full disk in memory, unless it has to be `writable`."""
        _log.log(level, "making the index of %s anew: %s", printable(self._layout.root), reason)
        try:
            self.rebuild()
        except NoSpaceError:
            if writable:
                raise
            self._rebuild_in_memory()

    def rebuild(self) -> None:
        """Make the index anew from the heads of all packs, in memory if the store is read-only.

        The old one is replaced at the very end by a single rename, so other processes see either of the two, and what
        only the old one knows is in one of them.
        """
        if self.read_only:
            self._rebuild_in_memory()
            return
        with self.exclusive(), self._trying_for_room(), files.explained(self._layout.root):
            with contextlib.suppress(DoubtError):
                self._settle()
            names = self.listed()
            self.make_durable(names)
            partial = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}{files.PARTIAL}")
            try:
                with self._last_attempt():
                    self._build(partial, names)
                if not system.KEEPS_REMOVED_FILES:
                    self.close()  # who has the old index open keeps it from being replaced
                self._file.replace(partial)
            finally:
                partial.unlink(missing_ok=True)

    def _build(self, partial: Path, names: set[str]) -> None:
        """A new index, whole and durable, of packs by name."""
        # No journal for a file that nobody has seen yet; it becomes durable as a whole below.
        settings = ("journal_mode=OFF", "synchronous=OFF", "cache_size=-262144")
        # Made here, because SQLite would let only its owner write to it; its log gets the same rights.
        os.close(files.create(partial))
        with (
            self._named_errors(partial),
            contextlib.closing(connect(partial.absolute().as_uri(), settings=settings)) as db,
        ):
            schema.create(db, self._store_id)
            self._take_over(db)
            schema.fill(db, self._read_heads(sorted(names)), names)
            db.execute("PRAGMA journal_mode=WAL")
        descriptor = calls.open(partial, os.O_RDWR | calls.O_CLOEXEC)
        try:
            files.sync_file(descriptor)
        finally:
            os.close(descriptor)

    def _rebuild_in_memory(self) -> None:
        """An index for this process alone, where none can be written: of a read-only store, or on a full disk."""
        self._disk_full = not self.read_only
        with self.lock, self._last_attempt(), self._named_errors():
            self.close()
            connection, whole = self._in_memory()
            while not whole:
                connection.close()
                connection, whole = self._in_memory()
            connection.nbytes = sys.maxsize  # all of it is ours: no statement about it goes on for ever
            self._connection, self._signature, self._names = connection, _IN_MEMORY, Names({}, {}, {})

    def _in_memory(self) -> tuple[Connection, bool]:
        """An index in memory, and whether every pack stayed meanwhile: the entries of one that went may lie in others.

        Others move entries while we look, whom no lock of ours keeps from it.
        """
        names = self.listed()
        files.reached("index.listed")
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(contextlib.closing(connect(":memory:")))
            schema.create(connection, self._store_id)
            self._take_over(connection)
            schema.fill(connection, self._read_heads(sorted(names)), names)
            stack.pop_all()
        return connection, names <= self.listed()

    def _take_over(self, db: sqlite3.Connection) -> None:
        """Carry over what only the old index knows, as far as it can be read.

        Several times, for what the system refuses once it may grant the next time: what was removed must not come back
        for that.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                with contextlib.closing(self._open_source()) as source:
                    schema.take_over(db, source)
            except DoubtError:
                return
            except UnreadableIndexError as error:
                refused = explain(self._path, error)
                lost = isinstance(refused, SystemRefusedError) and refused.lost
                if isinstance(refused, NoIndexError) or (not left and isinstance(refused, DoubtError)):
                    return
                if not left and not lost and not self._only_looks:
                    raise refused from error
            else:
                return
        _log.warning(
            "%s cannot be read (%s): entries that were removed and whose packs are still there may come back, and what"
            " was remembered is worked out anew",
            printable(self._path),
            refused,
        )

    def _open_source(self) -> Connection:
        """A connection to the index that is replaced."""
        try:
            return self._open()
        except sqlite3.Error as error:
            raise UnreadableIndexError(str(error)) from error

    def listed(self) -> set[str]:
        """The packs that are in the store."""
        return list_packs(self._layout)[0]

    def make_durable(self, names: Iterable[str]) -> None:
        """Sync the names of packs that are about to get rows, or whose rows are about to go.

        Whoever wrote or unlinked them may have died before it could; and a file that comes back after its record of
        dropped rows is gone would be taken for a new one.
        """
        folders = {self._layout.pack(name).parent for name in names}
        with files.explained(self._layout.root):
            for folder in (*sorted(folders), self._layout.packs) if folders else ():
                # Somebody may have removed it by hand, with all that was in it.
                with contextlib.suppress(FileNotFoundError):
                    files.sync_directory(folder)
            if folders:
                files.sync_directory(self._layout.root)

    def sweep(self) -> None:
        """Remove what a rebuild that was cut short left behind: nobody else rebuilds while we hold the lock."""
        pattern = f"{self._path.name}.*{files.PARTIAL}*"
        if any(self._layout.root.glob(pattern)):
            with contextlib.suppress(LockedError), self.exclusive(patience=0):
                for leftover in self._layout.root.glob(pattern):
                    leftover.unlink(missing_ok=True)

    def widen_cache(self, kibibytes: int) -> None:
        """Let SQLite keep so much of the file in memory, until the connection is closed."""
        self._read(lambda db: db.execute(f"PRAGMA cache_size=-{kibibytes}"))

    def _finish(self) -> None:
        """Let a new index take its place, before anything is written to the old one, which is the index no more."""
        with files.explained(self._layout.root):
            unfinished = self._file.unfinished
        if unfinished:
            with contextlib.suppress(DoubtError):
                self._settle()

    def _settle(self) -> None:
        """See to what lies in the place of the index and cannot be opened; the caller holds the store's lock."""
        self.close()
        with files.explained(self._layout.root):
            self._file.settle()

    @contextlib.contextmanager
    def _trying_for_room(self) -> Iterator[None]:
        """Try whether a full disk has room by now; where it has not, go on to look at what was looked at before."""
        if not self._disk_full:
            yield
            return
        view = None
        if self.in_memory:
            view, self._connection = self._connection, None
        else:
            # Not beside the other one: they would share SQLite's shared memory, which this one may not write to.
            self.close()
        self._disk_full = False
        try:
            yield
        except NoSpaceError:
            self.close()
            self._disk_full = True
            if view is not None:
                self._connection, self._signature, self._names = view, _IN_MEMORY, Names({}, {}, {})
            raise
        if view is not None:
            view.close()
            self.catch_up()

    def catch_up(self) -> None:
        """Called when an index in memory gives way to the file, which may know less."""

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._trying_for_room():
            check_room(self._path)
            self._read(lambda _: None, writable=True)  # doubts are settled before anything is written
        if self._disk_full:
            raise NoSpaceError(self._path, "no space left for the index")
        with self._named_errors():
            db = self._connected()
            try:
                # Inside: Ctrl-C may come when it has begun, and a transaction left open would lock everybody out.
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                # Whatever state a failed commit left behind goes with the connection.
                self.close()
                raise

    def _checkpoint(self) -> None:
        """Fold the log back into the database when it has grown; the caller holds the store's lock."""
        # The change itself is durable: that its log cannot be looked at, or has to stay, is no reason to say otherwise.
        with contextlib.suppress(OSError, NoSpaceError):
            self._log_bytes = self._file.log_bytes()
            if self._log_bytes > _CHECKPOINT_BYTES:
                self._read(lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall(), writable=True)

    @contextlib.contextmanager
    def _named_errors(self, path: Path | None = None) -> Iterator[None]:
        """Turn SQLite's errors about the index, or a database at `path`, into ours or into doubt."""
        try:
            yield
        except _UNNAMED as error:
            raise self._named(error, path) from error

    def _named(self, error: Exception, path: Path | None = None) -> StoreError | DoubtError | SystemRefusedError:
        """An error about the index, or a database at `path`, as ours or as doubt."""
        if isinstance(error, OSError):
            return explain_read(path or self._path, error)
        if not isinstance(error, sqlite3.Error):
            # A torn page can hold values of types that we never write, and text that is none.
            return DoubtError(f"unexpected values: {error}")
        # Before the system is asked about the file: closing another descriptor of it would end our locks.
        self.close()
        # Who only looks is helped by nothing but a second look, and an index in memory is better than none.
        return DoubtError(str(error)) if self._only_looks else explain(path or self._path, error)

    @contextlib.contextmanager
    def _last_attempt(self) -> Iterator[None]:
        """Turn what cannot be helped by making the index anew into errors."""
        try:
            yield
        except SystemRefusedError as refused:
            raise refused.error from refused
        except DoubtError as doubt:
            raise StoreWriteError(self._path, f"the index cannot be made: {doubt}") from doubt

    def _connected(self) -> Connection:
        """The connection, opened anew if the file under it was replaced or, where we only look, written to."""
        if self._connection is not None and self.in_memory:
            return self._connection
        signature, nbytes = self._look()
        if self._connection is None or signature != self._signature:
            self.close()
            self._names = Names({}, {}, {})
            self._connection = self._open_checked(signature)
            self._signature = signature
        self._connection.nbytes = nbytes + self._log_bytes
        return self._connection

    def _open_checked(self, signature: object) -> Connection:
        """A connection to what is an index of this store."""
        if not self._only_looks:
            self._file.check()
        if signature is None:
            raise NoIndexError("there is no index")
        if not self._only_looks:
            check_room(self._path)
        connection = self._open()
        try:
            self._log_bytes = self._file.log_bytes()
            schema.check(connection, self._store_id)
            defend(connection)
            for setting in _WRITING if not self._only_looks else ():
                connection.execute(f"PRAGMA {setting}")
            if not self.read_only:
                # In a directory that does not hand its group on, SQLite's files have that of whoever was the first.
                for companion in companions(self._path):
                    files.share_again(companion)
        except BaseException:
            connection.close()
            raise
        if self._look()[0] != signature:
            # Replaced while it was opened: its log may have been that of the other one.
            connection.close()
            raise DoubtError("another index has taken its place")
        return connection

    def _open(self) -> Connection:
        """A connection to the index as it lies there, of which nothing is known yet."""
        if not self._only_looks:
            # Never made here: a name without content would be taken for the index.
            return connect(f"{self._path.absolute().as_uri()}?mode=rw", place=look(self._path))
        path, status = self._file.find()
        if status is None:
            raise NoIndexError("there is no index")
        # A log that is not empty belongs to a living writer, or to a dead one: only its own shared memory can tell.
        live = path == self._path and (self._file.log_bytes() > 0 or is_connected(status))
        if live:
            self._file.check()
        mode = "mode=ro&readonly_shm=1" if live else "mode=ro&immutable=1"
        return connect(f"{path.absolute().as_uri()}?{mode}")

    def _look(self) -> tuple[object, int]:
        """What tells one index file from another, and its size: its inode; where we only look also when it changed."""
        if not self._only_looks:
            status = look(self._path)
            return ((status.st_dev, status.st_ino), status.st_size) if status is not None else (None, 0)
        _, status = self._file.find()
        if status is None:
            return None, 0
        written = self._file.log_bytes() > 0
        return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, written), status.st_size


def try_wal(path: Path) -> tuple[str, bool]:
    """Make a database with a write-ahead log; the journal mode it got, and whether a second connection sees a write."""
    with contextlib.closing(sqlite3.connect(path)) as writer, contextlib.closing(sqlite3.connect(path)) as reader:
        mode = writer.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        writer.execute("CREATE TABLE probe (number INTEGER)")
        writer.execute("INSERT INTO probe VALUES (7)")
        writer.commit()
        return mode, reader.execute("SELECT number FROM probe").fetchall() == [(7,)]
