"""Pipelines: the next batch is with the device before the last is back, and nothing is lost on the way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precook.encode.encoder import Item
from precook.encode.pool import DevicePool
from precook.encode.prepare import Job
from precook.encode.registry import EncoderSpec
from precook.errors import EncodeError
from precook.plan.entries import PlannedEntry
from precook.store.tree import Parts

ENTRY = cast("PlannedEntry", SimpleNamespace(path="somewhere"))
PATIENCE = 60


def jobs(count: int) -> list[Job]:
    return [Job(ENTRY, Item(text=str(number))) for number in range(count)]


class Sink:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, int]] = []
        self.failed: list[tuple[str, str, bool]] = []
        self.batches = 0

    def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
        for job, parts in results:
            self.stored.append((job.item.text or "", int(parts.leaves[0].data.view(np.int64)[0])))

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        self.failed.append((job.item.text or "", reason, lasting))

    def batch_done(self, seconds: float) -> None:
        self.batches += 1


class Device:
    """Encodes numbers to themselves; says what is launched and what has landed."""

    def __init__(self, **steps: Callable[[list[str]], object]) -> None:
        self.steps = steps
        self.changed = threading.Condition()
        self.launched = self.landed = self.most = 0
        self.unloaded = False

    def load(self, device: str) -> None:
        assert device == "cuda:5"

    def encode(self, batch: list[Item]) -> list[Any]:
        flight = self.stage(batch)
        flight.launch()
        return flight.land()

    def stage(self, batch: list[Item]) -> Flight:
        self.step("stage", [item.text or "" for item in batch])
        return Flight(self, [item.text or "" for item in batch])

    def unload(self) -> None:
        self.unloaded = True

    def step(self, name: str, texts: list[str]) -> None:
        if name in self.steps:
            self.steps[name](texts)


class Flight:
    """A batch of numbers."""

    def __init__(self, device: Device, texts: list[str]) -> None:
        self.device = device
        self.texts = texts

    def launch(self) -> None:
        self.device.step("launch", self.texts)
        with self.device.changed:
            self.device.launched += 1
            self.device.most = max(self.device.most, self.device.launched - self.device.landed)
            self.device.changed.notify_all()

    def land(self) -> list[Any]:
        self.device.step("land", self.texts)
        with self.device.changed:
            self.device.landed += 1
            self.device.changed.notify_all()
        return [np.array([int(text)]) for text in self.texts]


def run(device: Device, sink: Any, count: int, *, size: int = 4, stop: threading.Event | None = None) -> None:
    spec = EncoderSpec("numbers", cast("Any", device), devices=("cuda:5",), batch_size=size)
    with DevicePool(spec, sink, stop or threading.Event()) as pool:
        for at in range(0, count, 10):
            pool.give(jobs(count)[at : at + 10])


def each_its_own(sink: Sink, count: int) -> None:
    assert sorted(int(text) for text, _ in sink.stored) == list(range(count))
    assert all(int(text) == value for text, value in sink.stored)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9))
def test_everything_is_told_once(count: int, size: int) -> None:
    """Each item's own result is stored, the encoder is unloaded after the last, and no thread is left."""
    device, sink = Device(), Sink()
    run(device, sink, count, size=size)
    each_its_own(sink, count)
    assert (device.launched, device.landed, sink.batches) == (device.landed, sink.batches, sink.batches)
    assert device.unloaded
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("precook-encode")]


def test_the_next_batch_is_launched_before_the_last_is_back() -> None:
    """While one batch is on the device the next is handed to it already, but no more than three are under way."""

    def land(_: list[str]) -> None:
        with device.changed:
            assert device.changed.wait_for(
                lambda: device.launched > device.landed + 1 or device.launched >= 10, PATIENCE
            )

    device, sink = Device(land=land), Sink()
    run(device, sink, 40)
    each_its_own(sink, 40)
    assert 2 <= device.most <= 3


def fail_on(bad: str, error: Exception) -> Callable[[list[str]], None]:
    def check(texts: list[str]) -> None:
        if bad in texts:
            raise error

    return check


@pytest.mark.parametrize("step", ["stage", "launch", "land"])
def test_a_batch_that_fails_is_tried_one_by_one(step: str) -> None:
    """Wherever it fails, only the bad item does in the end, for its own reason."""
    sink = Sink()
    run(Device(**{step: fail_on("7", ValueError("seven"))}), sink, 30)
    assert sink.failed == [("7", "ValueError: seven", True)]
    assert Counter(int(text) for text, _ in sink.stored) == Counter({*range(30)} - {7})


def test_a_batch_that_is_tried_again_is_not_encoded_beside_the_next_one() -> None:
    """Whichever thread does it: compiled code is for one at a time."""
    failed, launching = threading.Event(), threading.Event()
    inside: list[str] = []
    met: list[str] = []

    def stage(texts: list[str]) -> None:
        again = "land" in threading.current_thread().name
        met.extend(inside)
        inside.append(texts[0])
        if again:
            # The next batch has all the time that it wants to come in between.
            launching.wait(0.5)
        elif failed.is_set():
            launching.set()
        inside.remove(texts[0])

    def land(texts: list[str]) -> None:
        if texts[0] == "0" and len(texts) > 1:
            failed.set()
            raise ValueError("no")

    device, sink = Device(stage=stage, land=land), Sink()
    run(device, sink, 40)
    each_its_own(sink, 40)
    assert failed.is_set()
    assert met == []


@pytest.mark.parametrize("step", ["stage", "launch", "land"])
def test_too_little_memory_halves_the_batches(step: str) -> None:
    """Nothing is lost, and the batches after it are smaller."""
    sizes: list[int] = []

    def check(texts: list[str]) -> None:
        sizes.append(len(texts))
        if len(texts) > 2:
            raise MemoryError

    sink = Sink()
    run(Device(**{step: check}), sink, 200, size=8)
    each_its_own(sink, 200)
    # Three batches may be under way before the first of a size is known to fail; the halves of eight fail once more.
    assert sum(size > 2 for size in sizes) <= 3 * 3 + 3


@pytest.mark.parametrize("step", ["stage", "launch", "land"])
def test_a_lost_device_ends_the_work(step: str) -> None:
    """No item is blamed for it, what was launched before is kept, and nobody waits for ever."""
    device, sink = Device(**{step: fail_on("31", RuntimeError("CUDA error: gone"))}), Sink()
    with pytest.raises(EncodeError, match="the device failed"):
        run(device, sink, 200)
    assert sink.failed == []
    assert len(sink.stored) < 200
    assert device.unloaded


def test_a_sink_that_fails_ends_the_work() -> None:
    """A full disk comes out as what it is."""

    class Full(Sink):
        def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
            raise OSError("disk full")

    device = Device()
    with pytest.raises(OSError, match="disk full"):
        run(device, Full(), 200)
    assert device.unloaded


def test_a_stop_keeps_what_is_in_flight() -> None:
    """What was launched is told, nothing more is launched, and the rest is left."""
    stop = threading.Event()

    def launch(_: list[str]) -> None:
        if device.launched == 5:
            stop.set()

    device, sink = Device(launch=launch), Sink()
    run(device, sink, 400, stop=stop)
    assert device.launched == device.landed == sink.batches == 6
    assert len(sink.stored) < 400
