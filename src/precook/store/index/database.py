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
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from precook.errors import LockedError, NoSpaceError, ReadOnlyError, StoreError, StoreWriteError
from precook.store import files
from precook.store.format.pack import Head
from precook.store.index import schema
from precook.store.index.schema import DoubtError, Names, NoIndexError
from precook.store.layout import Layout, list_packs
from precook.store.lock import PATIENCE, locked

_log = logging.getLogger("precook")

_CHECKPOINT_BYTES = 8 << 20
_IN_MEMORY = "memory"

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
        self._store_id = store_id
        self._read_heads = heads
        self._connection: sqlite3.Connection | None = None
        self._signature: object = None
        """What the file looked like when the connection was opened."""
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
        """Whether the index of a read-only store had to be made anew, in memory."""
        return self._signature == _IN_MEMORY

    @contextlib.contextmanager
    def exclusive(self, *, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the store's lock, which every write to the index needs; the same thread may take it again."""
        with self.lock:
            if self.read_only:
                raise ReadOnlyError(self._layout.root, "opened read-only")
            with locked(self._layout.lock, patience=patience) if not self._depth else contextlib.nullcontext():
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1

    def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        """The result of a query, which is called again where the index turns out to be damaged and is made anew."""
        with self.lock:
            with contextlib.suppress(DoubtError), self._named_errors():
                return query(self._connected())
            with contextlib.nullcontext() if self.read_only else self.exclusive():
                # Once more under the lock: another process may have been replacing the index just now.
                self.close()
                try:
                    with self._named_errors():
                        return query(self._connected())
                except DoubtError as doubt:
                    self._rebuild_for(doubt)
                try:
                    with self._named_errors():
                        return query(self._connected())
                except DoubtError as doubt:
                    raise StoreWriteError(self._path, f"the index cannot be made: {doubt}") from doubt

    def _write(self, change: Callable[[sqlite3.Connection], _T]) -> _T:
        """Make a change in one transaction under the store's lock; it is called again as a query is."""
        with self.exclusive():
            try:
                with self._writing() as db:
                    result = change(db)
            except DoubtError as doubt:
                self._rebuild_for(doubt)
                try:
                    with self._writing() as db:
                        result = change(db)
                except DoubtError as again:
                    raise StoreWriteError(self._path, f"the index cannot be made: {again}") from again
            self._checkpoint()
            return result

    def rebuild(self) -> None:
        """Make the index anew from the heads of all packs, in memory if the store is read-only.

        The old one is replaced at the very end, so other processes see either of the two.
        """
        if self.read_only:
            with self.lock:
                self.close()
                connection = _connect(":memory:")
                schema.create(connection, self._store_id)
                _take_over(connection, self._open)
                schema.fill(connection, self._read_heads(sorted(list_packs(self._layout)[0])))
                self._connection, self._signature, self._names = connection, _IN_MEMORY, Names({}, {}, {})
            return
        with self.exclusive(), files.explained(self._layout.root), self._named_errors():
            self.close()
            names = list_packs(self._layout)[0]
            self.make_durable(names)
            path = self._path
            partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{files.PARTIAL}")
            try:
                # No journal for a file that nobody has seen yet; it becomes durable as a whole below.
                settings = ("journal_mode=OFF", "synchronous=OFF", "cache_size=-262144")
                # Made here, because SQLite would let only its owner write to it; its log gets the same rights.
                os.close(files.create(partial))
                with contextlib.closing(_connect(str(partial), settings=settings)) as db:
                    schema.create(db, self._store_id)
                    _take_over(db, lambda: _connect(f"{path.absolute().as_uri()}?mode=rw", uri=True))
                    schema.fill(db, self._read_heads(sorted(names)))
                    db.execute("PRAGMA journal_mode=WAL")
                _sync(partial)
                # The database before its log: a log without its database is ignored, the reverse would be corrupt.
                for old in (path, *_companions(path)):
                    old.unlink(missing_ok=True)
                # Kept even if its name cannot be made durable: what the old one knew of dropped rows is only here now.
                files.publish_file(partial, path)
            finally:
                partial.unlink(missing_ok=True)

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

    def _rebuild_for(self, doubt: DoubtError) -> None:
        level = logging.DEBUG if isinstance(doubt, NoIndexError) else logging.WARNING
        _log.log(level, "making the index of %s anew: %s", self._layout.root, doubt)
        self.rebuild()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._read(lambda _: None)  # doubts are settled before anything is written
        with self._named_errors():
            db = self._connected()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # Whatever state a failed commit left behind goes with the connection.
                self.close()
                raise

    def _checkpoint(self) -> None:
        """Fold the log back into the database when it has grown; the caller holds the store's lock."""
        with contextlib.suppress(FileNotFoundError):
            if _companions(self._path)[0].stat().st_size > _CHECKPOINT_BYTES:
                self._read(lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, and what a damaged file can lead to into doubt."""
        try:
            yield
        except (AttributeError, TypeError) as error:
            # A torn page can hold values of types that we never write.
            raise DoubtError(f"unexpected values: {error}") from error
        except sqlite3.DatabaseError as error:
            # Read-only, a second look at the file is all that could help, and an index in memory is better.
            if self.read_only:
                raise DoubtError(str(error)) from error
            raise _named_error(self._path, str(error)) from error

    def _connected(self) -> sqlite3.Connection:
        """The connection, opened anew if the file under it was replaced or, read-only, written to."""
        if self._connection is not None and self.in_memory:
            return self._connection
        signature = self._look()
        if self._connection is not None and signature == self._signature:
            return self._connection
        self.close()
        self._names = Names({}, {}, {})
        if signature is None:
            raise NoIndexError("there is no index")
        connection = self._open()
        try:
            schema.check(connection, self._store_id)
            if not self.read_only:
                # In a directory that does not hand its group on, SQLite's files have that of whoever was the first.
                for companion in _companions(self._path):
                    files.share_again(companion)
        except BaseException:
            connection.close()
            raise
        self._connection, self._signature = connection, signature
        return connection

    def _open(self) -> sqlite3.Connection:
        path = self._path
        if not self.read_only:
            return _connect(str(path), settings=("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"))
        # A log that is not empty belongs to a living writer, or to a dead one: only its own shared memory can tell.
        log = _companions(path)[0]
        live = log.exists() and log.stat().st_size > 0
        mode = "mode=ro&readonly_shm=1" if live else "mode=ro&immutable=1"
        return _connect(f"{path.absolute().as_uri()}?{mode}", uri=True)

    def _look(self) -> object:
        """What tells one index file from another: its inode; read-only also whether it was written to."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        if not self.read_only:
            return status.st_dev, status.st_ino
        log = _companions(self._path)[0]
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, log.exists()


def _take_over(db: sqlite3.Connection, open_old: Callable[[], sqlite3.Connection]) -> None:
    """Carry over what is remembered, if there is an old index that can be opened."""
    try:
        source = open_old()
    except (sqlite3.DatabaseError, OSError):
        return
    with contextlib.closing(source):
        schema.take_over(db, source)


def _connect(path: str, *, settings: Sequence[str] = (), uri: bool = False) -> sqlite3.Connection:
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


def _named_error(path: Path, reason: str) -> StoreError | DoubtError:
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


def _companions(path: Path) -> tuple[Path, Path]:
    """SQLite's log and shared memory beside a database."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def _sync(path: Path) -> None:
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
