"""A SmartDiskCache that mgds (its pull request 49) has filled itself, adopted as it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.checkouts import checkout

sys.path.insert(0, str(checkout("mgds-pr49", "Nerogar/mgds, pull request 49") / "src"))

import torch
from mgds.MGDS import MGDS
from mgds.OutputPipelineModule import OutputPipelineModule
from mgds.PipelineModule import PipelineModule, PipelineState
from mgds.pipelineModules.SmartDiskCache import SmartDiskCache
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule

import precook
from precook.integrations.adopt import plan_adopt
from precook.integrations.adopt.formats import load
from tests.support.projects import picture

LATENTS = ["latent_image", "original_resolution"]
TEXTS = ["tokens", "text_encoder_hidden_state"]


class Samples(PipelineModule, RandomAccessPipelineModule):
    """What modules before a cache give of some pictures with captions: each number tells its sample."""

    def __init__(self, pictures: list[Path]) -> None:
        super().__init__()
        self._pictures = pictures

    def length(self) -> int:
        return len(self._pictures)

    def get_inputs(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return ["image_path", "sample_prompt_path", "crop_resolution", "concept", "prompt", *LATENTS, *TEXTS]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        path = self._pictures[index]
        return {
            "image_path": str(path),
            "sample_prompt_path": str(path.with_suffix(".txt")),
            "crop_resolution": (64, 96),
            "original_resolution": (64, 96),
            "concept": {"name": "cats", "loss_weight": 1.0},
            "prompt": path.with_suffix(".txt").read_text(),
            "latent_image": torch.full((4, 8, 12), 10.0 * index).bfloat16(),
            "tokens": torch.arange(5),
            "text_encoder_hidden_state": torch.full((5, 8), float(index)),
        }


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Three pictures of 96 x 64 with captions."""
    made = [tmp_path / "cats" / f"cat{number}.png" for number in range(3)]
    for number, path in enumerate(made):
        picture(path, number)
        path.with_suffix(".txt").write_text(f"a cat {number}")
    return made


@pytest.fixture
def cache(tmp_path: Path, pictures: list[Path]) -> Path:
    """The pictures' cache and the texts', in one folder as OneTrainer has them."""
    folder = tmp_path / "cache"
    for name, source, split, aggregates in (
        ("image", "image_path", LATENTS, ["crop_resolution", "image_path"]),
        ("text", "sample_prompt_path", TEXTS, []),
    ):
        made = SmartDiskCache(str(folder / name), split, aggregates, modeltype="SDXL", source_path_in_name=source)
        definition = [[Samples(pictures)], [made], [OutputPipelineModule(names=[*split, *aggregates])]]
        options = {"concepts": [{"name": "cats"}], "settings": {}, "batch_size": 1, "state": PipelineState(), "seed": 1}
        dataset = MGDS(device=torch.device("cpu"), definition=definition, **options)
        dataset.start_next_epoch()
        list(dataset)
    return folder


def test_what_a_real_smart_disk_cache_holds_is_adopted(tmp_path: Path, pictures: list[Path], cache: Path) -> None:
    """Latents and texts, bit for bit, each with its own picture; mgds' notes and paths stay behind."""
    plan = plan_adopt(pictures[0].parent, caches=cache)
    assert plan.family == "mgds/SDXL"
    assert (len(plan.samples), plan.left_out, plan.without_picture) == (3, (), 0)
    for sample in plan.samples:
        number = int(sample.picture.stem[-1])
        (latent,) = sample.latents
        tree = load(latent.path, latent.part)
        assert set(tree) == {"crop_resolution", *LATENTS}
        assert torch.equal(tree["latent_image"], torch.full((4, 8, 12), 10.0 * number).bfloat16())
        assert latent.part.size == (64, 96)
        assert sample.prompt is not None
        assert sample.prompt.part.caption == f"a cat {number}"
        text = load(sample.prompt.path, sample.prompt.part)
        assert torch.equal(text["text_encoder_hidden_state"], torch.full((5, 8), float(number)))
    with precook.open(tmp_path / "store") as store:
        assert plan.execute(store, "old").samples == 3


def test_a_picture_that_was_edited_since_is_left_out(pictures: list[Path], cache: Path) -> None:
    """The index has a hash of what was encoded, whatever the times say."""
    picture(pictures[1], 77)
    plan = plan_adopt(pictures[0].parent, caches=cache, ignore_times=True)
    assert [sample.picture.name for sample in plan.samples] == ["cat0.png", "cat2.png"]
    assert any("made of another picture" in left.reason for left in plan.left_out)
