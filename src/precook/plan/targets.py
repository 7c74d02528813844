"""Targets: the samples of all concepts, as columns, and how each picture is cut for each target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.config.further_pictures import OWN, VIDEO
from precook.config.sections import ImageSettings, Resolution, VideoSettings
from precook.identity.canonical import canonical
from precook.identity.digest import derived_digest
from precook.sources.draws import Purpose, draw
from precook.sources.frame_choice import EVERY, FrameTimes, capacity, choose_frames
from precook.sources.geometry import (
    COLUMNS,
    RESAMPLING,
    SCALED,
    SOURCE,
    TARGET,
    Cuts,
    GeometryRows,
    cut_rows,
    own_filters,
)
from precook.sources.samples import ConceptSamples, FurtherColumns, SourceProblem
from precook.units import format_count
from precook.values import Bytes, Flags, Numbers

_CONTEXT = "precook sample 1"
_ANY_SIZE = 1


@dataclass(frozen=True, slots=True)
class Target:
    """One form in which every sample is kept: a resolution, and which draw of crop and flip."""

    resolution: int
    """Its number among the resolutions of all concepts."""
    variation: int


class Samples:
    """All samples, in the order of the concepts; within one, duplicates told apart by the order of their paths."""

    def __init__(self, by_concept: Sequence[ConceptSamples]) -> None:
        self.by_concept = tuple(by_concept)
        counts = [concept.count for concept in by_concept]
        self.concepts: Numbers = np.repeat(np.arange(len(counts)), counts)
        self.starts = np.cumsum([0, *counts])
        self.pictured = np.repeat(np.array([concept.passages is None for concept in by_concept], bool), counts)
        """Which samples have a picture; the others are texts alone, whose digests stand in the place of pictures'."""
        self.images: Bytes = _joined([concept.images for concept in by_concept], 32)
        self.sizes: Numbers = _joined([concept.sizes for concept in by_concept], 2).astype(np.int64)
        self.alphas = np.concatenate([concept.alphas for concept in by_concept])
        self.masks: Bytes = _joined([concept.masks for concept in by_concept], 32)
        self.has_mask = np.concatenate([concept.has_mask for concept in by_concept])
        self.masked = np.repeat(np.array([concept.concept.masks is not None for concept in by_concept], bool), counts)
        self.line_counts: Numbers = np.concatenate([concept.line_counts for concept in by_concept])
        self.lines: Bytes = _joined([concept.lines for concept in by_concept], 32)
        clips = [concept.clips for concept in by_concept]
        self.clips = None if None in clips else [times for some in clips if some is not None for times in some]
        """When the frames of each sample are shown, where something wants clips."""
        names = dict.fromkeys(name for concept in by_concept for name in concept.further)
        self.further = {name: _joined_further(by_concept, name) for name in names}
        """Further pictures that something takes, by name."""
        backgrounds = np.array([concept.image.rgb for concept in by_concept], np.uint8)
        self.backgrounds: Bytes = np.repeat(backgrounds.reshape(-1, 3), counts, axis=0)
        """What shows through each picture that is transparent."""

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.concepts)

    @property
    def uncaptioned(self) -> int:
        """Samples that had no caption and get the empty prompt."""
        return sum(len(concept.uncaptioned) for concept in self.by_concept)

    def in_concept(self, sample: int) -> tuple[ConceptSamples, int]:
        """The samples of a sample's concept, and its number among them."""
        concept = int(self.concepts[sample])
        return self.by_concept[concept], sample - int(self.starts[concept])

    def cut_alike(self) -> Iterator[tuple[ImageSettings, int, int]]:
        """Consecutive samples that are cut by the same settings: those, the first sample, and the last one plus one."""
        start = 0
        for number, concept in enumerate(self.by_concept):
            if number + 1 == len(self.by_concept) or self.by_concept[number + 1].image != concept.image:
                stop = int(self.starts[number + 1])
                yield concept.image, start, stop
                start = stop

    @cached_property
    def repeats(self) -> Numbers:
        """How many samples of the same concept have the same picture and come before, by path; mostly 0."""
        repeats = np.zeros(self.count, np.int64)
        first = np.ascontiguousarray(self.images[:, :8]).view("<u8").ravel() ^ self.concepts.astype(np.uint64)
        order = np.argsort(first, kind="stable")
        twins = np.flatnonzero(first[order][1:] == first[order][:-1])
        groups: dict[tuple[int, bytes], list[int]] = {}
        for sample in sorted({int(order[row]) for twin in twins.tolist() for row in (twin, twin + 1)}):
            groups.setdefault((int(self.concepts[sample]), self.images[sample].tobytes()), []).append(sample)
        for group in groups.values():
            for number, sample in enumerate(sorted(group, key=self._order)):
                repeats[sample] = number
        return repeats

    def in_source_order(self) -> list[int]:
        """All samples as a person would list their sources: a table's row by row, a folder's by path."""
        order: list[int] = []
        for concept, start in zip(self.by_concept, self.starts.tolist(), strict=False):
            samples = range(start, start + concept.count)
            # A folder has its files in whatever order the disk gives them.
            order += samples if concept.concept.is_table else sorted(samples, key=self._order)
        return order

    def id(self, sample: int) -> bytes:
        """A sample's identity: its picture's content and its concept; further ones alike are numbered."""
        name = self.by_concept[int(self.concepts[sample])].concept.name
        form = canonical([name, self.images[sample].tobytes(), int(self.repeats[sample])])
        return derived_digest(_CONTEXT, form)

    def _order(self, sample: int) -> tuple[bytes, int, int]:
        concept, number = self.in_concept(sample)
        return concept.order(number)

    def times(self, sample: int) -> FrameTimes:
        """When the frames of a clip are shown."""
        assert self.clips is not None, "asked for where something wants clips"
        return self.clips[sample]

    def file_size(self, sample: int) -> int:
        """Bytes of the picture's file."""
        concept, number = self.in_concept(sample)
        return concept.file_size(number)

    def path(self, sample: int) -> str:
        """The picture's path."""
        concept, number = self.in_concept(sample)
        return concept.full_path(number)


@dataclass(frozen=True, slots=True)
class Targets:
    """Samples and how they are cut: a block of rows for each target, in the order of the targets."""

    resolutions: tuple[int | str, ...]
    """The resolutions of all concepts, as the config has them."""
    all: tuple[Target, ...]
    cuts: tuple[GeometryRows, ...]
    """For each target a row for each sample."""
    usable: tuple[Flags, ...]
    """For each target, which samples can be cut for it."""
    kept: Flags
    """Which samples can be cut for some target, or have no picture."""
    problems: tuple[SourceProblem, ...]
    """Samples that cannot be cut for any target."""
    partly: dict[str, int]
    """Samples left out at one resolution only, by resolution."""
    choices: tuple[Numbers, ...] = ()
    """Of clips, for each target a row for each sample, as `FrameChoice` has them: start, count and rate."""
    further: dict[str, tuple[GeometryRows, ...]] = field(default_factory=dict)
    """For each further picture, what `cuts` is for the samples' own."""

    def cuts_of(self, picture: str) -> tuple[GeometryRows, ...]:
        """How the samples' own pictures, or further ones, are cut: for each target a row for each sample."""
        return self.cuts if picture in (OWN, VIDEO) else self.further[picture]


def cut_samples(samples: Samples, image: ImageSettings) -> Targets:
    """Work out how every sample is cut for every target of its concept and, of clips, which frames are taken.

    `image` is what the file says for all concepts.
    """
    settings = [concept.image for concept in samples.by_concept]
    resolutions = _resolutions(image.resolutions, settings)
    variations = max(each.variations for each in settings)
    targets = [Target(number, variation) for number in range(len(resolutions)) for variation in range(variations)]
    cuts = [
        _cut(samples, samples.sizes, samples.pictured, resolutions[target.resolution], target.variation)
        for target in targets
    ]
    choices: list[Numbers] = []
    if samples.clips is not None:
        chosen = [_choices(samples, variation) for variation in range(variations)]
        choices = [chosen[target.variation] for target in targets]
        for sample in np.flatnonzero(chosen[0][:, 1] == 0).tolist():
            for cut in cuts:
                cut.refused[sample] = _why_short(samples.clips[sample], samples.in_concept(sample)[0].video)
    refused = [dict(cut.refused) for cut in cuts]
    further = {name: _cut_further(samples, name, targets, cuts, resolutions, refused) for name in samples.further}
    # What a concept does not want has no size.
    usable = [cut.rows[:, TARGET].all(axis=1) & samples.pictured for cut in cuts]
    reasons: dict[int, str] = {}
    lost: dict[str, set[int]] = {}
    for target, refusals, flags in zip(targets, refused, usable, strict=True):
        flags[list(refusals)] = False
        reasons = refusals | reasons
        lost.setdefault(str(resolutions[target.resolution]), set()).update(refusals)
    kept = np.any(usable, axis=0) | ~samples.pictured
    nowhere = np.flatnonzero(~kept).tolist()
    problems = []
    for sample in nowhere:
        concept, number = samples.in_concept(sample)
        problems.append(SourceProblem(concept.concept.name, concept.path(number), reasons[sample]))
    partly = {given: len(some.difference(nowhere)) for given, some in lost.items() if some.difference(nowhere)}
    return Targets(
        resolutions,
        tuple(targets),
        tuple(cut.rows for cut in cuts),
        tuple(usable),
        kept,
        tuple(problems),
        partly,
        tuple(choices),
        further,
    )


def _cut(samples: Samples, sizes: Numbers, there: Flags, resolution: int | str, variation: int) -> Cuts:
    """How a picture of each sample that has it is cut for one target; of a concept without that target, all is zero.

    Drawn by the sample's own picture: all its pictures are mirrored, or none.
    """
    # What has no picture is never cut; it has a row all the same.
    sizes = sizes if there.all() else np.where(there[:, None], sizes, _ANY_SIZE)
    whole = Cuts(np.zeros((samples.count, COLUMNS), np.int32), {})
    for image, start, stop in samples.cut_alike():
        if resolution in image.resolutions and variation < image.variations:
            part, size = slice(start, stop), Resolution.of(resolution)
            cut = cut_rows(sizes[part], samples.images[part], image, resolution=size, variation=variation)
            whole.rows[part] = cut.rows
            whole.refused.update(
                {start + sample: reason for sample, reason in cut.refused.items() if there[start + sample]}
            )
    return whole


def _resolutions(first: Sequence[int | str], settings: Sequence[ImageSettings]) -> tuple[int | str, ...]:
    """The resolutions that concepts have, each once.

    Those of the file come first, in its order, and then all others by size: so what one concept has never turns around
    two of another, by whose order an epoch draws one.
    """
    used = {resolution for image in settings for resolution in image.resolutions}
    others = [(size.width * size.height, str(value), value) for value in used for size in (Resolution.of(value),)]
    return (
        *(value for value in first if value in used),
        *(value for *_, value in sorted(others, key=lambda other: other[:2]) if value not in first),
    )


def _cut_further(
    samples: Samples,
    name: str,
    targets: Sequence[Target],
    cuts: Sequence[Cuts],
    resolutions: Sequence[int | str],
    refused: Sequence[dict[int, str]],
) -> tuple[GeometryRows, ...]:
    """How one further picture of each sample is cut for every target; why some cannot be is added to `refused`."""
    columns = samples.further[name]
    own = [name in one.further and one.concept.further[name].fit == "own" for one in samples.by_concept]
    chosen = columns.present & np.array(own)[samples.concepts]
    blocks = []
    for target, main, reasons in zip(targets, cuts, refused, strict=True):
        # What lies over the sample's own picture: the same scaled size, whatever its own was.
        rows = main.rows.copy()
        rows[:, SOURCE] = columns.sizes
        if Resolution.of(resolutions[target.resolution]).native:
            # The sample's own picture need not be scaled there, and this one may.
            for image, start, stop in samples.cut_alike():
                part = slice(start, stop)
                rows[part, RESAMPLING] = own_filters(columns.sizes[part], rows[part, SCALED], image)
        rows[~columns.present] = 0
        if chosen.any():
            cut = _cut(samples, columns.sizes, chosen, resolutions[target.resolution], target.variation)
            rows[chosen] = cut.rows[chosen]
            for sample, reason in cut.refused.items():
                reasons.setdefault(sample, f"{name}: {reason}")
        blocks.append(rows)
    return tuple(blocks)


def _joined_further(by_concept: Sequence[ConceptSamples], name: str) -> FurtherColumns:
    """One further picture of the samples of all concepts."""
    columns = [concept.further.get(name) or FurtherColumns.absent(concept.count) for concept in by_concept]
    return FurtherColumns(
        _joined([one.images for one in columns], 32),
        _joined([one.sizes for one in columns], 2),
        np.concatenate([one.alphas for one in columns]),
        np.concatenate([one.present for one in columns]),
    )


def _choices(samples: Samples, variation: int) -> Numbers:
    """Which frames are taken of each clip; zeros where it has too few."""
    assert samples.clips is not None, "asked for where there are clips"
    rows = np.zeros((samples.count, 3), np.int64)
    bits: list[int] = []
    for image, start, stop in samples.cut_alike():
        bits += draw(samples.images[start:stop], Purpose.START, number=variation, seed=image.seed).tolist()
    videos = [concept.video for concept in samples.by_concept]
    for row, (times, one) in enumerate(zip(samples.clips, bits, strict=True)):
        video = videos[int(samples.concepts[row])]
        choice = choose_frames(times, video.frames, video.rate, video.start, one)
        if choice is not None:
            rows[row] = choice.start, choice.count, choice.rate
    return rows


def _why_short(times: FrameTimes, video: VideoSettings) -> str:
    at = "" if video.rate == EVERY else f" at {video.fps} per second"
    there = format_count(capacity(times, video.rate), "frame")
    return f"too short: {there}{at}, and video.frames asks for {min(video.frames)}"


def _joined(columns: list[npt.NDArray[Any]], width: int) -> npt.NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate([np.zeros((0, width), columns[0].dtype), *columns])
