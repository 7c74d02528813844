"""Explain: for one sample, every entry it needs, whether it is there and, if not, what differs from what is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from precook.errors import DamagedEntryError, MissingEntryError, SourceError, printable
from precook.identity.versions import VersionChange, compare_versions, describe_changes
from precook.maintain.owners import find_samples
from precook.plan.dataset import PlannedDataset
from precook.plan.entries import PlannedEntry
from precook.plan.reasons import Why
from precook.plan.source_texts import SourceTexts
from precook.plan.trace import LEAST_DIGITS, as_digits, trace_samples
from precook.plan.wanted import TEXT
from precook.sources.captions import CaptionError
from precook.sources.samples import ConceptSamples
from precook.units import format_count
from precook.values import Key

_WIDTH = 60
_PLACE = re.compile(r"(?P<file>.+?)(?:, row (?P<row>[0-9]{1,18}))?(?:, passage (?P<passage>[0-9]{1,18}))?", re.DOTALL)
"""A text as messages name it: by its file, its row and its passage."""
_FEW_DIGITS = re.compile(r"[0-9a-fA-F]{1,3}")


@dataclass(frozen=True, slots=True)
class EntryState:
    """One entry of a sample."""

    encoder: str
    what: str
    """Which form of the sample: the target and variation, or the caption."""
    key: Key
    state: Literal["ready", "missing", "failed"]
    why: Why | None = None
    """For a missing one."""
    reason: str | None = None
    """For one that failed."""
    made: dict[str, str] = field(default_factory=dict)
    """For one that is ready: the versions that it was made with, as far as they were recorded."""
    changes: tuple[VersionChange, ...] = ()
    """What of them is another one today."""


@dataclass(frozen=True, slots=True)
class SampleState:
    """A sample and all its entries."""

    path: str
    concept: str
    sample: str
    """Its identity, as 64 digits."""
    image: str
    """The digest of its picture."""
    entries: tuple[EntryState, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What there is to say about a path."""

    path: str
    samples: tuple[SampleState, ...]
    problems: tuple[str, ...]
    """Why a file at this path is no sample."""
    not_loaded: dict[str, str] = field(default_factory=dict)
    """Encoders about which nothing can be said, because they are own classes that were not loaded."""
    advice: dict[str, str] = field(default_factory=dict)
    """What to do, by encoder, where entries were made with other versions than today's."""
    note: str = ""
    """What there is to say about an entry that was named and is not asked for."""

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in _lines(self))


def explain(plan: PlannedDataset, path: Path) -> Explanation:
    """Explain the samples that a file belongs to, as their picture or otherwise; `SourceError` where there is none.

    Where there is no such file, digits are those of an entry's key or of a sample.
    """
    wanted = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
    starts = zip(plan.samples.by_concept, plan.samples.starts.tolist(), strict=False)
    samples = [first + number for concept, first in starts for number in _samples_at(concept, wanted)]
    problems = _problems_at(plan, wanted)
    note = ""
    if not samples and not problems:
        _check_place(plan, path, wanted)
        digits = as_digits(path)
        if digits is None or os.path.lexists(wanted):
            raise _not_a_source(plan, path, wanted)
        traced = trace_samples(plan, digits)
        samples, note = list(traced.samples), traced.note
        if not samples:
            raise _not_traced(plan, path, digits)
    entries = _entry_states(plan, samples)
    changed = {entry.encoder for states in entries.values() for entry in states if entry.changes}
    return Explanation(
        path=str(path),
        samples=tuple(_sample_state(plan, sample, entries[sample]) for sample in samples),
        problems=problems,
        not_loaded=plan.not_loaded,
        advice={name: plan.encoders[name].wants.encoding.advice for name in plan.encoders if name in changed},
        note=note,
    )


def _samples_at(concept: ConceptSamples, wanted: str) -> Iterator[int]:
    """The samples of a concept that a path stands for."""
    for number in range(concept.count):
        if any(os.path.abspath(path) == wanted for path in concept.names(number)):  # noqa: PTH100
            yield number


def _problems_at(plan: PlannedDataset, wanted: str) -> tuple[str, ...]:
    """What is wrong with a file or, where it is a picture, with its caption or mask."""
    files = {wanted}
    for concept in plan.samples.by_concept:
        listing, rows = concept.listing, concept.files
        for number, row in enumerate(rows.pictures.tolist()):
            folder = os.path.join(listing.root, rows.path(number))  # noqa: PTH118
            frames = [row] if rows.frames is None else rows.frames[number].tolist()
            own = {os.path.abspath(path) for path in (folder, *map(listing.full_path, frames))}  # noqa: PTH100
            if wanted in own:
                beside = [int(column[number]) for column in (rows.captions, rows.masks, *rows.further.values())]
                files |= {os.path.abspath(folder)}  # noqa: PTH100
                files |= {os.path.abspath(listing.full_path(other)) for other in beside if other >= 0}  # noqa: PTH100
    problems = []
    for failure in plan.failed:
        for concept in plan.samples.by_concept:
            if failure.encoder is None and failure.path is not None and concept.concept.name == failure.concept:
                file = os.path.abspath(os.path.join(concept.listing.root, failure.path))  # noqa: PTH100, PTH118
                of_table = file.rpartition(", row ")[0] == wanted
                if file in files or of_table:
                    problems.append(failure.reason if file == wanted else f"{file}: {failure.reason}")
    return tuple(problems)


# Nothing to explain


def _check_place(plan: PlannedDataset, path: Path, wanted: str) -> None:
    """Refuse the row or the passage of a table or a text that does not have it."""
    named = _PLACE.fullmatch(wanted)
    if named is None or os.path.lexists(wanted):
        return
    for concept in plan.samples.by_concept:
        documents = concept.files.documents
        is_table = concept.concept.is_table and os.path.abspath(plan.base / concept.concept.path) == named["file"]  # noqa: PTH100
        if named["row"] and is_table and documents is None:
            raise SourceError(path, "a row of a table of pictures", hint="name the picture that stands in it")
        if named["row"] and is_table and documents is not None and int(named["row"]) not in documents.numbers:
            usable = f"{format_count(len(documents.numbers), 'row')} of {concept.concept.path} can be used"
            hint = "`precook plan` names those that cannot, with their reasons"
            raise SourceError(path, f"no such row: {usable}", hint=hint)
        text = wanted.rpartition(", passage ")[0]
        count = len(list(_samples_at(concept, text))) if named["passage"] else 0
        if count:
            whole = concept.concept.passages is None
            there = "it is not split" if whole else f"there are {count:,}"
            hint = "leave out the passage" if whole else f"they are counted from 1: name one up to {count:,}"
            raise SourceError(path, f"no such passage: {there}", hint=hint)


def _not_a_source(plan: PlannedDataset, path: Path, wanted: str) -> SourceError:
    """Why a path stands for nothing that is planned."""
    for concept in plan.settings.concepts:
        root = os.path.abspath(plan.base / concept.path)  # noqa: PTH100
        inside = wanted == root or wanted.startswith((f"{root}{os.sep}", f"{root}, row "))
        if inside and not concept.enabled:
            hint = "remove `enabled: false` from it to have it planned"
            return SourceError(
                path, f"it belongs to concept {printable(concept.name)}, which is not enabled", hint=hint
            )
    if not os.path.lexists(wanted):
        hint = "paths start at the current directory"
        few = f"; of a key or a sample, {LEAST_DIGITS} digits are needed" if _FEW_DIGITS.fullmatch(str(path)) else ""
        return SourceError(path, "no such file", hint=hint + few)
    hint = "name a picture, text, caption or mask of the concepts; hidden files and other endings do not count"
    return SourceError(path, f"no source of {plan.settings.dataset}", hint=hint)


def _not_traced(plan: PlannedDataset, path: Path, digits: str) -> SourceError:
    """What there is to say of digits that lead to no source: this is the last word, and nobody else knows more."""
    gone = "its sources were changed or removed; snapshots name files where the config says `keep: [paths]`"
    found = find_samples(plan.store, digits)
    if found:
        where = f"snapshot {found[0].snapshot} of {found[0].dataset}"
        return SourceError(path, f"a sample of {where}, and no source here makes it now", hint=gone)
    if plan.store.begins_with(digits, most=1):
        return SourceError(path, f"an entry that no source of {plan.settings.dataset} makes now", hint=gone)
    hint = "paths start at the current directory; `precook ls` lists the entries of the store"
    return SourceError(path, f"no file, and no entry or sample of {plan.settings.dataset} begins so", hint=hint)


# What there is


def _sample_state(plan: PlannedDataset, sample: int, entries: list[EntryState]) -> SampleState:
    concept, number = plan.samples.in_concept(sample)
    return SampleState(
        path=concept.full_path(number),
        concept=concept.concept.name,
        sample=plan.samples.id(sample).hex(),
        image=plan.samples.images[sample].tobytes().hex(),
        entries=tuple(entries),
    )


def _entry_states(plan: PlannedDataset, samples: list[int]) -> dict[int, list[EntryState]]:
    """The entries of each of some samples: of a whole table there are many, so all are looked up at once."""
    states: dict[int, list[EntryState]] = {sample: [] for sample in samples}
    texts = SourceTexts(plan.samples)
    for encoder in plan.encoders.values():
        wants = encoder.wants
        rows = np.flatnonzero(np.isin(wants.samples, samples))
        rows = rows[np.argsort(wants.samples[rows], kind="stable")]
        failures = {wants.keys[row].tobytes(): reason for row, reason in encoder.failures.items()}
        entries = dict(zip(rows.tolist(), encoder.entries(rows.tolist()), strict=True))
        missing = [
            row for row, entry in entries.items() if not encoder.ready_rows[row] and entry.key.bytes not in failures
        ]
        reasons = dict(zip(missing, encoder.finder.find(np.array(missing, np.int64)), strict=True))
        for row, entry in entries.items():
            sample = int(wants.samples[row])
            form = _describe_form(plan, sample, entry, texts)
            if encoder.ready_rows[row]:
                made = _made(plan, entry.key)
                changes = tuple(compare_versions(made, wants.encoding.versions))
                state = EntryState(entry.encoder, form, entry.key, "ready", made=made, changes=changes)
            elif row in reasons:
                state = EntryState(entry.encoder, form, entry.key, "missing", why=reasons[row])
            else:
                state = EntryState(entry.encoder, form, entry.key, "failed", reason=failures[entry.key.bytes])
            states[sample].append(state)
    return states


def _made(plan: PlannedDataset, key: Key) -> dict[str, str]:
    """The versions that an entry was made with."""
    try:
        return plan.store.locate(key).made
    except (MissingEntryError, DamagedEntryError):
        return {}  # gone since it was looked up; the next plan says so


def _describe_form(plan: PlannedDataset, sample: int, entry: PlannedEntry, texts: SourceTexts) -> str:
    """Which form of the sample an entry is made of: one of its captions, or a cut of its picture or mask."""
    if entry.target is None:
        return _describe_line(plan, sample, entry.line or 0, texts)
    form = _describe_cut(plan, sample, entry)
    if TEXT not in entry.parts:
        return form
    line = "the empty prompt" if entry.line is None else _describe_line(plan, sample, entry.line, texts)
    return f"{form}, {line}"


def _describe_line(plan: PlannedDataset, sample: int, line: int, texts: SourceTexts) -> str:
    try:
        text = texts.find(sample, line)
    except (OSError, CaptionError):
        text = None
    form = text if text is None or isinstance(text, str) else text.form
    shown = "" if form is None else f"{form if len(form) <= _WIDTH else form[: _WIDTH - 1] + '…'!r}"
    if not plan.samples.pictured[sample]:
        return f"text {shown}" if shown else "text"
    place = f"line {line + 1}"
    concept, _ = plan.samples.in_concept(sample)
    if concept.concept.tags is not None and concept.concept.tags.texts > 1:
        caption, variation = concept.place_of(line)
        place = f"caption {caption + 1}, variation {variation}"
    return f"{place}: {shown}" if shown else place


def _describe_cut(plan: PlannedDataset, sample: int, entry: PlannedEntry) -> str:
    assert entry.target is not None
    if entry.geometry is None:
        return "without its pictures"
    width, height = entry.geometry.target
    resolution = plan.targets.resolutions[entry.target.resolution]
    variations = plan.samples.in_concept(sample)[0].image.variations
    variation = f", variation {entry.target.variation}" if variations > 1 else ""
    frames = next((part.frames for part in entry.parts.values() if part.frames), None)
    taken = "" if frames is None else f", {format_count(frames.count, 'frame')} from {frames.start}"
    return f"{resolution} as {width}x{height}{taken}{variation}"


def _lines(explanation: Explanation) -> Iterator[str]:
    for problem in explanation.problems:
        yield f"{explanation.path}: left out: {problem}"
    if explanation.note:
        yield explanation.note
    for sample in explanation.samples:
        yield f"{sample.path}"
        yield f"  concept  {sample.concept}"
        yield f"  sample   {sample.sample}"
        yield f"  content  {sample.image}"
        for entry in sample.entries:
            yield ""
            yield from _entry_lines(entry)
        for name, advice in explanation.advice.items():
            yield ""
            yield f"  {name}: {advice}"
        for name, uses in explanation.not_loaded.items():
            yield ""
            yield f"  {name}: own class, not loaded: {uses}"


def _entry_lines(entry: EntryState) -> Iterator[str]:
    yield f"  {entry.encoder}, {entry.what}: {entry.state}"
    yield f"    key      {entry.key.hex}"
    if entry.changes:
        yield f"    note     {describe_changes(entry.changes)}"
    if entry.reason is not None:
        yield f"    failed   {entry.reason}"
    if entry.why is not None:
        yield f"    reason   {entry.why.reason.value}"
        if entry.why.nearest is not None:
            yield f"    nearest  {entry.why.nearest.hex()}"
        for difference in entry.why.differences:
            yield f"    differs  {difference}"
