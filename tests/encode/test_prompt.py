"""The encoder of prompts: what decides its keys, what it refuses, and how it finds out whether texts may go together.

tests/encode/test_equal_to_pipelines.py compares what it makes with every family of pipelines.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import precook
from precook.config.encoders import DiffusersPrompt
from precook.encode import prompt_leaves
from precook.encode.encoder import Item
from precook.encode.prompt import PromptEncoder
from precook.encode.prompt_leaves import LeafForm
from precook.errors import EncodeError
from tests.support.projects import dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def base(tmp_path: Path, pipeline_of: Callable[[str], Path]) -> Path:
    """A folder with a picture and a copy of a tiny pipeline of Stable Diffusion."""
    dataset(tmp_path / "data", 1)
    shutil.copytree(pipeline_of("sd"), tmp_path / "model")
    return tmp_path


def keys(base: Path, **settings: Any) -> list[bytes]:
    """The keys of what a plan misses."""
    section = {"uses": "diffusers-prompt", "model": "model", **settings}
    with project(base, encoders={"prompt": section}) as owner:
        return [entry.key for entry in owner.plan().missing]


def encoder(folder: Path, **settings: Any) -> PromptEncoder:
    return PromptEncoder(DiffusersPrompt(uses="diffusers-prompt", model="unused", **settings), folder)


@pytest.fixture
def loaded(request: pytest.FixtureRequest) -> Iterator[Callable[..., PromptEncoder]]:
    """Makes loaded encoders, which are unloaded at the end."""
    made: list[PromptEncoder] = []

    def load(folder: Path, **settings: Any) -> PromptEncoder:
        made.append(encoder(folder, **settings))
        made[-1].load("cpu")
        return made[-1]

    yield load
    for one in made:
        one.unload()


def change_config(file: Path, **values: Any) -> None:
    """Write other values into a config."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def change_index(folder: Path, **values: Any) -> None:
    """Write other values into a pipeline's index."""
    change_config(folder / "model_index.json", **values)


def change_weights(file: Path) -> None:
    """Make every weight of a file another one."""
    safetensors.save_file({name: tensor + 1 for name, tensor in safetensors.load_file(file).items()}, file)


def test_keys_come_from_the_text_parts_alone(base: Path) -> None:
    """Another UNet, VAE, scheduler or place leaves every key; another text encoder, tokenizer or length does not."""
    first = keys(base)
    change_weights(base / "model/unet/diffusion_pytorch_model.safetensors")
    change_weights(base / "model/vae/diffusion_pytorch_model.safetensors")
    (base / "model/scheduler/scheduler_config.json").write_text('{"_class_name": "EulerDiscreteScheduler"}')
    change_index(base / "model", scheduler=["diffusers", "EulerDiscreteScheduler"], _diffusers_version="0.1")
    (base / "model").rename(base / "elsewhere")
    assert keys(base, model="elsewhere") == first
    assert not set(keys(base, model="elsewhere", dtype="float16")) & set(first)
    assert not set(keys(base, model="elsewhere", options={"clip_skip": 1})) & set(first)
    change_config(base / "elsewhere/tokenizer/tokenizer_config.json", model_max_length=20)
    shorter = keys(base, model="elsewhere")
    assert not set(shorter) & set(first)
    change_weights(base / "elsewhere/text_encoder/model.safetensors")
    assert not set(keys(base, model="elsewhere")) & {*first, *shorter}


def test_a_length_is_part_of_the_key(base: Path, pipeline_of: Callable[[str], Path]) -> None:
    """`max_length` is the call's max_sequence_length."""
    folder = str(pipeline_of("wan"))
    assert not set(keys(base, model=folder)) & set(keys(base, model=folder, max_length=20))


def test_a_plan_loads_nothing(base: Path) -> None:
    """Which classes there are is read, not imported."""
    code = f"""
import sys
from precook import Project
encoders = {{"prompt": {{"uses": "diffusers-prompt", "model": "model"}}}}
concepts = [{{"name": "a", "path": "data"}}]
with Project(base={str(base)!r}, dataset="test", concepts=concepts, encoders=encoders) as owner:
    assert len(owner.plan().missing) == 2
assert not {{"torch", "diffusers", "transformers"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    ("change", "settings", "message", "hint"),
    [
        (
            lambda folder: (folder / "model_index.json").unlink(),
            {},
            "no model_index.json in there",
            "transformers-text",
        ),
        (lambda folder: change_index(folder, _class_name="DDPMPipeline"), {}, "has no encode_prompt", "transformers-"),
        (lambda folder: change_index(folder, _class_name="NoPipeline"), {}, "has no NoPipeline", "install the version"),
        (
            lambda folder: change_index(folder, _class_name="QwenImageEditPipeline"),
            {},
            "QwenImageEditPipeline takes a picture for its prompts",
            "texts alone",
        ),
        (
            lambda folder: change_index(folder, _class_name="StableCascadePriorPipeline"),
            {},
            "something else than one text, and of batch_size",
            "transformers-text",
        ),
        (lambda folder: shutil.rmtree(folder / "tokenizer"), {}, "there is no folder tokenizer", "whole pipeline"),
        (
            lambda folder: change_index(folder, text_encoder=[None, None]),
            {},
            "StableDiffusionPipeline has no text encoder",
            "whole pipeline",
        ),
        (
            lambda folder: (folder / "tokenizer/tokenizer.json").unlink(),
            {},
            "tokenizer: no tokenizer in there",
            "whole pipeline",
        ),
        (
            lambda folder: change_config(folder / "text_encoder/config.json", vocab_size=100),
            {},
            "text_encoder has embeddings for 100",
            "whole pipeline",
        ),
        (lambda _: None, {"max_length": 20}, "takes no max_sequence_length, and max_length is 20", "leave max_length"),
        (lambda _: None, {"options": {"clipskip": 1}}, "cannot be told clipskip", "it may be told: clip_skip"),
        (lambda _: None, {"options": {"prompt_embeds": 1}}, "cannot be told prompt_embeds", "clip_skip"),
        (lambda _: None, {"model": "nothing"}, "no such model", "relative paths"),
    ],
)
def test_a_plan_refuses_what_makes_no_prompts(
    base: Path, change: Callable[[Path], object], settings: dict[str, Any], message: str, hint: str
) -> None:
    """It names the field, what is wrong with the folder and what to write, before anything is encoded."""
    change(base / "model")
    with pytest.raises(precook.ConfigError, match=message) as caught:
        keys(base, **settings)
    assert "encoders.prompt.model" in str(caught.value)
    assert hint in str(caught.value.hint) + str(caught.value)


def test_weights_that_are_missing_are_refused(base: Path) -> None:
    """The library would fill in random numbers and go on."""
    file = base / "model/text_encoder/model.safetensors"
    weights = safetensors.load_file(file)
    del weights[next(name for name in weights if name.endswith("q_proj.weight"))]
    safetensors.save_file(weights, file)
    with pytest.raises(EncodeError, match="text_encoder: 1 weights are missing"):
        encoder(base / "model").load("cpu")


def test_pickled_weights_are_refused(base: Path) -> None:
    """They can run code."""
    file = base / "model/text_encoder/model.safetensors"
    file.rename(file.with_name("pytorch_model.bin"))
    with pytest.raises(EncodeError, match="text_encoder: only pickled weights"):
        encoder(base / "model").load("cpu")


def test_code_in_a_folder_is_not_run(base: Path) -> None:
    """A class that neither transformers nor diffusers has is refused, whatever file lies there."""
    (base / "model/text_encoder/own.py").write_text("raise SystemExit('run')")
    change_index(base / "model", text_encoder=["own", "Own"])
    with pytest.raises(EncodeError, match="neither transformers nor diffusers has Own"):
        encoder(base / "model").load("cpu")


def test_a_form_that_is_not_known_is_refused(
    pipeline_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline whose tensors have another length for each text cannot be put into batches by guessing."""
    monkeypatch.setattr(prompt_leaves, "_FORMS", {})
    with pytest.raises(EncodeError, match=r"prompt_embeds has shape .* for one text and .* for another"):
        encoder(pipeline_of("qwen-image")).load("cpu")
    with pytest.raises(EncodeError, match=r"text_ids of FluxPipeline has shape \(512, 3\) for 1 texts"):
        encoder(pipeline_of("flux")).load("cpu")


def test_a_form_that_is_another_is_refused(pipeline_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer diffusers may fill up to another length than the one that is known."""
    monkeypatch.setattr(prompt_leaves, "_FORMS", {"WanPipeline": {"prompt_embeds": LeafForm(pad_to=100)}})
    with pytest.raises(EncodeError, match="has 226 rows, and 100 are expected"):
        encoder(pipeline_of("wan")).load("cpu")


def test_a_pipeline_that_needs_its_other_parts_is_refused(base: Path, pipeline_of: Callable[[str], Path]) -> None:
    """Some classes look at their transformer when they are made."""
    folder = base / "controlled"
    shutil.copytree(pipeline_of("z-image"), folder)
    change_index(folder, _class_name="ZImageControlNetPipeline")
    with pytest.raises(EncodeError, match="ZImageControlNetPipeline cannot be made of its text parts alone"):
        encoder(folder).load("cpu")


def test_nothing_checks_the_pictures_of_a_prompt(
    base: Path, pipeline_of: Callable[[str], Path], loaded: Callable[..., PromptEncoder]
) -> None:
    """Cosmos makes a checker of its own where it is given none, and downloads it."""
    folder = base / "cosmos"
    for name in ("text_encoder", "tokenizer"):
        shutil.copytree(pipeline_of("ltx") / name, folder / name)
    parts = {"text_encoder": ["transformers", "T5EncoderModel"], "tokenizer": ["transformers", "T5TokenizerFast"]}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "Cosmos2TextToImagePipeline", **parts}))
    ltx = diffusers.LTXPipeline.from_pretrained(pipeline_of("ltx"), local_files_only=True)
    pipeline = diffusers.Cosmos2TextToImagePipeline(
        ltx.text_encoder, ltx.tokenizer, None, None, None, safety_checker=Mock()
    )
    (tree,) = loaded(folder).encode([Item(text="a cat")])
    with torch.inference_mode():
        expected, _ = pipeline.encode_prompt("a cat")
    assert isinstance(tree, dict)
    assert torch.equal(tree["prompt_embeds"], expected[0, :3])
    assert not expected[0, 3:].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_type_is_the_pipelines_own(
    pipeline_of: Callable[[str], Path], loaded: Callable[..., PromptEncoder], dtype: str
) -> None:
    """Its weights are loaded in it, as the whole pipeline's are: T5 keeps some of them in float32."""
    folder = pipeline_of("flux")
    (tree,) = loaded(folder, dtype=dtype).encode([Item(text="a cat")])
    pipeline = diffusers.FluxPipeline.from_pretrained(folder, torch_dtype=getattr(torch, dtype), local_files_only=True)
    with torch.inference_mode():
        prompt_embeds, pooled_prompt_embeds, text_ids = pipeline.encode_prompt("a cat")
    assert isinstance(tree, dict)
    assert torch.equal(tree["prompt_embeds"], prompt_embeds[0])
    assert torch.equal(tree["pooled_prompt_embeds"], pooled_prompt_embeds[0])
    assert torch.equal(tree["text_ids"], text_ids)


def test_an_absent_text_encoder_is_named(base: Path, pipeline_of: Callable[[str], Path]) -> None:
    """A plan says it where a class cannot do without; others find out when they are tried."""
    shutil.copytree(pipeline_of("hidream"), base / "hidream")
    change_index(base / "hidream", text_encoder_4=[None, None])
    with pytest.raises(precook.ConfigError, match="HiDreamImagePipeline needs text_encoder_4") as refused:
        keys(base, model="hidream")
    assert "save_pretrained" in str(refused.value.hint) + str(refused.value)
    shutil.copytree(pipeline_of("sdxl"), base / "sdxl")
    change_index(base / "sdxl", text_encoder_2=[None, None])
    with pytest.raises(EncodeError, match="encode_prompt failed") as caught:
        encoder(base / "sdxl").load("cpu")
    assert "has no text_encoder_2" in str(caught.value.hint)


def test_zeros_that_fill_up_are_not_stored(
    pipeline_of: Callable[[str], Path], loaded: Callable[..., PromptEncoder]
) -> None:
    """A short text takes the room of its tokens, though the pipeline makes 226 rows of each."""
    (tree,) = loaded(pipeline_of("wan")).encode([Item(text="a cat")])
    assert isinstance(tree, dict)
    assert tree["prompt_embeds"].shape == (3, 32)


def test_texts_are_encoded_one_by_one_where_a_batch_changes_them(
    pipeline_of: Callable[[str], Path], loaded: Callable[..., PromptEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that makes something else of a text beside others is only ever given one."""
    right = diffusers.StableDiffusionPipeline.encode_prompt

    def encode_prompt(self: Any, prompt: list[str], device: Any, **options: Any) -> Any:
        prompt_embeds, negative_prompt_embeds = right(self, prompt, device, 1, False)
        prompt_embeds = prompt_embeds * len(prompt)
        return prompt_embeds, negative_prompt_embeds

    items = [Item(text="a cat"), Item(text="two dogs")]
    expected = loaded(pipeline_of("sd")).encode(items[:1])
    monkeypatch.setattr(diffusers.StableDiffusionPipeline, "encode_prompt", encode_prompt)
    trees: Any = loaded(pipeline_of("sd")).encode(items)
    assert torch.equal(trees[0]["prompt_embeds"], expected[0]["prompt_embeds"])


def test_an_empty_text_is_empty_for_itself_alone(
    tmp_path: Path, pipeline_of: Callable[[str], Path], loaded: Callable[..., PromptEncoder]
) -> None:
    """Mochi takes all texts of a call for empty where the last one is: it is asked about one at a time."""
    folder = shutil.copytree(pipeline_of("ltx"), tmp_path / "mochi")
    change_index(folder, _class_name="MochiPipeline", force_zeros_for_empty_prompt=True)
    made = loaded(folder)
    items = [Item(text="a cat"), Item(text="two dogs"), Item(text="")]
    together: Any = made.encode(items)
    for tree, item in zip(together, items, strict=True):
        (alone,) = made.encode([item])
        assert isinstance(alone, dict)
        assert all(torch.equal(tree[name], leaf) for name, leaf in alone.items())


@pytest.mark.skipif(
    all(importlib.util.find_spec(name) for name in ("bs4", "ftfy")), reason="bs4 and ftfy are installed"
)
def test_texts_that_cannot_be_cleaned_are_refused(tmp_path: Path, pipeline_of: Callable[[str], Path]) -> None:
    """The library would leave them as they are, under the key of cleaned ones."""
    dataset(tmp_path / "data", 1)
    shutil.copytree(pipeline_of("pixart"), tmp_path / "model")
    with pytest.raises(precook.ConfigError, match="clean_caption needs") as caught:
        keys(tmp_path, options={"clean_caption": True})
    assert "pip install beautifulsoup4 ftfy" in str(caught.value)
    assert keys(tmp_path, options={"clean_caption": False})


def test_the_library_stays_as_loud_as_it_was(
    pipeline_of: Callable[[str], Path], loaded: Callable[..., PromptEncoder], capfd: pytest.CaptureFixture[str]
) -> None:
    """A text that is cut is no reason for a line between ours, and other code finds its own reports switched on."""
    encoder = loaded(pipeline_of("sd"))
    capfd.readouterr()
    before = diffusers.utils.logging.get_verbosity()
    encoder.encode([Item(text="a cat " * 100)])
    assert diffusers.utils.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("family", ["qwen-image", "hidream"])
def test_a_live_feed_gives_what_a_build_gives(base: Path, pipeline_of: Callable[[str], Path], family: str) -> None:
    """Encoded when a batch needs it, a prompt stands in the batch as a built one does."""
    dataset(base / "data", 3)
    section = {"uses": "diffusers-prompt", "model": str(pipeline_of(family)), "batch_size": 1}
    with project(base, store="built", encoders={"prompt": section}) as built:
        built.build()
        with built.feed(batch_size=3) as feed:
            (expected,) = feed.epoch(0)
    with project(base, store="live", encoders={"prompt": section}).feed(batch_size=3, on_missing="encode") as feed:
        (batch,) = feed.epoch(0)
    assert batch["sample"] == expected["sample"]
    assert batch["prompt"].keys() == expected["prompt"].keys()
    assert all(torch.equal(tensor, expected["prompt"][name]) for name, tensor in batch["prompt"].items())


def test_options_are_passed_on(pipeline_of: Callable[[str], Path], loaded: Callable[..., PromptEncoder]) -> None:
    """`clip_skip: 1` takes another layer, as the pipeline does."""
    folder = pipeline_of("sdxl")
    trees: Any = loaded(folder, options={"clip_skip": 1}).encode([Item(text="a cat")])
    pipeline = diffusers.StableDiffusionXLPipeline.from_pretrained(folder, local_files_only=True)
    with torch.inference_mode():
        expected, _, pooled, _ = pipeline.encode_prompt("a cat", clip_skip=1)
        plain, *_ = pipeline.encode_prompt("a cat")
    assert torch.equal(trees[0]["prompt_embeds"], expected[0])
    assert torch.equal(trees[0]["pooled_prompt_embeds"], pooled[0])
    assert not torch.equal(expected, plain)
