"""Planned entries: what one encoder needs and has, and its rows as values that a person or a build can use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from precook.plan.reasons import ReasonFinder, Why
from precook.plan.targets import Samples, Target
from precook.plan.wanted import NOBODY, NOTHING, KeyParts, WantedEntries, read_inputs, rows_with
from precook.sources.geometry import Geometry
from precook.values import Digest, Flags, Key, Numbers

_CHUNK = 1000
"""Rows that are made into values at a time."""


@dataclass(frozen=True, slots=True)
class PlannedEntry:
    """One entry that an encoder shall have."""

    encoder: str
    key: Key
    sample: int | None
    """Its sample's number in the plan (the first, if several share it); None for the empty prompt."""
    concept: str | None
    path: str | None
    """The sample's picture."""
    target: Target | None
    """For pictures and masks: which resolution and variation."""
    line: int | None
    """For texts: which of the sample's captions; None for the empty prompt beside a picture."""
    parts: Mapping[str, KeyParts]
    """Everything the key is made of, beside the recipe: each of the encoder's inputs."""
    caption: int | None = None
    """For texts: which caption the line is, or is a variation of; None for the empty prompt beside a picture."""

    @property
    def first(self) -> KeyParts:
        """Its first input, which for most encoders is the only one."""
        return next(iter(self.parts.values()))

    @property
    def input(self) -> Digest:
        """The digest of the picture, mask or text that goes in: of the first, where there are several."""
        return Digest(self.first.input)

    @property
    def geometry(self) -> Geometry | None:
        """How the picture or mask is cut; of several, the first."""
        return next((part.geometry for part in self.parts.values() if part.geometry and not part.absent), None)


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


@dataclass(frozen=True)
class EncoderPlan:
    """What one encoder needs, and what of it is there."""

    wants: WantedEntries
    ready_rows: Flags
    """Which rows have their entry."""
    failures: dict[int, str]
    """Rows that failed before, and why."""
    samples: Samples
    targets: tuple[Target, ...]
    finder: ReasonFinder

    @cached_property
    def ready(self) -> Numbers:
        """Rows of entries that are there, each entry once."""
        return np.flatnonzero(self.wants.first & self.ready_rows)

    @cached_property
    def missing(self) -> Numbers:
        """Rows of entries that are to be made, each entry once."""
        wanted = self.wants.first & ~self.ready_rows
        wanted[list(self.failures)] = False
        return np.flatnonzero(wanted)

    @cached_property
    def failed_rows(self) -> Flags:
        """Which rows have no entry because it failed before, also where several rows share it."""
        failed = np.zeros_like(self.ready_rows)
        failed[rows_with(self.wants.keys, {self.wants.keys[row].tobytes() for row in self.failures})] = True
        return failed

    @cached_property
    def why(self) -> list[Why]:
        """Why each missing entry is missing, in order."""
        return self.finder.find(self.missing)

    def entries(self, rows: Sequence[int]) -> list[PlannedEntry]:
        """Some rows as values; what the entries of one sample share is looked up once."""
        wants, inputs = self.wants, self.wants.encoding.inputs
        owners: dict[int, tuple[int | None, str | None, str | None]] = {NOBODY: (None, None, None)}
        entries = []
        chosen = np.asarray(rows, np.int64)
        columns = (column[chosen].tolist() for column in (wants.samples, wants.targets, wants.lines))
        for row, owner, target, line in zip(rows, *columns, strict=True):
            if owner not in owners:
                concept_samples, number = self.samples.in_concept(owner)
                owners[owner] = (owner, concept_samples.concept.name, concept_samples.full_path(number))
            sample, concept, path = owners[owner]
            entries.append(
                PlannedEntry(
                    encoder=wants.encoding.name,
                    key=Key(wants.keys[row].tobytes()),
                    sample=sample,
                    concept=concept,
                    path=path,
                    target=None if target == NOTHING else self.targets[target],
                    line=None if line == NOTHING else line,
                    parts=dict(zip(inputs, read_inputs(wants.rows[row], inputs), strict=True)),
                    caption=None if line == NOTHING else self._caption(owner, line),
                )
            )
        return entries

    def _caption(self, sample: int, line: int) -> int:
        return line if sample == NOBODY else self.samples.in_concept(sample)[0].place_of(line)[0]

    def entry(self, row: int) -> PlannedEntry:
        """One row as a value."""
        return self.entries([row])[0]


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
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index if index >= 0 else len(self) + index
        for plan, rows in self._groups:
            if 0 <= number < len(rows):
                return plan.entry(int(rows[number]))
            number -= len(rows)
        raise IndexError(index)

    def __iter__(self) -> Iterator[PlannedEntry]:
        for plan, rows in self._groups:
            for begin in range(0, len(rows), _CHUNK):
                yield from plan.entries(rows[begin : begin + _CHUNK].tolist())

    def keys(self) -> list[Key]:
        """The keys alone."""
        return [Key(plan.wants.keys[row].tobytes()) for plan, rows in self._groups for row in rows.tolist()]

    def of(self, encoder: str) -> Entries:
        """Those of one encoder."""
        return Entries([(plan, rows) for plan, rows in self._groups if plan.wants.encoding.name == encoder])

    def reasons(self) -> list[Why]:
        """Why each is missing, in order."""
        return [why for plan, rows in self._groups for why in plan.finder.find(rows)]
