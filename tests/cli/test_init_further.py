"""`precook init` on targets and control pictures: one concept of pairs, which plans and builds as it stands."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.config.check import read_config
from tests.support.commands import run
from tests.support.projects import picture

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
if importlib.util.find_spec("torchvision") is not None:
    import tests.clients.torchvision_operators  # noqa: F401 - before all that imports torchvision

from tests.cli.test_init_for import model_folder
from tests.support.vaes import kl


def pairs(
    base: Path, target: str = "target", *controls: str, ending: str = "png", size: tuple[int, int] = (96, 64)
) -> None:
    """Three targets with captions, each with its control pictures."""
    for number in range(3):
        picture(base / target / f"{number}.png", number)
        (base / target / f"{number}.txt").write_text(f"make it {number}")
        for place, control in enumerate(controls or ("control",), 1):
            picture(base / control / f"{number}.{ending}", 10 * place + number, size)


def written() -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Concepts and encoders of the config, without what is at its default."""
    settings = read_config(Path("precook.yaml"))[0]
    return (
        [one.model_dump(exclude_unset=True) for one in settings.concepts],
        {name: one.model_dump(exclude_unset=True) for name, one in settings.encoders.items()},
    )


@pytest.mark.parametrize(
    ("target", "control", "ending"),
    [
        ("target", "control", "png"),
        ("targets", "controls", "jpg"),
        ("training_images", "control_images", "png"),
        ("output", "input", "webp"),
        ("after", "before", "png"),
        ("edited", "original", "png"),
        ("Cats", "Conditioning Images", "png"),
    ],
)
def test_targets_and_controls_are_one_concept(here: Path, target: str, control: str, ending: str) -> None:
    """By the names that trainers give them: both are kept of every sample, and nothing is left over."""
    pairs(here / "data", target, control, ending=ending)
    ended = run("init", "data")
    assert ended.code == 0, ended.err
    assert f"control pictures: ../{control}/" in ended.out
    (concept,), encoders = written()
    assert concept["name"] == target
    assert concept["images"] == {"control": f"../{control}/{'{name}' if ending == 'png' else f'{{stem}}.{ending}'}"}
    assert encoders == {"control": {"uses": "image", "of": "control"}, "pixels": {"uses": "image"}}
    assert run("build").code == 0
    with precook.load("precook.yaml") as project:
        plan = project.plan()
        assert (plan.samples.count, len(plan.ready), len(plan.failed)) == (3, 6, 0)


def test_several_controls_are_numbered(here: Path) -> None:
    """In the order of their numbers; each has an encoder."""
    pairs(here / "data", "target", "control_10", "control_2")
    assert run("init", "data").code == 0
    (concept,), encoders = written()
    assert concept["images"] == {"control": ["../control_2/{name}", "../control_10/{name}"]}
    assert list(encoders) == ["control_1", "control_2", "pixels"]
    assert run("build").code == 0


def test_controls_of_another_shape_are_cut_by_their_own(here: Path) -> None:
    """Cut as their targets they would be left out."""
    pairs(here / "data", size=(64, 96))
    ended = run("init", "data")
    assert "another shape than their target" in ended.out
    (concept,), _ = written()
    assert concept["images"] == {"control": {"path": "../control/{name}", "fit": "own"}}
    assert run("build").code == 0


def test_targets_without_a_control_are_told(here: Path) -> None:
    """They are left out by the plan, and the file says how to keep them."""
    pairs(here / "data")
    (here / "data/control/1.png").unlink()
    assert "1 target without one, left out unless it is {path: …, optional: true}" in run("init", "data").out
    assert "1 target without one" in Path("precook.yaml").read_text()
    assert run("plan", "--json").document["samples"] == 2


def test_controls_beside_their_targets(here: Path) -> None:
    """As trainers have them that look for everything in one folder."""
    for number in range(3):
        picture(here / f"data/{number}.png", number)
        picture(here / f"data/{number}-condlabel.png", 10 + number)
    assert run("init", "data").code == 0
    (concept,), _ = written()
    assert concept["images"] == {"control": "{stem}-condlabel.png"}
    assert run("build").code == 0


def test_other_folders_stay_concepts(here: Path) -> None:
    """Names alone make no pairs, nor do pictures of the same name in folders that are called otherwise."""
    pairs(here / "data", "cats", "original")
    for number in range(3):
        picture(here / f"more/target/{number}.png", number)
        picture(here / f"more/control/other{number}.png", 10 + number)
    for folder in ("data", "more"):
        assert run("init", folder, "--force").code == 0
        concepts, encoders = written()
        assert len(concepts) == 2
        assert not any("images" in concept for concept in concepts)
        assert list(encoders) == ["pixels"]


class TestModels:
    """With models for them."""

    @pytest.mark.usefixtures("one_thread")
    def test_a_vae_encodes_both(self, here: Path) -> None:
        """One model, two encoders."""
        kl().save_pretrained(here / "vae")
        pairs(here / "data")
        assert run("init", "data", "--vae", "vae").code == 0
        _, encoders = written()
        vae = {"uses": "diffusers-vae", "model": "vae"}
        assert encoders == {"latent": vae, "control": {**vae, "of": "control"}}
        built = run("build", "--json")
        assert built.code == 0, built.err

    @pytest.mark.parametrize(
        ("pipeline", "controls", "of"),
        [
            ("QwenImageEditPipeline", ["control"], "control"),
            ("QwenImageEditPlusPipeline", ["control_1", "control_2"], ["control_1", "control_2"]),
            ("FluxKontextPipeline", ["control"], None),
        ],
    )
    def test_prompts_see_the_control_where_the_pipeline_does(
        self, here: Path, pipeline: str, controls: list[str], of: object
    ) -> None:
        """Those of Qwen-Image-Edit do, those of Kontext do not; both keep the latents of targets and controls."""
        texts = ("text_encoder", "text_encoder_2") if of is None else ("text_encoder",)
        model_folder(here / "model", pipeline, texts=texts, configs={} if of is None else {"processor": {}})
        pairs(here / "data", "target", *controls)
        ended = run("init", "data", "--for", "model")
        assert ended.code == 0, ended.err
        assert "captions are left aside" not in ended.err
        _, encoders = written()
        assert sorted(encoders) == sorted(["latent", *controls, "prompt"])
        found = encoders["prompt"].get("of")
        assert (list(found) if isinstance(found, tuple) else found) == of
        for name in controls:
            assert encoders[name] == {**encoders["latent"], "of": name}

    def test_without_controls_there_is_no_prompt_of_an_edit_model(self, here: Path) -> None:
        """Its family by name, on pictures alone and on pairs."""
        pairs(here / "data")
        ended = run("init", "data/target", "--for", "qwen-image-edit")
        assert "captions are left aside: it takes a picture for its prompts" in ended.err
        assert list(written()[1]) == ["latent"]
        assert run("init", "data", "--for", "qwen-image-edit", "--force").code == 0
        assert written()[1]["prompt"] == {
            "uses": "diffusers-prompt",
            "model": "models/qwen-image-edit",
            "dtype": "float32",
            "of": "control",
        }

    @pytest.mark.usefixtures("one_thread")
    def test_an_edit_model_is_built_as_it_is_written(self, here: Path, pipeline_of: Callable[[str], Path]) -> None:
        """Latents of both pictures, and prompts that saw the control."""
        if importlib.util.find_spec("torchvision") is None:
            pytest.skip("the processor of Qwen2.5-VL needs torchvision")
        pairs(here / "data")
        assert run("init", "data", "--for", pipeline_of("qwen-image-edit")).code == 0
        content = Path("precook.yaml").read_text()
        Path("precook.yaml").write_text(content.replace("[1024]", "[64]").replace("step: 64", "step: 16"))
        built = run("build")
        assert built.code == 0, built.out + built.err
        with precook.load("precook.yaml") as project:
            assert {name: len(project.plan().ready.of(name)) for name in ("latent", "control", "prompt")} == {
                "latent": 3,
                "control": 3,
                "prompt": 6,
            }
