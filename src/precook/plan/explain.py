"""Explain: for one sample, every entry it needs, whether it is there and, if not, what differs from what is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from precook.errors import DamagedEntryError, MissingEntryError, SourceError, printable
from precook.identity.versions import VersionChange, compare_versions, describe_changes
from precook.plan.dataset import PlannedDataset
from precook.plan.entries import EncoderPlan, PlannedEntry
from precook.plan.reasons import Why
from precook.plan.source_texts import SourceTexts
from precook.plan.targets import Samples
from precook.plan.trace import as_digits, trace_samples
from precook.plan.wanted import TEXT
from precook.sources.captions import CaptionError
from precook.units import format_count
from precook.values import Key

_WIDTH = 60


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
    texts = SourceTexts(plan.samples)
    samples = tuple(_sample_state(plan, sample, texts) for sample in _samples_at(plan.samples, wanted))
    problems = _problems_at(plan, wanted)
    note = ""
    if not samples and not problems and (digits := as_digits(path)) and not os.path.lexists(wanted):
        traced = trace_samples(plan, digits)
        samples, note = tuple(_sample_state(plan, sample, texts) for sample in traced.samples), traced.note
        if not samples:
            hint = "`precook show` finds what snapshots name; paths start at the current directory"
            raise SourceError(path, f"no file, and no entry or sample of {plan.settings.dataset} begins so", hint=hint)
    if not samples and not problems:
        hint = "name a picture, text, caption or mask of the concepts; hidden files and other endings do not count"
        raise SourceError(path, f"no source of {plan.settings.dataset}", hint=hint)
    changed = {entry.encoder for sample in samples for entry in sample.entries if entry.changes}
    advice = {name: plan.encoders[name].wants.encoding.advice for name in plan.encoders if name in changed}
    return Explanation(str(path), samples, problems, plan.not_loaded, advice, note)


def _samples_at(samples: Samples, wanted: str) -> Iterator[int]:
    first = 0
    for concept in samples.by_concept:
        for number in range(concept.count):
            paths = {concept.full_path(number), concept.file_path(number)}
            others = [concept.caption_path(number), concept.mask_path(number)]
            others += [concept.further_path(number, name) for name in concept.further]
            paths |= {path for path in others if path is not None}
            if any(os.path.abspath(path) == wanted for path in paths):  # noqa: PTH100
                yield first + number
        first += concept.count


def _problems_at(plan: PlannedDataset, wanted: str) -> tuple[str, ...]:
    """What is wrong with a file or, where it is a picture, with its caption or mask."""
    files = {wanted}
    for concept in plan.samples.by_concept:
        listing = concept.listing
        for number, row in enumerate(concept.files.pictures.tolist()):
            if os.path.abspath(listing.full_path(row)) == wanted:  # noqa: PTH100
                rows = [concept.files.captions, concept.files.masks, *concept.files.further.values()]
                beside = [int(column[number]) for column in rows]
                files |= {os.path.abspath(listing.full_path(other)) for other in beside if other >= 0}  # noqa: PTH100
    problems = []
    for failure in plan.failed:
        for concept in plan.samples.by_concept:
            if failure.encoder is None and failure.path is not None and concept.concept.name == failure.concept:
                file = os.path.abspath(os.path.join(concept.listing.root, failure.path))  # noqa: PTH100, PTH118
                of_table = concept.files.documents is not None and file.rpartition(", row ")[0] == wanted
                if file in files or of_table:
                    problems.append(failure.reason if file == wanted else f"{file}: {failure.reason}")
    return tuple(problems)


def _sample_state(plan: PlannedDataset, sample: int, texts: SourceTexts) -> SampleState:
    concept, number = plan.samples.in_concept(sample)
    return SampleState(
        path=concept.full_path(number),
        concept=concept.concept.name,
        sample=plan.samples.id(sample).hex(),
        image=plan.samples.images[sample].tobytes().hex(),
        entries=tuple(
            state for encoder in plan.encoders.values() for state in _entry_states(plan, encoder, sample, texts)
        ),
    )


def _entry_states(plan: PlannedDataset, encoder: EncoderPlan, sample: int, texts: SourceTexts) -> Iterator[EntryState]:
    wants = encoder.wants
    failures = {wants.keys[row].tobytes(): reason for row, reason in encoder.failures.items()}
    for row in np.flatnonzero(wants.samples == sample).tolist():
        entry = encoder.entry(row)
        form = _describe_form(plan, sample, entry, texts)
        if encoder.ready_rows[row]:
            made = _made(plan, entry.key)
            changes = tuple(compare_versions(made, wants.encoding.versions))
            yield EntryState(entry.encoder, form, entry.key, "ready", made=made, changes=changes)
        elif entry.key.bytes in failures:
            yield EntryState(entry.encoder, form, entry.key, "failed", reason=failures[entry.key.bytes])
        else:
            (why,) = encoder.finder.find(np.array([row], np.int64))
            yield EntryState(entry.encoder, form, entry.key, "missing", why=why)


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
    return f"line {line + 1}: {shown}" if shown else f"line {line + 1}"


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
