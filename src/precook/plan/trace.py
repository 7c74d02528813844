"""Trace: from an entry or a sample back to the files that it was made of."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.config.concept import Concept
from precook.errors import PrecookError, SourceError, printable
from precook.fs.trust import FileSystem
from precook.identity.recipe import recipe_digest
from precook.memo.memo import Memory
from precook.plan.dataset import PlannedDataset
from precook.plan.wanted import NOBODY, remembered_inputs, rows_with
from precook.sources.embedded import ColumnFacts, TableFile, recall_embedded
from precook.sources.facts import PictureReader, remembered_files
from precook.sources.samples import list_files
from precook.store.keysets import rows_that_begin_with
from precook.store.store import Store
from precook.values import Key

LEAST_DIGITS = 4
"""Digits of a key or a sample that are enough to name it."""
_DIGITS = 64
_FEW = 5
_SHOWN_DIGITS = 16


@dataclass(frozen=True, slots=True)
class TracedSamples:
    """The samples of a plan that a key or a sample's own digits stand for."""

    samples: tuple[int, ...]
    note: str = ""
    """What there is to say about an entry that the config does not ask for."""


def as_digits(text: object) -> str | None:
    """The first digits of a key or of a sample, at least four; None where a text cannot be meant so."""
    digits = str(text).lower()
    return digits if re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},{_DIGITS}}}", digits) else None


def trace_samples(plan: PlannedDataset, digits: str) -> TracedSamples:
    """The samples of a plan whose identity begins with some digits, or that need the entry whose key does.

    An entry that was made of a sample once, and is not asked for now, is traced by what is remembered of it. Nothing is
    found where nobody has it; `PrecookError` where several things begin so, or where no file made the entry.
    """
    named = _samples_that_begin_with(plan, digits)
    wanted = {
        encoder.wants.keys[row].tobytes()
        for encoder in plan.encoders.values()
        for row in rows_that_begin_with(encoder.wants.keys, digits)
    }
    stored = {key.bytes for key in plan.store.begins_with(digits, most=_FEW) if key.bytes not in wanted}
    check_one([sample.hex() for sample in {plan.samples.id(row) for row in named}], wanted | stored, digits)
    if named:
        return TracedSamples(tuple(named))
    if wanted:
        owners = {
            int(owner)
            for encoder in plan.encoders.values()
            for owner in encoder.wants.samples[rows_with(encoder.wants.keys, wanted)].tolist()
        }
        if owners == {NOBODY}:
            raise PrecookError(f"{digits} is the empty prompt", hint="no file made it: name another entry, or a file")
        return TracedSamples(tuple(sorted(owners - {NOBODY})))
    for key in stored:
        inputs = key_inputs(plan.store, plan.memory, Key(key))
        owners = _samples_made_of(plan, inputs)
        if owners:
            note = f"entry {key.hex()} was made of this sample, and is not what the config asks for now"
            return TracedSamples(tuple(sorted(owners)), note)
    return TracedSamples(())


def key_inputs(store: Store, memory: Memory, key: Key) -> set[bytes]:
    """The digests of what a stored entry was made of, as far as that is remembered: of a file, or of a text."""
    return remembered_inputs(memory, recipe_digest(store.locate(key).recipe).bytes, key.bytes)


def trace_files(
    concepts: Sequence[Concept], base: Path, memory: Memory, digests: Collection[bytes], *, trust: bool
) -> list[str]:
    """The files of some concepts whose content has one of these digests, by their remembered stamps: none is read.

    A concept that cannot be listed has none.
    """

    def look(file: TableFile, column: str) -> ColumnFacts:
        file_system = FileSystem.of(file.path.parent, trust=trust)
        return recall_embedded(file, column, PictureReader(), memory, file_system=file_system)

    found: dict[str, None] = {}
    for concept in concepts:
        try:
            listed = list_files(concept, base, clips=True, look=look)
        except (SourceError, OSError):
            continue
        files, embedded = listed.files, listed.files.embedded
        found |= dict.fromkeys(remembered_files(files.listing, listed.root, memory, digests, trust=trust))
        if embedded is not None:
            cells = rows_with(embedded.facts.digests, set(digests))
            found |= dict.fromkeys(files.listing.full_path(embedded.first + cell) for cell in cells.tolist())
    return list(found)


def check_one(samples: Sequence[str], keys: Collection[bytes], digits: str) -> None:
    """Refuse digits that stand for several samples or entries."""
    names = [*(f"sample {sample[:_SHOWN_DIGITS]}…" for sample in samples[:_FEW])]
    names += [f"entry {key.hex()[:_SHOWN_DIGITS]}…" for key in sorted(keys)[: _FEW - len(names)]]
    if len(samples) + len(keys) > 1:
        raise PrecookError(
            f"more than one entry or sample begins with {printable(digits)}",
            hint=f"give more digits: {', '.join(names)}",
        )


def _samples_that_begin_with(plan: PlannedDataset, digits: str) -> list[int]:
    return [row for row in range(plan.samples.count) if plan.samples.id(row).hex().startswith(digits)]


def _samples_made_of(plan: PlannedDataset, inputs: set[bytes]) -> set[int]:
    """The samples whose picture, mask, further picture or one of whose captions has one of these digests."""
    samples = plan.samples
    columns = [samples.images, samples.masks, *(further.images for further in samples.further.values())]
    owners = {owner for column in columns for owner in rows_with(column, inputs).tolist()}
    lines = rows_with(samples.lines, inputs)
    ends = np.cumsum(samples.line_counts)
    return owners | set(np.searchsorted(ends, lines, side="right").tolist())
