"""Explain: for one sample, every entry it needs, whether it is there and, if not, what differs from what is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from precook.errors import SourceError, printable
from precook.plan.entries import entry_of
from precook.plan.reasons import Why
from precook.sources.captions import CaptionError
from precook.values import Key

if TYPE_CHECKING:
    from precook.plan.plan import EncoderPlan, Plan

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

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in _lines(self))


def explain(plan: Plan, path: Path) -> Explanation:
    """Explain the samples that a picture, caption or mask belongs to; `SourceError` where there is none."""
    wanted = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
    samples = tuple(_sample_state(plan, sample) for sample in _samples_at(plan, wanted))
    files = _files_of(plan, wanted)
    problems = tuple(
        failure.reason if place == wanted else f"{place}: {failure.reason}"
        for failure in plan.failed
        if failure.encoder is None and failure.path is not None
        for place in _places(plan, failure.concept, failure.path)
        if place in files
    )
    if not samples and not problems:
        hint = "name a picture, caption or mask of the concepts; hidden files and other endings do not count"
        raise SourceError(path, f"no source of {plan.settings.dataset}", hint=hint)
    return Explanation(str(path), samples, problems)


def _places(plan: Plan, concept: str | None, path: str) -> Iterator[str]:
    for gathered in plan.samples.gathered:
        if gathered.concept.name == concept:
            yield os.path.abspath(os.path.join(gathered.listing.root, path))  # noqa: PTH100, PTH118


def _files_of(plan: Plan, wanted: str) -> set[str]:
    """A file and, where it is a picture, its caption and mask: whatever keeps it from being a sample."""
    files = {wanted}
    for gathered in plan.samples.gathered:
        found, listing = gathered.files, gathered.listing
        for number, row in enumerate(found.pictures.tolist()):
            if os.path.abspath(listing.full_path(row)) == wanted:  # noqa: PTH100
                beside = (int(found.captions[number]), int(found.masks[number]))
                files |= {os.path.abspath(listing.full_path(one)) for one in beside if one >= 0}  # noqa: PTH100
    return files


def _samples_at(plan: Plan, wanted: str) -> Iterator[int]:
    first = 0
    for gathered in plan.samples.gathered:
        for number in range(gathered.count):
            paths = (gathered.full_path(number), gathered.caption_path(number), gathered.mask_path(number))
            if any(path is not None and os.path.abspath(path) == wanted for path in paths):  # noqa: PTH100
                yield first + number
        first += gathered.count


def _sample_state(plan: Plan, sample: int) -> SampleState:
    home, number = plan.samples.home(sample)
    return SampleState(
        path=home.full_path(number),
        concept=home.concept.name,
        sample=plan.samples.id(sample).hex(),
        image=plan.samples.images[sample].tobytes().hex(),
        entries=tuple(state for one in plan.encoders.values() for state in _entries(plan, one, sample)),
    )


def _entries(plan: Plan, encoder: EncoderPlan, sample: int) -> Iterator[EntryState]:
    wants = encoder.wants
    failures = {wants.keys[row].tobytes(): reason for row, reason in encoder.failures.items()}
    for row in np.flatnonzero(wants.samples == sample).tolist():
        entry = entry_of(encoder, row)
        what = _what(plan, entry.line, row, encoder, sample)
        if encoder.ready_rows[row]:
            yield EntryState(entry.encoder, what, entry.key, "ready")
        elif entry.key.bytes in failures:
            yield EntryState(entry.encoder, what, entry.key, "failed", reason=failures[entry.key.bytes])
        else:
            (why,) = encoder.reasons(np.array([row], np.int64))
            yield EntryState(entry.encoder, what, entry.key, "missing", why=why)


def _what(plan: Plan, line: int | None, row: int, encoder: EncoderPlan, sample: int) -> str:
    if line is not None:
        home, number = plan.samples.home(sample)
        try:
            texts = home.texts(number)
        except (OSError, CaptionError):
            return f"line {line + 1}"
        text = texts[line] if line < len(texts) else ""
        return f"line {line + 1}: {text if len(text) <= _WIDTH else text[: _WIDTH - 1] + '…'!r}"
    target = encoder.targets[int(encoder.wants.parts[row])]
    entry = entry_of(encoder, row)
    assert entry.parts.geometry is not None
    width, height = entry.parts.geometry.target
    resolution = plan.settings.image.resolutions[target.resolution]
    variation = f", variation {target.variation}" if plan.settings.image.variations > 1 else ""
    return f"{resolution} as {width}x{height}{variation}"


def _lines(explanation: Explanation) -> Iterator[str]:
    for problem in explanation.problems:
        yield f"{explanation.path}: left out: {problem}"
    for sample in explanation.samples:
        yield f"{sample.path}"
        yield f"  concept  {sample.concept}"
        yield f"  sample   {sample.sample}"
        yield f"  content  {sample.image}"
        for entry in sample.entries:
            yield ""
            yield f"  {entry.encoder}, {entry.what}: {entry.state}"
            yield f"    key      {entry.key.hex}"
            if entry.reason is not None:
                yield f"    failed   {entry.reason}"
            if entry.why is not None:
                yield f"    reason   {entry.why.reason.value}"
                if entry.why.nearest is not None:
                    yield f"    nearest  {entry.why.nearest.hex()}"
                for difference in entry.why.differences:
                    yield f"    differs  {difference}"
