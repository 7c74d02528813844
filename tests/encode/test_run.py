"""Lines: what one encoder makes is told batch by batch, kept, claimed and counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import precook
from precook.encode.encoder import Item
from precook.encode.pool import DevicePool
from precook.encode.prepare import Job
from precook.encode.progress import FlushPolicy
from precook.encode.registry import EncoderSpec
from precook.plan.entries import PlannedEntry
from precook.store import commit
from precook.store.tree import Parts
from tests.support.projects import Watched, content, dataset, project

BAD = "picture 3, line 0"


class Kept:
    """Keeps what it is told, and how many results at a time."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.calls: list[int] = []

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
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
        return np.array([np.nan]) if (item.text or "").startswith("nan") else content(item)

    entry = cast("PlannedEntry", SimpleNamespace(path="somewhere"))
    one, many = Kept(), Kept()
    for sink, together in ((one, 1), (many, size)):
        worker = Watched(make=make)
        spec = EncoderSpec("words", worker, devices=("cpu",), batch_size=together)
        with DevicePool(spec, sink, threading.Event()) as pool:
            pool.give([Job(entry, Item(text=text)) for text in texts])
    assert sorted(one.told) == sorted(many.told)
    assert sum(many.calls) == sum(kind == "good" for kind in kinds) or "nan" in kinds
    assert max(many.calls, default=0) <= size


def test_one_entry_that_no_pack_could_hold_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its batch are stored, it is named with the reason, and the next build does not try it again."""
    dataset(tmp_path / "data", 6)
    monkeypatch.setattr(commit, "MAX_TEXT", 1000)

    def make(item: Item) -> Any:
        return {"text": np.zeros(3), "note": "x" * (2000 if item.text == BAD else 10)}

    watched = Watched(make=make)
    with project(tmp_path, encoders={"words": watched}) as one:
        report = one.build()
        assert len(watched.batches) == 1
        (failure,) = report.failed
        assert "its plain values take" in failure.reason
        assert report.encoded == {"words": 6}
        assert one.build().encoded == {"words": 0}


def test_the_good_results_of_a_batch_outlast_a_bad_one(tmp_path: Path) -> None:
    """A build that stops at the first failure keeps what came with it in the same batch."""
    dataset(tmp_path / "data", 6)
    watched = Watched(make=lambda item: np.array([np.nan]) if item.text == BAD else np.zeros(3))
    with project(tmp_path, encoders={"words": watched}) as one:
        with pytest.raises(precook.EncodeError, match="not finite"):
            one.build(fail_fast=True)
        assert len(watched.batches) == 1
        assert len(one.plan().ready) == 6


@pytest.mark.parametrize("claimed", [True, False])
def test_what_was_made_between_plan_and_build_is_not_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, claimed: bool
) -> None:
    """It counts as reused, no claim is left, and nobody is waited for, even if it is still claimed."""
    dataset(tmp_path / "data", 5)
    caplog.set_level(logging.INFO, "precook")
    first, second = Watched(), Watched()
    with (
        project(tmp_path, encoders={"words": first}) as one,
        project(tmp_path, encoders={"words": second}) as other,
    ):
        plan = other.plan()
        assert one.build().encoded == {"words": 6}
        keys = [entry.key.bytes for entry in plan.missing]
        with one.store.claims() as others:
            others.take(keys if claimed else [])
            report = plan.build()
        assert (report.encoded, report.reused) == ({"words": 0}, {"words": 6})
        assert second.loads == 0
        with one.store.claims() as claims:
            assert claims.take(keys) == set(keys)
    assert "waiting" not in caplog.text


class TestFlushPolicy:
    """When what was encoded is made durable."""

    def test_costly_batches_are_made_durable_soon(self) -> None:
        """The first twenty one by one, and later never more than one batch in twenty is at policy."""
        policy, durable = FlushPolicy(), 0
        for batch in range(1, 401):
            if policy.is_due(0.01):
                durable = batch
            assert batch - durable <= batch // 20
        assert durable >= 380

    def test_nobody_waits_for_what_costs_nothing(self) -> None:
        """Not even when other threads hold up most of its batches."""
        policy = FlushPolicy()
        assert not any(policy.is_due(0.02 if batch % 5 else 0.000002) for batch in range(100))

    def test_an_encoder_that_becomes_slow_is_noticed(self) -> None:
        """Batches that all take long are costly, whatever those before them were."""
        policy = FlushPolicy()
        assert not any(policy.is_due(0.000002) for _ in range(10))
        assert any(policy.is_due(0.01) for _ in range(10))
