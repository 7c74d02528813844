"""The sampler: what an epoch shows, in which order, and which rank gets it.

Everything is a function of the samples, the seed and the epoch. A sample's draws (resolution, variation, caption,
dropout) come from its picture's digest alone, so that another sample more or less changes none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import FeedError
from precook.feed.content import FeedContent
from precook.feed.options import Last, Pad
from precook.feed.packing import pack_all
from precook.sources.draws import Purpose, draw, pick
from precook.values import Bytes, Numbers

_ITEMS = 1 << 21
"""So many items an epoch may show of any dataset; they are held in memory, at more than 100 bytes each."""
_TURNS = 16
"""An epoch of a large dataset may show each sample so often."""
_FINE = 1 << 32
"""In so many steps the rate of dropout is told apart."""


@dataclass(frozen=True, slots=True)
class Items:
    """What one epoch shows, in the order of the samples: a row for each time a sample is shown."""

    samples: Numbers
    draws: Numbers
    """Epoch and how often the sample was shown in it before: what seeds every draw of this item."""
    cuts: Numbers
    """Which cut of its picture; -1 for a text alone."""
    lines: Numbers
    """Which of all captions; -1 for the empty prompt."""
    rows: Numbers | None = None
    """Where texts are packed: which row each stands in."""

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The batches of one epoch for all ranks."""

    items: Items
    members: Numbers
    """Numbers of items, batch after batch."""
    ends: Numbers
    """Where each batch ends in `members`; the batches of one step stand side by side, one for each rank."""
    order: Numbers
    """The steps, in the order in which they are taken."""
    ranks: int

    @property
    def steps(self) -> int:
        """Batches of each rank."""
        return len(self.order)

    def batch(self, step: int, rank: int) -> Numbers:
        """The items of one batch."""
        place = int(self.order[step]) * self.ranks + rank
        return self.members[self.ends[place] : self.ends[place + 1]]


def check_epoch(number: int) -> int:
    """Refuse what is no number of an epoch."""
    if not isinstance(number, Integral) or number < 0:
        raise FeedError(f"epochs count from 0, not {number!r}")
    return int(number)


def draw_items(content: FeedContent, *, seed: int, epoch: int, dropout: float = 0.0) -> Items:
    """Decide what an epoch shows of each sample, and how often."""
    samples, turns = _shown(content, seed, epoch)
    draws = epoch + (turns << 32)  # one number for both: turns of one epoch and epochs never draw alike
    images = content.images[samples]
    groups, repeated = _resolutions(content, samples, draws, images, seed)
    samples, draws, images = samples[repeated], draws[repeated], images[repeated]
    if len(content.cuts.begins):
        variation = _pick(images, Purpose.VARIATION, draws, seed, content.cuts.counts[groups])
        cuts = np.where(groups < 0, groups, content.cuts.begins[groups] + variation)
    else:
        cuts = groups
    counts = content.lines.counts[samples]
    lines = content.lines.begins[samples] + _pick(images, Purpose.CAPTION, draws, seed, np.maximum(counts, 1))
    dropped = _pick(images, Purpose.DROPOUT, draws, seed, np.full(len(samples), _FINE)) < dropout * _FINE
    lines[(counts == 0) | dropped] = -1
    return Items(samples, draws, cuts, lines)


def schedule(  # noqa: PLR0913 - all that decides an epoch, each by its name
    content: FeedContent,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    ranks: int = 1,
    last: Last = "keep",
    dropout: float = 0.0,
    pad: Mapping[str, Pad] | None = None,
    lengths: Numbers | None = None,
    pack: int | None = None,
) -> Schedule:
    """The batches of an epoch, in random order: one size each, as many for every rank, the same size at each step.

    Pictures at their own size count as one size where a batch takes them so; `pad` may say that it does. With the
    `lengths` of all texts, those of about one length count as one size; or they are packed into rows of `pack` tokens.
    """
    items = draw_items(content, seed=seed, epoch=epoch, dropout=dropout)
    # By the sample, not by its picture: equal pictures need not stand together.
    bits = draw(content.ids[items.samples], Purpose.ORDER, number=items.draws, seed=seed)
    if pack is not None and lengths is not None:
        return _packed(items, bits, lengths[items.lines], pack, batch_size, ranks, last)
    sizes = content.buckets(pad)[items.cuts] if content.has_pictures else np.zeros(len(items), np.int64)
    if lengths is not None and not content.has_pictures:
        # A quarter of an octave: in a batch the longest text is a fifth longer than the shortest.
        sizes = np.ceil(4 * np.log2(np.maximum(lengths[items.lines], 1))).astype(np.int64)
    buckets, bucket = np.unique(sizes, return_inverse=True)
    # By the cut last: two cuts of one sample may have the same size, and then they share their bits.
    order = np.lexsort((items.cuts, bits, bucket))
    edges = np.append(0, np.cumsum(np.bincount(bucket, minlength=len(buckets))))
    # Steps are named by their size and number, not by their place among all steps: with another bucket, or one more
    # step of another size, the order of those that were there stays.
    members, counts, steps = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)]
    for number, size in enumerate(buckets.tolist()):
        shares, filled = share_out(order[edges[number] : edges[number + 1]], batch_size, ranks, last)
        members.append(filled)
        counts.append(shares)
        taken = len(shares) // ranks
        steps.append(np.column_stack([np.full(taken, size), np.arange(taken), np.zeros((taken, 2), np.int64)]))
    names = np.ascontiguousarray(np.concatenate(steps), "<i8").view(np.uint8)
    return Schedule(
        items,
        np.concatenate(members),
        np.append(0, np.cumsum(np.concatenate(counts))),
        np.argsort(draw(names, Purpose.STEPS, number=epoch, seed=seed), kind="stable"),
        ranks,
    )


def _packed(
    items: Items, bits: npt.NDArray[np.uint64], lengths: Numbers, size: int, batch_size: int, ranks: int, last: Last
) -> Schedule:
    """The batches of an epoch whose texts are packed: rows in random order, so many of them in a batch."""
    packed = pack_all(np.argsort(bits, kind="stable"), lengths, size)
    rows = np.empty(len(items), np.int64)
    for number, members in enumerate(packed):
        rows[members] = number
    order = np.argsort(bits[[int(members[0]) for members in packed]], kind="stable")
    sizes, shown = share_out(order, batch_size, ranks, last)
    counts = np.array([len(members) for members in packed], np.int64)[shown]
    members = np.concatenate([np.zeros(0, np.int64), *(packed[number] for number in shown.tolist())])
    ends = np.append(0, np.cumsum(counts))[np.append(0, np.cumsum(sizes))]
    return Schedule(replace(items, rows=rows), members, ends, np.arange(len(sizes) // ranks), ranks)


def share_out(members: Numbers, batch_size: int, ranks: int, last: Last) -> tuple[Numbers, Numbers]:
    """Sizes of the batches that one bucket makes, a whole number of steps, and the members that fill them in order.

    With `keep`, batches are as full as they can be while every rank has one in each step; a member is shown again only
    where there are fewer of them than batches.
    """
    count, step = len(members), batch_size * ranks
    if last == "drop":
        steps = count // step
        return np.full(steps * ranks, batch_size, np.int64), members[: steps * step]
    steps = -(-count // step)
    sizes = np.full(steps * ranks, batch_size, np.int64)
    if last == "keep" and steps:
        left = count - (steps - 1) * step
        sizes[-ranks:] = left // ranks + (np.arange(ranks) < left % ranks)
        lacking = max(ranks - left, 0)
        if lacking:
            sizes[-lacking:] = 1
            if batch_size > 1 and steps > 1:
                sizes[-ranks - lacking : -ranks] -= 1  # the step before gives some of its own
    wanted = int(sizes.sum())
    return sizes, members[np.arange(wanted) % count] if wanted > count else members


def _shown(content: FeedContent, seed: int, epoch: int) -> tuple[Numbers, Numbers]:
    """The samples of an epoch, and for each how often it was shown before."""
    samples, turns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    sizes = np.bincount(content.concepts, minlength=len(content.shares)).tolist()
    # As the decimal number that was written: 0.29 of 100 are 29.
    totals = [
        0 if not size else wanted if wanted is not None else math.floor(Fraction(repr(repeats)) * size)
        for size, (repeats, wanted) in zip(sizes, content.shares, strict=True)
    ]
    _check_length(content, sum(totals))
    pools = np.split(np.argsort(content.concepts, kind="stable"), np.cumsum(sizes)[:-1])
    for pool, total in zip(pools, totals, strict=True):
        if not total:
            continue
        whole, some = divmod(total, len(pool))
        samples.append(np.tile(pool, whole))
        turns.append(np.repeat(np.arange(whole), len(pool)))
        bits = draw(content.images[pool], Purpose.SAMPLES, number=epoch, seed=seed)
        samples.append(np.sort(pool[np.argsort(bits, kind="stable")[:some]]))
        turns.append(np.full(some, whole, np.int64))
    joined, turn = np.concatenate(samples), np.concatenate(turns)
    order = np.lexsort((turn, joined))
    return joined[order], turn[order]


def _check_length(content: FeedContent, items: int) -> None:
    """Refuse an epoch that nobody means: before anything is made for its items."""
    limit = max(_ITEMS, _TURNS * content.count)
    if items > limit:
        message = f"an epoch of {content.dataset} would show {items:,} items; at most {limit:,} are shown"
        raise FeedError(message, hint="lower `repeats` or `samples` of its concepts, and train for more epochs")


def _resolutions(
    content: FeedContent, samples: Numbers, draws: Numbers, images: Bytes, seed: int
) -> tuple[Numbers, Numbers]:
    """The resolutions that are shown, as rows of `cuts`, and for each the number of the item it belongs to.

    A text alone has none, and is one item all the same.
    """
    begins, counts = content.resolutions.begins[samples], content.resolutions.counts[samples]
    if not content.each:
        shown = begins + _pick(images, Purpose.RESOLUTION, draws, seed, counts)
        return np.where(counts == 0, -1, shown), np.arange(len(samples))
    begins, counts = np.where(counts == 0, -1, begins), np.maximum(counts, 1)
    _check_length(content, int(counts.sum()))
    items = np.repeat(np.arange(len(samples)), counts)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(begins, counts) + np.arange(len(items)) - firsts, items


def _pick(images: Bytes, purpose: Purpose, draws: Numbers, seed: int, counts: npt.NDArray[Any]) -> Numbers:
    return pick(draw(images, purpose, number=draws, seed=seed), counts)
