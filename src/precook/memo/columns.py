"""Columns of keys and values of fixed width, looked up many at a time.

What precook remembers (digests by stamp, picture sizes by digest, keys) is looked up for whole datasets at once: a
hundred thousand rows of SQL would cost more than asking the file system for every stamp. So rows are kept in segments,
a column of keys and a column of values, in the order in which they were remembered. An unchanged dataset asks in the
same order again, and then comparing two columns is all there is to do. What is not found that way is searched for by
its hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from precook.values import Bytes, Numbers

_FEW = 64
"""Up to so many keys or rows are compared one by one with all the others: sorting hashes would take longer."""
_BLOCK = 4096
"""Rows that are compared at a time, so that a short run costs little."""
_RUNS = 256
"""Runs of equal rows that are followed before the rest is searched for by hash."""
_ABSENT = 8
"""Unknown keys one after the other, after which no further run is looked for."""
GROWTH = 8
"""A segment is merged with a newer one unless it is more than so many times as large."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of thing to remember: its name on disk and the widths of its columns."""

    name: str
    key: int
    """Bytes in a key; a multiple of 8."""
    value: int
    """Bytes in a value."""
    slot: int = 0
    """Leading bytes of the key of which only the newest row is kept, where that is less than the whole key."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Keys and their values, in the order in which they were remembered."""

    kind: Kind
    keys: Bytes
    values: Bytes

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.keys)

    def find(self, keys: Bytes) -> Numbers:
        """The row of each key, the newest where there are several, or -1."""
        rows = np.full(len(keys), -1, np.int64)
        if not self.rows or not len(keys):
            return rows
        wanted, own = _words(keys), _words(self.keys)
        if self.rows <= _FEW:
            for row in range(self.rows):
                rows[(wanted == own[row]).all(axis=1)] = row
            return rows
        _follow_runs(own, wanted, rows)
        rest = np.flatnonzero(rows < 0)
        if len(rest) <= _FEW:
            for number in rest.tolist():
                rows[number] = _last_row(own, wanted[number])
        else:
            rows[rest] = self._find_by_hash(keys[rest])
        return rows

    def _find_by_hash(self, keys: Bytes) -> Numbers:
        order, hashes, longest = self._hashed
        found = np.full(len(keys), -1, np.int64)
        position = np.searchsorted(hashes, _hashes(self.kind, keys))
        wanted, own = _words(keys), _words(self.keys)
        for _ in range(longest):
            rows = order[np.minimum(position, self.rows - 1)]
            np.copyto(found, rows, where=(own[rows] == wanted).all(axis=1))
            position += 1
        return found

    @cached_property
    def _hashed(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64], int]:
        """The rows in the order of their hashes, the hashes, and how many rows share one at most."""
        hashes = _hashes(self.kind, self.keys)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        longest = 1
        while longest < len(hashes) and (hashes[longest:] == hashes[:-longest]).any():
            longest += 1
        return order, hashes, longest


def make_segment(kind: Kind, keys: Bytes, values: Bytes) -> Segment:
    """A segment of these rows; of rows with the same key (or the same slot) the last one stays."""
    slots = _words(keys)[:, : (kind.slot or kind.key) // 8]
    hashes = _hashes(kind, keys)
    order = np.argsort(hashes, kind="stable")
    same = (slots[order[1:]] == slots[order[:-1]]).all(axis=1)
    if len(same) and (same != (hashes[order[1:]] == hashes[order[:-1]])).any():
        # Two slots with the same hash: one could stand between two rows of the other.
        order = np.lexsort(slots.T)
        same = (slots[order[1:]] == slots[order[:-1]]).all(axis=1)
    if not same.any():
        return Segment(kind, keys, values)
    keep = np.ones(len(keys), bool)
    keep[order[:-1][same]] = False
    return Segment(kind, keys[keep], values[keep])


def merge(kind: Kind, older: Segment, newer: Segment) -> Segment:
    """Both segments in one; the newer rows win."""
    return make_segment(kind, np.concatenate([older.keys, newer.keys]), np.concatenate([older.values, newer.values]))


def append(segments: list[Segment], segment: Segment) -> None:
    """Add a newer segment, merged with those before it that are not much larger: so there are always few."""
    while segments and segments[-1].rows <= GROWTH * segment.rows:
        segment = merge(segment.kind, segments.pop(), segment)
    segments.append(segment)


def cut(segment: Segment, nbytes: int) -> Iterator[Segment]:
    """The segment in pieces of at most so many bytes."""
    step = max(1, nbytes // (segment.kind.key + segment.kind.value))
    for start in range(0, segment.rows, step):
        piece = slice(start, start + step)
        yield Segment(segment.kind, segment.keys[piece], segment.values[piece])


def dump(segment: Segment) -> tuple[bytes, bytes, bytes]:
    """Keys, values and their checksum."""
    keys, values = segment.keys.tobytes(), segment.values.tobytes()
    return keys, values, checksum(_form(segment.kind), keys, values)


def load(kind: Kind, keys: object, values: object, expected: object) -> Segment | None:
    """The segment that was dumped; None where the checksum is not the expected one, or of another kind."""
    # A torn page of a database can hold values of any type.
    if not isinstance(keys, bytes) or not isinstance(values, bytes):
        return None
    rows = len(keys) // kind.key
    if len(values) != rows * kind.value or checksum(_form(kind), keys, values) != expected:
        return None
    return Segment(
        kind,
        np.frombuffer(keys, np.uint8).reshape(rows, kind.key),
        np.frombuffer(values, np.uint8).reshape(rows, kind.value),
    )


def rows_of(values: list[bytes]) -> Bytes:
    """Values of one width, a row each."""
    return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)


def checksum(*parts: bytes) -> bytes:
    """A checksum of several parts, in this order and with these lengths."""
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _follow_runs(own: Any, wanted: Any, rows: Numbers) -> None:
    """Fill in the rows of keys that are asked for in the order in which they were remembered."""
    position = absent = 0
    for _ in range(_RUNS):
        if position >= len(wanted) or absent > _ABSENT:
            return
        start = _last_row(own, wanted[position])
        if start < 0:
            position, absent = position + 1, absent + 1
            continue
        absent = 0
        count = _run_length(own[start:], wanted[position:])
        rows[position : position + count] = np.arange(start, start + count)
        position += count


def _run_length(own: Any, wanted: Any) -> int:
    """How many rows are the same from the beginning."""
    count = min(len(own), len(wanted))
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        differing = np.flatnonzero((own[start:stop] != wanted[start:stop]).any(axis=1))
        if len(differing):
            return start + int(differing[0])
    return count


def _last_row(own: Any, wanted: Any) -> int:
    """The last row with these words, or -1."""
    rows = np.flatnonzero(own[:, 0] == wanted[0])
    rows = rows[(own[rows] == wanted).all(axis=1)]
    return int(rows[-1]) if len(rows) else -1


def _hashes(kind: Kind, keys: Bytes) -> npt.NDArray[np.uint64]:
    """A number for each key (or slot) that spreads them evenly."""
    state = np.zeros(len(keys), np.uint64)
    for column in _words(keys)[:, : (kind.slot or kind.key) // 8].T:
        state = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(32)
    return state


def _words(keys: Bytes) -> Any:
    """Keys as numbers of 64 bits, which are compared eight bytes at a time."""
    return np.ascontiguousarray(keys).view("<u8")


def _form(kind: Kind) -> bytes:
    """What a segment's checksum says about its kind, so that it is never taken for another's."""
    return f"{kind.name}/{kind.key}/{kind.value}".encode()
