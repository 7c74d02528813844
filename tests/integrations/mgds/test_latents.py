"""Latents beside which something else is cached now: masks switched on, files added, and no picture encoded again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# ruff: noqa: E402 - without torch there is nothing to import
torch = pytest.importorskip("torch", reason="torch is not installed")

from precook.report import SILENT
from tests.support.mgds_pipelines import (
    MGDS,
    DiskCache,
    EncodeVAE,
    ModifyPath,
    Module,
    OutputPipelineModule,
    PipelineState,
    ReadPixels,
    SampleVAEDistribution,
    collect_pictures,
    concept,
    settle,
)


class Vae(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Hands on what it is given, times a weight, and counts."""

    calls: list[int] = []  # noqa: RUF012 - of the class: what is in an instance belongs to its identity

    def __init__(self, weight: float = 2.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))

    def encode(self, pixels: Any) -> Any:
        self.calls.append(1)
        return SimpleNamespace(latent_dist=SimpleNamespace(mean=pixels * self.weight))


class Roll(Module):
    """Rolls pictures and their masks by the same drawn number, as mgds' modules that crop and flip do."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names[0], "")
        self.names = names

    def get_outputs(self) -> list[str]:
        return self.names

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        by = self._get_rand(variation, index).randint(0, 99)
        return {name: self._get_previous_item(variation, name, index).roll(by) for name in self.names}


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """A folder of pictures whose masks are the pictures themselves."""
    folder = tmp_path / "masked"
    folder.mkdir()
    for number in range(6):
        add(folder, f"{number}", number)
    return folder


def add(folder: Path, name: str, number: int) -> None:
    """One more picture of a hundred different bytes."""
    content = bytes((number + at) % 200 for at in range(100))
    for postfix in ("", "-masklabel"):
        (folder / f"{name}{postfix}.png").write_bytes(content)
    settle(folder)


def epoch(folder: Path, data: Path, *, masks: bool, vae: Vae | None = None) -> tuple[dict[str, Any], int]:
    """The items of an epoch by file, and how often the VAE was asked."""
    Vae.calls.clear()
    names = ["image", "mask"] if masks else ["image"]
    mask_path = ModifyPath(in_name="image_path", out_name="mask_path", postfix="-masklabel", extension=".png")
    cache = DiskCache(
        cache_dir=str(folder),
        split_names=["latent", *names[1:]],
        aggregate_names=["image_path"],
        report=SILENT,
    )
    state = PipelineState(2)
    modules = [
        collect_pictures(),
        *([mask_path, ReadPixels("mask_path", "mask")] if masks else []),
        ReadPixels("image_path", "image"),
        Roll(names),
        EncodeVAE("image", "distribution", vae or Vae()),
        SampleVAEDistribution("distribution", "latent"),
        cache,
        OutputPipelineModule(names=["latent", "image_path", *names[1:]]),
    ]
    made = MGDS(torch.device("cpu"), [concept(data)], {}, modules, batch_size=1, state=state)
    made.start_next_epoch()
    items = {Path(item["image_path"]).stem: item for item in made}
    cache.close()
    state.executor.shutdown()
    return items, len(Vae.calls)


def test_masks_switched_on_encode_no_picture_again_and_are_cut_like_it(tmp_path: Path, masked: Path) -> None:
    """More modules would draw otherwise; pictures keep their draws, and each mask gets that of its picture."""
    before, count = epoch(tmp_path / "cache", masked, masks=False)
    assert count == 6
    after, count = epoch(tmp_path / "cache", masked, masks=True)
    assert count == 0
    for name, item in after.items():
        assert item["latent"].tolist() == before[name]["latent"].tolist() == (2 * item["mask"]).tolist()
    anew, _ = epoch(tmp_path / "anew", masked, masks=True)
    assert any(item["latent"].tolist() != before[name]["latent"].tolist() for name, item in anew.items())
    assert epoch(tmp_path / "cache", masked, masks=False)[1] == 0


def test_files_that_came_meanwhile_cost_themselves(tmp_path: Path, masked: Path) -> None:
    """Numbers and places are all others then; still one picture is encoded, and masks fit."""
    before, _ = epoch(tmp_path / "cache", masked, masks=False)
    add(masked, "!first", 50)
    after, count = epoch(tmp_path / "cache", masked, masks=True)
    assert count == 1
    for name, item in after.items():
        assert item["latent"].tolist() == (2 * item["mask"]).tolist()
        assert name == "!first" or item["latent"].tolist() == before[name]["latent"].tolist()


def test_another_vae_or_an_edited_picture_is_encoded(tmp_path: Path, masked: Path) -> None:
    """What is taken from another entry was made of the same pixels by the same weights."""
    epoch(tmp_path / "cache", masked, masks=False)
    items, count = epoch(tmp_path / "cache", masked, masks=True, vae=Vae(3.0))
    assert count == 6
    assert all(item["latent"].tolist() == (3 * item["mask"]).tolist() for item in items.values())
    add(masked, "0", 77)
    items, count = epoch(tmp_path / "cache", masked, masks=True)
    assert count == 1
    assert all(item["latent"].tolist() == (2 * item["mask"]).tolist() for item in items.values())
