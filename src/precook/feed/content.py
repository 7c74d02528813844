"""What a feed works on: the samples of a snapshot and the keys of their entries, as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from precook.config.sections import NATIVE
from precook.errors import FeedError, printable
from precook.feed.options import Pad
from precook.identity.digest import digest
from precook.store.snapshot_content import (
    FrozenEos,
    LineColumns,
    PairColumns,
    PictureColumns,
    SampleColumns,
    SnapshotContent,
    Texts,
)
from precook.values import Bytes, Flags, Numbers

PROCESSOR = "transformers-processor"
"""The kind of encoder that makes of pictures of any size what a model takes in one batch."""

_REBUILD = "train with what made this snapshot, or build or import the dataset again"
_Columns = TypeVar("_Columns", SampleColumns, PictureColumns, LineColumns)


@dataclass(frozen=True, slots=True)
class Spans:
    """Consecutive rows that belong together: where each group begins and how many rows it has."""

    begins: Numbers
    counts: npt.NDArray[np.int32]

    @classmethod
    def of(cls, owners: npt.NDArray[Any], groups: int) -> Spans:
        """The groups of rows that are sorted by their owner."""
        edges = np.searchsorted(owners, np.arange(groups + 1)).astype(np.int64)
        return cls(edges[:-1], np.diff(edges).astype(np.int32))


@dataclass(frozen=True, slots=True)
class EntryColumn:
    """The entries of one encoder."""

    name: str
    per: Literal["line", "cut", "pair"]
    """Whether its rows are captions, cuts of pictures, or pairs of these."""
    input: str
    """What it was made of: image, text, mask or the name of a further picture; of several, with a + between them."""
    kind: str
    """What made them: the `uses` of its config."""
    settings: dict[str, Any]
    """The recipe's data."""
    keys: Bytes
    """An entry for each cut of a picture or each caption; zeros where there is none."""
    empty: int
    """The row of the empty prompt, which comes last; -1 where there is none. Pairs have one for each cut: the first of
    them, or -1 where one is missing."""
    pad: int | None
    """What token ids are padded with."""
    eos: FrozenEos | None
    """How a text of token ids ends where it is given its end-of-sequence token."""

    @property
    def of_text(self) -> bool:
        """Whether it was made of captions alone."""
        return self.per == "line"

    @property
    def of_further(self) -> bool:
        """Whether it was made of further pictures, which some samples may not have."""
        return self.per == "cut" and self.input not in ("image", "mask", "video")


class PairRows:
    """The pairs of cuts and captions that encoders of both have entries for."""

    def __init__(self, content: SnapshotContent) -> None:
        none = np.zeros(0, np.int64)
        self.cuts: Numbers = none if content.pairs is None else content.pairs.cut.astype(np.int64)
        """The cut of each."""
        lines = none if content.pairs is None else content.pairs.line
        self._empty = len(content.lines.sample)
        self._codes = self.cuts * (self._empty + 1) + lines
        if bool((self._codes[1:] <= self._codes[:-1]).any()):
            raise _unfit(content, "its pairs of pictures and captions are not in order")
        with_empty = np.flatnonzero(lines == self._empty)
        self.first_empty = int(with_empty[0]) if 0 < len(with_empty) == len(content.pictures.sample) else -1
        """The first pair with the empty prompt; -1 where a cut has none."""

    def find(self, cuts: Numbers, lines: Numbers) -> Numbers | None:
        """The rows of some pairs, where a negative caption is the empty prompt; None where one is missing."""
        codes = cuts * (self._empty + 1) + np.where(lines < 0, self._empty, lines)
        rows = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return np.asarray(rows) if np.array_equal(self._codes[rows], codes) else None


class FeedContent:
    """The columns of a snapshot, ready to draw from.

    `FeedError` where they do not say what a feed needs to know: snapshots of other tools need not.
    """

    def __init__(self, content: SnapshotContent) -> None:
        self.dataset = content.dataset
        self.count = len(content.samples.id)
        """Number of samples."""
        # Columns that are used as they are stay where they lie: in a snapshot's mapped file.
        self.ids = content.samples.id
        self.images = content.samples.image
        self.concepts = content.samples.concept
        self.names = [concept.name for concept in content.concepts]
        with np.errstate(over="ignore"):
            self.loss_weights = np.array([concept.loss_weight for concept in content.concepts], np.float32)
        if not np.isfinite(self.loss_weights).all():
            raise _unfit(content, "a loss_weight is too large")
        self.shares = [(concept.repeats, concept.samples) for concept in content.concepts]
        """How much of each concept an epoch shows: `repeats`, or `samples`."""
        self.each = content.image.pick == "each"
        """Whether an epoch shows every resolution of a sample, or one."""
        pictures = content.pictures
        self.sizes: Numbers = pictures.size.astype(np.int64)
        """Height and width of each cut."""
        self.frames = pictures.frames
        """How many frames each cut has, where they are clips."""
        self.originals, self.crops = pictures.original, pictures.crop
        """Height and width of the picture of each cut, and top and left of the cut, where the snapshot says it."""
        resolutions = int(pictures.target[:, 0].max(initial=0)) + 1
        groups = pictures.sample.astype(np.int64) * resolutions + pictures.target[:, 0]
        if _falls(groups) or _falls(content.lines.sample):
            raise _unfit(content, "its rows are not in the order of its samples")
        shown, first = np.unique(groups, return_index=True)
        self.cuts = Spans(first.astype(np.int64), np.diff(np.append(first, len(groups))).astype(np.int32))
        """For each sample and resolution, its variations."""
        self.resolutions = Spans.of(shown // resolutions, self.count)
        """For each sample, its resolutions: rows of `cuts`; none of one that is a text alone."""
        self.lines = Spans.of(content.lines.sample, self.count)
        """For each sample, its captions."""
        self.line_order = content.lines.order
        """The number of each caption in the order of the sources, where the snapshot says it."""
        self.captions: tuple[bytes, Numbers] | None = None
        """The texts of all captions, one after the other, and where each begins and the last one ends."""
        # Those that were frozen without a text encoder, by an older precook, have none.
        if content.captions is not None and len(content.captions):
            edges = np.append(0, content.captions.ends).astype(np.int64)
            self.captions = (content.captions.text.tobytes(), edges)
        self.paths = content.paths
        """The path of each sample's picture, where `keep` asks for them."""
        self.pairs = PairRows(content)
        self.columns = tuple(self._column(content, name) for name in content.encoders)
        self.has_pictures = any(not column.of_text for column in self.columns)
        """Whether the items of a batch must be of one size."""
        self._own_size, self._further = _own_size(content), pictures.further or {}
        if not (self.resolutions.counts if self.has_pictures else self.resolutions.counts + self.lines.counts).all():
            raise _unfit(content, "a sample has no picture" if self.has_pictures else "a sample has nothing to show")

    @property
    def texts_alone(self) -> bool:
        """Whether no sample has a picture: then texts are what is trained on, and no captions."""
        return bool(self.count) and not len(self.sizes)

    def rows(self, column: EntryColumn, cuts: Numbers, lines: Numbers) -> Numbers:
        """Which of a column's entries belong to these cuts and captions; a negative caption is the empty prompt."""
        if column.per == "cut":
            return cuts
        # In Python: a fifth of what numpy takes for some ten of them.
        dropped = min(lines.tolist(), default=0) < 0
        if dropped and column.empty < 0:
            hint = "set text.empty_prompt in the config and build, or feed without caption_dropout"
            raise FeedError(f"{column.name}: the empty prompt is not among the entries", hint=hint)
        if column.per == "line":
            return np.where(lines < 0, column.empty, lines) if dropped else lines
        rows = self.pairs.find(cuts, lines)
        if rows is None:
            raise FeedError(f"{column.name}: it has no entry for some captions of some pictures", hint=_REBUILD)
        return rows

    def _column(self, content: SnapshotContent, name: str) -> EntryColumn:
        encoder = content.encoders[name]
        try:
            kind, settings = json.loads(encoder.recipe)
        except (ValueError, TypeError, RecursionError) as error:
            raise _unfit(content, f"nothing is said of how {printable(name)} was made") from error
        parts = {
            "line": content.line_keys,
            "cut": content.picture_keys,
            "pair": content.pair_keys,
        }
        per: Literal["line", "cut", "pair"] = "line" if encoder.input == "text" else "cut"
        per = "pair" if name in content.pair_keys else per
        keys, empty, row = parts[per].get(name), content.empty_keys.get(name), -1
        if keys is None or (empty is not None and per != "line"):
            raise _unfit(content, f"{printable(name)} has no entries that belong to samples")
        if empty is not None:
            keys, row = np.concatenate([keys, empty.reshape(1, 32)]), len(keys)
        if per == "pair":
            row = self.pairs.first_empty
        return EntryColumn(
            name=name,
            per=per,
            input=encoder.input,
            kind=kind,
            settings=settings if isinstance(settings, dict) else {},
            keys=keys,
            empty=row,
            pad=encoder.pad,
            eos=encoder.eos,
        )

    def free(self, pad: Mapping[str, Pad] | None) -> Flags:
        """Which cuts may meet others of any size: pictures at their own size, where every encoder's entries can.

        Those of a processor can, and those that are handed out as they are or end to end.
        """
        pictures = [column for column in self.columns if not column.of_text]
        mixed = all(column.kind == PROCESSOR or (pad or {}).get(column.name) in _UNPADDED for column in pictures)
        return self._own_size if mixed else np.zeros_like(self._own_size)

    def buckets(self, pad: Mapping[str, Pad] | None) -> Numbers:
        """What all cuts of a batch share, as a number for each: sizes and frames, where these must be the same."""
        free = self.free(pad)
        numbers = np.where(free, 0, self.sizes[:, 0] << 32 | self.sizes[:, 1])
        if self.frames is not None:
            # Frames are fewer than 4096, and sides of clips less than half a million.
            numbers |= self.frames.astype(np.int64) << _SIZE_BITS
        others = [np.where(free[:, None], 0, sizes) for sizes in self._further.values()]
        # What a sample may not have: those with it and those without meet in no batch.
        others += [np.asarray(column.keys.any(axis=1))[:, None] for column in self.columns if column.of_further]
        beside = np.concatenate([np.zeros((len(numbers), 1), np.int64), *others], axis=1).astype(np.int64)
        if bool((beside == beside[:1]).all()):
            # A dataset keeps its batches where all of its samples get a further picture.
            return np.asarray(numbers)
        alike, place = np.unique(beside, axis=0, return_inverse=True)
        marks = [int.from_bytes(digest(row.tobytes()).bytes[:8], "little") >> 1 for row in alike]
        return np.asarray(numbers ^ np.array(marks, np.int64)[place.ravel()])


_UNPADDED = ("list", "join")
_SIZE_BITS = 51


def _own_size(content: SnapshotContent) -> Flags:
    """Which cuts are pictures at their own size."""
    native = [number for number, name in enumerate(content.image.resolutions) if name == NATIVE]
    return np.isin(content.pictures.target[:, 0], native)


def choose_samples(content: SnapshotContent, *, validation: bool) -> SnapshotContent:
    """The samples that are for validation, or those that are not, as if there were no others."""
    flags = np.array([concept.validation for concept in content.concepts], bool)
    if validation and not flags.any():
        hint = "write `validation: true` in a concept of the config, and build"
        raise FeedError(f"{content.dataset} has no concept for validation", hint=hint)
    if not flags.any():
        return content
    if flags.all() and not validation:
        hint = "feed with validation=True, or give the config a concept without `validation: true`, and build"
        raise FeedError(f"{content.dataset}: every concept is for validation, and none to train on", hint=hint)
    keep = flags[content.samples.concept] == validation
    cuts, lines = keep[content.pictures.sample], keep[content.lines.sample]
    numbers = (np.cumsum(keep) - 1).astype(np.int32)
    captions, order = content.captions, content.lines.order
    pairs, pair_keys = content.pairs, content.pair_keys
    if pairs is not None:
        shown = cuts[pairs.cut]
        # The number of all captions stands for the empty prompt.
        line_of = np.append(np.cumsum(lines) - 1, lines.sum()).astype(np.int32)
        cut_of = (np.cumsum(cuts) - 1).astype(np.int32)
        pairs = PairColumns(cut_of[pairs.cut[shown]], line_of[pairs.line[shown]], pairs.extra)
        pair_keys = {name: keys[shown] for name, keys in pair_keys.items()}
    further = content.pictures.further
    return replace(
        content,
        samples=_rows(content.samples, keep),
        pictures=replace(
            _rows(content.pictures, cuts),
            sample=numbers[content.pictures.sample[cuts]],
            further=None if further is None else {name: sizes[cuts] for name, sizes in further.items()},
        ),
        picture_keys={name: keys[cuts] for name, keys in content.picture_keys.items()},
        lines=replace(
            _rows(content.lines, lines),
            sample=numbers[content.lines.sample[lines]],
            # Numbers without gaps, in the same order.
            order=None if order is None else np.argsort(np.argsort(order[lines])).astype(np.int32),
        ),
        line_keys={name: keys[lines] for name, keys in content.line_keys.items()},
        paths=None if content.paths is None else _texts(content.paths, keep),
        # Older snapshots may have a column of captions without any.
        captions=_texts(captions, lines) if captions is not None and len(captions) else captions,
        pairs=pairs,
        pair_keys=pair_keys,
    )


def _rows(columns: _Columns, keep: Flags) -> _Columns:
    """Some rows of every column."""
    parts = {field.name: getattr(columns, field.name) for field in fields(columns)}
    taken: dict[str, Any] = {name: part[keep] for name, part in parts.items() if isinstance(part, np.ndarray)}
    return replace(columns, **taken)


def _texts(texts: Texts, keep: Flags) -> Texts:
    return Texts.join([texts[row] for row in np.flatnonzero(keep).tolist()])


def _falls(column: npt.NDArray[Any]) -> bool:
    return bool((column[1:] < column[:-1]).any())


def _unfit(content: SnapshotContent, reason: str) -> FeedError:
    return FeedError(f"the snapshot of {content.dataset} cannot be fed: {reason}", hint=_REBUILD)
