"""Batches: how many items at a time, which of them together, and what comes of a batch."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook.encode.batching import FIRST, LARGEST, BatchSize, Bins
from precook.encode.encoder import Item
from precook.encode.pool import DevicePool
from precook.encode.prepare import Job
from precook.encode.registry import EncoderSpec
from precook.encode.results import Acceptance
from precook.errors import EncodeError
from precook.interrupt import interruption
from precook.plan.entries import PlannedEntry
from precook.store.tree import Parts

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


class Sink:
    """Keeps what a crew tells."""

    def __init__(self) -> None:
        self.stored: list[Job] = []
        self.failed: list[tuple[str, bool]] = []

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
        self.stored += [job for job, _ in results]

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        self.failed.append((reason, lasting))

    def batch_done(self, seconds: float) -> None:
        pass


class Worker:
    """Encodes texts to their lengths, and measures them in words."""

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = capacity
        self.measured: list[str] = []
        self.batches: list[list[int]] = []

    def load(self, device: str) -> None:
        self.device = device

    def length(self, content: str) -> int:
        self.measured.append(content)
        if content == "unmeasurable":
            raise ValueError(content)
        return content.count(" ")

    def encode(self, batch: list[Item]) -> list[Any]:
        words = [(item.text or "").count(" ") for item in batch]
        self.batches.append(words)
        if sum(words) > self.capacity:
            raise MemoryError
        if any(item.text == "unmeasurable" for item in batch):
            raise ValueError("unmeasurable")
        return [np.zeros(3) for _ in batch]

    def unload(self) -> None:
        pass


def crew(worker: Any, sink: Sink, size: int | None = 4) -> DevicePool:
    return DevicePool(EncoderSpec("words", worker, devices=("cpu",), batch_size=size), sink, threading.Event())


def test_texts_of_similar_length_are_encoded_together() -> None:
    """The longest first, each measured once by the encoder itself, so that padding and memory are known early."""
    worker, sink = Worker(), Sink()
    texts = [text(" " * number) for number in (3, 9, 1, 7, 5, 2, 8, 6, 4)]
    with crew(worker, sink) as some:
        some.give(texts)
    assert worker.batches == [[9, 8, 7, 6], [5, 4, 3, 2], [1]]
    assert Counter(worker.measured) == Counter(job.item.text for job in texts)
    assert len(sink.stored) == 9


def test_a_text_that_cannot_be_measured_fails_alone() -> None:
    """What the encoder says of it when it encodes it is its reason."""
    worker, sink = Worker(), Sink()
    with crew(worker, sink) as some:
        some.give([text("a b"), text("unmeasurable"), text("a")])
    assert sink.failed == [("ValueError: unmeasurable", True)]
    assert len(sink.stored) == 2


def test_the_rest_of_the_texts_is_encoded_in_the_size_that_fits() -> None:
    """After running out of memory the batches that follow at once are smaller, not only those of the next texts."""
    worker, sink = Worker(capacity=20), Sink()
    with crew(worker, sink, size=8) as some:
        some.give([text(" " * 5) for _ in range(32)])
    assert len(sink.stored) == 32
    assert [len(batch) for batch in worker.batches] == [8] + [4] * 8


def test_an_encoder_with_something_else_called_length_is_no_trouble() -> None:
    """An attribute of a user's own is not taken for the method."""
    worker, sink = Worker(), Sink()
    worker.length = 77  # type: ignore[assignment, method-assign]
    with crew(worker, sink) as some:
        some.give([text("a b"), text("a")])
    assert len(sink.stored) == 2


def test_jobs_after_an_error_are_refused_with_it() -> None:
    """Whoever goes on giving learns what happened instead of waiting for ever."""

    class Full(Sink):
        def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
            raise OSError("disk full")

    some = crew(Worker(), Full())

    def give() -> None:
        while True:
            some.give([text("a")])

    with pytest.raises(OSError, match="disk full"), some:
        give()


def test_an_error_in_the_block_comes_out_and_ends_the_threads() -> None:
    """What was given and not begun is not encoded any more; `stop` is the caller's and stays as it was."""
    stop = threading.Event()
    begun = threading.Event()

    class Slow(Worker):
        def encode(self, batch: list[Item]) -> list[Any]:
            begun.set()
            with some._changed:
                assert some._changed.wait_for(lambda: some._closed, 60)
            return super().encode(batch)

    worker, sink = Slow(), Sink()
    some = DevicePool(EncoderSpec("words", worker, devices=("cpu",), batch_size=1), sink, stop)

    def give() -> None:
        some.give([text("a")])
        some.give([text("b")])
        assert begun.wait(60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), some:
        give()
    assert len(sink.stored) == 1
    assert not stop.is_set()


def test_an_interruption_at_the_end_still_keeps_the_batch_in_flight() -> None:
    """Ctrl-C while the last batches are waited for: the one in flight is kept, the next is not begun."""
    main = threading.get_ident()

    class Interrupting(Worker):
        def encode(self, batch: list[Item]) -> list[Any]:
            with some._changed:
                assert some._changed.wait_for(lambda: some._closed, 60)
            signal.pthread_kill(main, signal.SIGINT)
            with some._changed:
                assert some._changed.wait_for(lambda: some._error is not None, 60)
            return super().encode(batch)

    worker, sink = Interrupting(), Sink()
    some = crew(worker, sink, size=1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruption(), some:
            some.give([text("a"), text("b")])
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(sink.stored) == 1


def accepted(acceptance: Acceptance, jobs: list[Job], trees: list[Any]) -> list[bool]:
    return [not isinstance(one, EncodeError) for one in acceptance.accept([job.shape for job in jobs], trees)]


def test_what_most_of_the_first_batch_have_in_common_is_the_pattern() -> None:
    """A wrong result that comes first is the one that fails, and the pattern holds for later batches."""
    acceptance = Acceptance("latent")
    jobs = [pixels(8, 8)] * 3
    good, wrong, other = np.zeros((4, 1, 1)), np.zeros((4, 2, 1)), np.zeros((4, 1, 1), np.float32)
    assert accepted(acceptance, jobs, [wrong, good, good]) == [False, True, True]
    assert accepted(acceptance, jobs, [other, good, wrong]) == [False, True, False]
    # Pictures of another size have another shape, texts any.
    assert accepted(acceptance, [pixels(16, 8)], [wrong]) == [True]
    assert accepted(acceptance, [pixels(16, 8)], [good]) == [False]
    assert accepted(Acceptance("words"), [text("a"), text("b c")], [np.zeros((1, 3)), np.zeros((2, 3))]) == [True, True]


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), np.float16("inf"), np.complex64(complex(0, np.nan))])
def test_no_number_that_is_not_finite_is_accepted(value: Any) -> None:
    """Neither in a tensor of any type nor among plain values."""
    tree = {"a": [value]} if isinstance(value, float) else {"a": [np.array([value, value])]}
    (result,) = Acceptance("words").accept([text("a").shape], [tree])
    assert isinstance(result, EncodeError)
    assert result.message.startswith("words returned numbers that are not finite")
    assert accepted(Acceptance("words"), [text("a")], [{"a": ['{"$bits":"7ff0000000000000"}', 1.5]}]) == [True]


@pytest.mark.parametrize("trees", [None, "ab", b"ab", 3, iter([1, 2]), [1], [1, 2, 3], {1: 1, 2: 2}])
def test_a_batch_of_something_else_is_refused(trees: Any) -> None:
    """Exactly one result for each item, in a list."""
    with pytest.raises(EncodeError, match="words returned"):
        Acceptance("words").count(trees, 2)
