"""Planned entries: the rows of a plan as values that a person or an engine can use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from precook.plan.reasons import Why
from precook.plan.targets import Target
from precook.plan.wanted import NOBODY, KeyParts, read_parts
from precook.values import Digest, Key, Numbers

if TYPE_CHECKING:
    from precook.plan.plan import EncoderPlan

_CHUNK = 1000
"""Rows that are made into values at a time."""


@dataclass(frozen=True, slots=True)
class PlannedEntry:
    """One entry that an encoder shall have."""

    encoder: str
    key: Key
    input: Digest
    """The digest of the picture, mask or text that goes in."""
    sample: int | None
    """Its sample's number in the plan (the first, if several share it); None for the empty prompt."""
    concept: str | None
    path: str | None
    """The sample's picture."""
    target: Target | None
    """For pictures and masks: which resolution and variation."""
    line: int | None
    """For texts: which of the sample's captions."""
    parts: KeyParts
    """Everything the key is made of, beside the recipe."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A source or an entry that could not be made, and why; its sample is left out."""

    reason: str
    path: str | None = None
    """The file, relative to the concept's folder or as its table has it."""
    concept: str | None = None
    encoder: str | None = None
    """The encoder that failed; None for a source that cannot be used at all."""
    key: Key | None = None


class Entries(Sequence[PlannedEntry]):
    """Some of a plan's entries, made into values as they are asked for; `len` costs nothing."""

    def __init__(self, groups: Sequence[tuple[EncoderPlan, Numbers]]) -> None:
        self._groups = [(plan, rows) for plan, rows in groups if len(rows)]

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._groups)

    @overload
    def __getitem__(self, index: int) -> PlannedEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[PlannedEntry]: ...
    def __getitem__(self, index: int | slice) -> PlannedEntry | list[PlannedEntry]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index if index >= 0 else len(self) + index
        for plan, rows in self._groups:
            if 0 <= at < len(rows):
                return entry_of(plan, int(rows[at]))
            at -= len(rows)
        raise IndexError(index)

    def __iter__(self) -> Iterator[PlannedEntry]:
        for plan, rows in self._groups:
            for at in range(0, len(rows), _CHUNK):
                yield from entries_of(plan, rows[at : at + _CHUNK].tolist())

    def keys(self) -> list[Key]:
        """The keys alone."""
        return [Key(plan.wants.keys[row].tobytes()) for plan, rows in self._groups for row in rows.tolist()]

    def of(self, encoder: str) -> Entries:
        """Those of one encoder."""
        return Entries([(plan, rows) for plan, rows in self._groups if plan.wants.encoding.name == encoder])

    def reasons(self) -> list[Why]:
        """Why each is missing, in order."""
        return [why for plan, rows in self._groups for why in plan.reasons(rows)]


def entry_of(plan: EncoderPlan, row: int) -> PlannedEntry:
    """A row of an encoder's plan as a value."""
    return entries_of(plan, [row])[0]


def entries_of(plan: EncoderPlan, rows: Sequence[int]) -> list[PlannedEntry]:
    """Rows of an encoder's plan as values; what the entries of one sample share is looked up once."""
    wants = plan.wants
    text = wants.encoding.input == "text"
    homes: dict[int, tuple[int | None, str | None, str | None]] = {NOBODY: (None, None, None)}
    entries = []
    at = np.asarray(rows, np.int64)
    for row, number, part in zip(rows, wants.samples[at].tolist(), wants.parts[at].tolist(), strict=True):
        if number not in homes:
            home, place = plan.samples.home(number)
            homes[number] = (number, home.concept.name, home.full_path(place))
        sample, concept, path = homes[number]
        parts = read_parts(wants.rows[row])
        entries.append(
            PlannedEntry(
                encoder=wants.encoding.name,
                key=Key(wants.keys[row].tobytes()),
                input=Digest(parts.input),
                sample=sample,
                concept=concept,
                path=path,
                target=None if text else plan.targets[part],
                line=part if text else None,
                parts=parts,
            )
        )
    return entries


def rows_where(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Numbers:
    """The numbers of the rows where a condition holds."""
    return np.flatnonzero(mask).astype(np.int64)
