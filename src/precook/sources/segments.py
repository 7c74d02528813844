"""Segments: rows of bytes found by a hash, many at a time.

What precook remembers (digests by stamp, picture sizes by digest, keys) is looked up for whole datasets at once: a
hundred thousand rows of SQL would cost more than asking the file system for every stamp. So the rows lie in sorted
columns, and a look-up is a binary search in numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Bytes = npt.NDArray[np.uint8]

GROWTH = 2
"""A segment is merged with a newer one unless it is more than so many times as large."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of thing to remember."""

    name: str
    key: int
    """Bytes in a key; a multiple of 8."""
    value: int
    """Bytes in a value."""
    slot: int = 0
    """Leading bytes of the key of which only the newest row is kept, where that is less than the whole key."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys and their values, in the order of a hash of the keys."""

    kind: Kind
    keys: Bytes
    values: Bytes
    hashes: npt.NDArray[np.uint64]
    longest: int
    """Most rows with the same hash."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.keys)

    def find(self, keys: Bytes) -> npt.NDArray[np.int64]:
        """The row of each key, the newest where there are several, or -1."""
        found = np.full(len(keys), -1, np.int64)
        if not self.rows or not len(keys):
            return found
        at = np.searchsorted(self.hashes, _hashes(self.kind, keys))
        wanted, own = _words(keys), _words(self.keys)
        for _ in range(self.longest):
            inside = np.minimum(at, self.rows - 1)
            equal = (own[inside] == wanted).all(axis=1)
            np.copyto(found, inside, where=equal)
            at += 1
        return found


def make_segment(kind: Kind, keys: Bytes, values: Bytes) -> Segment:
    """A segment of these rows; of rows with the same key (or the same slot) the last one stays."""
    order = np.argsort(_hashes(kind, keys), kind="stable")
    keys, values = keys[order], values[order]
    slots = _words(keys)[:, : (kind.slot or kind.key) // 8]
    # Only neighbours: two slots with the same hash could hide a repetition, which costs a few bytes and no more.
    keep = np.append((slots[1:] != slots[:-1]).any(axis=1), True)[: len(keys)]
    return _finished(kind, keys[keep], values[keep])


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
    for at in range(0, segment.rows, step):
        piece = slice(at, at + step)
        yield Segment(segment.kind, segment.keys[piece], segment.values[piece], segment.hashes[piece], segment.longest)


def dump(segment: Segment) -> tuple[bytes, bytes, bytes]:
    """Keys, values and their checksum."""
    keys, values = segment.keys.tobytes(), segment.values.tobytes()
    return keys, values, checksum(_form(segment.kind), keys, values)


def load(kind: Kind, keys: object, values: object, found: object) -> Segment | None:
    """The segment that was dumped; None where that is not what was kept, or not of this kind."""
    # A torn page of a database can hold values of any type.
    if not isinstance(keys, bytes) or not isinstance(values, bytes):
        return None
    rows = len(keys) // kind.key
    if len(values) != rows * kind.value or checksum(_form(kind), keys, values) != found:
        return None
    return _finished(
        kind,
        np.frombuffer(keys, np.uint8).reshape(rows, kind.key),
        np.frombuffer(values, np.uint8).reshape(rows, kind.value),
    )


def checksum(*parts: bytes) -> bytes:
    """What parts that stay together are recognised by."""
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _finished(kind: Kind, keys: Bytes, values: Bytes) -> Segment:
    hashes = _hashes(kind, keys)
    longest = 1
    while longest < len(hashes) and (hashes[longest:] == hashes[:-longest]).any():
        longest += 1
    return Segment(kind, keys, values, hashes, longest)


def _hashes(kind: Kind, keys: Bytes) -> npt.NDArray[np.uint64]:
    """A number for each key (or slot) that spreads them evenly."""
    state = np.zeros(len(keys), np.uint64)
    for column in _words(keys)[:, : (kind.slot or kind.key) // 8].T:
        state = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(32)
    return state


def _words(keys: Bytes) -> Any:
    return np.ascontiguousarray(keys).view("<u8")


def _form(kind: Kind) -> bytes:
    """What a segment's checksum says about its kind, so that it is never taken for another's."""
    return f"{kind.name}/{kind.key}/{kind.value}".encode()
