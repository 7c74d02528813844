"""Training on what an mgds cache has built, when its files are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import precook
from tests.support.forged import name_of, pack_of
from tests.support.mgds_pipelines import Run, concept, pictures, shown, without_sources


def test_sourceless_training_shows_what_was_built_without_a_file_of_it(tmp_path: Path, cats: Path) -> None:
    """The pipeline of caches and output alone gives the items of every epoch that was built, and of no other."""
    made = [concept(cats, image_variations=2, balancing=0.5)]
    epochs = []
    with Run(tmp_path, made) as with_sources:
        epochs = [shown(with_sources.epoch()) for _ in range(4)]
    cats.rename(tmp_path / "gone")
    with without_sources(tmp_path, made) as without:
        assert without.image_cache.length() == 2
        assert [shown(without.epoch()) for _ in range(4)] == epochs
    more = [concept(cats, image_variations=3)]
    with without_sources(tmp_path, more, epoch=2) as never, pytest.raises(precook.IncompleteError, match="variation 2"):
        never.start()
    with without_sources(tmp_path, [concept(cats, seed=8)]) as unknown, pytest.raises(precook.NoSnapshotError):
        unknown.start()


def test_an_entry_that_is_lost_cannot_be_made_without_sources(tmp_path: Path, cats: Path) -> None:
    """The start says so, rather than showing another sample in its place."""
    with Run(tmp_path, [concept(cats)]) as with_sources:
        with_sources.epoch()
    for pack in (tmp_path / "image" / "precook" / "packs").glob("*/*.safetensors"):
        pack.unlink()
    with (
        without_sources(tmp_path, [concept(cats)]) as without,
        pytest.raises(precook.IncompleteError, match="4 entries of image are missing or damaged"),
    ):
        without.start()


def test_every_concept_of_a_group_must_be_given(tmp_path: Path, cats: Path) -> None:
    """Each sample shows its own, also where an epoch shows one of them only; one that is not given is an error."""
    both = [concept(cats, balancing=0.5), concept(cats, balancing=0.5, name="again")]
    with Run(tmp_path, both) as with_sources:
        expected = [shown(with_sources.epoch()) for _ in range(2)]
    assert [{item["concept_name"] for item in epoch} for epoch in expected] == [{"cats"}, {"again"}]
    with without_sources(tmp_path, both) as without:
        assert [shown(without.epoch()) for _ in range(2)] == expected
    with (
        without_sources(tmp_path, both[:1]) as without,
        pytest.raises(precook.IncompleteError, match="was built from 2 concepts, and 1 are given"),
    ):
        without.start()


SORTING = ("VariationSorting",)
"""OneTrainer leaves it behind its caches."""


def test_a_sorting_behind_the_caches_sorts_nothing_a_second_time(tmp_path: Path, cats: Path) -> None:
    """Balancing is applied once, concepts of one group keep their own names, and a run can resume at any epoch."""
    made = [
        concept(cats, balancing=2.0, loss_weight=0.5),
        concept(cats, balancing=2.0, name="again", loss_weight=2.0, type="PRIOR_PREDICTION"),
    ]
    with Run(tmp_path, made) as with_sources:
        expected = [shown(with_sources.epoch()) for _ in range(3)]
    for first in (0, 2):
        with without_sources(tmp_path, made, more=SORTING, epoch=first) as without:
            assert [shown(without.epoch()) for _ in range(3 - first)] == expected[first:]


def test_prompts_are_there_without_sources(tmp_path: Path, cats: Path) -> None:
    """Each item has the prompt that its text was encoded from, with draws, variations and a content key."""
    made = [concept(cats, text_variations=2)]
    for options in ({}, {"content_key_in_name": "prompt"}):
        folder = tmp_path / str(len(options))
        with Run(folder, made, text_options=options) as with_sources:
            with_sources.epoch()
            with_sources.epoch()
        with without_sources(folder, made, more=SORTING) as without:
            without.start()
            for index in range(without.text_cache.length()):
                tokens = without.text_cache.get_item(index, "tokens")["tokens"].tolist()
                assert without.text_cache.get_item(index, "prompt")["prompt"] == "".join(map(chr, tokens))
                assert without.image_cache.get_item(index, "prompt")["prompt"] is None


def test_a_folder_that_is_elsewhere_now_is_known_by_its_settings(tmp_path: Path, cats: Path) -> None:
    """The path of a concept need not be that of the build; where two would fit, nothing is guessed."""
    pictures(tmp_path / "dogs", 2)
    dogs = concept(tmp_path / "dogs", seed=7)
    with Run(tmp_path, [concept(cats), dogs]) as with_sources:
        expected = shown(with_sources.epoch())
    moved = [concept(tmp_path / "elsewhere" / name) for name in ("cats", "dogs")]
    with without_sources(tmp_path, moved) as without:
        assert shown(without.epoch()) == expected
    with (
        without_sources(tmp_path, [concept(tmp_path / "birds")]) as without,
        pytest.raises(precook.IncompleteError, match="2 groups of image were built with these settings"),
    ):
        without.start()


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"variations": [0, 1], "paths": {}},
        {"variations": ["x"], "paths": {}},
        {"variations": [0], "paths": {"image_path": {}}},
        {"variations": [0], "paths": {"image_path": {"text": 1, "ends": 2}}},
    ],
    ids=str,
)
def test_a_snapshot_that_is_not_of_a_cache_is_named(tmp_path: Path, cats: Path, form: dict[str, Any]) -> None:
    """Somebody else's snapshot under the name of ours is damaged, and the error says where it lies."""
    with Run(tmp_path, [concept(cats)]) as with_sources:
        with_sources.epoch()
    with precook.open(tmp_path / "image" / "precook") as store:
        for file in store.snapshots():
            tree = store.snapshot(file.dataset).content.tree()
            content = pack_of({**tree, "mgds": form})
            file.path.with_name(f"00000009-{name_of(content)}.safetensors").write_bytes(content)
    with (
        without_sources(tmp_path, [concept(cats)]) as without,
        pytest.raises(precook.DamagedPackError, match="not a snapshot"),
    ):
        without.start()
