"""The index: which pack and row hold a key. Derived from the packs, and thrown away on any doubt.

SQLite in WAL mode with `synchronous=FULL`; every write and checkpoint happens under the store's lock, because SQLite
before 3.51.3 has a rare race between two connections that write and checkpoint at the same moment. What the index says
is checked against the pack's own keys when it is read, so a wrong index can cost an encode but never a wrong tensor.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from precook.errors import LockedError, ReadOnlyError, StoreError, StoreWriteError
from precook.memo.columns import GROWTH, Kind, Segment, checksum, cut, dump, load, merge
from precook.store import files
from precook.store.format.pack import Head
from precook.store.index import schema
from precook.store.layout import Layout, list_packs
from precook.store.lock import PATIENCE, locked

_log = logging.getLogger("precook")

_CHECKPOINT_BYTES = 8 << 20
_LONGEST_CLAIM = 120.0
"""Seconds, more than any claim is made for: one that ends later is from before the clock was set back."""
_IN_MEMORY = "memory"
_SEGMENT_BYTES = 256 << 20
"""The largest row of what is remembered; SQLite takes 10^9 bytes."""

ROW_BITS = 32
"""Bits of a row, where it stands in one number with its pack."""
_WALK = 20_000
"""Places that are read at a time."""

_T = TypeVar("_T")

ReadHeads = Callable[[Iterable[str]], Iterator[Head]]
"""Reads the heads of packs, passing over those that are damaged or gone."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry lies."""

    key: bytes
    pack: str
    row: int


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry as the index knows it."""

    key: bytes
    nbytes: int
    created: int
    recipe: bytes
    """The recipe's canonical form, empty where there is none."""
    pack: str


class Index:
    """One process's view of the index of one store; safe to use from several threads.

    The connection is opened when needed and closed before a fork, so that neither side inherits SQLite's state.
    """

    def __init__(self, layout: Layout, store_id: str, heads: ReadHeads, *, read_only: bool) -> None:
        self.lock = threading.RLock()
        self._depth = 0
        self._layout = layout
        self._path = layout.index
        self._store_id = store_id
        self._read_heads = heads
        self._read_only = self.read_only = read_only
        self._connection: sqlite3.Connection | None = None
        self._signature: object = None
        self._packs: dict[int, str] = {}

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

    def pack_ids(self) -> set[str]:
        """The packs whose rows are here."""
        return self._read(lambda db: {row[0].hex() for row in db.execute("SELECT id FROM pack")})

    def packs(self) -> list[tuple[str, int]]:
        """Each pack and the size of its file."""
        return self._read(lambda db: [(name.hex(), size) for name, size in db.execute("SELECT id, bytes FROM pack")])

    def pack_bytes(self) -> int:
        """Size of all packs together."""
        return int(self._read(lambda db: db.execute("SELECT coalesce(sum(bytes), 0) FROM pack").fetchone()[0]))

    def find(self, keys: Sequence[bytes]) -> list[Place]:
        """Every place of every key, in no order; a key may have none or several."""
        rows, packs = self.find_rows(keys)
        return [Place(key, packs[pack], row) for key, pack, row in rows]

    def find_rows(self, keys: Sequence[bytes]) -> tuple[list[tuple[bytes, int, int]], dict[int, str]]:
        """The same for very many keys, without an object for each: key, pack's number and row, and the packs' names."""
        rows = self._select(keys)
        packs = self.pack_names({row[1] for row in rows})
        return [row for row in rows if row[1] in packs and type(row[2]) is int], packs

    def places(self) -> int:
        """Number of places of all entries, as the packs' own rows count them."""
        return int(self._read(lambda db: db.execute("SELECT coalesce(sum(live), 0) FROM pack").fetchone()[0]))

    def walk(self) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
        """Every place in order of keys, a few at a time: keys, and the pack's number and the row in one."""
        query = (
            f"SELECT key, pack << {ROW_BITS} | row, pack, row FROM entry"  # noqa: S608 - our own words
            " WHERE (key, pack, row) > (?, ?, ?) ORDER BY key, pack, row LIMIT ?"
        )
        last: tuple[Any, ...] = (b"", 0, 0)

        def look(db: sqlite3.Connection) -> tuple[bytes, npt.NDArray[np.int64], tuple[Any, ...]]:
            page = db.execute(query, (*last, _WALK)).fetchall()
            if not page:
                return b"", np.zeros(0, np.int64), ()
            each, places, _, _ = zip(*page, strict=True)
            keys = b"".join(each)
            # A torn page may hold anything, and lead anywhere.
            if len(keys) != 32 * len(page) or (page[-1][0], *page[-1][2:]) <= last:
                raise schema.DoubtError("keys that are none, or not in order")
            return keys, np.array(places, np.int64), (page[-1][0], *page[-1][2:])

        while True:
            keys, places, last = self._read(look)
            if not last:
                return
            yield np.frombuffer(keys, np.uint8).reshape(-1, 32), places

    def present(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of the keys that have an entry."""
        return {row[0] for row in self._select(keys)}

    def _select(self, keys: Sequence[bytes]) -> list[tuple[bytes, int, int]]:
        """All places of some keys: key, pack's number and row."""
        wanted = set(keys)
        # In order: neighbours share the index's pages. Each once: the same place twice is a sign of damage.
        keys = schema.in_order(list(wanted)) if len(wanted) > 1 else list(wanted)

        def look(db: sqlite3.Connection) -> list[tuple[bytes, int, int]]:
            rows = schema.select(db, "SELECT key, pack, row FROM entry WHERE key IN ({})", keys)
            # A search in a torn page ends anywhere: at another key, or where the one before it ended.
            if not all(row[0] in wanted for row in rows) or len(set(rows)) < len(rows):
                raise schema.DoubtError("a search found other keys")
            return rows

        return self._read(look)

    def count(self) -> int:
        """Number of different keys."""
        query = "SELECT count(*) FROM (SELECT DISTINCT key FROM entry)"
        return int(self._read(lambda db: db.execute(query).fetchone()[0]))

    def totals(self) -> list[tuple[bytes, int, int, int]]:
        """For each recipe: its form, entries, bytes, and when its newest pack was made."""
        query = (
            "SELECT coalesce(recipe.form, x''), count(*), sum(one.bytes), max(one.created) FROM ("
            "SELECT entry.recipe AS recipe, max(entry.bytes) AS bytes, max(pack.created) AS created"
            " FROM entry JOIN pack ON pack.number = entry.pack GROUP BY entry.key"
            ") AS one LEFT JOIN recipe ON recipe.number = one.recipe GROUP BY recipe.digest"
        )
        return self._read(lambda db: [tuple(row) for row in db.execute(query)])

    def rows(self, after: bytes = b"") -> Iterator[EntryRow]:
        """Every place of every entry in order of keys, beginning after some bytes, a few at a time."""
        query = (
            "SELECT entry.key, entry.bytes, pack.created, coalesce(recipe.form, x''), pack.id FROM entry"
            " JOIN pack ON pack.number = entry.pack LEFT JOIN recipe ON recipe.number = entry.recipe"
            " WHERE entry.key > ? ORDER BY entry.key LIMIT ?"
        )
        last = after
        while True:
            found = self._read(lambda db, last=last: db.execute(query, (last, schema.CHUNK)).fetchall())  # type: ignore[misc]
            # All places of one key lie together: the last key of a full page is read again with the next page.
            page = [row for row in found if row[0] != found[-1][0]] if len(found) == schema.CHUNK else found
            for key, size, created, form, pack in page or found:
                yield EntryRow(key, size, created, form, pack.hex())
            if len(found) < schema.CHUNK:
                return
            last = (page or found)[-1][0]

    def damage(self) -> list[tuple[bytes, str, str]]:
        """Entries that were found damaged and are not to be had elsewhere: key, pack and reason."""
        query = (
            "SELECT key, pack, reason FROM damage"
            " WHERE NOT EXISTS (SELECT 1 FROM entry WHERE entry.key = damage.key) ORDER BY key"
        )
        return self._read(lambda db: [(key, pack.hex(), reason) for key, pack, reason in db.execute(query)])

    def generation(self) -> str:
        """Changes whenever entries may have been removed: what was present stays so until then."""
        made, removals = self._read(lambda db: db.execute("SELECT made, removals FROM store").fetchone())
        return f"{made.hex()}-{removals}"

    def recipes(self) -> dict[bytes, bytes]:
        """The canonical form of every recipe that entries were made with, by its digest."""
        return self._read(lambda db: dict(db.execute("SELECT digest, form FROM recipe").fetchall()))

    def segments(self, kind: Kind) -> list[Segment]:
        """What is remembered of a kind, the newest segment last; one that is damaged is forgotten."""
        query = "SELECT number, keys, contents, checksum FROM memory WHERE kind = ? ORDER BY number"
        rows = self._read(lambda db: db.execute(query, (kind.name,)).fetchall())
        found = [load(kind, *row[1:]) for row in rows]
        damaged = [(kind.name, row[0], row[3]) for row, segment in zip(rows, found, strict=True) if segment is None]
        self._forget("memory WHERE kind = ? AND number IS ? AND checksum IS ?", damaged)
        return [segment for segment in found if segment is not None]

    def kinds(self) -> list[str]:
        """The kinds of which something is remembered."""
        return self._read(lambda db: [row[0] for row in db.execute("SELECT DISTINCT kind FROM memory")])

    def notes(self, kind: str) -> dict[bytes, str]:
        """The notes of a kind; one that is damaged is forgotten."""
        query = "SELECT key, text, checksum FROM note WHERE kind = ?"
        rows = self._read(lambda db: db.execute(query, (kind,)).fetchall())
        whole = {key: text for key, text, found in rows if _note_checksum(kind, key, text) == found}
        if len(whole) != len(rows):
            damaged = [(kind, key, found) for key, _, found in rows if key not in whole]
            self._forget("note WHERE kind = ? AND key IS ? AND checksum IS ?", damaged)
        return {key: text.decode("utf-8", "surrogatepass") for key, text in whole.items()}

    def _forget(self, what: str, damaged: list[tuple[Any, ...]]) -> None:
        """Remove rows that are not what was remembered, as far as that is possible just now."""
        if not damaged:
            return

        def change(db: sqlite3.Connection) -> None:
            db.executemany(f"DELETE FROM {what}", damaged)  # noqa: S608 - our own words

        _log.warning("%s: some of what was remembered is damaged and is worked out anew", self._path)
        # Nothing depends on it: where it cannot be done now, the next one who finds them will.
        if not self._read_only:
            with contextlib.suppress(StoreError), self.exclusive(patience=0):
                self._write(change)

    def remember(
        self,
        segments: Iterable[Segment],
        notes: Mapping[tuple[str, bytes], str | None],
        *,
        instead: Iterable[str] = (),
    ) -> None:
        """Add segments and notes in one transaction; a note of None is removed, as are older segments of some kinds.

        Small segments are merged as they come, so that there are few, and a small addition stays a small write.
        """

        def change(db: sqlite3.Connection) -> None:
            for kind in instead:
                db.execute("DELETE FROM memory WHERE kind = ?", (kind,))
            for segment in segments:
                for piece in cut(segment, _SEGMENT_BYTES):
                    _append(db, piece)
            for (kind, key), text in notes.items():
                if text is None:
                    db.execute("DELETE FROM note WHERE kind = ? AND key = ?", (kind, key))
                    continue
                # As bytes: SQLite takes no text with lone surrogates, which names of files may put into it.
                raw = text.encode("utf-8", "surrogatepass")
                row = (kind, key, raw, _note_checksum(kind, key, raw))
                db.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?)", row)

        with self.exclusive():
            self._write(change)
            self._checkpoint()

    def claim(self, keys: Sequence[bytes], owner: bytes, *, seconds: float, done: Sequence[bytes] = ()) -> set[bytes]:
        """Claim keys for a builder for some time and give up those it is done with; the keys that are its own now.

        Claims are advice, not locks.
        """

        def change(db: sqlite3.Connection) -> set[bytes]:
            now = time.time()  # not before the lock: whoever waited long for it would claim for a time that is over
            db.execute("DELETE FROM claim WHERE expires < ? OR expires > ?", (now, now + _LONGEST_CLAIM))
            db.executemany("DELETE FROM claim WHERE key = ? AND owner = ?", ((key, owner) for key in done))
            rows = ((key, owner, now + seconds) for key in keys)
            db.executemany("INSERT OR IGNORE INTO claim VALUES (?, ?, ?)", rows)
            found = schema.select(db, "SELECT key, owner FROM claim WHERE key IN ({})", keys)
            return {key for key, holder in found if holder == owner}

        with self.exclusive():
            claimed = self._write(change)
            self._checkpoint()
            return claimed

    def keep_claims(self, owner: bytes, *, seconds: float) -> None:
        """Prolong a builder's claims."""
        with self.exclusive():
            until = time.time() + seconds
            self._write(lambda db: db.execute("UPDATE claim SET expires = ? WHERE owner = ?", (until, owner)))

    def release_claims(self, owner: bytes) -> None:
        """Give up a builder's claims."""
        with self.exclusive():
            self._write(lambda db: db.execute("DELETE FROM claim WHERE owner = ?", (owner,)))

    @contextlib.contextmanager
    def exclusive(self, *, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the store's lock, which every write to the index needs; the same thread may take it again."""
        with self.lock:
            if self._read_only:
                raise ReadOnlyError(self._layout.root, "opened read-only")
            with locked(self._layout.lock, patience=patience) if not self._depth else contextlib.nullcontext():
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1

    def refresh(self, packs: set[str] | None = None) -> None:
        """Adopt packs that have no rows yet, and drop the rows of packs that are gone; `packs`: just listed."""
        ids = list_packs(self._layout)[0] if packs is None else packs
        known = self.pack_ids()
        if ids == known:
            return
        if self._read_only:
            if known - ids or any(True for _ in self._read_heads(ids - known)):
                self.rebuild()
            return
        with self.exclusive():
            # Once more under the lock: meanwhile another process may have added what we were about to add.
            known, ids = self.pack_ids(), list_packs(self._layout)[0]
            self._make_durable(ids ^ known)
            self.add(self._read_heads(sorted(ids - known)))
            self.drop_packs(known - ids)

    def _make_durable(self, packs: Iterable[str]) -> None:
        """Sync the names of packs that are about to get rows, or whose rows are about to go.

        Whoever wrote or unlinked them may have died before it could; and a file that comes back after its record of
        dropped rows is gone would be taken for a new one.
        """
        folders = {self._layout.pack(name).parent for name in packs}
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

    def query(self, look: Callable[[sqlite3.Connection], _T]) -> _T:
        """What a look at the database finds; it may be called again where the index turns out to be damaged."""
        return self._read(look)

    def transact(self, change: Callable[[sqlite3.Connection], _T]) -> _T:
        """Make a change in one transaction under the store's lock; it may be called again, as above."""
        with self.exclusive():
            result = self._write(change)
            self._checkpoint()
            return result

    def add(self, heads: Iterable[Head]) -> None:
        """Add the rows of durable packs, in one transaction."""
        heads = list(heads)

        def change(db: sqlite3.Connection) -> None:
            for head in heads:
                schema.add(db, head)

        with self.exclusive():
            self._write(change)
            self._checkpoint()

    def drop_packs(self, ids: Iterable[str]) -> None:
        """Forget packs that are gone or damaged."""
        names = [bytes.fromhex(name) for name in ids]
        if not names:
            return

        def change(db: sqlite3.Connection) -> None:
            numbers = [row[0] for row in schema.select(db, "SELECT number FROM pack WHERE id IN ({})", names)]
            for at in range(0, len(numbers), schema.CHUNK):
                chunk = numbers[at : at + schema.CHUNK]
                # All at once: nothing leads from a pack to its entries but a look at each of them.
                db.execute(f"DELETE FROM entry WHERE pack IN ({','.join('?' * len(chunk))})", chunk)  # noqa: S608
            schema.forget_packs(db, names)
            schema.removed(db)

        with self.exclusive():
            self._write(change)

    def mark_damaged(self, place: Place, reason: str) -> None:
        """Turn a damaged entry into a miss."""
        pack = bytes.fromhex(place.pack)

        def change(db: sqlite3.Connection) -> None:
            gone = db.execute(
                "DELETE FROM entry WHERE key = ? AND pack = (SELECT number FROM pack WHERE id = ?) AND row = ?",
                (place.key, pack, place.row),
            ).rowcount
            # The pack stays, all of it damaged or not, until somebody asks for a clean-up.
            db.execute("UPDATE pack SET live = live - ? WHERE id = ?", (gone, pack))
            db.execute("INSERT OR REPLACE INTO damage VALUES (?, ?, ?)", (place.key, pack, reason))
            schema.removed(db)

        with self.exclusive():
            self._write(change)

    def rebuild(self) -> None:
        """Make the index anew from the heads of all packs, in memory if the store is read-only.

        The old one is replaced at the very end, so other processes see either of the two.
        """
        if self._read_only:
            with self.lock:
                self.close()
                connection = schema.connect(":memory:")
                schema.create(connection, self._store_id)
                self._take_over(connection, self._open)
                schema.fill(connection, self._read_heads(sorted(list_packs(self._layout)[0])))
                self._connection, self._signature, self._packs = connection, _IN_MEMORY, {}
            return
        with self.exclusive(), files.explained(self._layout.root), self._named_errors():
            self.close()
            packs = list_packs(self._layout)[0]
            self._make_durable(packs)
            path = self._path
            partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{files.PARTIAL}")
            try:
                # No journal for a file that nobody has seen yet; it becomes durable as a whole below.
                settings = ("journal_mode=OFF", "synchronous=OFF", "cache_size=-262144")
                with contextlib.closing(schema.connect(str(partial), settings=settings)) as db:
                    schema.create(db, self._store_id)
                    self._take_over(db, lambda: schema.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True))
                    schema.fill(db, self._read_heads(sorted(packs)))
                    db.execute("PRAGMA journal_mode=WAL")
                schema.sync(partial)
                # The database before its log: a log without its database is ignored, the reverse would be corrupt.
                for old in (path, *schema.companions(path)):
                    old.unlink(missing_ok=True)
                partial.rename(path)
            finally:
                partial.unlink(missing_ok=True)
            files.sync_directory(path.parent)

    def _take_over(self, db: sqlite3.Connection, open_old: Callable[[], sqlite3.Connection]) -> None:
        """Carry over what is remembered, if there is an old index that can be opened."""
        try:
            source = open_old()
        except (sqlite3.DatabaseError, OSError):
            return
        with contextlib.closing(source):
            schema.take_over(db, source)

    def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        with self.lock:
            with contextlib.suppress(schema.DoubtError), self._named_errors():
                return query(self._connected())
            with contextlib.nullcontext() if self._read_only else self.exclusive():
                # Once more under the lock: another process may have been replacing the index just now.
                self.close()
                try:
                    with self._named_errors():
                        return query(self._connected())
                except schema.DoubtError as doubt:
                    self._rebuild_for(doubt)
                try:
                    with self._named_errors():
                        return query(self._connected())
                except schema.DoubtError as doubt:
                    raise StoreWriteError(self._path, f"the index cannot be made: {doubt}") from doubt

    def _rebuild_for(self, doubt: schema.DoubtError) -> None:
        level = logging.DEBUG if isinstance(doubt, schema.NoIndexError) else logging.WARNING
        _log.log(level, "making the index of %s anew: %s", self._layout.root, doubt)
        self.rebuild()

    def _write(self, change: Callable[[sqlite3.Connection], _T]) -> _T:
        """Make a change in one transaction; an index that turns out to be damaged is made anew first."""
        try:
            with self._writing() as db:
                return change(db)
        except schema.DoubtError as doubt:
            self._rebuild_for(doubt)
            try:
                with self._writing() as db:
                    return change(db)
            except schema.DoubtError as again:
                raise StoreWriteError(self._path, f"the index cannot be made: {again}") from again

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
            if schema.companions(self._path)[0].stat().st_size > _CHECKPOINT_BYTES:
                self._read(lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (AttributeError, TypeError) as error:
            # A torn page can hold values of types that we never write.
            raise schema.DoubtError(f"unexpected values: {error}") from error
        except sqlite3.DatabaseError as error:
            # Read-only, a second look at the file is all that could help, and an index in memory is better.
            if self._read_only:
                raise schema.DoubtError(str(error)) from error
            raise schema.named_error(self._path, str(error)) from error

    def _connected(self) -> sqlite3.Connection:
        """The connection, opened anew if the file under it was replaced or, read-only, written to."""
        if self._connection is not None and self.in_memory:
            return self._connection
        signature = self._look()
        if self._connection is not None and signature == self._signature:
            return self._connection
        self.close()
        self._packs = {}
        if signature is None:
            raise schema.NoIndexError("there is no index")
        connection = self._open()
        try:
            schema.check(connection, self._store_id)
        except BaseException:
            connection.close()
            raise
        self._connection, self._signature = connection, signature
        return connection

    def _open(self) -> sqlite3.Connection:
        path = self._path
        if not self._read_only:
            return schema.connect(str(path), settings=("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"))
        # A log that is not empty belongs to a living writer, or to a dead one: only its own shared memory can tell.
        log = schema.companions(path)[0]
        live = log.exists() and log.stat().st_size > 0
        mode = "mode=ro&readonly_shm=1" if live else "mode=ro&immutable=1"
        return schema.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)

    def _look(self) -> object:
        """What tells one index file from another: its inode; read-only also whether it was written to."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        if not self._read_only:
            return status.st_dev, status.st_ino
        log = schema.companions(self._path)[0]
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, log.exists()

    def pack_names(self, numbers: set[int]) -> dict[int, str]:
        """The names of packs by their numbers, of all there are."""
        with self.lock:
            if not numbers <= self._packs.keys():
                query = "SELECT number, id FROM pack"
                self._packs = self._read(lambda db: {number: name.hex() for number, name in db.execute(query)})
            return self._packs


def _append(db: sqlite3.Connection, segment: Segment) -> None:
    """Add a segment, merged with those before it that are not much larger."""
    kind = segment.kind
    query = "SELECT number, length(keys) / ? FROM memory WHERE kind = ? ORDER BY number DESC"
    number = 0
    for other, rows in db.execute(query, (kind.key, kind.name)).fetchall():
        full = (rows + segment.rows) * (kind.key + kind.value) > _SEGMENT_BYTES
        if full or rows > GROWTH * segment.rows:
            number = other + 1
            break
        row = db.execute(
            "SELECT keys, contents, checksum FROM memory WHERE kind = ? AND number = ?", (kind.name, other)
        )
        older = load(kind, *row.fetchone())
        segment = merge(kind, older, segment) if older is not None else segment
        db.execute("DELETE FROM memory WHERE kind = ? AND number = ?", (kind.name, other))
    db.execute("INSERT INTO memory VALUES (?, ?, ?, ?, ?)", (kind.name, number, *dump(segment)))


def _note_checksum(kind: str, key: object, text: object) -> bytes | None:
    """What a note is recognised by; None for what cannot be one."""
    return checksum(kind.encode(), key, text) if isinstance(key, bytes) and isinstance(text, bytes) else None
