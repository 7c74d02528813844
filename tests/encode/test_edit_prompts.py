"""Prompts that see a picture, as those of Qwen-Image-Edit do: equal to what the pipeline itself makes."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.config.encoders import DiffusersPrompt
from precook.encode.encoder import Item
from precook.encode.prompt import PromptEncoder
from precook.errors import EncodeError
from precook.sources.crop import cut
from precook.sources.pictures import decode
from tests.support.commands import run
from tests.support.projects import picture

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("the processor of Qwen2.5-VL needs torchvision", allow_module_level=True)
import tests.clients.torchvision_operators  # noqa: E402, F401 - before all that imports torchvision

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = """\
dataset: edits
concepts:
  - name: edits
    path: data/target
    images:
      control: "../control/{stem}.png"
image:
  resolutions: [64]
  step: 16
encoders:
  latent: {uses: diffusers-vae, model: model}
  control: {uses: diffusers-vae, model: model, of: control}
  prompt: {uses: diffusers-prompt, model: model, of: control}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline_of: Callable[[str], Path]) -> Path:
    """The dataset of an editing model, its config and its pipeline; the current folder."""
    shutil.copytree(pipeline_of("qwen-image-edit"), tmp_path / "model")
    for number, name in enumerate(("a", "b", "c")):
        # The first two have the same target and the same prompt.
        picture(tmp_path / f"data/target/{name}.png", 0 if number < 2 else 2, (90, 60))
        picture(tmp_path / f"data/control/{name}.png", 100 + number, (90, 60))
        caption = "make it blue" if number < 2 else "a longer line, about a cat\nand another"
        (tmp_path / f"data/target/{name}.txt").write_text(caption)
    (tmp_path / "precook.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def live(place: Path) -> Any:
    """The pipeline itself."""
    return diffusers.QwenImageEditPipeline.from_pretrained(place / "model")


def shown(entry: Any, place: Path) -> Image.Image:
    """The control picture of an entry, as it is cut."""
    file = place / "data/control" / Path(entry.path).name
    return Image.fromarray(cut(decode(file.read_bytes()), entry.geometry))


def test_the_task_of_qwen_image_edit_is_a_config_of_a_few_lines(place: Path) -> None:
    """Its prompts are those of the pipeline's own encode_prompt, and its latents those of the pipeline's VAE."""
    assert len(CONFIG.splitlines()) <= 15
    ended = run("build")
    assert ended.code == 0, ended.out + ended.err
    pipeline = live(place)
    with precook.load("precook.yaml") as project, torch.inference_mode():
        plan = project.plan()
        assert not plan.missing
        assert not plan.failed
        assert len(plan.ready.of("prompt")) == 7, "four captions of three controls, and the empty prompt for each"
        for entry in plan.ready.of("prompt"):
            texts = (place / "data/target" / f"{Path(entry.path or '').stem}.txt").read_text().splitlines()
            text = "" if entry.line is None else texts[entry.line]
            expected, mask = pipeline.encode_prompt(prompt=text, image=shown(entry, place))
            assert mask is None
            stored = project.store.get(entry.key)
            assert list(stored) == ["prompt_embeds"]
            assert torch.equal(stored["prompt_embeds"], expected[0])
        for entry in plan.ready.of("control"):
            pixels = pipeline.image_processor.preprocess(shown(entry, place)).unsqueeze(2)
            expected = pipeline.vae.encode(pixels).latent_dist.mode()
            assert torch.allclose(project.store.get(entry.key), expected[0, :, 0], atol=1e-6)


def test_batches_have_each_prompt_with_its_control(place: Path) -> None:
    """Two samples with equal target and prompt have different prompts, because their controls differ."""
    assert run("build").code == 0
    with precook.open("cache") as store:
        (batch,) = store.snapshot("edits").feed(batch_size=3).epoch(0)
    assert batch["latent"].shape == batch["control"].shape
    embeds, mask = batch["prompt"]["prompt_embeds"], batch["prompt"]["prompt_embeds_mask"]
    assert embeds.shape[:2] == mask.shape
    equal = [
        (one, other)
        for one in range(3)
        for other in range(one)
        if torch.equal(batch["latent"][one], batch["latent"][other])
    ]
    assert len(equal) == 1
    ((one, other),) = equal
    assert not torch.equal(batch["control"][one], batch["control"][other])
    assert not torch.equal(embeds[one], embeds[other])


def test_an_edited_control_makes_its_prompts_and_its_latent_anew(place: Path) -> None:
    """And nothing else; `explain` and `verify --recompute` work with such entries."""
    assert run("build").code == 0
    picture(place / "data/control/a.png", 55, (90, 60))
    with precook.load("precook.yaml") as project:
        assert project.build().encoded == {"latent": 0, "control": 1, "prompt": 2}
        assert not project.plan().missing
    told = run("explain", "data/control/a.png")
    assert told.code == 0
    assert "prompt, 64 as 80x48, line 1: 'make it blue': ready" in told.out
    assert run("verify", "--recompute", "100%").code == 0


def test_a_feed_makes_what_is_missing(place: Path) -> None:
    """Without a build before it."""
    with (
        precook.load("precook.yaml") as project,
        project.feed(batch_size=3, on_missing="encode") as feed,
    ):
        (batch,) = feed.epoch(0)
    assert len(batch["prompt"]["prompt_embeds"]) == 3


@pytest.mark.parametrize("count", [1, 2])
def test_prompts_of_the_plus_pipeline_see_several_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline_of: Callable[[str], Path], count: int
) -> None:
    """Each as the pipeline's own call shows them, in their order, whatever their shapes."""
    shutil.copytree(pipeline_of("qwen-image-edit-plus"), tmp_path / "model")
    controls = [f"control_{number}" for number in range(1, count + 1)]
    for number in range(2):
        picture(tmp_path / f"target/{number}.png", number, (90, 60))
        (tmp_path / f"target/{number}.txt").write_text("make it blue")
        for place, name in enumerate(controls):
            picture(tmp_path / f"{name}/{number}.png", 100 + 10 * place + number, (90, 60) if place else (60, 90))
    monkeypatch.chdir(tmp_path)
    images = [{"path": f"../{name}/{{stem}}.png", "fit": "own"} for name in controls]
    prompt = {"uses": "diffusers-prompt", "model": "model", "of": controls}
    with (
        precook.Project(
            base=tmp_path,
            dataset="edits",
            concepts=[{"name": "edits", "path": "target", "images": {"control": images}}],
            image={"resolutions": [64], "step": 16},
            encoders={"prompt": prompt, **{name: {"uses": "image", "of": name} for name in controls}},
        ) as project,
        torch.inference_mode(),
    ):
        assert project.build().failed == ()
        plan = project.plan()
        pipeline = diffusers.QwenImageEditPlusPipeline.from_pretrained(tmp_path / "model")
        assert len(plan.ready.of("prompt")) == 4, "a caption and the empty prompt of each"
        for entry in plan.ready.of("prompt"):
            name = Path(entry.path or "").name
            shown = [
                Image.fromarray(np.asarray(project.store.get(one.key)))
                for control in controls
                for one in plan.ready.of(control)
                if Path(one.path or "").name == name
            ]
            assert len(shown) == count
            text = "" if entry.line is None else "make it blue"
            image = shown[0] if count == 1 else shown
            expected, mask = pipeline.encode_prompt(prompt=text, image=image)
            assert mask is None
            assert torch.equal(project.store.get(entry.key)["prompt_embeds"], expected[0])


@pytest.mark.parametrize(
    ("family", "of", "message"),
    [
        ("qwen-image-edit", None, "takes a picture for its prompts"),
        ("qwen-image-edit", ["control", "pose"], "takes one picture for a prompt, and `of` names 2"),
        ("qwen-image-edit-plus", None, "takes a picture for its prompts"),
        ("qwen-image", "control", "takes no picture for its prompts"),
    ],
)
def test_pictures_go_to_pipelines_that_take_them(
    pipeline_of: Callable[[str], Path], family: str, of: str | list[str] | None, message: str
) -> None:
    """A prompt that sees nothing, or is shown what it cannot see, is refused before anything is loaded."""
    section = DiffusersPrompt(uses="diffusers-prompt", model="unused", of=of)
    with pytest.raises(EncodeError, match=message):
        PromptEncoder(section, pipeline_of(family)).load("cpu")


def test_a_prompt_without_its_picture_is_refused(pipeline_of: Callable[[str], Path]) -> None:
    """Of an optional control that is not there; nothing is made up in its place."""
    encoder = PromptEncoder(
        DiffusersPrompt(uses="diffusers-prompt", model="unused", of="control"), pipeline_of("qwen-image-edit")
    )
    encoder.load("cpu")
    with pytest.raises(EncodeError, match="there is no control picture for this prompt to see"):
        encoder.encode([Item(text="make it blue")])
    encoder.unload()
