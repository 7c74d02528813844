"""Batches: how many items at a time, and which of them together."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from precook.encode.batching import FIRST, LARGEST, BatchSize, Bins
from precook.encode.encoder import Item
from precook.encode.prepare import Job
from precook.plan.entries import PlannedEntry

ENTRY = cast("PlannedEntry", SimpleNamespace(path="somewhere"))


def text(content: str) -> Job:
    return Job(ENTRY, Item(text=content))


def pixels(height: int, width: int) -> Job:
    return Job(ENTRY, Item(image=np.zeros((height, width, 3), np.uint8)))


def search(rates: dict[int, float], *, batches: int = 50) -> int:
    """Where the search ends for an encoder of these speeds, in items per millisecond."""
    size = BatchSize(None)
    for _ in range(batches):
        count = size.now
        size.took(count, count, count / rates.get(count, max(rates.values())) / 1000)
    return size.now


def test_the_search_stops_where_larger_batches_bring_nothing() -> None:
    """The size grows as long as the encoder gets faster by it, and no further."""
    assert search({8: 10, 16: 18, 32: 30, 64: 30.2}) == 32
    assert search({8: 10, 16: 10}) == FIRST
    assert search({8: 10, 16: 9}) == FIRST
    assert search({2**power: 2.0**power for power in range(3, 14)}) == LARGEST


def test_one_batch_that_was_held_up_does_not_end_the_search() -> None:
    """Each size has two tries."""
    size = BatchSize(None)
    for seconds in (0.01, 0.01, 5, 0.01, 0.01, 5):
        size.took(size.now, size.now, seconds)
    assert size.now == 64


def test_a_batch_that_takes_long_is_large_enough() -> None:
    """A quarter of a second is as much as a stop should wait for, and as a kill should cost."""
    assert search({8: 0.01, 16: 0.02, 32: 0.04}) == 8
    assert search({8: 0.1, 16: 0.2, 32: 0.03}) == 16


def test_batches_that_are_not_full_say_nothing() -> None:
    """With few items the size stays where it began."""
    size = BatchSize(None)
    for _ in range(10):
        size.took(FIRST - 1, FIRST - 1, 0.01)
    assert size.now == FIRST


def test_a_search_can_begin_higher() -> None:
    """Only before anything was tried, and never beside a size that was set or did not fit."""
    size = BatchSize(None)
    size.begin(64)
    assert size.now == 64
    size.too_large(64)
    size.begin(64)
    assert size.now == 32
    fixed = BatchSize(4)
    fixed.begin(64)
    assert fixed.now == 4


EVENTS = st.lists(st.tuples(st.booleans(), st.integers(1, 64), st.floats(0, 10)), max_size=40)


@given(EVENTS, st.none() | st.integers(1, 64))
def test_halving_is_never_undone(events: list[tuple[bool, int, float]], wanted: int | None) -> None:
    """However batches go, a size that did not fit is not used again, and there is always at least one item."""
    size = BatchSize(wanted)
    limit = LARGEST
    for failed, most, seconds in events:
        count = min(most, size.now)
        if failed:
            size.too_large(count)
            limit = min(limit, max(1, count // 2))
        else:
            size.took(count, count, seconds)
        assert 1 <= size.now <= limit
        assert wanted is None or size.now <= wanted


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=60),
    st.lists(st.integers(1, 9), min_size=1),
    st.integers(1, 200),
)
def test_bins_lose_nothing_and_mix_nothing(shapes: list[tuple[int, int]], sizes: list[int], nbytes: int) -> None:
    """Every job comes out once, with others of its shape, and no batch is larger than asked; the size may change."""
    current = sizes[0]
    bins = Bins(lambda: current, nbytes)
    jobs = [pixels(*shape) for shape in shapes]
    batches: list[list[Job]] = []
    for number, job in enumerate(jobs):
        current = sizes[number % len(sizes)]
        full = bins.add(job)
        assert all(len(batch) <= current for batch in full)
        batches += full
    batches += list(bins.rest())
    assert not bins
    assert Counter(id(job) for batch in batches for job in batch) == Counter(id(job) for job in jobs)
    assert all(len({job.shape for job in batch}) == 1 for batch in batches)
    assert all(len(batch) <= max(sizes) for batch in batches)
    assert all(sum(job.nbytes for job in batch[:-1]) < nbytes for batch in batches)
