"""Reasons: why an entry is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from precook.plan.ready import record_failure
from tests.support.projects import (
    Words,
    build,
    dataset,
    missing,
    picture,
    project,
    reasons,
)

pytestmark = pytest.mark.usefixtures("settled")


class TestReasons:
    """Every reason a miss can have."""

    def test_a_first_plan_is_all_new(self, tmp_path: Path) -> None:
        """Nothing was ever built: everything is new."""
        dataset(tmp_path / "data")
        with project(tmp_path) as opened:
            assert reasons(opened.plan()) == {("pixels", "new"): 3, ("words", "new"): 4}

    def test_a_damaged_entry_is_named(self, base: Path) -> None:
        """An entry whose bytes are wrong is missing, because it is damaged."""
        (pack,) = (base / "cache/packs").glob("*/*.safetensors")
        content = pack.read_bytes()
        pack.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with project(base) as opened:
            keys = opened.plan().ready.keys()
            (damaged,) = [key for key in keys if opened.store.get(key, None) is None]
            plan = opened.plan()
            assert plan.missing.keys() == [damaged]
            assert [why.reason.value for why in plan.missing.reasons()] == ["entry damaged"]

    def test_a_removed_pack_leaves_collected_entries(self, base: Path) -> None:
        """Entries that were there and are gone are missing for that reason."""
        with project(base) as opened:
            assert not len(opened.plan().missing)
        shutil.rmtree(base / "cache/packs")
        with project(base) as opened:
            assert reasons(opened.plan()) == {("pixels", "entry collected"): 3, ("words", "entry collected"): 4}

    def test_a_reason_stays_until_the_entry_is_built(self, base: Path) -> None:
        """Planning twice gives the same reason: looking does not count as building."""
        picture(base / "data/p1.png", seed=99)
        with project(base) as opened:
            assert reasons(opened.plan()) == reasons(opened.plan()) == {("pixels", "content changed"): 1}
            build(opened)
            assert not len(opened.plan().missing)

    def test_swapping_back_is_all_hits(self, base: Path) -> None:
        """A recipe that was used before finds its entries again."""
        with project(base, encoders={"words": Words(2)}) as opened:
            assert build(opened) == {"words": 4}
        with project(base, encoders={"words": Words(1)}) as opened:
            assert not len(opened.plan().missing)

    def test_what_failed_before_is_told_and_not_planned_again(self, base: Path) -> None:
        """A recorded failure is no miss; with another recipe it is tried again."""
        picture(base / "data/p9.png", seed=9)
        with project(base) as opened:
            (entry,) = opened.plan().missing.of("pixels")
            memory = opened.store.memory()
            record_failure(memory, entry.key.bytes, "out of paint")
            opened.store.remember(memory)
            plan = opened.plan()
            assert not len(plan.missing)
            assert [(failure.path, failure.encoder, failure.reason) for failure in plan.failed] == [
                ("p9.png", "pixels", "out of paint")
            ]
            assert "out of paint" in str(plan)
        with project(base, image={"resolutions": [96], "step": 16}) as opened:
            assert missing(opened.plan())["pixels"] == 4
