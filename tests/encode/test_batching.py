"""Batches: how many items at a time, and which of them together."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from precook.encode.batching import FIRST, LARGEST, BatchSize, Bins, JobBatch
from precook.encode.encoder import Cost, Item
from precook.encode.prepare import Job
from precook.plan.entries import PlannedEntry

ENTRY = cast("PlannedEntry", SimpleNamespace(path="somewhere"))


def text(content: str) -> Job:
    return Job(ENTRY, Item(text=content))


def pixels(height: int, width: int) -> Job:
    return Job(ENTRY, Item(image=np.zeros((height, width, 3), np.uint8)))


def batch(count: int, each: int = 1) -> JobBatch:
    return JobBatch([text("")] * count, each)


def take(size: BatchSize, each: int, rate: float, **cost: int) -> None:
    """A batch of the size of the moment, at so much work in a second."""
    count = size.count((), each)
    seconds = count * each / rate
    size.took(batch(count, each), seconds, Cost(seconds, **cost) if cost else None)


def search(rates: dict[int, float], *, batches: int = 50) -> int:
    """Where the search ends for an encoder of these speeds, in items per millisecond."""
    size = BatchSize(None)
    for _ in range(batches):
        take(size, 1, 1000 * rates.get(size.count((), 1), max(rates.values())))
    return size.count((), 1)


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
        size.took(batch(size.count((), 1)), seconds)
    assert size.count((), 1) == 64


def test_a_batch_that_takes_long_is_large_enough() -> None:
    """A quarter of a second is as much as a stop should wait for, and as a kill should cost."""
    assert search({8: 0.01, 16: 0.02, 32: 0.04}) == 8
    assert search({8: 0.1, 16: 0.2, 32: 0.03}) == 16


def test_batches_that_are_not_full_say_nothing() -> None:
    """With few items the size stays where it began."""
    size = BatchSize(None)
    for _ in range(10):
        size.took(batch(FIRST - 1), 0.01)
    assert size.count((), 1) == FIRST


def test_short_texts_and_small_pictures_come_in_larger_batches() -> None:
    """A batch is so much work, whatever its items are: memory and time stay the same."""
    size = BatchSize(None)
    size.begin(16_384, {})
    assert [size.count((), tokens) for tokens in (512, 100, 16, 1, 100_000)] == [32, 163, 1024, LARGEST, 1]


def test_what_was_asked_before_the_device_was_known_begins_anew() -> None:
    """Items are gathered while the encoder is still loading: that must not fix where the search begins."""
    size = BatchSize(None)
    assert size.count((), 10) == FIRST
    size.begin(16_384, {})
    assert size.count((), 10) == 1638


def test_each_shape_has_a_size_of_its_own_and_begins_where_others_have_ended() -> None:
    """What is found for one size of pictures is a good guess for another, and is not changed by it."""
    size = BatchSize(None)
    for rate in (10, 10, 20, 20, 20.1, 20.1):
        count = size.count((512, 512), 100)
        size.took(JobBatch([pixels(512, 512)] * count, 100), count * 100 / rate / 1e6)
    assert size.found() == {(512, 512): 1600}
    assert size.count((1024, 1024), 400) == FIRST
    assert size.count((256, 256), 25) == 64
    assert size.count((512, 512), 100) == 16


def test_a_device_that_wants_modest_batches_begins_with_few_large_pictures() -> None:
    """A CPU gets large pictures one by one until more at a time turn out to be faster; small ones as elsewhere."""
    size = BatchSize(None)
    size.begin(0, {(8, 8): 1 << 20}, modest=1 << 16)
    counts = {shape: size.count(shape, shape[0] * shape[1]) for shape in ((64, 64), (128, 128), (256, 256), (512, 512))}
    assert counts == {(64, 64): FIRST, (128, 128): 4, (256, 256): 1, (512, 512): 1}
    for rate in (1e6, 1e6, 2e6, 2e6):
        job = pixels(256, 256)
        count = size.count(job.shape, 65536)
        size.took(JobBatch([job] * count, 65536), count * 65536 / rate)
    assert size.count((256, 256), 65536) == 4
    assert size.count((8, 8), 64) == LARGEST


def test_no_batch_is_larger_than_the_encoder_wants() -> None:
    """However much faster larger ones would be, and whatever was found out before the encoder said so."""
    size = BatchSize(None)
    size.begin(1600, {(8, 8): 16_000}, bound=6500)
    for _ in range(20):
        assert size.count((), 100) <= 65
        take(size, 100, 1e6 * size.count((), 100))
    assert size.count((), 100) == 64
    assert size.count((8, 8), 64) == 6500 // 64
    assert size.count((90, 90), 8100) == 1, "one that is larger by itself goes alone"


def test_what_is_known_is_not_searched_again() -> None:
    """A second build begins with the size that the first one found."""
    size = BatchSize(None)
    size.begin(0, {(): 320})
    for rate in (1, 2, 4, 8):
        take(size, 10, rate * 1e6)
        assert size.count((), 10) == 32
    assert size.found() == {(): 320}


def test_a_device_that_is_nearly_full_gets_no_larger_batches() -> None:
    """Twice the work may take more than twice the memory: it is tried only where that is surely there."""
    size = BatchSize(None)
    for _ in range(10):
        take(size, 1, 1e6, memory=100, free=249)
    assert size.count((), 1) == FIRST
    size = BatchSize(None)
    for _ in range(4):
        take(size, 1, size.now * 1e5, memory=100, free=250)
    assert size.count((), 1) == 4 * FIRST


def test_the_device_s_own_time_counts_where_it_is_known() -> None:
    """Threads that are kept waiting by others say nothing about the device."""
    size = BatchSize(None)
    for seconds in (1.0, 1.0, 9.0, 9.0):
        count = size.count((), 1)
        size.took(batch(count), seconds, Cost(0.001, 1, 1000))
    assert size.count((), 1) == 4 * FIRST


EVENTS = st.lists(st.tuples(st.booleans(), st.integers(1, 64), st.floats(0, 10)), max_size=40)


@given(EVENTS, st.none() | st.integers(1, 64), st.integers(1, 100))
def test_halving_is_never_undone(events: list[tuple[bool, int, float]], wanted: int | None, each: int) -> None:
    """However batches go, a size that did not fit is not used again, and there is always at least one item."""
    size = BatchSize(wanted)
    limit = LARGEST
    for failed, most, seconds in events:
        count = min(most, size.count((), each))
        if failed:
            size.too_large(batch(count, each))
            limit = min(limit, max(1, count // 2))
        else:
            size.took(batch(count, each), seconds)
        assert 1 <= size.count((), each) <= limit
        assert wanted is None or size.count((), each) <= wanted


def test_what_did_not_fit_does_not_fit_in_any_shape() -> None:
    """Memory goes by work: after running out of it, batches of other shapes are as small."""
    size = BatchSize(None)
    size.too_large(batch(8, 100))
    assert [size.count(shape, 100) for shape in ((), (1, 2))] == [4, 4]
    assert size.count((3, 4), 50) == 8


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=60),
    st.lists(st.integers(1, 9), min_size=1),
    st.integers(1, 200),
)
def test_bins_lose_nothing_and_mix_nothing(shapes: list[tuple[int, int]], sizes: list[int], nbytes: int) -> None:
    """Every job comes out once, with others of its shape, and no batch is larger than asked; the size may change."""
    current = sizes[0]
    bins = Bins(lambda _: current, nbytes)
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
