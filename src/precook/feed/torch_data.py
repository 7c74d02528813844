"""Ways into torch: a map-style dataset and a batch sampler for a plain DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler
from torch.utils.data._utils.collate import default_collate_fn_map

from precook.errors import FeedError

if TYPE_CHECKING:
    from precook.feed.feed import Feed

_EPOCH = 1 << 40
"""An index is the epoch times this plus the item's number in it: so workers know it without being told."""


class FeedIndex(Mapping[str, Any]):
    """One item of an epoch, read when it is looked into; collating many of them copies each once, into the batch."""

    def __init__(self, feed: Feed, index: int) -> None:
        self.feed = feed
        self.epoch, self.number = divmod(index, _EPOCH)
        self._values: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            # The size is that of the whole batch, and stays as it is: a tuple.
            self._values = {name: _first(part) for name, part in collate([self]).items()}
        return self._values


class FeedDataset(Dataset[FeedIndex]):
    """The items of a feed: plain numbers are those of the first epoch, a batch sampler's say which epoch they mean."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __len__(self) -> int:
        return len(self._feed.schedule(0).items)

    def __getitem__(self, index: int) -> FeedIndex:
        if index < 0 or index % _EPOCH >= len(self._feed.schedule(index // _EPOCH).items):
            raise IndexError(index)
        return FeedIndex(self._feed, index)


class BatchSampler(Sampler[list[int]]):
    """The batches of one epoch of one rank, as lists of indices into the dataset."""

    def __init__(self, feed: Feed, epoch: int, start: int) -> None:
        if epoch < 0:
            raise FeedError(f"epochs count from 0, not {epoch}")
        self._plan = feed.schedule(epoch)
        if not 0 <= start <= self._plan.steps:
            hint = "give the number of batches that were taken of this epoch"
            raise FeedError(f"epoch {epoch} has {self._plan.steps} batches and none to start at {start}", hint=hint)
        self._rank = feed.options.rank
        self._epoch = epoch
        self._start = start

    def __len__(self) -> int:
        return self._plan.steps - self._start

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self._start, self._plan.steps):
            yield (self._epoch * _EPOCH + self._plan.batch(step, self._rank)).tolist()


def collate(items: Sequence[FeedIndex], *, collate_fn_map: object = None) -> dict[str, Any]:  # noqa: ARG001 - torch gives it
    """The batch of some items, as `feed.epoch` makes it."""
    feed, epoch = items[0].feed, items[0].epoch
    members = np.array([item.number for item in items], np.int64)
    drawn = feed.schedule(epoch).items
    sizes = feed.content.sizes[drawn.cuts[members]]
    if feed.content.pictures and (sizes != sizes[0]).any():
        hint = "give the DataLoader batch_sampler=feed.batch_sampler(epoch), which keeps sizes apart"
        raise FeedError("the pictures of this batch have different sizes", hint=hint)
    batch = feed.assembly.make(drawn, members)
    if batch is None:
        raise FeedError("no sample of this batch can be had", hint="feed.epoch leaves such batches out")
    return batch


def _first(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _first(one) for name, one in part.items()}
    return part[0] if isinstance(part, (list, torch.Tensor, np.ndarray)) else part


# A DataLoader without a collate_fn of its own then makes our batches; torch documents this table for such types.
default_collate_fn_map[FeedIndex] = collate
