"""Planned entries: the rows of a plan as values that a person or an engine can use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from precook.plan.keys import Parts, read_parts
from precook.plan.reasons import Why
from precook.plan.samples import Target
from precook.plan.wants import NOBODY
from precook.sources.pairing import Numbers
from precook.values import Digest, Key

if TYPE_CHECKING:
    from precook.plan.plan import EncoderPlan


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
    parts: Parts
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
            for row in rows.tolist():
                yield entry_of(plan, row)

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
    wants = plan.wants
    sample: int | None = int(wants.samples[row])
    concept = path = None
    if sample == NOBODY:
        sample = None
    else:
        home, number = plan.samples.home(int(wants.samples[row]))
        concept, path = home.concept.name, home.full_path(number)
    part = int(wants.parts[row])
    text = wants.encoding.input == "text"
    parts = read_parts(wants.rows[row])
    return PlannedEntry(
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


def rows_where(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Numbers:
    """The numbers of the rows where a condition holds."""
    return np.flatnonzero(mask).astype(np.int64)
