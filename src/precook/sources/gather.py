"""Gathering: a concept's samples as columns, from its files or its table, with everything that keys are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.config.models import Column, Concept, FileName, FixedText, ImageSettings, Sidecar
from precook.identity.digests import digest
from precook.report import Reporter
from precook.sources.captions import CaptionError, from_file_name, read_lines
from precook.sources.filesystems import clock, trusted
from precook.sources.learn import Ground, Learnt, learn
from precook.sources.lessons import CaptionLesson, PictureLesson, picture_alphas, picture_sizes
from precook.sources.memory import Memory
from precook.sources.pairing import Numbers, Pairs, pair_folder, pair_table
from precook.sources.pictures import Facts, RefusedError, check_pixels
from precook.sources.reading import read_source
from precook.sources.segments import Bytes
from precook.sources.tables import read_table
from precook.sources.walk import Listing

EMPTY = digest("").bytes
"""The digest of the empty prompt."""
_SKEW = 0.01
"""So much a mask's aspect ratio may differ from its picture's."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A source that cannot be used; its sample is left out."""

    concept: str
    path: str
    """Relative to the concept's folder, or as its table has it."""
    reason: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """The samples of one concept, a row each."""

    concept: Concept
    pairs: Pairs
    rows: Numbers
    """Rows of `pairs` that are samples."""
    images: Bytes
    """Digests of the pictures."""
    sizes: Numbers
    """Width and height after orientation."""
    alphas: npt.NDArray[np.bool_]
    line_counts: Numbers
    """Captions of each sample; the empty prompt counts as one."""
    lines: Bytes
    """Digests of all captions, sample after sample."""
    uncaptioned: Numbers
    """Samples that have only the empty prompt because there was no caption."""
    masks: Bytes
    has_mask: npt.NDArray[np.bool_]
    problems: tuple[Problem, ...]

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.rows)

    def path(self, sample: int) -> str:
        """The picture's path relative to the concept's folder, or as its table has it."""
        return self.listing.path(int(self.pairs.pictures[self.rows[sample]]))

    def full_path(self, sample: int) -> str:
        """The picture's path."""
        return self.listing.full_path(int(self.pairs.pictures[self.rows[sample]]))

    def mask_path(self, sample: int) -> str | None:
        """The mask's path, where there is one."""
        row = int(self.pairs.masks[self.rows[sample]])
        return self.listing.full_path(row) if row >= 0 else None

    def caption_path(self, sample: int) -> str | None:
        """The caption file's path, where there is one."""
        row = int(self.pairs.captions[self.rows[sample]])
        return self.listing.full_path(row) if row >= 0 else None

    def texts(self, sample: int) -> list[str]:
        """The captions themselves, read now: whoever uses one compares its digest."""
        found = _texts(self.concept, self.pairs, int(self.rows[sample]))
        if found is not None:
            return found or [""]
        path = self.caption_path(sample)
        return (read_lines(read_source(path), self.concept.caption_encoding) if path else []) or [""]

    @property
    def listing(self) -> Listing:
        """The files."""
        return self.pairs.listing


def gather(
    concept: Concept,
    base: Path,
    settings: ImageSettings,
    memory: Memory,
    *,
    trust: bool,
    with_masks: bool,
    save: Callable[[], None],
    report: Reporter,
) -> Gathered:
    """Find a concept's samples and learn what there is to know about their files.

    `trust` believes stamps on every file system; masks are looked at only where something wants them.
    """
    root = base / concept.path
    problems: list[Problem] = []
    if concept.is_table:
        pairs = _table_pairs(concept, root, problems)
        root = root.parent
    else:
        pairs = pair_folder(concept, root)
        problems += [Problem(concept.name, path, reason) for path, reason in pairs.listing.problems]
    # Where stamps are judged, each device is judged by itself: a link may lead to a network drive.
    ground = Ground(clock(root), trust or trusted(root), device=None if trust else root.stat().st_dev)

    listing = pairs.listing
    good = listing.regular()[pairs.pictures]
    for at in np.flatnonzero(~good).tolist():
        row = int(pairs.pictures[at])
        problems.append(Problem(concept.name, listing.path(row), listing.problem(row)))

    def study(rows: Numbers, lesson: PictureLesson | CaptionLesson) -> Learnt:
        return learn(
            listing.stamps[rows],
            lambda at: listing.full_path(int(rows[at])),
            lesson,
            memory,
            ground=ground,
            save=save,
            report=report,
        )

    def drop(at: int, row: int, reason: str) -> None:
        good[at] = False
        problems.append(Problem(concept.name, listing.path(row), reason))

    chosen = np.flatnonzero(good)
    pictures = study(pairs.pictures[chosen], PictureLesson())
    sizes, alphas = picture_sizes(pictures.facts), picture_alphas(pictures.facts)
    for at, reason in _unusable(pictures, sizes, settings):
        drop(int(chosen[at]), int(pairs.pictures[chosen[at]]), reason)

    counts, lines, uncaptioned = _captions(concept, pairs, chosen, study, memory, drop)
    masks, has_mask = _masks(concept, pairs, chosen, sizes, settings, study, drop, with_masks=with_masks)

    keep = good[chosen]
    if not keep.all():
        lines = lines[np.repeat(keep, counts)]
    return Gathered(
        concept=concept,
        pairs=pairs,
        rows=chosen[keep],
        images=pictures.digests[keep],
        sizes=sizes[keep],
        alphas=alphas[keep],
        line_counts=counts[keep],
        lines=lines,
        uncaptioned=np.flatnonzero(uncaptioned[keep]),
        masks=masks[keep],
        has_mask=has_mask[keep],
        problems=tuple(problems),
    )


_Study = Callable[[Numbers, PictureLesson | CaptionLesson], Learnt]
_Drop = Callable[[int, int, str], None]


def _table_pairs(concept: Concept, path: Path, problems: list[Problem]) -> Pairs:
    column = concept.captions.column if isinstance(concept.captions, Column) else None
    mask_column = concept.masks.column if isinstance(concept.masks, Column) else None
    table = read_table(path, image_column=concept.image_column, caption_column=column, mask_column=mask_column)
    problems += [Problem(concept.name, f"{path.name}, row {bad.number}", bad.reason) for bad in table.problems]
    return pair_table(concept, path, table)


def _unusable(pictures: Learnt, sizes: Numbers, settings: ImageSettings) -> Iterator[tuple[int, str]]:
    yield from pictures.problems.items()
    # Without multiplying: a header may claim sides whose product has more than 64 bits.
    width, height = sizes.T
    for at in np.flatnonzero(width > settings.max_pixels // np.maximum(height, 1)).tolist():
        try:
            check_pixels(Facts(int(width[at]), int(height[at]), 1, alpha=False), settings.max_pixels)
        except RefusedError as error:
            yield at, str(error)


def _captions(
    concept: Concept, pairs: Pairs, chosen: Numbers, study: _Study, memory: Memory, drop: _Drop
) -> tuple[Numbers, Bytes, npt.NDArray[np.bool_]]:
    """How many captions each sample has, the digests of all of them, and who has none."""
    if pairs.texts is None and isinstance(concept.captions, Sidecar):
        counts, lines = _sidecars(concept, pairs, chosen, study, memory, drop)
    else:
        counts, lines = _given(concept, pairs, chosen, drop)
    bare = counts == 0
    if bare.any():
        ends = np.cumsum(counts)
        lines = np.insert(lines, ends[bare], np.frombuffer(EMPTY, np.uint8), axis=0)
        counts = np.maximum(counts, 1)
    return counts, lines, bare


def _sidecars(
    concept: Concept, pairs: Pairs, chosen: Numbers, study: _Study, memory: Memory, drop: _Drop
) -> tuple[Numbers, Bytes]:
    rows = pairs.captions[chosen]
    with_file = np.flatnonzero(rows >= 0)
    lesson = CaptionLesson(concept.caption_encoding)
    learnt = study(rows[with_file], lesson)
    try:
        found, lines = lesson.lines(learnt.digests, learnt.facts, memory)
    except LookupError:
        memory.forget(lesson.facts)
        learnt = study(rows[with_file], lesson)
        found, lines = lesson.lines(learnt.digests, learnt.facts, memory)
    for at, reason in learnt.problems.items():
        drop(int(chosen[with_file[at]]), int(rows[with_file[at]]), reason)
    counts = np.zeros(len(chosen), np.int64)
    counts[with_file] = found
    return counts, lines


def _given(concept: Concept, pairs: Pairs, chosen: Numbers, drop: _Drop) -> tuple[Numbers, Bytes]:
    """Captions that stand in names, in the table or in the config."""
    counts: list[int] = []
    lines: list[bytes] = []
    for at in chosen.tolist():
        try:
            texts = _texts(concept, pairs, at) or []
        except CaptionError as error:
            drop(at, int(pairs.pictures[at]), str(error))
            texts = []
        counts.append(len(texts))
        lines += [digest(text).bytes for text in texts]
    return np.array(counts, np.int64), np.frombuffer(b"".join(lines), np.uint8).reshape(-1, 32)


def _texts(concept: Concept, pairs: Pairs, at: int) -> list[str] | None:
    """A sample's captions; None where they lie in a file of their own."""
    if pairs.texts is not None:
        return list(pairs.texts[at] or ())
    if isinstance(concept.captions, FixedText):
        text = concept.captions.text.strip()
        return [text] if text else []
    if isinstance(concept.captions, FileName):
        name = pairs.listing.names[int(pairs.pictures[at])]
        text = from_file_name(os.path.basename(name).rpartition(".")[0])  # noqa: PTH119
        return [text] if text else []
    return None


def _masks(
    concept: Concept,
    pairs: Pairs,
    chosen: Numbers,
    sizes: Numbers,
    settings: ImageSettings,
    study: _Study,
    drop: _Drop,
    *,
    with_masks: bool,
) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """The masks' digests, and who has one."""
    masks = np.zeros((len(chosen), 32), np.uint8)
    has_mask = np.zeros(len(chosen), bool)
    if not with_masks or concept.masks is None:
        return masks, has_mask
    rows = pairs.masks[chosen]
    present = np.flatnonzero(rows >= 0)
    learnt = study(rows[present], PictureLesson())
    masks[present], has_mask[present] = learnt.digests, True
    mask_sizes = picture_sizes(learnt.facts)
    for at, reason in _unusable(learnt, mask_sizes, settings):
        drop(int(chosen[present[at]]), int(rows[present[at]]), reason)
    for at in np.flatnonzero(rows < 0).tolist() if concept.missing_mask == "error" else []:
        drop(int(chosen[at]), int(pairs.pictures[chosen[at]]), "no mask for it, and missing_mask is error")
    width, height = sizes[present].T
    mask_width, mask_height = mask_sizes.T
    good = (mask_height > 0) & (height > 0)  # what was refused has no size
    skew = (mask_width[good] / mask_height[good]) / (width[good] / height[good])
    for at in np.flatnonzero(good)[np.abs(skew - 1) > _SKEW].tolist():
        shapes = f"{mask_width[at]}x{mask_height[at]}, its picture {width[at]}x{height[at]}"
        drop(int(chosen[present[at]]), int(rows[present[at]]), f"another shape than its picture: {shapes}")
    return masks, has_mask
