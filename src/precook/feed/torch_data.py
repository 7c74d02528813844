"""Ways into torch: a map-style dataset and a batch sampler for a plain DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from precook.errors import FeedError

if TYPE_CHECKING:
    from precook.feed.feed import Feed

_EPOCH = 1 << 40
"""An index is the epoch times this plus the item's number in it: so workers know it without being told."""


class LoadedBatch(dict[str, Any]):
    """A batch that torch's default collate function hands on as it is.

    A DataLoader collates whatever its dataset gives. The default function asks for the type of the first element, and
    returns a series of texts untouched: so the element under 0 is a text, and nobody has to name a collate function
    of ours, nor do we put one into torch's table of them, which belongs to the whole process.
    """

    def __missing__(self, name: object) -> str:
        if name == 0:
            return ""
        raise KeyError(name)


class FeedDataset(Dataset[dict[str, Any]]):
    """The items of a feed: plain numbers are those of the first epoch, a batch sampler's say which epoch they mean."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __len__(self) -> int:
        return len(self._feed.schedule(0).items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # The size is that of the whole batch, and stays as it is: a tuple.
        return {name: _first(part) for name, part in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> LoadedBatch:
        """The batch of some items, as `feed.epoch` makes it; a DataLoader asks for all of them at once."""
        feed = self._feed
        if min(indices) < 0:
            raise IndexError(min(indices))
        items = feed.schedule(indices[0] // _EPOCH).items
        members = np.array(indices, np.int64) % _EPOCH
        if members.max() >= len(items):
            raise IndexError(max(indices))
        sizes = feed.content.sizes[items.cuts[members]]
        if feed.content.has_pictures and (sizes != sizes[0]).any():
            hint = "give the DataLoader batch_sampler=feed.batch_sampler(epoch), which keeps sizes apart"
            raise FeedError("the pictures of this batch have different sizes", hint=hint)
        batch = feed.batches.make(items, members)
        if batch is None:
            raise FeedError("no sample of this batch can be had", hint="feed.epoch leaves such batches out")
        return LoadedBatch(batch)


class BatchSampler(Sampler[list[int]]):
    """The batches of one epoch of one rank, as lists of indices into the dataset."""

    def __init__(self, feed: Feed, epoch: int, start: int) -> None:
        if epoch < 0:
            raise FeedError(f"epochs count from 0, not {epoch}")
        self._schedule = feed.schedule(epoch)
        if not 0 <= start <= self._schedule.steps:
            hint = "give the number of batches that were taken of this epoch"
            raise FeedError(f"epoch {epoch} has {self._schedule.steps} batches and none to start at {start}", hint=hint)
        self._feed = feed
        self._epoch = epoch
        self._start = start

    def __len__(self) -> int:
        return self._schedule.steps - self._start

    def __iter__(self) -> Iterator[list[int]]:
        yield from batch_indices(self._feed, self._epoch, self._start)


def batch_indices(feed: Feed, epoch: int, start: int) -> Iterator[list[int]]:
    """The batches of one epoch of a feed's rank from the `start`-th on, as indices into its dataset."""
    schedule = feed.schedule(epoch)
    for step in range(start, schedule.steps):
        yield (epoch * _EPOCH + schedule.batch(step, feed.ranks.rank)).tolist()


def _first(part: Any) -> Any:
    """What a part of a batch holds of its first item."""
    if isinstance(part, dict):
        return {name: _first(inner) for name, inner in part.items()}
    return part[0] if isinstance(part, (list, torch.Tensor, np.ndarray)) else part
