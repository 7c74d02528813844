"""The pages about models: their session is run, and their table is what the code has."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from precook.encode.families import FAMILIES
from tests.docs.test_cli import make_pictures
from tests.support.commands import check_examples
from tests.support.pages import ROOT, console_blocks

GUIDE = ROOT / "docs" / "guides" / "models.md"
REFERENCE = ROOT / "docs" / "reference" / "models.md"


def test_the_guide_does_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline_of: Callable[[str], Path]
) -> None:
    """Every command of the page, in its order, on a tiny SDXL whose configs have the real one's sizes."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    make_pictures(tmp_path / "data")
    model = tmp_path / "models" / "sdxl"
    shutil.copytree(pipeline_of("sdxl"), model)
    shutil.rmtree(model / "vae")
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    vae = diffusers.AutoencoderKL(**blocks, block_out_channels=[8] * 4, norm_num_groups=4, layers_per_block=1)
    vae.save_pretrained(model / "vae")
    unet = json.loads((model / "unet" / "config.json").read_text())
    (model / "unet" / "config.json").write_text(json.dumps(unet | {"sample_size": 128}))
    shutil.copytree(model, tmp_path / "models" / "pruned")
    shutil.rmtree(tmp_path / "models" / "pruned" / "text_encoder_2")
    monkeypatch.chdir(tmp_path)
    for examples in console_blocks(GUIDE):
        check_examples(examples)
    written = (tmp_path / "precook.yaml").read_text().splitlines()
    shown = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert shown
    for line in "".join(shown).splitlines():
        assert any(known.startswith(line) for known in written), line


def test_the_table_of_families_is_the_one_that_init_uses() -> None:
    """A row for each, in its order, and nothing else."""
    rows = []
    for family in FAMILIES:
        cells = [
            f"`{family.name}`",
            family.title,
            str(family.resolution),
            str(family.factor * family.patch),
            family.posterior,
            "float32" if family.float32 else "as saved",
            str(family.max_length or ""),
            family.resampling if family.rounding == "auto" else f"{family.resampling}, rounding {family.rounding}",
            family.loop,
        ]
        rows.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    section = REFERENCE.read_text("utf-8").split("\n## Families\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `.*$", section, re.MULTILINE)[1:] == rows
