"""The tables of the index and every statement about packs, entries and claims.

The functions here run in a query or a transaction that the caller has begun; `database` sees to the connection and to
the store's lock. Statements about what is remembered stand in `memo`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from precook.identity.canonical import dump_json
from precook.identity.recipe import recipe_digest
from precook.memo.columns import checksum
from precook.store.format.pack import Head
from precook.store.index import memo
from precook.store.index.connection import DoubtError, bounded
from precook.store.keysets import split
from precook.values import Bytes, Flags, Numbers

_APPLICATION = 0x70726563  # "prec"
_VERSION = 4
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
_KNOWN_HERE_ONLY: dict[str, dict[str, type]] = {
    "dropped": {"pack": bytes, "rows": bytes, "checksum": bytes},
    "used": {"pack": bytes, "times": bytes, "checksum": bytes},
    "note": {"kind": str, "key": bytes, "text": bytes, "checksum": bytes},
    "memory": {"kind": str, "number": int, "keys": bytes, "contents": bytes, "checksum": bytes},
}
"""Tables of what the packs do not say, with their columns: what would be missed most first. Each row has a checksum."""
MADE = "made"
"""The kind of notes that hold what entries were made with, by pack."""
_LARGEST = 1 << 53
"""More than any number that counts something of ours."""
_OBJECTS = 100
"""Tables and the like that are looked at, more than we have."""
_CHUNK = 30_000
"""Values bound at a time; SQLite takes 32,766."""
_ROWS = 10_000
"""Rows that are added at a time: in far fewer steps than a statement may take."""
# Many rows by one statement, in core SQL, their values side by side in one value for each column: each call of SQLite's
# lets other threads take their turn, and beside busy ones a call for each row takes longer than the rows.
_EACH = "WITH RECURSIVE each(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM each WHERE n + 1 < ?1)"
_ADD_ENTRIES = (
    f"{_EACH} INSERT OR IGNORE INTO entry SELECT substr(?2, 32 * n + 1, 32), ?3,"  # noqa: S608 - our own words
    " CAST(substr(?4, 20 * n + 1, 20) AS INTEGER), CAST(substr(?5, 20 * n + 1, 20) AS INTEGER),"
    " CAST(substr(?6, 20 * n + 1, 20) AS INTEGER) FROM each"
)
_ADD_CLAIMS = f"{_EACH} INSERT OR IGNORE INTO claim SELECT substr(?2, 32 * n + 1, 32), ?3, ?4 FROM each"  # noqa: S608
_LONGEST_CLAIM = 120.0
"""Seconds, more than any claim is made for: one that ends later is from before the clock was set back."""
_MOMENT = 10**9
"""Nanoseconds, more than between two ticks of any clock: a time that lies further ahead was set wrongly."""


class UnreadableIndexError(Exception):
    """Some of the index that is replaced could not be read."""


class PageColumns(NamedTuple):
    """Some places as columns."""

    keys: bytes
    """One key after the other."""
    packs: Numbers
    """The number of each one's pack in the index."""
    rows: Numbers
    recipes: Numbers
    """The number of each one's recipe in the index; empty where no details were asked for."""
    nbytes: Numbers
    """What each entry takes; empty as well."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the numbers of packs and recipes in an index stand for."""

    packs: dict[int, str]
    created: dict[int, int]
    """When a pack was made, in seconds since 1970."""
    recipes: dict[int, bytes]
    """Canonical forms, empty for none."""


@dataclass(frozen=True, slots=True, eq=False)
class RowChoice:
    """Rows of one pack that are to be dropped, each with its key."""

    pack: str
    keys: Sequence[bytes]
    rows: Numbers
    uses: Numbers | None = None
    """When each row of the pack was last used, by the record that the choice was made by: what was used since stays."""
    others: Sequence[tuple[str, int]] | None = None
    """Another place of each key, its pack and row: a row whose other place is gone by now stays."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedPack:
    """A pack whose rows have moved to a new one."""

    keys: Bytes
    """The key of each row."""
    written: int
    """When its file was written, in nanoseconds."""


def check(db: sqlite3.Connection, store_id: str) -> None:
    """Doubt an index of another version or of another store, or one with anything in it that we do not make."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if (application, version) != (_APPLICATION, _VERSION):
        raise DoubtError("another index version")
    # Before any table is used: what is called so may be a view that never ends, and a trigger could undo what we write.
    if _read_definition(db) != _definition():
        raise DoubtError("its tables are not those of an index")
    if db.execute("SELECT id FROM store LIMIT 2").fetchall() != [(store_id,)]:
        raise DoubtError("the index of another store")


def _read_definition(db: sqlite3.Connection) -> dict[str, tuple[object, ...]]:
    """How each table, index and the like of a database is defined, by name."""
    query = f"SELECT name, type, tbl_name, sql FROM sqlite_master LIMIT {_OBJECTS}"  # noqa: S608 - our own words
    return {name: tuple(rest) for name, *rest in db.execute(query)}


@functools.cache
def _definition() -> dict[str, tuple[object, ...]]:
    """How they are defined in an index of ours."""
    db = sqlite3.connect(":memory:")
    db.executescript(_SCHEMA)
    definition = _read_definition(db)
    db.close()
    return definition


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

    Before the packs are added: what was dropped from them stays dropped. After an `UnreadableIndexError` it can be
    called again with another connection, for what could not be read this time.
    """
    errors: list[Exception] = []
    try:
        source.execute("SELECT 1 FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        errors.append(error)
        # A definition that is damaged then takes nothing from the other tables. Not before: no error would be told.
        source.execute("PRAGMA writable_schema=ON")
    db.execute("BEGIN")
    for table, columns in _KNOWN_HERE_ONLY.items():
        marks = ", ".join("?" * len(columns))
        rows = _readable(source, table, columns, errors)
        db.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)  # noqa: S608 - our own words
    db.execute("COMMIT")
    if errors:
        raise UnreadableIndexError(str(errors[0])) from errors[0]


def _readable(
    source: sqlite3.Connection, table: str, columns: Mapping[str, type], errors: list[Exception]
) -> Iterator[tuple[object, ...]]:
    """The rows of a table that is defined as ours is, up to one that cannot be read; `errors` takes the reason."""
    query = "SELECT type, tbl_name, sql FROM sqlite_master WHERE name = ? LIMIT 2"
    try:
        if source.execute(query, (table,)).fetchall() != [_definition()[table]]:
            return
        for row in bounded(source, f"SELECT {', '.join(columns)} FROM {table}"):  # noqa: S608 - our own words
            # Of the right types: a checksum only says that a row is as somebody wrote it.
            typed = all(type(value) is kind for value, kind in zip(row, columns.values(), strict=True))
            if typed and all(0 <= value < _LARGEST for value in row if type(value) is int):
                yield row
    except (sqlite3.Error, UnicodeDecodeError, DoubtError) as error:
        errors.append(error)


def fill(db: sqlite3.Connection, heads: Iterable[Head], listed: Collection[str]) -> None:
    """Add these packs to a new index, which is then one that `check` accepts; `listed` are all that lie in the store.

    Of those that cannot be read just now, what was dropped from them is kept: they may be read again tomorrow.
    """
    db.execute("BEGIN")
    add_packs(db, heads)
    for table in ("dropped", "used"):
        known = db.execute(f"SELECT pack FROM {table}").fetchall()  # noqa: S608 - our own words
        gone = [row for row in known if not isinstance(row[0], bytes) or row[0].hex() not in listed]
        db.executemany(f"DELETE FROM {table} WHERE pack = ?", gone)  # noqa: S608
    noted = memo.read_notes(db, MADE)[0]
    memo.remember(db, (), {(MADE, pack): None for pack in noted if pack.hex() not in listed}, ())
    db.execute("COMMIT")
    seal(db)


@contextlib.contextmanager
def one_moment(db: sqlite3.Connection) -> Iterator[None]:
    """Statements that see the index as it is at the first of them, whatever others change meanwhile; they only read."""
    if db.in_transaction:
        yield
        return
    try:
        # Inside: Ctrl-C may come when it has begun, and who reads on in an old moment sees nothing new.
        db.execute("BEGIN")
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def names(db: sqlite3.Connection) -> Names:
    """What the numbers of packs and recipes stand for."""
    known = db.execute("SELECT number, id, created FROM pack").fetchall()
    return Names(
        packs={number: name.hex() for number, name, _ in known},
        created={number: created for number, _, created in known},
        recipes={0: b"", **recipes(db)},
    )


def packs(db: sqlite3.Connection) -> list[tuple[str, int]]:
    """Each pack and the size of its file."""
    return [(name.hex(), size) for name, size in db.execute("SELECT id, bytes FROM pack")]


def pack_bytes(db: sqlite3.Connection) -> int:
    """Size of all packs together."""
    return int(db.execute("SELECT coalesce(sum(bytes), 0) FROM pack").fetchone()[0])


def pack_sizes(db: sqlite3.Connection) -> list[tuple[str, int, int, int]]:
    """Each pack, and its bytes, rows, and bytes of all rows, the living and the dead."""
    query = "SELECT id, bytes, entries, payload FROM pack ORDER BY number"
    return [(name.hex(), *sizes) for name, *sizes in db.execute(query)]


def whole_packs(db: sqlite3.Connection) -> dict[int, str] | None:
    """The numbers and names of all packs if no row of any was dropped, else None."""
    rows = db.execute("SELECT number, id, live = entries FROM pack ORDER BY number").fetchall()
    return {number: name.hex() for number, name, _ in rows} if all(whole for _, _, whole in rows) else None


def doomed_packs(db: sqlite3.Connection) -> list[tuple[str, int]]:
    """Packs of which every row was dropped, with their sizes."""
    doomed = db.execute("SELECT id, bytes, entries FROM pack WHERE doomed ORDER BY id").fetchall()
    # Only on the word of a record that carries a checksum: a torn page must not cost a pack.
    return [(name.hex(), size) for name, size, rows in doomed if read_dropped(db, name, rows).all()]


def generation(db: sqlite3.Connection) -> str:
    """Changes whenever entries may have been removed."""
    number, removals = db.execute("SELECT made, removals FROM store").fetchone()
    return f"{number.hex()}-{removals}"


def count_places(db: sqlite3.Connection) -> int:
    """Number of places of all entries, as the packs' own rows count them."""
    return int(db.execute("SELECT coalesce(sum(live), 0) FROM pack").fetchone()[0])


def count_keys(db: sqlite3.Connection) -> int:
    """Number of different keys."""
    return int(db.execute("SELECT count(*) FROM (SELECT DISTINCT key FROM entry)").fetchone()[0])


def recipes(db: sqlite3.Connection) -> dict[int, bytes]:
    """The canonical form of every recipe that entries were made with, by its number."""
    return dict(db.execute("SELECT number, form FROM recipe").fetchall())


def totals(db: sqlite3.Connection) -> list[tuple[bytes, int, int, int]]:
    """For each recipe: its form, entries, bytes, and when its newest pack was made."""
    query = (
        "SELECT coalesce(recipe.form, x''), count(*), sum(one.bytes), max(one.created) FROM ("
        "SELECT entry.recipe AS recipe, max(entry.bytes) AS bytes, max(pack.created) AS created"
        " FROM entry JOIN pack ON pack.number = entry.pack GROUP BY entry.key"
        ") AS one LEFT JOIN recipe ON recipe.number = one.recipe GROUP BY recipe.digest"
    )
    return [tuple(row) for row in db.execute(query)]


def damage(db: sqlite3.Connection) -> list[tuple[bytes, str, str]]:
    """Entries that were found damaged and are not to be had elsewhere: key, pack and reason."""
    query = (
        "SELECT key, pack, reason FROM damage"
        " WHERE NOT EXISTS (SELECT 1 FROM entry WHERE entry.key = damage.key) ORDER BY key"
    )
    return [(key, pack.hex(), reason) for key, pack, reason in db.execute(query)]


def places(db: sqlite3.Connection, keys: Sequence[bytes], wanted: set[bytes]) -> list[tuple[bytes, int, int]]:
    """All places of some keys, each of which is asked for once: key, number of the pack and row."""
    rows = _in_chunks(db, "SELECT key, pack, row FROM entry WHERE key IN ({})", keys)
    # A search in a torn page ends anywhere: at another key, or where the one before it ended.
    if not all(row[0] in wanted for row in rows) or len(set(rows)) < len(rows):
        raise DoubtError("a search found other keys")
    return rows


def page(db: sqlite3.Connection, after: tuple[bytes, int, int], limit: int, *, details: bool) -> PageColumns:
    """The first places behind one place, in the order of keys, packs and rows."""
    query = (
        f"SELECT key, pack, row{', recipe, bytes' if details else ''} FROM entry"  # noqa: S608 - our own words
        " WHERE (key, pack, row) > (?, ?, ?) ORDER BY key, pack, row LIMIT ?"
    )
    rows = db.execute(query, (*after, limit)).fetchall()
    if not rows:
        return PageColumns(b"", *np.zeros((4, 0), np.int64))
    keys, *columns = zip(*rows, strict=True)
    raw = b"".join(keys)
    # A torn page may hold anything and lead anywhere, also back.
    if len(raw) != 32 * len(rows) or rows[-1][:3] <= after:
        raise DoubtError("keys that are none, or not in order")
    try:
        numbers = [np.array(column, np.int64) for column in columns]
    except (ValueError, OverflowError) as error:
        raise DoubtError(f"unexpected values: {error}") from error
    if not details:
        numbers += [np.zeros(0, np.int64)] * 2
    return PageColumns(raw, *numbers)


def row_sizes(db: sqlite3.Connection, pack: str) -> list[tuple[int, int]]:
    """The living rows of a pack and their bytes."""
    # Nothing leads from a pack to its entries but a look at each of them.
    query = "SELECT row, bytes FROM entry WHERE pack = (SELECT number FROM pack WHERE id = ?)"
    return db.execute(query, (bytes.fromhex(pack),)).fetchall()


def row_keys(db: sqlite3.Connection, pack: str) -> dict[int, bytes]:
    """The living rows of a pack and their keys."""
    query = "SELECT row, key FROM entry WHERE pack = (SELECT number FROM pack WHERE id = ?)"
    return dict(db.execute(query, (bytes.fromhex(pack),)).fetchall())


def add_packs(db: sqlite3.Connection, heads: Iterable[Head]) -> None:
    """Add the rows of durable packs."""
    for head in heads:
        add(db, head)


def add(db: sqlite3.Connection, head: Head) -> None:
    """Add the rows of one pack but for those dropped from it, unless they are there; in the caller's transaction."""
    pack = bytes.fromhex(head.id)
    if db.execute("SELECT 1 FROM pack WHERE id = ?", (pack,)).fetchone():
        return
    live = ~read_dropped(db, pack, head.rows)
    sizes = [table.row_bytes() for table in head.tables]
    payload, rows = sum(int(table_sizes.sum()) for table_sizes in sizes), int(live.sum())
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
        here = np.flatnonzero(live[first : first + table.rows])
        # In the order of the keys, as far as that is quick to tell: neighbours share the index's pages.
        here = here[np.argsort(table.keys[here, :8].copy().view(">u8").reshape(-1))]
        numbers = np.asarray(recipes)[table.recipes[here]]
        for start in range(0, len(here), _ROWS):
            some = slice(start, start + _ROWS)
            columns = [_digits(column[some]) for column in (first + here, numbers, nbytes[here])]
            db.execute(_ADD_ENTRIES, (len(here[some]), table.keys[here[some]].tobytes(), number, *columns))
        first += table.rows
    _note_made(db, pack, head)
    _forget_damage(db, head, live)


def _digits(numbers: Numbers) -> bytes:
    """Numbers as `_ADD_ENTRIES` takes them: decimal, each of twenty bytes."""
    return b"%20d" * len(numbers) % tuple(numbers.tolist())


def _note_made(db: sqlite3.Connection, pack: bytes, head: Head) -> None:
    """Note what a pack says about the versions that its entries were made with, so that a plan need not open it."""
    made = [
        [digest.hex(), json.loads(form)] for digest, form in zip(head.recipe_digests, head.made, strict=True) if form
    ]
    # A note, not a table: an index of before is as good as new, because packs of before say nothing about it.
    if made:
        memo.remember(db, (), {(MADE, pack): dump_json(made).decode("ascii")}, ())


def _forget_damage(db: sqlite3.Connection, head: Head, live: Flags) -> None:
    """Entries that were damaged and have now been added, whole, are damaged no longer."""
    damaged = [key for (key,) in db.execute("SELECT DISTINCT key FROM damage")]
    if damaged:
        added = set(split(np.concatenate([table.keys for table in head.tables])[live]))
        db.executemany("DELETE FROM damage WHERE key = ?", [(key,) for key in damaged if key in added])


def read_dropped(db: sqlite3.Connection, pack: bytes, rows: int) -> Flags:
    """Which of the rows of a pack were dropped; a record that is damaged is as good as none: its rows come back."""
    record = db.execute("SELECT rows, checksum FROM dropped WHERE pack = ?", (pack,)).fetchone()
    if record is None or not isinstance(record[0], bytes) or _dropped_checksum(pack, rows, record[0]) != record[1]:
        return np.zeros(rows, bool)
    return np.unpackbits(np.frombuffer(record[0], np.uint8), count=rows, bitorder="little").astype(bool)


def write_dropped(db: sqlite3.Connection, pack: bytes, dropped: Flags) -> None:
    """Record which rows of a pack are dropped."""
    raw = np.packbits(dropped, bitorder="little").tobytes()
    row = (pack, raw, _dropped_checksum(pack, len(dropped), raw))
    db.execute("INSERT OR REPLACE INTO dropped VALUES (?, ?, ?)", row)


def _dropped_checksum(pack: bytes, rows: int, raw: bytes) -> bytes:
    # The number of rows is part of it: a pack goes for good on the word of this record.
    return checksum(b"dropped", pack, rows.to_bytes(8, "little"), raw)


def read_used(db: sqlite3.Connection, pack: bytes, rows: int) -> Numbers:
    """When each row of a pack was last used, in nanoseconds; zeros where nobody says."""
    record = db.execute("SELECT times, checksum FROM used WHERE pack = ?", (pack,)).fetchone()
    if record is None or not isinstance(record[0], bytes) or checksum(b"used", pack, record[0]) != record[1]:
        return np.zeros(rows, np.int64)
    times = np.frombuffer(record[0], "<i8")
    return times.astype(np.int64) if len(times) == rows else np.zeros(rows, np.int64)


def _write_used(db: sqlite3.Connection, pack: bytes, times: Numbers) -> None:
    raw = times.astype("<i8").tobytes()
    db.execute("INSERT OR REPLACE INTO used VALUES (?, ?, ?)", (pack, raw, checksum(b"used", pack, raw)))


def record_uses(db: sqlite3.Connection, marks: Mapping[str, Flags], now: int) -> None:
    """Record that these rows, by pack, were used just now, in nanoseconds."""
    for name, used in marks.items():
        pack = bytes.fromhex(name)
        times = read_used(db, pack, len(used))
        # Every use changes the record, also two at what the clock calls one moment.
        same = (times >= now) & (times < now + _MOMENT)
        times[used] = np.where(same, times + 1, now)[used]
        # A pack that is gone by now would leave a row that nobody removes.
        if db.execute("SELECT 1 FROM pack WHERE id = ?", (pack,)).fetchone():
            _write_used(db, pack, times)


def drop(db: sqlite3.Connection, pack: bytes, keys: Sequence[bytes], rows: Numbers) -> Flags:
    """Drop rows of a pack for good, and mark it as doomed with its last one; which of them were still there."""
    known = db.execute("SELECT number, entries, live FROM pack WHERE id = ?", (pack,)).fetchone()
    if known is None:
        return np.zeros(len(rows), bool)
    number, entries, live = known
    there = _rows_in(db, number, keys)
    # In the order of the keys: neighbours share the index's pages.
    doomed = sorted((key, number, row) for key, row in zip(keys, rows.tolist(), strict=True))
    db.executemany("DELETE FROM entry WHERE key = ? AND pack = ? AND row = ?", doomed)
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


def drop_choices(db: sqlite3.Connection, choices: Sequence[RowChoice]) -> list[tuple[Flags, Flags]]:
    """Drop rows of several packs; of the rows of each which were dropped just now, and which stay."""
    outcomes = []
    for choice in choices:
        pack = bytes.fromhex(choice.pack)
        stays = np.zeros(len(choice.rows), bool)
        if choice.uses is not None:
            # By the record, not by the clock, which stands still for milliseconds.
            stays |= (read_used(db, pack, len(choice.uses)) != choice.uses)[choice.rows]
        if choice.others is not None:
            # The other place may have been found damaged, or been dropped, since it was read.
            stays |= ~_are_there(db, choice.keys, choice.others)
        goes = np.flatnonzero(~stays)
        gone = np.zeros(len(choice.rows), bool)
        gone[goes] = drop(db, pack, [choice.keys[number] for number in goes.tolist()], choice.rows[goes])
        outcomes.append((gone, stays))
    # Without a row whose key has another place no entry is lost.
    if any(choice.others is None for choice in choices):
        _count_removal(db)
    return outcomes


def _are_there(db: sqlite3.Connection, keys: Sequence[bytes], others: Sequence[tuple[str, int]]) -> Flags:
    numbers = {name: number for number, name in names(db).packs.items()}
    there = set(_in_chunks(db, "SELECT key, pack, row FROM entry WHERE key IN ({})", keys))
    pairs = zip(keys, others, strict=True)
    return np.array([(key, numbers.get(pack), row) in there for key, (pack, row) in pairs], bool)


def live_rows(db: sqlite3.Connection, pack: str, keys: Bytes) -> Flags:
    """Which rows of a pack live; `keys` are those of all its rows, in order."""
    live = np.zeros(len(keys), bool)
    number = db.execute("SELECT number FROM pack WHERE id = ?", (bytes.fromhex(pack),)).fetchone()
    for start in range(0, len(keys) if number else 0, _CHUNK):
        rows = _rows_in(db, number[0], split(keys[start : start + _CHUNK]))
        live[[row for row in rows if 0 <= row < len(keys)]] = True
    return live


def _rows_in(db: sqlite3.Connection, number: int, keys: Sequence[bytes]) -> set[int]:
    """The living rows of a pack, whose keys are given."""
    places = _in_chunks(db, "SELECT pack, row FROM entry WHERE key IN ({})", keys)
    return {row for pack, row in places if pack == number}


def doom(db: sqlite3.Connection, names: Iterable[str]) -> None:
    """Mark packs as doomed of which nothing is left to use."""
    for pack in map(bytes.fromhex, names):
        query = "SELECT number, entries FROM pack WHERE id = ? AND live <= 0 AND NOT doomed"
        empty = db.execute(query, (pack,)).fetchone()
        if empty and not db.execute("SELECT 1 FROM entry WHERE pack = ? LIMIT 1", (empty[0],)).fetchone():
            write_dropped(db, pack, np.ones(empty[1], bool))
            db.execute("UPDATE pack SET live = 0, doomed = 1 WHERE number = ?", (empty[0],))


def condemn(db: sqlite3.Connection, pack: str, reason: str) -> int:
    """Drop all rows of a pack that cannot be read, as damaged, and mark it as doomed; how many there were."""
    name = bytes.fromhex(pack)
    keys = row_keys(db, pack).values()
    db.executemany("INSERT OR REPLACE INTO damage VALUES (?, ?, ?)", [(key, name, reason) for key in keys])
    db.execute("DELETE FROM entry WHERE pack = (SELECT number FROM pack WHERE id = ?)", (name,))
    db.execute("UPDATE pack SET live = 0, doomed = 1 WHERE id = ?", (name,))
    _count_removal(db)
    return len(keys)


def mark_damaged(db: sqlite3.Connection, key: bytes, pack: str, row: int, reason: str) -> None:
    """Turn a damaged entry into a miss."""
    name = bytes.fromhex(pack)
    gone = db.execute(
        "DELETE FROM entry WHERE key = ? AND pack = (SELECT number FROM pack WHERE id = ?) AND row = ?",
        (key, name, row),
    ).rowcount
    # The pack stays, all of it damaged or not, until somebody asks for a clean-up.
    db.execute("UPDATE pack SET live = live - ? WHERE id = ?", (gone, name))
    db.execute("INSERT OR REPLACE INTO damage VALUES (?, ?, ?)", (key, name, reason))
    _count_removal(db)


def drop_packs(db: sqlite3.Connection, names: Iterable[str]) -> None:
    """Forget packs that are gone or damaged, with their rows."""
    ids = [bytes.fromhex(name) for name in names]
    numbers = [row[0] for row in _in_chunks(db, "SELECT number FROM pack WHERE id IN ({})", ids)]
    # All at once: nothing leads from a pack to its entries but a look at each of them.
    _in_chunks(db, "DELETE FROM entry WHERE pack IN ({})", numbers)
    _forget_packs(db, ids)
    _count_removal(db)


def forget_packs(db: sqlite3.Connection, names: Iterable[str]) -> None:
    """Forget doomed packs whose files are gone."""
    _forget_packs(db, [bytes.fromhex(name) for name in names])


def _forget_packs(db: sqlite3.Connection, ids: Iterable[bytes]) -> None:
    for pack in ids:
        for table in ("dropped", "used"):
            db.execute(f"DELETE FROM {table} WHERE pack = ?", (pack,))  # noqa: S608 - our own words
        memo.remember(db, (), {(MADE, pack): None}, ())
        db.execute("DELETE FROM pack WHERE id = ?", (pack,))


def _count_removal(db: sqlite3.Connection) -> None:
    db.execute("UPDATE store SET removals = removals + 1")


def replace_packs(
    db: sqlite3.Connection, head: Head | None, origins: Sequence[tuple[str, Numbers]], old: Mapping[str, ReplacedPack]
) -> None:
    """Add a pack made of rows of old ones, and drop every row of those; without one, just drop them.

    `origins` says of which pack and rows the new pack is made, in its order. Rows that were removed meanwhile are
    dropped from it, and last uses go over.
    """
    if head is not None:
        pack = bytes.fromhex(head.id)
        live: dict[str, Flags] = {}
        used: dict[str, Numbers] = {}
        for name, replaced in old.items():
            live[name] = live_rows(db, name, replaced.keys)
            recorded = read_used(db, bytes.fromhex(name), len(replaced.keys))
            # Where nobody has used it since, the time it was written: merged packs keep the order of their entries.
            used[name] = np.where(recorded > 0, recorded, replaced.written)
        _write_used(db, pack, np.concatenate([used[name][rows] for name, rows in origins]))
        add(db, head)
        # Dropped after, not left out: somebody who found the new file before us may have added all its rows already.
        gone = np.flatnonzero(np.concatenate([~live[name][rows] for name, rows in origins]))
        if len(gone):
            keys = np.concatenate([table.keys for table in head.tables])
            drop(db, pack, split(keys[gone]), gone)
    for name, replaced in old.items():
        drop(db, bytes.fromhex(name), split(replaced.keys), np.arange(len(replaced.keys)))


def claim(
    db: sqlite3.Connection, keys: Sequence[bytes], owner: bytes, *, seconds: float, done: Sequence[bytes]
) -> set[bytes]:
    """Claim keys for a builder for some time and give up those it is done with; the keys that are its own now."""
    now = time.time()  # not before the lock: whoever waited long for it would claim for a time that is over
    db.execute("DELETE FROM claim WHERE expires < ? OR expires > ?", (now, now + _LONGEST_CLAIM))
    _in_chunks(db, "DELETE FROM claim WHERE key IN ({}) AND owner = ?", done, owner)
    for start in range(0, len(keys), _ROWS):
        some = keys[start : start + _ROWS]
        db.execute(_ADD_CLAIMS, (len(some), b"".join(some), owner, now + seconds))
    held = _in_chunks(db, "SELECT key, owner FROM claim WHERE key IN ({})", keys)
    return {key for key, holder in held if holder == owner}


def keep_claims(db: sqlite3.Connection, owner: bytes, *, seconds: float) -> None:
    """Prolong a builder's claims."""
    db.execute("UPDATE claim SET expires = ? WHERE owner = ?", (time.time() + seconds, owner))


def release_claims(db: sqlite3.Connection, owner: bytes) -> None:
    """Give up a builder's claims."""
    db.execute("DELETE FROM claim WHERE owner = ?", (owner,))


def _in_chunks(db: sqlite3.Connection, query: str, keys: Sequence[Any], *others: object) -> list[Any]:
    """All rows of a statement whose `{}` takes any number of values, a chunk of them at a time, before some others."""
    rows: list[Any] = []
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        rows += db.execute(query.format(",".join("?" * len(chunk))), (*chunk, *others)).fetchall()
    return rows
