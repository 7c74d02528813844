"""Pools: jobs are encoded in batches, and what comes of each item is told once, whatever goes wrong."""

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

from precook.encode.encoder import Item
from precook.encode.pool import DevicePool
from precook.encode.prepare import Job
from precook.encode.registry import EncoderSpec
from precook.interrupt import interruption
from precook.plan.entries import PlannedEntry
from precook.store.tree import Parts
from tests.support import projects
from tests.support.projects import Watched

ENTRY = cast("PlannedEntry", SimpleNamespace(path="somewhere"))


def text(content: str) -> Job:
    return Job(ENTRY, Item(text=content))


class Sink:
    """Keeps what a pool tells."""

    def __init__(self) -> None:
        self.stored: list[Job] = []
        self.failed: list[tuple[str, bool]] = []

    def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
        self.stored += [job for job, _ in results]

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        self.failed.append((reason, lasting))

    def batch_done(self, seconds: float) -> None:
        pass


class Counting:
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


def pool_of(worker: Any, sink: Sink, size: int | None = 4) -> DevicePool:
    return DevicePool(EncoderSpec("words", worker, devices=("cpu",), batch_size=size), sink, threading.Event())


def test_texts_of_similar_length_are_encoded_together() -> None:
    """The longest first, each measured once by the encoder itself, so that padding and memory are known early."""
    worker, sink = Counting(), Sink()
    texts = [text(" " * number) for number in (3, 9, 1, 7, 5, 2, 8, 6, 4)]
    with pool_of(worker, sink) as some:
        some.give(texts)
    assert worker.batches == [[9, 8, 7, 6], [5, 4, 3, 2], [1]]
    assert Counter(worker.measured) == Counter(job.item.text for job in texts)
    assert len(sink.stored) == 9


def test_a_text_that_cannot_be_measured_fails_alone() -> None:
    """What the encoder says of it when it encodes it is its reason."""
    worker, sink = Counting(), Sink()
    with pool_of(worker, sink) as some:
        some.give([text("a b"), text("unmeasurable"), text("a")])
    assert sink.failed == [("ValueError: unmeasurable", True)]
    assert len(sink.stored) == 2


def test_the_rest_of_the_texts_is_encoded_in_the_size_that_fits() -> None:
    """After running out of memory the batches that follow at once are smaller, not only those of the next texts."""
    worker, sink = Counting(capacity=20), Sink()
    with pool_of(worker, sink, size=8) as some:
        some.give([text(" " * 5) for _ in range(32)])
    assert len(sink.stored) == 32
    assert [len(batch) for batch in worker.batches] == [8] + [4] * 8


def test_an_encoder_with_something_else_called_length_is_no_trouble() -> None:
    """An attribute of a user's own is not taken for the method."""
    worker, sink = Counting(), Sink()
    worker.length = 77  # type: ignore[assignment, method-assign]
    with pool_of(worker, sink) as some:
        some.give([text("a b"), text("a")])
    assert len(sink.stored) == 2


def test_a_cpu_stores_what_an_encoder_stages_where_it_lies() -> None:
    """The copies that `encode` makes for those who keep its trees are not made for the store."""
    landed = np.arange(12.0).reshape(4, 3)

    class Staging(Counting):
        gives_away = True

        def stage(self, batch: list[Item]) -> Any:
            return SimpleNamespace(launch=lambda: None, land=lambda: list(landed[: len(batch)]))

        def encode(self, batch: list[Item]) -> list[Any]:
            raise AssertionError(batch)

    class Keeping(Sink):
        def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
            super().store(results, compiled=compiled)
            assert all(np.shares_memory(parts.leaves[0].data, landed) for _, parts in results)

    sink = Keeping()
    with pool_of(Staging(), sink) as some:
        some.give([text("a") for _ in range(7)])
    assert len(sink.stored) == 7


def test_jobs_after_an_error_are_refused_with_it() -> None:
    """Whoever goes on giving learns what happened instead of waiting for ever."""

    class Full(Sink):
        def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
            raise OSError("disk full")

    some = pool_of(Counting(), Full())

    def give() -> None:
        while True:
            some.give([text("a")])

    with pytest.raises(OSError, match="disk full"), some:
        give()


def test_an_error_in_the_block_comes_out_and_ends_the_threads() -> None:
    """What was given and not begun is not encoded any more; `stop` is the caller's and stays as it was."""
    stop = threading.Event()
    begun = threading.Event()

    class Slow(Counting):
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

    class Interrupting(Counting):
        def encode(self, batch: list[Item]) -> list[Any]:
            with some._changed:
                assert some._changed.wait_for(lambda: some._closed, 60)
            signal.pthread_kill(main, signal.SIGINT)
            with some._changed:
                assert some._changed.wait_for(lambda: some._error is not None, 60)
            return super().encode(batch)

    worker, sink = Interrupting(), Sink()
    some = pool_of(worker, sink, size=1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruption(), some:
            some.give([text("a"), text("b")])
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(sink.stored) == 1


class Kept:
    """Keeps what it is told, and how many results at a time."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.calls: list[int] = []

    def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
        self.calls.append(len(results))
        self.told += [(job.item.text or "", parts.leaves[0].data.tobytes().decode()) for job, parts in results]

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        self.told.append((job.item.text or "", reason))

    def batch_done(self, seconds: float) -> None:
        pass


@given(st.lists(st.sampled_from(["good", "nan", "raises"]), min_size=1, max_size=20), st.integers(1, 6))
def test_results_told_together_are_those_told_one_by_one(kinds: list[str], size: int) -> None:
    """What is told of the results of a batch is what is told of each encoded by itself."""
    texts = [f"{kind} {number}" for number, kind in enumerate(kinds)]

    def make(item: Item) -> Any:
        if (item.text or "").startswith("raises"):
            raise ValueError(item.text)
        return np.array([np.nan]) if (item.text or "").startswith("nan") else projects.content(item)

    one, many = Kept(), Kept()
    for sink, together in ((one, 1), (many, size)):
        worker = Watched(make=make)
        spec = EncoderSpec("words", worker, devices=("cpu",), batch_size=together)
        with DevicePool(spec, sink, threading.Event()) as pool:
            pool.give([text(content) for content in texts])
    assert sorted(one.told) == sorted(many.told)
    assert sum(many.calls) == sum(kind == "good" for kind in kinds) or "nan" in kinds
    assert max(many.calls, default=0) <= size
