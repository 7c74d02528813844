"""Reasons: why an entry is missing, from what is remembered of keys, recipes and samples that were complete once."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from precook.memo.columns import Kind, make_segment
from precook.memo.memo import Memory
from precook.plan.ready import was_lost
from precook.plan.targets import Samples
from precook.plan.wanted import MASK, NOBODY, TEXT, WantedEntries, kind_like, read_parts
from precook.store.store import Store
from precook.values import Bytes, Flags, Numbers

_NEAREST = 32
"""Recipes that are compared, at the most."""


class Reason(enum.Enum):
    """Why an entry is missing."""

    NEW = "new"
    CONTENT = "content changed"
    CAPTION = "caption line changed"
    MASK = "mask changed"
    FURTHER = "further picture changed"
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


@dataclass(frozen=True, slots=True)
class FormerSample:
    """What a sample was; zeros stand for a mask that was not there."""

    image: bytes
    mask: bytes
    captions: bytes


class History:
    """The former state of a dataset's samples, by the paths of their pictures."""

    def __init__(self, dataset: str, samples: Samples, memory: Memory) -> None:
        self._samples = samples
        self._memory = memory
        self._dataset = dataset
        self._kind = Kind(f"history/1/{dataset}", key=32, value=96)
        self._line_starts = np.cumsum(samples.line_counts) - samples.line_counts

    def recall(self, samples: Numbers) -> tuple[Flags, npt.NDArray[np.object_]]:
        """Which samples are remembered, and what they were."""
        known, rows = self._memory.recall(self._kind, self._paths(samples))
        former = np.empty(len(samples), object)
        for number in np.flatnonzero(known).tolist():
            raw = rows[number].tobytes()
            former[number] = FormerSample(raw[:32], raw[32:64], raw[64:])
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
        self._remember(self._kind, keys, values)
        for name, columns in self._samples.further.items():
            self._remember(self._further_kind(name), keys, columns.images[samples])

    def recall_further(self, name: str, sample: int) -> bytes:
        """The digest of a sample's former picture of that name; zeros where none is known."""
        known, rows = self._memory.recall(self._further_kind(name), self._paths(np.array([sample])))
        return bytes(rows[0].tobytes()) if known[0] else bytes(32)

    def _further_kind(self, name: str) -> Kind:
        return Kind(f"history of {name}/1/{self._dataset}", key=32, value=32)

    def _remember(self, kind: Kind, keys: Bytes, values: Bytes) -> None:
        known, before = self._memory.recall(kind, keys)
        changed = ~known | (before != values).any(axis=1)
        self._memory.remember(kind, keys[changed], values[changed])

    def _paths(self, samples: Numbers) -> Bytes:
        digests = []
        for sample in samples.tolist():
            concept, number = self._samples.in_concept(sample)
            name = concept.concept.name.encode("utf-8") + b"\0" + os.fsencode(concept.path(number))
            digests.append(blake3(name).digest())
        return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), 32)


class ReasonFinder:
    """Finds why entries of one encoder are missing, many at a time."""

    def __init__(self, wants: WantedEntries, samples: Samples, store: Store, memory: Memory, history: History) -> None:
        self._wants = wants
        self._samples = samples
        self._store = store
        self._memory = memory
        self._history = history
        self._recipe = wants.encoding.recipe
        self._texts: set[bytes] | None = None
        """What the texts without pictures are known by, once somebody asked."""

    def find(self, rows: Numbers) -> list[Why]:
        """Why each of these rows of the wanted entries has no entry."""
        reasons: list[Why | None] = [None] * len(rows)
        self._find_lost(rows, reasons)
        # What is known about this very input comes first: it is exact, whatever else has changed about the sample.
        self._find_other_recipe(rows, reasons)
        self._find_other_geometry(rows, reasons)
        self._find_changed_source(rows, reasons)
        return [why or Why(Reason.NEW) for why in reasons]

    def _find_lost(self, rows: Numbers, reasons: list[Why | None]) -> None:
        """The entry was there, and was damaged or removed."""
        damaged = self._store.damaged()
        lost = was_lost(self._wants.keys[rows], self._memory)
        for number, row in enumerate(rows.tolist()):
            if self._wants.keys[row].tobytes() in damaged:
                reasons[number] = Why(Reason.DAMAGED)
            elif lost[number]:
                reasons[number] = Why(Reason.COLLECTED)

    def _find_other_recipe(self, rows: Numbers, reasons: list[Why | None]) -> None:
        """The same input, cut alike, was encoded with another recipe."""
        for digest, form in self._other_recipes():
            left = _left(reasons)
            if not len(left):
                return
            known, keys = self._memory.recall(self._kind(digest), self._wants.rows[rows[left]])
            stored = np.flatnonzero(known)
            stored = stored[self._store.present(keys[stored])]
            differences = tuple(self._recipe_changes(form))
            for number in stored.tolist():
                reasons[int(left[number])] = Why(Reason.RECIPE, keys[number].tobytes(), differences)

    def _find_other_geometry(self, rows: Numbers, reasons: list[Why | None]) -> None:
        """The same input was encoded with this recipe, or another, and cut another way."""
        if len(self._wants.encoding.inputs) > 1 or self._wants.encoding.per == "line":
            return
        for digest, form in [(self._recipe.digest.bytes, self._recipe.form), *self._other_recipes()]:
            left = _left(reasons)
            if not len(left):
                return
            made, keys = self._memory.rows(self._kind(digest))
            present = self._store.present(keys)
            made, keys = made[present], keys[present]
            if not len(made):
                continue
            inputs = Kind("inputs", key=32, value=made.shape[1] + 32)
            by_input = make_segment(inputs, made[:, :32], np.concatenate([made, keys], axis=1))
            hits = by_input.find(np.ascontiguousarray(self._wants.rows[rows[left], :32]))
            recipe_changes = self._recipe_changes(form)
            for number in np.flatnonzero(hits >= 0).tolist():
                old = by_input.values[hits[number]]
                before, now = read_parts(old[:-32]).settings, read_parts(self._wants.rows[rows[left[number]]]).settings
                changes = (*recipe_changes, *compare(before, now, ""))
                reasons[int(left[number])] = Why(Reason.GEOMETRY, old[-32:].tobytes(), changes)

    def _find_changed_source(self, rows: Numbers, reasons: list[Why | None]) -> None:
        """The sample was complete once, and this part of it was another."""
        owners = self._wants.samples[rows]
        left = _left(reasons)
        left = left[owners[left] != NOBODY]
        known, former = self._history.recall(owners[left])
        for number, old in zip(left[known].tolist(), former[known], strict=True):
            for part in self._wants.encoding.inputs:
                reason, name, before, now = self._compare_source(part, old, int(owners[number]))
                if before == now or not any(before) or self._moved(before, int(owners[number])):
                    continue
                change = Difference(f"{name} digest", before.hex(), now.hex() if any(now) else ABSENT)
                alone = len(self._wants.encoding.inputs) == 1 and reason is not Reason.CAPTION
                nearest = self._former_key(int(rows[number]), before) if alone else None
                reasons[number] = Why(reason, nearest, (change,))
                break

    def _compare_source(self, part: str, old: FormerSample, sample: int) -> tuple[Reason, str, bytes, bytes]:
        """A part of a sample that this encoder takes: the reason if it has changed, its name, its digests."""
        image = self._samples.images[sample].tobytes()
        if not self._samples.pictured[sample]:
            return Reason.CONTENT, "text", old.image, image
        if part == TEXT:
            return Reason.CAPTION, "captions", old.captions, self._history.captions(sample)
        if part == MASK and old.image == image:
            return Reason.MASK, "mask", old.mask, self._samples.masks[sample].tobytes()
        if part in self._samples.further:
            former = self._history.recall_further(part, sample)
            return Reason.FURTHER, part, former, self._samples.further[part].images[sample].tobytes()
        return Reason.CONTENT, "image", old.image, image

    def _moved(self, before: bytes, sample: int) -> bool:
        """Whether a text that stood in this row or passage stands in another one now: then what is here is new."""
        if self._samples.pictured[sample]:
            return False
        if self._texts is None:
            self._texts = {row.tobytes() for row in self._samples.images[~self._samples.pictured]}
        return before in self._texts

    def _former_key(self, row: int, digest: bytes) -> bytes | None:
        """The stored entry of the same sample's former content, cut and made alike."""
        parts = self._wants.rows[[row]].copy()
        parts[0, :32] = np.frombuffer(digest, np.uint8)
        known, keys = self._memory.recall(self._wants.kind, parts)
        return keys[0].tobytes() if known[0] and self._store.present(keys)[0] else None

    def _kind(self, recipe: bytes) -> Kind:
        return kind_like(self._wants.kind, recipe)

    def _other_recipes(self) -> list[tuple[bytes, bytes]]:
        """Recipes of the same kind that made entries, those that differ least first."""
        others = [
            (digest, form)
            for digest, form in self._store.recipes().items()
            if digest != self._recipe.digest.bytes and json.loads(form)[0] == self._recipe.kind
        ]
        others.sort(key=lambda other: len(self._recipe_changes(other[1])))
        return others[:_NEAREST]

    def _recipe_changes(self, form: bytes) -> list[Difference]:
        """What differs between a stored recipe, in its canonical form, and ours."""
        return list(compare(json.loads(form)[1], json.loads(self._recipe.form)[1], "recipe"))


def _left(reasons: list[Why | None]) -> Numbers:
    """The numbers of rows whose reason is still to be found."""
    return np.flatnonzero([why is None for why in reasons])


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
