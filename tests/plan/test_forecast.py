"""Forecasts: what a build would take."""

from __future__ import annotations

from pathlib import Path

import pytest

from precook.plan.forecast import record_rate
from tests.support.projects import (
    dataset,
    picture,
    project,
)

pytestmark = pytest.mark.usefixtures("settled")


class TestForecast:
    """What a build would take."""

    def test_size_and_time_come_from_earlier_builds(self, base: Path) -> None:
        """With a remembered rate, the plan forecasts bytes and seconds for what is missing."""
        for number in range(10, 14):
            picture(base / f"data/p{number}.png", number)
        with project(base, encoders={"pixels": {"uses": "image"}}) as opened:
            plan = opened.plan()
            memory = opened.store.memory()
            recipe = plan.encoders["pixels"].wants.encoding.recipe
            record_rate(memory, recipe, entries=2, nbytes=2 << 20, seconds=6.0)
            opened.store.remember(memory)
            plan = opened.plan()
            assert (plan.forecast.nbytes, plan.forecast.seconds) == (4 << 20, 12.0)
            assert "about 4.0 MiB, about 12 s" in str(plan)
            assert plan.forecast.free is not None
            assert plan.forecast.fits

    def test_without_a_rate_it_says_so(self, tmp_path: Path) -> None:
        """Before the first build nothing is invented."""
        dataset(tmp_path / "data")
        with project(tmp_path) as opened:
            plan = opened.plan()
            assert plan.forecast.nbytes is None
            assert "size not known before the first build" in str(plan)
