"""Text encoders as diffusers lays them out: the tokenizer lies beside them, and results are those of both together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.config.encoders import ENCODERS
from precook.encode.pipeline_folder import read_pipeline
from precook.encode.registry import EncoderSpec
from precook.memo.memo import Memory
from tests.encode.test_tokens import WORDS, save_tokenizer
from tests.support.projects import dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
text_tests = pytest.importorskip("tests.encode.test_text", reason="torch or transformers is not installed")

FAMILIES = pytest.importorskip("tests.support.pipelines", reason="diffusers is not installed").FAMILIES

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {"t5": "T5EncoderModel", "qwen3": "Qwen3Model", "clip": "CLIPTextModel", "umt5": "UMT5EncoderModel"}


def captioned(base: Path) -> list[str]:
    captions = [f"{word} {other}" for word, other in pairwise(WORDS)]
    dataset(base / "data", len(captions))
    for number, caption in enumerate(captions):
        (base / f"data/p{number}.txt").write_text(caption)
    return captions


def split_folder(base: Path, name: str) -> Path:
    """A text encoder and its tokenizer in two folders of a pipeline."""
    family = text_tests.FAMILIES[name]
    root = base / "pipeline"
    text_tests.save_model(root / "text_encoder", family.saved(), **family.tokenizer)
    for file in (root / "text_encoder").iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    save_tokenizer(root / "tokenizer", **family.tokenizer)
    parts = {"text_encoder": ["transformers", KINDS[name]], "tokenizer": ["transformers", "PreTrainedTokenizerFast"]}
    (root / "model_index.json").write_text(json.dumps({"_class_name": "AnyPipeline", **parts}))
    return root


@pytest.mark.parametrize("name", KINDS)
def test_results_are_those_of_the_tokenizer_beside(tmp_path: Path, name: str) -> None:
    """Without a word about it in the config: every caption has its own embedding, equal to the library's."""
    captions = captioned(tmp_path)
    root = split_folder(tmp_path, name)
    section = {"uses": "transformers-text", "model": "pipeline/text_encoder", "max_length": 12, "batch_size": 1}
    with project(tmp_path, encoders={"prompt": section}, text={"empty_prompt": False}) as one:
        assert one.build().encoded == {"prompt": len(captions)}
        plan = one.plan()
        stored = {entry.path.rpartition("/")[2]: one.store.get(entry.key)["hidden"] for entry in plan.ready}
    assert len({tensor.numpy().tobytes() for tensor in stored.values()}) == len(captions)
    tokenizer = transformers.AutoTokenizer.from_pretrained(root / "tokenizer")
    model = getattr(transformers, KINDS[name]).from_pretrained(root / "text_encoder").eval()
    for number, caption in enumerate(captions):
        with torch.no_grad():
            wanted = model(**tokenizer(caption, return_tensors="pt")).last_hidden_state[0]
        assert torch.allclose(stored[f"p{number}.png"], wanted, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_part_of_a_pipeline_is_refused(pipeline_of: Callable[[str], Path], family: str) -> None:
    """Whatever pipelines of diffusers have as VAE, text encoder and tokenizer is taken, and so are they as a whole."""
    folder = pipeline_of(family)
    uses = {"vae": "diffusers-vae", "text": "transformers-text", "tokenizer": "transformers-tokens"}
    sections: list[dict[str, Any]] = [{"uses": "diffusers-prompt"}]
    named = [(name, uses.get(name.partition("_")[0])) for name in read_pipeline(folder).parts]
    sections += [{"uses": kind, "subfolder": name} for name, kind in named if kind is not None]
    assert len(sections) > 3
    for section in sections:
        EncoderSpec("x", ENCODERS[section["uses"]](model=family, **section), base=folder.parent).check(Memory(None))


@pytest.mark.parametrize("name", KINDS)
def test_a_tokenizer_is_never_made_up(tmp_path: Path, name: str) -> None:
    """Without the folder beside it, the plan is refused and the library does not get to make an empty one."""
    captioned(tmp_path)
    root = split_folder(tmp_path, name)
    shutil.rmtree(root / "tokenizer")
    section = {"uses": "transformers-text", "model": "pipeline/text_encoder", "max_length": 12}
    with project(tmp_path, encoders={"prompt": section}) as one:
        with pytest.raises(precook.ConfigError, match="no tokenizer in there") as refusal:
            one.plan()
        assert "download the folder tokenizer" in refusal.value.hint
    assert not (tmp_path / "cache").exists()


def test_a_tokenizer_that_knows_none_of_the_words_stops_the_build(tmp_path: Path) -> None:
    """It fits the table and belongs to another language: all captions would be the same, and nothing is stored."""
    captioned(tmp_path)
    root = split_folder(tmp_path, "t5")
    file = root / "tokenizer" / "tokenizer.json"
    content = json.loads(file.read_text())
    strange = {token if token.startswith("<") else f"?{token}": at for token, at in content["model"]["vocab"].items()}
    file.write_text(json.dumps({**content, "model": {**content["model"], "vocab": strange}}))
    for word in WORDS:
        for caption in (tmp_path / "data").glob("*.txt"):
            caption.write_text(caption.read_text().replace(f"{word} ", f"{word}"))  # one word each: one unknown token
    section = {"uses": "transformers-text", "model": "pipeline/text_encoder", "max_length": 12}
    with project(tmp_path, encoders={"prompt": section}) as one:
        with pytest.raises(precook.EncodeError, match=r"prompt made the same of \d+ different texts"):
            one.build()
        assert not len(one.plan().ready)
