"""A real text encoder over real texts: MiniLM over the glosses of WordNet.

`make models` fetches both into .models; PRECOOK_TEST_MODELS may name another folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import precook
from tests.support.projects import picture

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

ROOT = Path(__file__).parents[2]
TEXTS = 10_000
LINES = 100
COMPARED = 40
"""One in so many is compared with the library."""
TOLERANCE = 2e-5
"""Between a text in a padded batch and the same text alone, in float32; hidden states go up to about 3."""


pytestmark = pytest.mark.usefixtures("one_thread")


def part(name: str) -> Path:
    folder = Path(os.environ.get("PRECOOK_TEST_MODELS", ROOT / ".models")) / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not there: run `make models`")
    return folder


def glosses(folder: Path) -> list[str]:
    """Distinct definitions from all over the dictionary, short ones and long ones."""
    found: dict[str, None] = {}
    for path in sorted((folder / "usr/share/wordnet").glob("data.*")):
        for line in path.read_text("utf-8").splitlines():
            _, bar, text = line.partition(" | ")
            if bar:
                found[text.strip()] = None
    texts = list(found)
    return texts[:: len(texts) // TEXTS][:TEXTS]


def test_ten_thousand_real_texts_equal_the_library_text_by_text(tmp_path: Path) -> None:
    """Hidden states, pooled output and sentence vectors of a build are those of one call of transformers per text."""
    folder, texts = part("minilm"), glosses(part("wordnet-base"))
    assert len(texts) == TEXTS
    for number in range(TEXTS // LINES):
        path = picture(tmp_path / "data" / f"{number:03d}.png", number)
        path.with_suffix(".txt").write_text("\n".join(texts[number * LINES : (number + 1) * LINES]) + "\n", "utf-8")
    sections = {
        "dataset": "glosses",
        "concepts": [{"name": "glosses", "path": "data"}],
        "image": {"resolutions": [64], "step": 16},
        "encoders": {"prompt": {"uses": "transformers-text", "model": str(folder), "device": "cpu"}},
    }
    with precook.Project(base=tmp_path, **sections) as one:
        report = one.build()
        assert report.encoded == {"prompt": TEXTS + 1}
        assert not report.failed
        plan = one.plan()
        entries = {text_of(plan, entry): entry.key for entry in plan.ready}
        assert set(entries) == {*texts, ""}
        model, tokenizer = library(folder)
        for text in ["", *texts[::COMPARED]]:
            stored = one.store.get(entries[text])
            with torch.inference_mode():
                alone = model(**tokenizer(text, truncation=True, return_tensors="pt"))
            hidden, pooled = alone.last_hidden_state[0], alone.pooler_output[0]
            torch.testing.assert_close(stored["hidden"], hidden, rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(stored["pooled"], pooled, rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(sentence(stored["hidden"]), sentence(hidden), rtol=0, atol=TOLERANCE)
    shutil.rmtree(tmp_path / "cache")  # some 300 MB, which pytest would keep


def text_of(plan: precook.Plan, entry: Any) -> str:
    """The line that an entry was made of."""
    if entry.sample is None:
        return ""
    home, number = plan.samples.in_concept(entry.sample)
    return str(home.texts(number)[entry.line])


def library(folder: Path) -> tuple[Any, Any]:
    """The model and its tokenizer, as transformers itself loads them."""
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def sentence(hidden: Any) -> Any:
    """The sentence vector that this model was trained for: the mean of its tokens, of length one."""
    return torch.nn.functional.normalize(hidden.mean(0), dim=0)
