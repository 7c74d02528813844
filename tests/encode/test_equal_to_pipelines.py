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


def fed(base: Path, folder: Path, *, batch_size: int, **settings: Any) -> list[dict[str, Any]]:
    """Captions and prompts of an epoch, built one by one or in batches as large as those that are fed."""
    dataset(base / "data", len(TEXTS))
    for number, text in enumerate(TEXTS):
        (base / f"data/p{number}.txt").write_text(text or "\n")
    section = {"uses": "diffusers-prompt", "model": str(folder), "batch_size": batch_size, **settings}
    owner = project(base, store=f"store-{batch_size}", encoders={"prompt": section}, keep=["captions"])
    with owner:
        owner.build()
        return [dict(batch) for batch in owner.feed(batch_size=batch_size).epoch(0)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stored_prompt_is_the_pipelines_own(family: str, pipeline_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Built and fed one by one, each tensor has the bits that `encode_prompt` gives for the text, under its name."""
    folder = pipeline_of(family)
    pipeline = whole_pipeline(folder)
    seen = []
    for batch in fed(tmp_path, folder, batch_size=1):
        expected = encode_prompt(pipeline, family, batch["caption"])
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
    (batch,) = fed(tmp_path, folder, batch_size=len(TEXTS))
    expected = encode_prompt(pipeline, family, batch["caption"])
    assert batch["prompt"].keys() == expected.keys()
    title, *cells, bound = prompt_row(family, type(pipeline).__name__, difference_together(folder))
    (stated,) = [row for row in prompt_rows() if row[0] == title]
    assert stated[:-1] == [title, *cells]
    assert float(bound) <= float(stated[-1])
    for name, tensor in batch["prompt"].items():
        assert relative_difference(tensor, expected[name]) <= float(stated[-1]), name


def test_the_page_has_every_family_once() -> None:
    """`python tools/models_page.py` writes its table."""
    assert [row[0] for row in prompt_rows()] == [prompt.title for prompt in PROMPTS.values()]
    assert PROMPTS.keys() == FAMILIES.keys()
