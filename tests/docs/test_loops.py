"""The guide of diffusers' scripts: its configs are built, and its new lines give what a script makes live."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import precook
from precook.feed.posterior import draw_latents
from tests.support.pages import ROOT, section_blocks
from tests.support.projects import picture

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("diffusers", "transformers", "peft"):
    pytest.importorskip(library, reason=f"{library} is not installed")
loops = pytest.importorskip("bench.loops", reason="the benchmarks are not here")

PAGE = ROOT / "docs" / "guides" / "diffusers.md"
SIDE = 64
PARTS = {
    "latents": "latents",
    "model_input": "latents",
    "add_time_ids": "time_ids",
    "encoder_hidden_states": "encoder_hidden_states",
    "prompt_embeds": "encoder_hidden_states",
    "text_ids": "txt_ids",
    "prompt_embeds_mask": "encoder_hidden_states_mask",
}
"""What the loops of the benchmark call what a script has under a name."""
POOLED = {"sdxl": "text_embeds", "flux": "pooled_projections"}

pytestmark = pytest.mark.usefixtures("one_thread")


def added(block: str) -> str:
    """The lines that come."""
    return textwrap.dedent("".join(f"{line[1:]}\n" for line in block.splitlines() if line.startswith("+")))


def captioned(folder: Path, count: int = 3) -> dict[str, Path]:
    """Pictures by their captions, of different sizes and lengths."""
    paths = {}
    for number in range(count):
        path = picture(folder / f"{number}.png", number, (80 + 7 * number, 120 - 5 * number))
        caption = "a cat on the mat, " * number + "a dog"
        path.with_suffix(".txt").write_text(caption)
        paths[caption] = path
    return paths


@pytest.mark.parametrize("kind", loops.LOOPS, ids=lambda kind: kind.family)
def test_the_new_lines_of_a_script_give_what_its_old_ones_made(
    kind: Any, pipeline_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """The page's config is built, its lines are run on a batch, and each name has the value of a live step."""
    (config,) = section_blocks(PAGE, kind.name, "yaml")
    loop = kind(pipeline_of(kind.family), SIDE)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / kind.family).symlink_to(pipeline_of(kind.family))
    paths = captioned(tmp_path / "data")
    (tmp_path / "precook.yaml").write_text(re.sub(r"\d+x\d+", f"{SIDE}x{SIDE}", config))
    scope: dict[str, Any] = {"torch": torch, "weight_dtype": torch.float32}
    with precook.load(tmp_path / "precook.yaml") as project:
        assert not project.build().failed
        with project.feed(batch_size=3, seed=0) as feed:
            scope["batch"] = batch = next(iter(feed.epoch(0)))
    for block in section_blocks(PAGE, kind.name, "diff"):
        if "batch[" in added(block):  # of the loop; the others change what leads to it
            exec(added(block), scope)
    images = np.stack([np.frombuffer(precook.digest(paths[line]).bytes, np.uint8) for line in batch["caption"]])

    def sample(posterior: Any) -> Any:
        moments = {"mean": posterior.mean, "logvar": posterior.logvar}
        return draw_latents(moments, images, np.zeros(len(images), np.int64), 0, "torch")

    with torch.no_grad():
        live = loop.encode([paths[line] for line in batch["caption"]], batch["caption"], sample)
    wanted = {"latents": live.latents, "time_ids": live.time_ids, **live.prompt}
    for name, part in {**PARTS, "pooled_prompt_embeds": POOLED.get(kind.family)}.items():
        if name in scope:
            torch.testing.assert_close(scope[name], wanted.pop(part), msg=lambda told, name=name: f"{name}: {told}")
    assert {name for name, value in wanted.items() if value is not None} == set(), "a live step has more"


def test_the_lines_that_all_scripts_share_feed_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader is made with the script's arguments, and each process gets batches of its own in each epoch."""
    captioned(tmp_path / "data", count=4)
    config = "dataset: pets\nconcepts: [{name: pets, path: data}]\nimage: {resolutions: ['64x64']}\n"
    (tmp_path / "precook.yaml").write_text(config + "encoders: {latent: {uses: image}}\n")
    precook.load(tmp_path / "precook.yaml").build()
    monkeypatch.chdir(tmp_path)
    imported, made = map(added, section_blocks(PAGE, "The same in all of them", "diff"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen: list[list[str]] = []
    for process in range(2):
        monkeypatch.setenv("RANK", str(process))
        scope: dict[str, Any] = {
            "args": SimpleNamespace(train_batch_size=2, seed=None)
        }  # a script need not be given one
        exec(imported + made, scope)
        assert len(scope["train_dataset"]) == 4
        for _ in range(2):
            seen += [batch["sample"] for batch in scope["train_dataloader"]]
        scope["feed"].close()
        scope["project"].close()
    assert len(seen) == 4
    for epoch in range(2):
        assert len({sample for batch in seen[epoch::2] for sample in batch}) == 4
