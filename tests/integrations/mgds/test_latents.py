"""Latents beside which something else is cached now: masks switched on, files added, and no picture encoded again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# ruff: noqa: E402 - without torch there is nothing to import
torch = pytest.importorskip("torch", reason="torch is not installed")

from precook.report import SILENT, Reporter, Task
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
        if not pixels.any():
            raise ValueError("an empty picture")
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


def epoch(
    folder: Path,
    data: Path,
    *,
    masks: bool,
    vae: Vae | None = None,
    report: Reporter = SILENT,
    seed: int = 42,
    **options: Any,
) -> tuple[dict[str, Any], int]:
    """The items of an epoch by file, and how often the VAE was asked."""
    Vae.calls.clear()
    names = ["image", "mask"] if masks else ["image"]
    mask_path = ModifyPath(in_name="image_path", out_name="mask_path", postfix="-masklabel", extension=".png")
    cache = DiskCache(
        cache_dir=str(folder),
        split_names=["latent", *names[1:]],
        aggregate_names=["image_path"],
        source_path_in_name="image_path",
        extra_watched_paths_in_names=["mask_path"] if masks else [],
        report=report,
        **options,
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
    made = MGDS(torch.device("cpu"), [concept(data)], {}, modules, batch_size=1, state=state, seed=seed)
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


def test_a_seed_may_be_as_large_as_those_of_torch(tmp_path: Path, masked: Path) -> None:
    """`torch.seed()` gives numbers of 64 bits without a sign."""
    assert epoch(tmp_path / "cache", masked, masks=False, seed=(1 << 64) - 1)[1] == 6
    assert epoch(tmp_path / "cache", masked, masks=True, seed=(1 << 64) - 1)[1] == 0


def test_a_picture_that_is_left_out_costs_the_others_nothing(tmp_path: Path, masked: Path) -> None:
    """The build that met it was ended, and what it made of the others is known all the same."""
    for postfix in ("", "-masklabel"):
        (masked / f"3{postfix}.png").write_bytes(bytes(100))
    settle(masked)
    before, count = epoch(tmp_path / "cache", masked, masks=False, skip_failed=True)
    assert count == len(before) == 5
    after, count = epoch(tmp_path / "cache", masked, masks=True, skip_failed=True)
    assert count == 0
    assert {name: item["latent"].tolist() for name, item in after.items()} == {
        name: item["latent"].tolist() for name, item in before.items()
    }


@dataclass
class _BeforeBuild:
    """Does something else when a build is about to make its first entry."""

    action: Callable[[], object]

    @contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Task]:
        if name == "caching":
            self.action()
        with SILENT.task(name, total=total, unit=unit) as task:
            yield task


def test_two_trainings_that_build_at_once_put_no_mask_beside_a_latent_of_another_crop(
    tmp_path: Path, masked: Path
) -> None:
    """The same files stand elsewhere in the other's list and are cut otherwise; one of the two latents is kept."""
    more = tmp_path / "more"
    shutil.copytree(masked, more)
    add(more, "!first", 50)
    other = _BeforeBuild(lambda: epoch(tmp_path / "cache", masked, masks=False))
    epoch(tmp_path / "cache", more, masks=False, report=other)
    for data in (masked, more):
        items, _ = epoch(tmp_path / "cache", data, masks=True)
        assert all(item["latent"].tolist() == (2 * item["mask"]).tolist() for item in items.values())
