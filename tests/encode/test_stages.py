"""Stages: how busy each part of a build is, and which of them limits it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from precook.cli import progress
from precook.encode.stages import StageTimes, find_limit
from tests.support.projects import Watched, dataset, project


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_shares_are_of_the_time_that_threads_and_devices_had() -> None:
    """Four threads that read for eight of forty seconds in all were busy for a fifth of them."""
    clock = Clock()
    times = StageTimes({"reading": 4, "decoding": 4, "device": 1, "disk": 2}, clock=clock)
    with times.measured("reading"):
        clock.now += 8
    times.add("device", 9)
    clock.now += 2
    assert times.shares() == {"reading": 0.2, "decoding": 0.0, "device": 0.9, "disk": 0.0}


def test_the_whole_adds_up_what_ran_in_turn_or_together() -> None:
    """One device busy all the time and one busy half of it are three quarters, and time after the end counts not."""
    clock = Clock()
    whole = StageTimes({}, clock=clock)
    parts = [StageTimes({"device": 1}, whole, clock=clock) for _ in range(2)]
    parts[0].add("device", 10)
    parts[1].add("device", 5)
    clock.now += 10
    for part in parts:
        part.end()
    clock.now += 90
    assert whole.shares() == {"device": 0.75}
    assert [part.shares() for part in parts] == [{"device": 1.0}, {"device": 0.5}]


@pytest.mark.parametrize(
    ("shares", "limit"),
    [
        ({"reading": 0.1, "decoding": 0.3, "device": 0.9, "disk": 0.2}, "device"),
        ({"reading": 0.3, "decoding": 0.6, "device": 0.8, "disk": 0.2}, "decoding"),
        ({"reading": 0.6, "decoding": 0.3, "device": 0.8, "disk": 0.2}, "reading"),
        ({"reading": 0.1, "decoding": 0.1, "device": 0.3, "disk": 0.7}, "disk"),
        ({"reading": 0.1, "decoding": 0.1, "device": 0.3, "disk": 0.2}, None),
        ({}, None),
    ],
)
def test_the_limit_is_what_the_others_wait_for(shares: dict[str, float], limit: str | None) -> None:
    """The same threads read and decode; where nothing is busy most of the time, nothing is named."""
    assert find_limit(shares) == limit


class Telling:
    """A reporter that keeps what it is told of stages."""

    def __init__(self) -> None:
        self.told: list[dict[str, float]] = []

    @contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Any]:
        yield self

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        pass

    def busy(self, shares: dict[str, float]) -> None:
        self.told.append(shares)


class Plain:
    """A reporter that knows nothing of stages."""

    def __init__(self) -> None:
        self.done = 0

    @contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Any]:
        yield self

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        self.done += amount


def test_a_build_tells_how_busy_each_stage_is(tmp_path: Path) -> None:
    """To whoever reports and in its report; each stage that did something was busy, and none more than all the time."""
    dataset(tmp_path / "data", 12)
    reporter, plain = Telling(), Plain()
    with project(tmp_path, encoders={"pixels": Watched("image")}) as one:
        report = one.build(report=reporter)
    with project(tmp_path, store="other", encoders={"pixels": Watched("image")}) as one:
        one.build(report=plain)
    assert reporter.told
    for shares in (*reporter.told, report.busy):
        assert set(shares) == {"reading", "decoding", "device", "disk"}
        assert all(0 <= share <= 1 for share in shares.values())
    assert all(share > 0 for share in report.busy.values())
    assert plain.done >= 12


def test_nothing_to_encode_is_limited_by_nothing(tmp_path: Path) -> None:
    """There is no share of no time."""
    dataset(tmp_path / "data", 2)
    with project(tmp_path, encoders={"pixels": Watched("image")}) as one:
        one.build()
        report = one.build()
    assert (report.busy, report.limit) == ({}, None)


def test_the_last_lines_tell_it() -> None:
    """In words for people, in numbers for programs."""
    shares = {"reading": 0.0421, "decoding": 0.31, "device": 0.42, "disk": 0.1}
    assert progress.format_busy(shares) == "busy device 42%, decoding 31%, disk 10%, reading 4%"
    assert progress.rounded(shares)["reading"] == 0.042
