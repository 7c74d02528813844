"""The mgds front in the chain that OneTrainer builds: an image cache, a text cache behind it, and prompts by file name.

`make clients` runs OneTrainer's own loaders; these tests hold what was seen there, on the stand-in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# ruff: noqa: E402 - without torch there is nothing to import
torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.support.mgds_pipelines import Run, Theirs, concept, pictures, shown

FILENAME = {"prompt_source": "filename"}


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Folders of two concepts, with files of the same names and without captions."""
    pictures(tmp_path / "cats", 4, captions=False)
    pictures(tmp_path / "dogs", 6, first=2, captions=False)
    return [tmp_path / "cats", tmp_path / "dogs"]


def texts(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The prompt that each item was encoded with, beside the name of its file."""
    return [("".join(map(chr, item["tokens"].tolist())), Path(item["image_path"]).stem) for item in items]


@pytest.mark.parametrize(
    "balancing",
    [
        ({"balancing": 2.0}, {}),
        ({"balancing": 0.5}, {"balancing": 0.5}),
        ({"balancing": 2, "balancing_strategy": "SAMPLES"}, {"balancing": 0.4}),
        ({"balancing": 9, "balancing_strategy": "SAMPLES", "text_variations": 2}, {"image_variations": 2}),
    ],
)
def test_prompts_by_file_name_belong_to_their_pictures_whatever_the_balancing(
    tmp_path: Path, two: list[Path], balancing: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Behind an image cache that shows samples often or seldom, each text is of its own file, and that of mgds' own."""
    made = [concept(folder, text=FILENAME, **changes) for folder, changes in zip(two, balancing, strict=True)]
    with (
        Run(tmp_path / "theirs", made, cache=Theirs, filenames=True) as theirs,
        Run(tmp_path / "ours", made, filenames=True) as ours,
    ):
        for _ in range(5):
            items = ours.epoch()
            assert shown(items) == shown(theirs.epoch())
            assert [text for text, _ in texts(items)] == [name for _, name in texts(items)]


@pytest.mark.parametrize("epoch", [1, 4])
def test_a_resumed_run_asks_no_cache_for_another_epoch(tmp_path: Path, two: list[Path], epoch: int) -> None:
    """A process that begins at a later epoch shows what mgds' own cache shows there."""
    made = [concept(two[0], text=FILENAME, text_variations=2), concept(two[1], text=FILENAME, balancing=0.5)]
    with (
        Run(tmp_path / "theirs", made, cache=Theirs, filenames=True, epoch=epoch) as theirs,
        Run(tmp_path / "ours", made, filenames=True, epoch=epoch) as ours,
    ):
        assert shown(ours.epoch()) == shown(theirs.epoch())


def test_one_added_file_costs_one_text_behind_an_image_cache(tmp_path: Path, two: list[Path]) -> None:
    """A file that sorts before all others moves their numbers, and none of their texts is encoded again."""
    made = [concept(two[0], text=FILENAME, balancing=2.0), concept(two[1], text=FILENAME)]
    with Run(tmp_path, made, filenames=True) as run:
        run.epoch()
    (two[0] / "!new.png").write_bytes(b"new")
    with Run(tmp_path, made, filenames=True) as run:
        items = run.epoch()
        assert run.encoded == (1, 1)
        assert all(text == name for text, name in texts(items))
