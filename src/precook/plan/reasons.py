"""Reasons: why an entry is missing, from what is remembered about the time when it was not."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from precook.memo.columns import Kind, make_segment
from precook.memo.memo import Memory
from precook.plan.ready import was_lost
from precook.plan.targets import Samples
from precook.plan.wanted import NOBODY, WantedEntries, picture_kind, read_parts, text_kind
from precook.store.store import Store
from precook.values import Bytes, Numbers

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Former:
    """What a sample was; zeros stand for a mask that was not there."""

    image: bytes
    mask: bytes
    captions: bytes


class History:
    """The former state of a dataset's samples, by the paths of their pictures."""

    def __init__(self, dataset: str, samples: Samples, memory: Memory) -> None:
        self._samples = samples
        self._memory = memory
        self._kind = Kind(f"history/1/{dataset}", key=32, value=96)
        self._line_starts = np.cumsum(samples.line_counts) - samples.line_counts

    def recall(self, samples: Numbers) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.object_]]:
        """Which samples are remembered, and what they were."""
        known, rows = self._memory.recall(self._kind, self._paths(samples))
        former = np.empty(len(samples), object)
        for at in np.flatnonzero(known).tolist():
            raw = rows[at].tobytes()
            former[at] = Former(raw[:32], raw[32:64], raw[64:])
        return known, former

    def captions(self, sample: int) -> bytes:
        """One digest for all captions of a sample, whatever their order."""
        start = int(self._line_starts[sample])
        lines = self._samples.lines[start : start + int(self._samples.line_counts[sample])]
        digest: bytes = blake3(b"".join(sorted(line.tobytes() for line in lines))).digest()
        return digest

    def record(self, samples: Numbers) -> None:
        """Remember what these samples are now; what has not changed is not written again."""
        samples = np.asarray(samples, np.int64)
        keys = self._paths(samples)
        captions = b"".join(self.captions(sample) for sample in samples.tolist())
        values = np.concatenate(
            [
                self._samples.images[samples],
                self._samples.masks[samples],
                np.frombuffer(captions, np.uint8).reshape(-1, 32),
            ],
            axis=1,
        )
        known, before = self._memory.recall(self._kind, keys)
        changed = ~known | (before != values).any(axis=1)
        self._memory.remember(self._kind, keys[changed], values[changed])

    def _paths(self, samples: Numbers) -> Bytes:
        digests = []
        for sample in samples.tolist():
            home, number = self._samples.home(sample)
            name = home.concept.name.encode("utf-8") + b"\0" + os.fsencode(home.path(number))
            digests.append(blake3(name).digest())
        return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), 32)


_NEAREST = 32


class Reason(enum.Enum):
    """Why an entry is missing."""

    NEW = "new"
    CONTENT = "content changed"
    CAPTION = "caption line changed"
    MASK = "mask changed"
    RECIPE = "recipe changed"
    GEOMETRY = "geometry changed"
    DAMAGED = "entry damaged"
    COLLECTED = "entry collected"


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of an identity that is not what it was."""

    field: str
    """Where it stands, from the outside in: `recipe.encoder.dtype`, `geometry.target`."""
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.field}: {brief(self.old)} → {brief(self.new)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""Stands for a part that one of two identities does not have."""


@dataclass(frozen=True, slots=True)
class Why:
    """A reason, and what of the nearest stored entry's identity differs."""

    reason: Reason
    nearest: bytes | None = None
    """The key of the stored entry that differs least."""
    differences: tuple[Difference, ...] = ()


class Reasons:
    """Finds reasons for the missing entries of one encoder, many at a time."""

    def __init__(self, wants: WantedEntries, samples: Samples, store: Store, memory: Memory, history: History) -> None:
        self._wants = wants
        self._samples = samples
        self._store = store
        self._memory = memory
        self._history = history
        self._recipe = wants.encoding.recipe

    def of(self, rows: Numbers) -> list[Why]:
        """Why each of these rows of the wants has no entry."""
        found: list[Why | None] = [None] * len(rows)
        self._by_loss(rows, found)
        # What is known about this very input comes first: it is exact, whatever else has changed about the sample.
        self._by_recipe(rows, found)
        self._by_geometry(rows, found)
        self._by_history(rows, found)
        return [why or Why(Reason.NEW) for why in found]

    def _by_loss(self, rows: Numbers, found: list[Why | None]) -> None:
        damaged = self._store.damaged()
        lost = was_lost(self._wants.keys[rows], self._memory)
        for at, row in enumerate(rows.tolist()):
            if self._wants.keys[row].tobytes() in damaged:
                found[at] = Why(Reason.DAMAGED)
            elif lost[at]:
                found[at] = Why(Reason.COLLECTED)

    def _by_history(self, rows: Numbers, found: list[Why | None]) -> None:
        """The sample was complete once, and this part of it was another."""
        wants = self._wants
        owners = wants.samples[rows]
        open_ = np.array([why is None for why in found], bool) & (owners != NOBODY)
        chosen = np.flatnonzero(open_)
        known, before = self._history.recall(owners[chosen])
        for at, old in zip(chosen[known].tolist(), before[known], strict=True):
            sample = int(owners[at])
            if wants.encoding.input == "text":
                now = self._history.captions(sample)
                pair = ("captions", old.captions, now)
                reason = Reason.CAPTION
            elif wants.encoding.input == "mask" and old.image == self._samples.images[sample].tobytes():
                pair = ("mask", old.mask, self._samples.masks[sample].tobytes())
                reason = Reason.MASK
            else:
                pair = ("image", old.image, self._samples.images[sample].tobytes())
                reason = Reason.CONTENT
            name, was, is_now = pair
            if was == is_now or not any(was):
                continue
            change = Difference(f"{name} digest", was.hex(), is_now.hex() if any(is_now) else ABSENT)
            found[at] = Why(reason, self._key_before(int(rows[at]), was, name), (change,))

    def _key_before(self, row: int, was: bytes, name: str) -> bytes | None:
        """The stored entry of the same sample's former content, cut and made alike."""
        if name == "captions":
            return None
        parts = self._wants.rows[[row]].copy()
        parts[0, :32] = np.frombuffer(was, np.uint8)
        known, keys = self._memory.recall(self._wants.kind, parts)
        return keys[0].tobytes() if known[0] and self._store.present(keys)[0] else None

    def _by_recipe(self, rows: Numbers, found: list[Why | None]) -> None:
        """The same input, cut alike, was encoded with another recipe."""
        for digest, form in self._other_recipes():
            chosen = np.flatnonzero([why is None for why in found])
            if not len(chosen):
                return
            keys, stored = self._stored(self._kind(digest), self._wants.rows[rows[chosen]])
            differences = tuple(self._changes(form))
            for at in np.flatnonzero(stored).tolist():
                found[int(chosen[at])] = Why(Reason.RECIPE, keys[at].tobytes(), differences)

    def _by_geometry(self, rows: Numbers, found: list[Why | None]) -> None:
        """The same input was encoded with this recipe, or another, and cut another way."""
        if self._wants.encoding.input == "text":
            return
        recipes = [(self._recipe.digest.bytes, self._recipe.form), *self._other_recipes()]
        for digest, form in recipes:
            chosen = np.flatnonzero([why is None for why in found])
            if not len(chosen):
                return
            made, keys = self._memory.rows(self._kind(digest))
            present = self._store.present(keys)
            made, keys = made[present], keys[present]
            if not len(made):
                continue
            inputs = Kind("inputs", key=32, value=made.shape[1] + 32)
            by_input = make_segment(inputs, made[:, :32], np.concatenate([made, keys], axis=1))
            hits = by_input.find(np.ascontiguousarray(self._wants.rows[rows[chosen], :32]))
            recipe_changes = self._changes(form)
            for at in np.flatnonzero(hits >= 0).tolist():
                old = by_input.values[hits[at]]
                row = int(rows[chosen[at]])
                was, now = read_parts(old[:-32]).settings, read_parts(self._wants.rows[row]).settings
                changes = (*recipe_changes, *compare(was, now, ""))
                found[int(chosen[at])] = Why(Reason.GEOMETRY, old[-32:].tobytes(), changes)

    def _stored(self, kind: Kind, rows: Bytes) -> tuple[Bytes, npt.NDArray[np.bool_]]:
        known, keys = self._memory.recall(kind, rows)
        stored = known.copy()
        stored[known] = self._store.present(keys[known])
        return keys, stored

    def _kind(self, digest: bytes) -> Kind:
        return (text_kind if self._wants.encoding.input == "text" else picture_kind)(digest)

    def _other_recipes(self) -> list[tuple[bytes, bytes]]:
        """Recipes of the same kind that made entries, those that differ least first."""
        others = [
            (digest, form)
            for digest, form in self._store.recipes().items()
            if digest != self._recipe.digest.bytes and json.loads(form)[0] == self._recipe.kind
        ]
        others.sort(key=lambda other: len(self._changes(other[1])))
        return others[:_NEAREST]

    def _changes(self, form: bytes) -> list[Difference]:
        """What differs between a stored recipe, in its canonical form, and ours."""
        return list(compare(json.loads(form)[1], json.loads(self._recipe.form)[1], "recipe"))


def compare(old: Any, new: Any, where: str) -> Iterator[Difference]:
    """The parts in which two pieces of plain data differ, the smallest that say it."""
    if isinstance(old, dict) and isinstance(new, dict) and not (_tagged(old) or _tagged(new)):
        for name in [*old, *(name for name in new if name not in old)]:
            inner = f"{where}.{name}" if where else str(name)
            yield from compare(old.get(name, ABSENT), new.get(name, ABSENT), inner)
    elif old != new or type(old) is not type(new):
        yield Difference(where, _plain(old), _plain(new))


def _tagged(value: dict[str, Any]) -> bool:
    """Whether an object of canonical JSON stands for a single value."""
    return len(value) == 1 and next(iter(value)).startswith("$")


def _plain(value: Any) -> Any:
    return next(iter(value.values())) if isinstance(value, dict) and _tagged(value) else value


def brief(value: object) -> str:
    """A value in few characters; a digest by its first digits."""
    text = value if isinstance(value, str) else json.dumps(value) if not isinstance(value, _Absent) else repr(value)
    if len(text) == 64 and not set(text) - set("0123456789abcdef"):  # noqa: PLR2004 - a digest
        return f"{text[:12]}…"
    return text if len(text) <= 80 else f"{text[:79]}…"  # noqa: PLR2004
