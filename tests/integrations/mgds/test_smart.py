"""What mgds' `SmartDiskCache` offers: its arguments, going on without bad files, cleaning up, and many threads."""

from __future__ import annotations

import inspect
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import precook
from precook.integrations import mgds
from precook.report import SILENT
from tests.support.mgds_pipelines import DiskCache, EncodeText, Run, concept, pictures, settle, shown, without_sources

ARGUMENTS = (
    "cache_dir split_names aggregate_names variations_in_name balancing_in_name balancing_strategy_in_name "
    "variations_group_in_name group_enabled_in_name before_cache_fun stop_check_fun modeltype source_path_in_name "
    "sourceless tolerate_missing_source resolution_from_upstream bucket_method_provider rebucket_provider "
    "aspect_bucketing extra_watched_paths_in_names trust_cache content_key_in_name build_max_workers"
)
"""Of `SmartDiskCache`."""


def test_every_argument_of_the_smart_cache_is_taken_and_what_is_implied_is_said(
    tmp_path: Path, cats: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its names are ours, too; those that ask for what holds anyway are named in the log, with the reason."""
    assert set(ARGUMENTS.split()) < set(inspect.signature(DiskCache.__init__).parameters)
    assert mgds.SmartDiskCache is DiskCache
    given = {
        "modeltype": "SDXL",
        "trust_cache": True,
        "tolerate_missing_source": True,
        "resolution_from_upstream": True,
        "bucket_method_provider": str,
        "rebucket_provider": list,
        "aspect_bucketing": object(),
    }
    with caplog.at_level(logging.INFO, "precook"), Run(tmp_path, [concept(cats)], image_options=given) as run:
        run.epoch()
    said = [record.getMessage() for record in caplog.records]
    assert {name for name in given if any(text.startswith(f"{name} of the cache") for text in said)} == set(given)
    assert set(given) == set(mgds.IMPLIED)


def test_a_stop_is_asked_for_under_the_smart_caches_name(tmp_path: Path, cats: Path) -> None:
    """`stop_check_fun` ends a build, with what a trainer catches."""
    stopped = {"stop_check_fun": lambda: True}
    with Run(tmp_path, [concept(cats)], image_options=stopped) as run:
        entered = threading.Event()
        type(run.encoder).hook = staticmethod(lambda _: entered.wait(0.3))
        try:
            with pytest.raises(mgds.CachingStoppedException):
                run.start()
        finally:
            type(run.encoder).hook = staticmethod(lambda _: None)


def test_as_many_threads_build_as_are_asked_for(tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders that put the texts of several threads into one batch get as many at a time."""
    together = threading.Barrier(4, timeout=20)
    encode = EncodeText.get_item

    def wait(self: EncodeText, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        together.wait()
        return encode(self, variation, index, requested_name)

    monkeypatch.setattr(EncodeText, "get_item", wait)
    with Run(tmp_path, [concept(cats)], text_options={"build_max_workers": 4}) as run:
        run.start()
        assert run.encoded == (4, 4)


# Bad files


@pytest.mark.parametrize("bad", ["000.png", "002.png"])
def test_a_bad_file_is_left_out_of_the_whole_pipeline_if_one_wants_to_go_on(
    tmp_path: Path, cats: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pictures, texts and concepts of the others belong together in every epoch, and the log names the file."""
    (cats / bad).write_bytes(b"broken")
    settle(cats)
    pictures(tmp_path / "dogs", 3)
    made = [concept(cats, balancing=2.0), concept(tmp_path / "dogs", image_variations=2)]
    with Run(tmp_path, made, image_options={"skip_failed": True}) as run:
        for _ in range(3):
            items = run.epoch()
            assert len(items) == 2 * 3 + 3
            for item in items:
                path = Path(item["image_path"])
                assert path.name != bad or path.parent != cats
                assert item["concept_name"] == path.parent.name
                assert "".join(map(chr, item["tokens"].tolist())) in path.with_suffix(".txt").read_text().splitlines()
    assert bad in caplog.text


def test_a_text_that_fails_leaves_its_picture_out_as_well(
    tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image cache has started by then: it starts once more, without the sample, and encodes nothing for it."""
    encode = EncodeText.get_item

    def fail(self: EncodeText, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        if "1" in self._get_previous_item(variation, self.text_in_name, index):
            raise ValueError("no such word")
        return encode(self, variation, index, requested_name)

    monkeypatch.setattr(EncodeText, "get_item", fail)
    with Run(tmp_path, [concept(cats)], text_options={"skip_failed": True}) as run:
        names = [Path(item["image_path"]).name for item in run.epoch()]
        assert names == ["000.png", "002.png", "003.png"]
        assert run.encoded[0] == 4


def test_without_the_option_a_bad_file_is_an_error_that_names_it(tmp_path: Path, cats: Path) -> None:
    """As before; and the way to go on is in the hint."""
    (cats / "001.png").write_bytes(b"broken")
    with Run(tmp_path, [concept(cats)]) as run, pytest.raises(precook.EncodeError, match=r"001\.png") as caught:
        run.start()
    assert "skip_failed" in (caught.value.hint or "")


# Cleaning up


def test_entries_of_files_that_are_gone_are_seen_without_a_start(tmp_path: Path, cats: Path) -> None:
    """The two calls of a button: how much would go, and away with it; the rest is trained on as before."""
    made = [concept(cats)]
    with Run(tmp_path, made) as run:
        run.epoch()
    for part in ("image", "text"):
        assert mgds.gc_preview(tmp_path / part, grace=0).entries == 0
    (cats / "001.png").unlink()
    (cats / "001.txt").unlink()
    for part in ("image", "text"):
        plan = mgds.gc_preview(tmp_path / part, grace=0)
        assert plan.entries >= 1
        assert mgds.gc_preview(tmp_path / part).entries == 0  # all of it is young
        assert mgds.gc_clean(tmp_path / part, grace=0).entries == plan.entries
        assert mgds.gc_preview(tmp_path / part, grace=0).entries == 0
    with Run(tmp_path, made) as run:
        assert len(run.epoch()) == 3
        assert run.encoded == (0, 0)


def test_nothing_goes_while_a_whole_folder_is_away(tmp_path: Path, cats: Path) -> None:
    """A drive that is not mounted is no reason to forget what came from it; nor is there anything without a store."""
    with Run(tmp_path, [concept(cats)]) as run:
        run.epoch()
    cats.rename(tmp_path / "away")
    assert mgds.gc_clean(tmp_path / "image", grace=0).entries == 0
    assert mgds.gc_preview(tmp_path / "nowhere") is None
    assert mgds.gc_clean(tmp_path / "nowhere", report=SILENT) is None


def test_what_is_left_of_a_group_can_be_trained_on_without_sources(tmp_path: Path, cats: Path) -> None:
    """A cleaned group is a group like any other."""
    made = [concept(cats)]
    with Run(tmp_path, made) as run:
        before = shown(run.epoch())
    (cats / "003.png").unlink()
    for part in ("image", "text"):
        mgds.gc_clean(tmp_path / part, grace=0)
    with without_sources(tmp_path, made) as without:
        assert shown(without.epoch()) == before[:3]
