"""Gathering: a concept's samples as columns, from its files or its table, with everything that keys are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress, repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.config.schema import ColumnCaptions, Concept, FileName, FixedText, ImageSettings, Sidecar
from precook.fs.read import read_source
from precook.fs.trust import clock, trusted
from precook.identity.digest import digest
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.captions import CaptionError, from_file_name, read_lines
from precook.sources.facts import CaptionLesson, FileSystem, Learnt, PictureLesson, learn, picture_alphas, picture_sizes
from precook.sources.image import Facts, RefusedError, check_pixels
from precook.sources.table import SourceTable, read_table
from precook.sources.walk import Listing, list_names, walk
from precook.values import Bytes, Numbers

PICTURE, CAPTION, MASK = 1, 2, 3
SUFFIXES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "avif", "bmp", "tif", "tiff", "gif")
NOT_SAMPLES = ("-masklabel", "-condlabel")
"""Ends of names that trainers give to masks and conditions: such files are never samples."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of a listing that belong together; -1 where there is none."""

    listing: Listing
    pictures: Numbers
    captions: Numbers
    masks: Numbers
    texts: tuple[tuple[str, ...] | None, ...] | None = None
    """Captions that come with the pictures, from a table's column."""


def pair_folder(concept: Concept, root: Path, *, helpers: int | None = None) -> Pairs:
    """List a folder and pair what lies in it."""
    sidecar = isinstance(concept.captions, Sidecar)
    roles: dict[str, int] = dict.fromkeys(SUFFIXES, PICTURE)
    if sidecar:
        roles[_suffix(concept.caption_extension)] = CAPTION
    if isinstance(concept.masks, str):
        roles.setdefault(_suffix(concept.masks), MASK)
    listing = walk(root, roles, recursive=concept.recursive, helpers=helpers)
    pictures: list[Numbers] = [np.zeros(0, np.int64)]
    captions: list[int] = []
    wanted_masks: list[str] = []
    for folder, start, stop in listing.folders:
        rows, names = _files(listing, start, stop, PICTURE)
        rows, names = _samples(rows, names)
        pictures.append(rows)
        if sidecar:
            at, beside = _files(listing, start, stop, CAPTION)
            here = dict(zip(beside, at.tolist(), strict=True))
            wanted = [name.rpartition(".")[0] + concept.caption_extension for name in names]
            captions += map(here.get, wanted, repeat(-1))
        if isinstance(concept.masks, str):
            wanted_masks += [mask_path(folder + name, concept.masks) for name in names]
    rows = np.concatenate(pictures)
    none = np.full(len(rows), -1)
    masks = _find(listing, wanted_masks) if wanted_masks else none
    found = np.array(captions, np.int64) if sidecar else none
    if not wanted_masks:
        return Pairs(listing, rows, found, masks)
    # A mask is no sample of its own, even where it looks like one.
    samples = ~np.isin(rows, masks)
    return Pairs(listing, rows[samples], found[samples], masks[samples])


def pair_table(concept: Concept, path: Path, table: SourceTable, *, helpers: int | None = None) -> Pairs:
    """Look at the files that a table names."""
    names = [row.image for row in table.rows]
    none = [-1] * len(names)
    captions = masks = none
    wanted = list(names)
    roles = bytearray([PICTURE]) * len(names)
    if isinstance(concept.captions, Sidecar):
        sidecars = [os.path.splitext(name)[0] + concept.caption_extension for name in names]  # noqa: PTH122
        captions = list(range(len(wanted), len(wanted) + len(names)))
        wanted += sidecars
        roles += bytearray([CAPTION]) * len(names)
    if concept.masks is not None:
        pattern = concept.masks
        found = [
            row.mask if isinstance(pattern, ColumnCaptions) else mask_path(row.image, pattern) for row in table.rows
        ]
        at = iter(range(len(wanted), len(wanted) + len(found)))
        masks = [next(at) if name is not None else -1 for name in found]
        present = [name for name in found if name is not None]
        wanted += present
        roles += bytearray([MASK]) * len(present)
    listing = list_names(path.parent, wanted, roles, helpers=helpers)
    texts = tuple(row.captions for row in table.rows) if isinstance(concept.captions, ColumnCaptions) else None
    # What a table names is meant to be there; what only follows from a pattern may not be.
    mask_rows = np.array(masks, np.int64) if isinstance(concept.masks, ColumnCaptions) else _present(listing, masks)
    return Pairs(listing, np.arange(len(names)), _present(listing, captions), mask_rows, texts)


def _files(listing: Listing, start: int, stop: int, role: int) -> tuple[Numbers, list[str]]:
    """The files of a directory that have a role: rows and names."""
    chosen = np.frombuffer(listing.roles, np.uint8)[start:stop] == role
    return np.flatnonzero(chosen) + start, list(compress(listing.names[start:stop], chosen.tolist()))


def _samples(rows: Numbers, names: list[str]) -> tuple[Numbers, list[str]]:
    """Without those whose name says that they belong to another picture."""
    text = "\0".join(names)
    if not any(f"{mark}." in text for mark in NOT_SAMPLES):
        return rows, names
    keep = [not name.rpartition(".")[0].endswith(NOT_SAMPLES) for name in names]
    return rows[keep], list(compress(names, keep))


def _find(listing: Listing, wanted: list[str]) -> Numbers:
    """The rows of files by their paths; those the walk has not seen are looked at now."""
    known = {folder + listing.names[row]: row for folder, start, stop in listing.folders for row in range(start, stop)}
    beyond = [name for name in dict.fromkeys(wanted) if name not in known]
    if beyond:
        first = len(listing.names)
        others = list_names(listing.root, beyond, bytearray([MASK]) * len(beyond))
        # Only of these can one be absent: a link to nothing that the walk has listed is there, and unusable.
        there = (~others.absent()).tolist()
        listing.add(others)
        known |= {name: first + at for at, name in enumerate(beyond) if there[at]}
    return np.array([known.get(name, -1) for name in wanted], np.int64)


def _present(listing: Listing, rows: list[int]) -> Numbers:
    """Rows, without those of files that are not there."""
    found = np.array(rows, np.int64)
    return np.where((found >= 0) & ~listing.absent()[found], found, -1) if len(listing.names) else found


def mask_path(picture: str, pattern: str) -> str:
    """Where a pattern says that a picture's mask lies."""
    folder, name = os.path.split(picture)
    # By hand, and by way of NULs: a name may itself hold braces.
    filled = pattern.replace("{stem}", "\0s").replace("{name}", "\0n")
    filled = filled.replace("\0s", name.rpartition(".")[0]).replace("\0n", name)
    return os.path.normpath(os.path.join(folder, filled))  # noqa: PTH118


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


EMPTY = digest("").bytes
"""The digest of the empty prompt."""
_SKEW = 0.01
"""So much a mask's aspect ratio may differ from its picture's."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
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
    problems: tuple[SourceProblem, ...]

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
    problems: list[SourceProblem] = []
    if concept.is_table:
        pairs = _table_pairs(concept, root, problems)
        root = root.parent
    else:
        pairs = pair_folder(concept, root)
        problems += [SourceProblem(concept.name, path, reason) for path, reason in pairs.listing.problems]
    # Where stamps are judged, each device is judged by itself: a link may lead to a network drive.
    ground = FileSystem(clock(root), trust or trusted(root), device=None if trust else root.stat().st_dev)

    listing = pairs.listing
    good = listing.regular()[pairs.pictures]
    for at in np.flatnonzero(~good).tolist():
        row = int(pairs.pictures[at])
        problems.append(SourceProblem(concept.name, listing.path(row), listing.problem(row)))

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
        problems.append(SourceProblem(concept.name, listing.path(row), reason))

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


def _table_pairs(concept: Concept, path: Path, problems: list[SourceProblem]) -> Pairs:
    column = concept.captions.column if isinstance(concept.captions, ColumnCaptions) else None
    mask_column = concept.masks.column if isinstance(concept.masks, ColumnCaptions) else None
    table = read_table(path, image_column=concept.image_column, caption_column=column, mask_column=mask_column)
    problems += [SourceProblem(concept.name, f"{path.name}, row {bad.number}", bad.reason) for bad in table.problems]
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
