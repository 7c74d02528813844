"""What is remembered, as rows of the index: segments of columns and notes, each with a checksum.

The functions here run in a query or a transaction that the caller has begun. Nothing that packs hold depends on these
rows, so one that is damaged is forgotten and worked out anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from precook.memo.columns import GROWTH, Kind, Segment, checksum, cut, dump, load, merge
from precook.store.index.connection import bounded

_SEGMENT_BYTES = 256 << 20
"""The largest segment; SQLite takes 10^9 bytes in a row."""

DamagedRow = tuple[str, Any, Any]
"""Kind, number or key, and checksum of a row that is not what was remembered."""


def read_segments(db: sqlite3.Connection, kind: Kind) -> tuple[list[Segment], list[DamagedRow]]:
    """The segments of a kind, the newest last, and those that are damaged."""
    query = "SELECT number, keys, contents, checksum FROM memory WHERE kind = ? ORDER BY number"
    segments, damaged = [], []
    for number, keys, contents, recorded in bounded(db, query, (kind.name,)):
        segment = load(kind, keys, contents, recorded)
        if segment is None:
            damaged.append((kind.name, number, recorded))
        else:
            segments.append(segment)
    return segments, damaged


def read_notes(db: sqlite3.Connection, kind: str) -> tuple[dict[bytes, str], list[DamagedRow]]:
    """The notes of a kind, and those that are damaged."""
    notes, damaged = {}, []
    for key, text, recorded in bounded(db, "SELECT key, text, checksum FROM note WHERE kind = ?", (kind,)):
        note = _read_note(kind, key, text, recorded)
        if note is None:
            damaged.append((kind, key, recorded))
        else:
            notes[key] = note
    return notes, damaged


def _read_note(kind: str, key: object, text: object, recorded: object) -> str | None:
    """The text of a note; None where it is not what was remembered."""
    if not isinstance(key, bytes) or not isinstance(text, bytes) or _note_checksum(kind, key, text) != recorded:
        return None
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None  # its checksum holds: somebody else wrote it


def kinds(db: sqlite3.Connection) -> list[str]:
    """The kinds of which segments are kept."""
    return [row[0] for row in db.execute("SELECT DISTINCT kind FROM memory")]


def forget_segments(db: sqlite3.Connection, damaged: Iterable[DamagedRow]) -> None:
    """Remove damaged segments."""
    db.executemany("DELETE FROM memory WHERE kind = ? AND number IS ? AND checksum IS ?", damaged)


def forget_notes(db: sqlite3.Connection, damaged: Iterable[DamagedRow]) -> None:
    """Remove damaged notes."""
    db.executemany("DELETE FROM note WHERE kind = ? AND key IS ? AND checksum IS ?", damaged)


def remember(
    db: sqlite3.Connection,
    segments: Iterable[Segment],
    notes: Mapping[tuple[str, bytes], str | None],
    instead: Iterable[str],
) -> None:
    """Add segments and notes; a note of None is removed, as are all older segments of the kinds `instead`.

    Small segments are merged as they come, so that there are few, and a small addition stays a small write.
    """
    for name in instead:
        db.execute("DELETE FROM memory WHERE kind = ?", (name,))
    for segment in segments:
        for piece in cut(segment, _SEGMENT_BYTES):
            _append(db, piece)
    for (name, key), text in notes.items():
        if text is None:
            db.execute("DELETE FROM note WHERE kind = ? AND key = ?", (name, key))
            continue
        # As bytes: SQLite takes no text with lone surrogates, which names of files may put into it.
        raw = text.encode("utf-8", "surrogatepass")
        row = (name, key, raw, _note_checksum(name, key, raw))
        db.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?)", row)


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


def _note_checksum(kind: str, key: bytes, text: bytes) -> bytes:
    return checksum(kind.encode(), key, text)
