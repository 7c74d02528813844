"""Ways into torch: a map-style dataset and a batch sampler for a plain DataLoader."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from precook.errors import FeedError
from precook.feed.hf import refuse_trainer
from precook.feed.ranks import find_ranks
from precook.feed.sampler import check_epoch

if TYPE_CHECKING:
    from precook.feed.feed import Feed

_log = logging.getLogger("precook")
_EPOCH = 1 << 40
"""A sampler's index is the item's number in an epoch plus as many of these as epochs were begun: so workers know it
without being told. A plain number is an item of the first epoch."""


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
        self._told = False
        """Whether somebody was warned of plain numbers."""

    def __len__(self) -> int:
        return len(self._feed.schedule(0).items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # The size is that of the whole batch, and stays as it is: a tuple.
        batch, joined = self._read([index]), self._feed.batches.joined
        # What lies end to end has no dimension that counts items: all of it is this one's.
        whole = {*joined, *(f"{name}_cu_seqlens" for name in joined)}
        return {name: part if name in whole else _first(part) for name, part in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> LoadedBatch:
        """The batch of some items, as `feed.epoch` makes it; a DataLoader asks for all of them at once."""
        refuse_trainer(self, inspect.currentframe())
        if max(indices) < _EPOCH and not self._told:
            self._told = True
            _log.warning(
                "plain numbers are items of epoch 0 of %s, with its captions and cuts, in every epoch: train with "
                "feed.loader(), which goes on to the next epoch by itself",
                self._feed.content.dataset,
            )
        batch = LoadedBatch(self._read(indices))
        if not _is_read_ahead(self):
            self._feed.position.take(indices)
        return batch

    def _read(self, indices: Sequence[int]) -> dict[str, Any]:
        batch = self.make(indices)
        if batch is None:
            raise FeedError("no sample of this batch can be had", hint="feed.loader() leaves such batches out")
        return batch

    def make(self, indices: Sequence[int]) -> dict[str, Any] | None:
        """The batch of some items; None where none of them can be had."""
        feed = self._feed
        if min(indices) < 0:
            raise IndexError(min(indices))
        items = feed.schedule(max(indices[0] // _EPOCH - 1, 0)).items
        members = np.array(indices, np.int64) % _EPOCH
        if members.max() >= len(items):
            raise IndexError(max(indices))
        if feed.content.has_pictures:
            sizes = feed.batches.buckets[items.cuts[members]]
            if (sizes != sizes[0]).any():
                hint = (
                    "train with feed.loader(), or with batch_sampler=feed.batch_sampler(epoch), which keep sizes apart"
                )
                raise FeedError("the pictures of this batch have different sizes", hint=hint)
        return feed.batches.make(items, members)


class BatchSampler(Sampler[list[int]]):
    """The batches of one epoch of one rank, as lists of indices into the dataset."""

    drop_last = False

    def __init__(self, feed: Feed, epoch: int, start: int) -> None:
        epoch = check_epoch(epoch)
        self._steps = feed.schedule(epoch).steps
        if not 0 <= start <= self._steps:
            hint = "give the number of batches that were taken of this epoch"
            raise FeedError(f"epoch {epoch} has {self._steps} batches and none to start at {start}", hint=hint)
        self._feed = feed
        self._epoch = epoch
        self._start = start
        self._iterations = 0

    @property
    def batch_size(self) -> int:
        """Items of a full batch; refused where others ask who would share batches out among ranks once more."""
        return batch_size_of_one(self._feed)

    def __len__(self) -> int:
        return self._steps - self._start

    def __iter__(self) -> Iterator[list[int]]:
        feed, epoch = self._feed, self._epoch
        feed.check()
        for loader in _accelerate_loaders():
            # With `dispatch_batches` the first rank reads for all, and nobody has asked for the batch size.
            if type(loader).__name__ == "DataLoaderDispatcher" and loader.batch_sampler is self:
                batch_size_of_one(feed)
        self._iterations += 1
        if self._iterations == 2:  # noqa: PLR2004 - the second time says it, later ones say nothing new
            _log.warning(
                "a batch sampler of %s shows epoch %d again: make a new one for each epoch, or train with "
                "feed.loader(), which goes on to the next epoch by itself",
                feed.content.dataset,
                epoch,
            )
        for batch, indices in enumerate(batch_indices(feed, epoch, self._start), self._start + 1):
            feed.position.offer(epoch, batch, indices)
            yield indices
        if feed.position.offered is None:
            feed.position.reach(epoch + 1, 0)


def batch_indices(feed: Feed, epoch: int, start: int) -> Iterator[list[int]]:
    """The batches of one epoch of a feed's rank from the `start`-th on, as indices into its dataset."""
    schedule = feed.schedule(epoch)
    for step in range(start, schedule.steps):
        yield ((epoch + 1) * _EPOCH + schedule.batch(step, feed.ranks.rank)).tolist()


def batch_size_of_one(feed: Feed) -> int:
    """Items of a full batch, where there is one rank.

    Whoever shares batches out among ranks asks for this number first: accelerate and Lightning do. Ours are shared
    out, so each rank would get a part of its part; and of one size at each step, which others do not look after.
    """
    ranks = max(feed.ranks.count, find_ranks(None, None).count)
    if ranks > 1:
        hint = "train with feed.loader(), or keep this DataLoader out of what accelerate or Lightning prepares"
        raise FeedError(f"the batches of a feed are shared out among {ranks} ranks by the feed alone", hint=hint)
    return feed.options.batch_size


def _is_read_ahead(dataset: FeedDataset) -> bool:
    """Whether accelerate iterates a DataLoader over a dataset: it takes a batch more than it hands out."""
    return any(getattr(loader, "dataset", None) is dataset for loader in _accelerate_loaders())


def _accelerate_loaders() -> list[Any]:
    """What accelerate iterates at the moment."""
    state = sys.modules.get("accelerate.state")
    return state.GradientState().dataloader_references if state is not None and state.is_initialized() else []


def _first(part: Any) -> Any:
    """What a part of a batch holds of its first item."""
    if isinstance(part, dict):
        return {name: _first(inner) for name, inner in part.items()}
    return part[0] if isinstance(part, (list, torch.Tensor, np.ndarray)) else part
