"""Batches that one thread prepares and others copy: as good as those that one thread makes."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.feed.batch import BatchMaker
from tests.support.feeds import equal, frozen
from tests.support.projects import Watched, dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def owner(tmp_path: Path) -> Any:
    """A built project whose entries are the pictures themselves: large ones, which threads copy."""
    dataset(tmp_path / "data", 12)
    encoders = {"pixels": Watched("image")}
    with project(tmp_path, image={"resolutions": ["256x256"]}, encoders=encoders) as made:
        made.build()
        yield made


def test_threads_give_what_one_thread_gives(owner: precook.Project) -> None:
    """From the disk in the first epoch, and from mapped packs then, in the same order."""
    with owner.feed(batch_size=2, threads=0) as alone, owner.feed(batch_size=2, threads=3) as feed:
        for epoch in range(3):
            for one, other in zip(alone.epoch(epoch), feed.epoch(epoch), strict=True):
                assert equal([one], [other])


def test_pinned_batches_are_the_same(owner: precook.Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied by the system, in one call; without a GPU, their memory is not really pinned here."""
    empty = torch.empty

    def unpinned(shape: Any, *, dtype: Any, pin_memory: bool) -> Any:
        assert pin_memory
        return empty(shape, dtype=dtype)

    monkeypatch.setattr(torch, "empty", unpinned)
    with owner.feed(batch_size=2) as feed:
        for epoch in range(2):
            schedule = feed.schedule(epoch)
            for step, batch in enumerate(feed.epoch(epoch)):
                finish = feed.batches.prepare(schedule.items, schedule.batch(step, 0), pinned=True)
                pinned = finish()
                assert pinned is not None
                assert equal([pinned], [batch])


def test_a_large_batch_that_was_let_go_takes_no_memory(owner: precook.Project) -> None:
    """Also the one that was prepared last: nothing keeps what it was handed."""
    with owner.feed(batch_size=2, threads=2, prefetch=2) as feed:
        coming = iter(feed.epoch(0))
        for batch in coming:
            seen = weakref.ref(batch["pixels"])
            del batch
            assert seen() is None


def test_what_goes_wrong_comes_when_its_batch_is_asked_for(
    owner: precook.Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the third batch does not come before the second, however far ahead batches are prepared."""
    collate = BatchMaker._collate
    with owner.feed(batch_size=2, prefetch=6) as feed:
        bad = feed.schedule(0).batch(2, 0)

        def fail(self: BatchMaker, items: Any, members: Any, buffers: Any) -> Any:
            if np.array_equal(members, bad):
                raise precook.FeedError("the third batch")
            return collate(self, items, members, buffers)

        monkeypatch.setattr(BatchMaker, "_collate", fail)
        coming = iter(feed.epoch(0))
        next(coming)
        next(coming)
        with pytest.raises(precook.FeedError, match="the third batch"):
            next(coming)


def test_entries_that_differ_in_more_than_length_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets the bytes of one entry in the place of another's, however they are copied."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, *, dtype, pin_memory=False: empty(shape, dtype=dtype))
    recipe = precook.Recipe("transformers-text", {"model": "made-up"})
    with precook.open(tmp_path / "cache") as store:
        entries = [{"hidden": np.full((4, width), width, np.float32)} for width in (8, 4, 12)]
        with frozen(store, recipe, entries).feed(batch_size=3) as feed:
            schedule = feed.schedule(0)
            for number in range(3):
                assert feed.batches.make(schedule.items, np.array([number])) is not None  # from now on it is mapped
            for pinned in (False, True):
                with pytest.raises(precook.FeedError, match="more than length"):
                    feed.batches.prepare(schedule.items, schedule.batch(0, 0), pinned=pinned)()
