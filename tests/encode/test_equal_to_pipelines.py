"""What is stored is what a model's own pipeline would have made of the same text: every family of pipelines.

The folders are tiny pipelines, saved whole as a download has them. Stored one by one, prompts equal the pipeline's to
the last bit; encoded together they differ by rounding, as the pipeline's own do. docs/reference/models.md says by how
much, and these tests hold it to that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precook.config.check import read_config
from tests.support.commands import run
from tests.support.projects import dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests.support.pipelines import FAMILIES  # noqa: E402 - after the skips
from tests.support.prompts import (  # noqa: E402 - likewise
    PROMPTS,
    TEXTS,
    difference_together,
    encode_prompt,
    prompt_row,
    prompt_rows,
    relative_difference,
    whole_pipeline,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


def captioned(base: Path) -> Path:
    """Pictures whose captions are the texts; the empty one is that of a file without a caption."""
    dataset(base / "data", len(TEXTS))
    for number, text in enumerate(TEXTS):
        (base / f"data/p{number}.txt").write_text(text or "\n")
    return base


def fed(base: Path, section: dict[str, Any], *, batch_size: int) -> list[dict[str, Any]]:
    """Captions and prompts of an epoch, encoded one by one or in batches as large as those that are fed."""
    section = {**section, "batch_size": batch_size}
    with project(base, encoders={"prompt": section}, keep=["captions"]) as owner:
        owner.build()
        with owner.feed(batch_size=batch_size) as feed:
            return [dict(batch) for batch in feed.epoch(0)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stored_prompt_is_the_pipelines_own(
    family: str, pipeline_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init --for` a folder, build and feed one by one: each tensor has the bits that `encode_prompt` gives."""
    folder = pipeline_of(family)
    monkeypatch.chdir(captioned(tmp_path))
    ended = run("init", "data", "--for", folder)
    assert ended.code == 0, ended.err
    section = read_config(Path("precook.yaml"))[0].encoders["prompt"].model_dump(exclude_unset=True)
    pipeline = whole_pipeline(folder)
    seen = []
    for batch in fed(tmp_path, section, batch_size=1):
        expected = encode_prompt(pipeline, family, batch["caption"], section.get("max_length"))
        assert batch["prompt"].keys() == expected.keys()
        for name, tensor in batch["prompt"].items():
            assert relative_difference(tensor, expected[name]) == 0, (name, batch["caption"])
        seen.append(next(iter(expected.values()))[0])
    # Cut to a template that all have, they would be equal for another reason.
    assert len(seen) == len(TEXTS)
    assert all(relative_difference(one, other) > 0.01 for one, other in itertools.combinations(seen, 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_what_the_pipeline_makes_of_its_texts_together(
    family: str, pipeline_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Encoded and fed together, tensors have the names, shapes and types of one call, and differ as the page says."""
    folder = pipeline_of(family)
    pipeline = whole_pipeline(folder)
    section = {"uses": "diffusers-prompt", "model": str(folder)}
    (batch,) = fed(captioned(tmp_path), section, batch_size=len(TEXTS))
    expected = encode_prompt(pipeline, family, batch["caption"])
    assert batch["prompt"].keys() == expected.keys()
    apart = difference_together(folder)
    title, *cells, _ = prompt_row(family, type(pipeline).__name__, apart)
    (stated,) = [row for row in prompt_rows() if row[0] == title]
    assert stated[:-1] == [title, *cells]
    assert apart <= float(stated[-1])
    for name, tensor in batch["prompt"].items():
        assert relative_difference(tensor, expected[name]) <= float(stated[-1]), name


def test_the_page_has_every_family_once() -> None:
    """`python tools/models_page.py` writes its table."""
    assert [row[0] for row in prompt_rows()] == [prompt.title for prompt in PROMPTS.values()]
    assert PROMPTS.keys() == FAMILIES.keys()
