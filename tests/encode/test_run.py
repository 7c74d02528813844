"""Lines: what one encoder makes is told batch by batch, kept, claimed and counted."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.encode.encoder import Item
from precook.store import commit
from tests.support.projects import Watched, dataset, project

BAD = "picture 3, line 0"


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
