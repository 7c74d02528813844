"""Samples: the training examples of all concepts, as columns, and how each picture is cut for each target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.config.schema import ImageSettings, TextSettings
from precook.identity.canonical import canonical
from precook.identity.digest import derived_digest
from precook.sources.draws import Purpose, draw
from precook.sources.geometry import Cuts, GeometryRows, cut_rows
from precook.sources.samples import ConceptSamples, SourceProblem
from precook.values import Bytes, Numbers

_CONTEXT = "precook sample 1"


@dataclass(frozen=True, slots=True)
class Target:
    """One form in which every sample is kept: a resolution, and which draw of crop and flip."""

    resolution: int
    """Its number in the config."""
    variation: int


class Samples:
    """All samples, in the order of the concepts; within one, duplicates told apart by the order of their paths."""

    def __init__(self, gathered: Sequence[ConceptSamples]) -> None:
        self.gathered = tuple(gathered)
        counts = [concept.count for concept in gathered]
        self.concepts: Numbers = np.repeat(np.arange(len(counts)), counts)
        self.starts = np.cumsum([0, *counts])
        self.images: Bytes = _joined([concept.images for concept in gathered], 32)
        self.sizes: Numbers = _joined([concept.sizes for concept in gathered], 2).astype(np.int64)
        self.alphas = np.concatenate([concept.alphas for concept in gathered])
        self.masks: Bytes = _joined([concept.masks for concept in gathered], 32)
        self.has_mask = np.concatenate([concept.has_mask for concept in gathered])
        self.masked = np.repeat(np.array([concept.concept.masks is not None for concept in gathered], bool), counts)
        self.line_counts: Numbers = np.concatenate([concept.line_counts for concept in gathered])
        self.lines: Bytes = _joined([concept.lines for concept in gathered], 32)

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.concepts)

    @property
    def uncaptioned(self) -> int:
        """Samples that had no caption and get the empty prompt."""
        return sum(len(concept.uncaptioned) for concept in self.gathered)

    def home(self, sample: int) -> tuple[ConceptSamples, int]:
        """The concept a sample belongs to, and its number there."""
        concept = int(self.concepts[sample])
        return self.gathered[concept], sample - int(self.starts[concept])

    @cached_property
    def repeats(self) -> Numbers:
        """How many samples of the same concept have the same picture and come before, by path; mostly 0."""
        repeats = np.zeros(self.count, np.int64)
        first = np.ascontiguousarray(self.images[:, :8]).view("<u8").ravel() ^ self.concepts.astype(np.uint64)
        order = np.argsort(first, kind="stable")
        twins = np.flatnonzero(first[order][1:] == first[order][:-1])
        groups: dict[tuple[int, bytes], list[int]] = {}
        for sample in sorted({int(order[at]) for twin in twins.tolist() for at in (twin, twin + 1)}):
            groups.setdefault((int(self.concepts[sample]), self.images[sample].tobytes()), []).append(sample)
        for group in groups.values():
            for number, sample in enumerate(sorted(group, key=self._path_order)):
                repeats[sample] = number
        return repeats

    def _path_order(self, sample: int) -> bytes:
        home, number = self.home(sample)
        return home.path(number).encode("utf-8", "surrogateescape")

    def id(self, sample: int) -> bytes:
        """A sample's identity: its picture's content and its concept; further ones alike are numbered."""
        home, _ = self.home(sample)
        form = canonical([home.concept.name, self.images[sample].tobytes(), int(self.repeats[sample])])
        return derived_digest(_CONTEXT, form)

    def path(self, sample: int) -> str:
        """The picture's path."""
        home, number = self.home(sample)
        return home.full_path(number)


@dataclass(frozen=True, slots=True)
class Targets:
    """Samples and how they are cut: a block of rows for each target, in the order of the targets."""

    targets: tuple[Target, ...]
    cuts: tuple[GeometryRows, ...]
    """For each target a row for each sample."""
    usable: tuple[npt.NDArray[np.bool_], ...]
    """For each target, which samples can be cut for it."""
    problems: tuple[SourceProblem, ...]
    """Samples that cannot be cut for any target."""
    partly: dict[str, int]
    """Samples left out at one resolution only, by resolution."""


def frame(samples: Samples, settings: ImageSettings) -> Targets:
    """Work out how every sample is cut for every target."""
    targets, cuts = [], []
    for number, resolution in enumerate(settings.sizes):
        for variation in range(settings.variations):
            targets.append(Target(number, variation))
            cuts.append(cut_rows(samples.sizes, samples.images, settings, resolution=resolution, variation=variation))
    usable = [_usable(cut, samples.count) for cut in cuts]
    nowhere = np.flatnonzero(~np.any(usable, axis=0)) if samples.count else np.zeros(0, np.int64)
    problems = []
    for sample in nowhere.tolist():
        home, number = samples.home(sample)
        problems.append(SourceProblem(home.concept.name, home.path(number), cuts[0].refused[sample]))
    partly = {}
    for number, name in enumerate(settings.resolutions):
        at = number * settings.variations
        lost = len(cuts[at].refused) - len(nowhere)
        if lost:
            partly[str(name)] = lost
    return Targets(tuple(targets), tuple(cut.rows for cut in cuts), tuple(usable), tuple(problems), partly)


def kept_lines(samples: Samples, settings: TextSettings) -> npt.NDArray[np.bool_]:
    """Which of the samples' captions are kept: all, or so many of each, chosen by their text and never by position."""
    if settings.variations == "all":
        return np.ones(len(samples.lines), bool)
    owners = np.repeat(np.arange(samples.count), samples.line_counts)
    bits = draw(samples.lines, Purpose.LINES, number=0, seed=0)
    order = np.lexsort((bits, owners))
    starts = np.cumsum(samples.line_counts) - samples.line_counts
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - starts[owners[order]]
    return ranks < settings.variations


def _usable(cut: Cuts, count: int) -> npt.NDArray[np.bool_]:
    usable = np.ones(count, bool)
    usable[list(cut.refused)] = False
    return usable


def _joined(columns: list[npt.NDArray[Any]], width: int) -> npt.NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate([np.zeros((0, width), columns[0].dtype), *columns])
