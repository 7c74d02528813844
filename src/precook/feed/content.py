"""What a feed works on: the samples of a snapshot and the keys of their entries, as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.config.sections import NATIVE
from precook.errors import FeedError, printable
from precook.feed.options import Pad
from precook.store.snapshot_content import FrozenEos, SnapshotContent
from precook.values import Bytes, Flags, Numbers

PROCESSOR = "transformers-processor"
"""The kind of encoder that makes of pictures of any size what a model takes in one batch."""


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
    of_text: bool
    """Whether its rows are captions; else they are cuts of pictures."""
    kind: str
    """What made them: the `uses` of its config."""
    settings: dict[str, Any]
    """The recipe's data."""
    keys: Bytes
    """An entry for each cut of a picture or each caption; zeros where there is none."""
    empty: int
    """The row of the empty prompt, which comes last; -1 where there is none."""
    pad: int | None
    """What token ids are padded with."""
    eos: FrozenEos | None
    """How a text of token ids ends where it is given its end-of-sequence token."""


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
        self._own_size = _own_size(content)
        self.originals = pictures.original
        """Height and width of the picture of each cut, where the snapshot says it."""
        self.crops = pictures.crop
        """Top and left of each cut, known where `originals` are."""
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
        self.columns = tuple(_column(content, name) for name in content.encoders)
        self.has_pictures = any(not column.of_text for column in self.columns)
        """Whether the items of a batch must be of one size."""
        if not (self.resolutions.counts if self.has_pictures else self.resolutions.counts + self.lines.counts).all():
            raise _unfit(content, "a sample has no picture" if self.has_pictures else "a sample has nothing to show")

    def buckets(self, pad: Mapping[str, Pad] | None) -> Numbers:
        """A number for each cut that all of a batch share: by height and width and, of clips, the number of frames.

        It is zero where a batch takes pictures of any size: pictures at their own size meet whatever that is where
        every encoder's entries can: those of a processor, and those that are handed out as they are or end to end.
        """
        buckets: Numbers = self.sizes[:, 0] << 32 | self.sizes[:, 1]
        pictures = [column for column in self.columns if not column.of_text]
        mixed = all(column.kind == PROCESSOR or (pad or {}).get(column.name) in _UNPADDED for column in pictures)
        if mixed and self._own_size.any():
            buckets = np.where(self._own_size, 0, buckets)
        # Frames are fewer than 4096, and sides of clips less than half a million.
        return buckets if self.frames is None else buckets | self.frames.astype(np.int64) << _SIZE_BITS

    @staticmethod
    def has_size(bucket: int) -> bool:
        """Whether those of a batch with this number share a height and a width: no width is zero."""
        return bool(bucket & (1 << _SIZE_BITS) - 1)


_UNPADDED = ("list", "join")
_SIZE_BITS = 51


def _own_size(content: SnapshotContent) -> Flags:
    """Which cuts are pictures at their own size."""
    native = [number for number, name in enumerate(content.image.resolutions) if name == NATIVE]
    return np.isin(content.pictures.target[:, 0], native)


def _falls(column: npt.NDArray[Any]) -> bool:
    return bool((column[1:] < column[:-1]).any())


def _unfit(content: SnapshotContent, reason: str) -> FeedError:
    hint = "train with what made this snapshot, or build or import the dataset again"
    return FeedError(f"the snapshot of {content.dataset} cannot be fed: {reason}", hint=hint)


def _column(content: SnapshotContent, name: str) -> EntryColumn:
    encoder = content.encoders[name]
    of_text = encoder.input == "text"
    empty = content.empty_keys.get(name)
    try:
        kind, settings = json.loads(encoder.recipe)
    except (ValueError, TypeError, RecursionError) as error:
        raise _unfit(content, f"nothing is said of how {printable(name)} was made") from error
    keys = (content.line_keys if of_text else content.picture_keys).get(name)
    if keys is None or (empty is not None and not of_text):
        raise _unfit(content, f"{printable(name)} has no entries that belong to samples")
    if empty is not None:
        keys = np.concatenate([keys, empty.reshape(1, 32)])
    return EntryColumn(
        name=name,
        of_text=of_text,
        kind=kind,
        settings=settings if isinstance(settings, dict) else {},
        keys=keys,
        empty=len(keys) - 1 if empty is not None else -1,
        pad=encoder.pad,
        eos=encoder.eos,
    )
