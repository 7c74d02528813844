"""The memo: what was worked out once and need not be worked out again, kept in the index.

Digests by stamp, picture sizes by digest, keys by what they are made of: each is a function of its key, so anything may
be forgotten without harm. Besides rows of fixed width there are notes, short texts under a key. Nothing is written
before `flush`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from precook.memo.columns import Kind, Segment, append, make_segment
from precook.values import Bytes, Flags


class Keeper(Protocol):
    """Where segments and notes are kept: the index, or a stand-in for it."""

    def segments(self, kind: Kind) -> list[Segment]:
        """What is kept of a kind, the newest last."""

    def notes(self, kind: str) -> dict[bytes, str]:
        """The notes of a kind."""

    def remember(
        self, segments: list[Segment], notes: dict[tuple[str, bytes], str | None], *, instead: set[str]
    ) -> None:
        """Keep more; what was kept before of the kinds in `instead` is dropped."""


class Memory:
    """What is remembered, and what is new and not yet kept; for one plan, in one thread."""

    def __init__(self, keeper: Keeper | None) -> None:
        self._keeper = keeper
        self._segments: dict[str, list[Segment]] = {}
        self._new: dict[str, list[Segment]] = {}
        self._notes: dict[str, dict[bytes, str]] = {}
        self._new_notes: dict[tuple[str, bytes], str | None] = {}
        self._forgotten: set[str] = set()

    def recall(self, kind: Kind, keys: Bytes) -> tuple[Flags, Bytes]:
        """Which keys are remembered, and their values (zeros for the others)."""
        known = np.zeros(len(keys), bool)
        values = np.zeros((len(keys), kind.value), np.uint8)
        for segment in reversed(self._loaded(kind)):
            rest = np.flatnonzero(~known)
            if not len(rest):
                break
            # All keys while most are unknown: in their full order they lie in long runs, and runs are found quickest.
            asked = np.arange(len(keys)) if 2 * len(rest) > len(keys) else rest
            rows = segment.find(keys if len(asked) == len(keys) else keys[asked])
            if len(rest) == len(keys) and (rows >= 0).all():
                return rows >= 0, segment.values[rows]
            hit = (rows >= 0) & ~known[asked]
            known[asked[hit]] = True
            values[asked[hit]] = segment.values[rows[hit]]
        return known, values

    def remember(self, kind: Kind, keys: Bytes, values: Bytes | None = None) -> None:
        """Remember these values, newer than all before; a kind without values remembers the keys alone."""
        if values is None:
            values = np.zeros((len(keys), 0), np.uint8)
        segment = make_segment(kind, keys, values)
        if not kind.slot:
            # On a network drive every file is read at every plan and gives the same: that is not written again.
            known, before = self.recall(kind, segment.keys)
            fresh = ~known | (before != segment.values).any(axis=1)
            segment = make_segment(kind, segment.keys[fresh], segment.values[fresh])
        if segment.rows:
            append(self._loaded(kind), segment)
            append(self._new.setdefault(kind.name, []), segment)

    def rows(self, kind: Kind) -> tuple[Bytes, Bytes]:
        """All keys and values of a kind, newer ones after older ones; a key may be there more than once."""
        segments = self._loaded(kind)
        keys = [np.zeros((0, kind.key), np.uint8), *(segment.keys for segment in segments)]
        values = [np.zeros((0, kind.value), np.uint8), *(segment.values for segment in segments)]
        return np.concatenate(keys), np.concatenate(values)

    def forget(self, kind: Kind) -> None:
        """Forget all of a kind."""
        self._segments[kind.name] = []
        self._new.pop(kind.name, None)
        self._forgotten.add(kind.name)

    def note(self, kind: str, key: bytes) -> str | None:
        """A remembered text."""
        return self.notes(kind).get(key)

    def notes(self, kind: str) -> dict[bytes, str]:
        """All remembered texts of a kind."""
        if kind not in self._notes:
            self._notes[kind] = self._keeper.notes(kind) if self._keeper is not None else {}
        return self._notes[kind]

    def write_note(self, kind: str, key: bytes, text: str | None) -> None:
        """Remember a text, or with None forget it."""
        notes = self.notes(kind)
        if notes.get(key) == text:
            return
        if text is None:
            del notes[key]
        else:
            notes[key] = text
        self._new_notes[kind, key] = text

    @property
    def changed(self) -> bool:
        """Whether there is something to keep."""
        return bool(self._new or self._new_notes or self._forgotten)

    def flush(self, keeper: Keeper) -> None:
        """Keep what is new, in one transaction."""
        segments = [segment for new in self._new.values() for segment in new]
        keeper.remember(segments, self._new_notes, instead=self._forgotten)
        self._keeper, self._new, self._new_notes, self._forgotten = keeper, {}, {}, set()

    def _loaded(self, kind: Kind) -> list[Segment]:
        if kind.name not in self._segments:
            self._segments[kind.name] = self._keeper.segments(kind) if self._keeper is not None else []
        return self._segments[kind.name]
