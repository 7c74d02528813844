"""Samples, and how they are cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.projects import (
    dataset,
    missing,
    picture,
    project,
)

pytestmark = pytest.mark.usefixtures("settled")


class TestSamples:
    """A sample is its picture's content and its concept."""

    def test_duplicates_are_told_apart_and_reported(self, base: Path) -> None:
        """Two equal pictures in one concept are two samples that share an entry; renaming others changes neither."""
        shutil.copy(base / "data/p1.png", base / "data/q.png")
        with project(base) as opened:
            plan = opened.plan()
            assert "1 sample with the same picture as another one of its concept" in str(plan)
            ids = [plan.samples.id(sample) for sample in range(4)]
            assert len(set(ids)) == 4
            assert missing(plan) == {}
        picture(base / "data/a.png", seed=70)
        with project(base) as opened:
            plan = opened.plan()
            assert set(ids) < {plan.samples.id(sample) for sample in range(5)}

    def test_renaming_and_captions_do_not_change_a_sample(self, base: Path) -> None:
        """Neither path nor caption is part of a sample's identity; its concept is."""
        with project(base) as opened:
            plan = opened.plan()
            before = {plan.samples.id(sample) for sample in range(3)}
        (base / "data/p0.png").rename(base / "data/zzz.png")
        (base / "data/p1.txt").write_text("another caption")
        with project(base) as opened:
            plan = opened.plan()
            assert {plan.samples.id(sample) for sample in range(3)} == before
        with project(base, concepts=[{"name": "other", "path": "data"}]) as opened:
            plan = opened.plan()
            assert not {plan.samples.id(sample) for sample in range(3)} & before

    def test_a_few_lines_of_each_caption_can_be_kept(self, tmp_path: Path) -> None:
        """`text.variations: 2` keeps two lines of each picture, the same two in whatever order they stand."""
        dataset(tmp_path / "data", lines=5)
        text = {"variations": 2, "empty_prompt": False}
        with project(tmp_path, text=text) as opened:
            keys = set(opened.plan().missing.of("words").keys())
            assert len(keys) == 6
            for number in range(3):
                caption = tmp_path / f"data/p{number}.txt"
                caption.write_text("\n".join(reversed(caption.read_text().splitlines())))
            assert set(opened.plan().missing.of("words").keys()) == keys
