"""What is stored of a picture is what a model's own pipeline would have made of it: every family of pipelines.

The folders are tiny pipelines, saved whole as a download has them. Stored one by one, latents equal the pipeline's to
the last bit; encoded together they differ by rounding, as docs/reference/latents.md says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.config.check import read_config
from tests.support.commands import run
from tests.support.projects import project

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests.support.pipelines import FAMILIES  # noqa: E402 - after the skips
from tests.support.vaes import LATENTS, PAGE, TOGETHER, latent_row, noise_seed  # noqa: E402 - likewise

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

SIDE = 64
SIZES = [(96, 64), (64, 64), (65, 131)]


def fed(base: Path, folder: Path, family: str, *, batch_size: int) -> dict[str, Any]:
    """Latents by caption, encoded and fed one by one or together."""
    (base / "data").mkdir(exist_ok=True)
    for number, (width, height) in enumerate(SIZES):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(base / f"data/p{number}.png")
        (base / f"data/p{number}.txt").write_text(str(number))
    section = {
        "uses": "diffusers-vae",
        "model": str(folder),
        "subfolder": "vae",
        "posterior": LATENTS[family].posterior,
        "scaled": True,
        "batch_size": batch_size,
    }
    image = {"resolutions": [f"{SIDE}x{SIDE}"], "step": 32, "resampling": "bilinear"}
    fields = {"store": f"store-{batch_size}", "encoders": {"latent": section}, "image": image, "keep": ["captions"]}
    with project(base, **fields) as owner:
        owner.build()
        with owner.feed(batch_size=batch_size) as feed:
            return {
                caption: latent
                for batch in feed.epoch(0)
                for caption, latent in zip(batch["caption"], batch["latent"], strict=True)
            }


def loaded_vae(folder: Path) -> Any:
    kind = json.loads((folder / "vae" / "config.json").read_text())["_class_name"]
    return getattr(diffusers, kind).from_pretrained(folder / "vae").eval()


def live(base: Path, folder: Path, family: str) -> dict[str, Any]:
    """The same by the pipeline's own method, of pictures that are cut as training scripts cut them."""
    vae = loaded_vae(folder)
    processor = diffusers.image_processor.VaeImageProcessor(do_resize=False)
    latents = {}
    for number in range(len(SIZES)):
        image = Image.open(base / f"data/p{number}.png")
        short = min(image.size)
        size = (SIDE * image.width // short, SIDE * image.height // short)
        scaled = image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)
        left, top = (round((side - SIDE) / 2) for side in size)
        cut = scaled.crop((left, top, left + SIDE, top + SIDE))
        generator = torch.Generator().manual_seed(noise_seed(np.array(cut)))
        with torch.no_grad():
            made = LATENTS[family].prepare(vae, processor.preprocess(cut).contiguous(), generator)[0]
        latents[str(number)] = made.squeeze(1) if made.ndim == 4 else made
    return latents


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stored_latent_is_the_pipelines_own(family: str, pipeline_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Built and fed one by one, each latent has the bits that the pipeline prepares; together, they are close."""
    folder = pipeline_of(family)
    found = fed(tmp_path, folder, family, batch_size=1)
    expected = live(tmp_path, folder, family)
    assert found.keys() == expected.keys()
    for name, latent in expected.items():
        torch.testing.assert_close(LATENTS[family].rest(found[name]), latent, rtol=0, atol=0)
    assert float((expected["0"] - expected["1"]).abs().max()) > 0.01
    for name, latent in fed(tmp_path, folder, family, batch_size=3).items():
        apart = (LATENTS[family].rest(latent) - expected[name]).abs().max() / expected[name].abs().max()
        assert float(apart) <= float(TOGETHER)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_that_init_writes_keeps_what_the_pipeline_makes(
    family: str, pipeline_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init --for` a folder and build: the stored latent, or the mean of its moments, is the pipeline's to the bit."""
    folder = pipeline_of(family)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pixels = np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    Image.fromarray(pixels).save("data/p.png")
    ended = run("init", "data", "--for", folder)
    assert ended.code == 0, ended.err
    latent = read_config(Path("precook.yaml"))[0].encoders["latent"].model_dump(exclude_unset=True)
    image = {"resolutions": [f"{SIDE}x{SIDE}"], "step": 32}
    with project(tmp_path, encoders={"latent": latent}, image=image) as owner:
        owner.build()
        key = owner.store.snapshot("test").content.picture_keys["latent"][0].tobytes()
        stored = owner.store.get(precook.Key(key))
    assert latent["scaled"] is True
    inputs = diffusers.image_processor.VaeImageProcessor(do_resize=False).preprocess(Image.fromarray(pixels))
    with torch.no_grad():
        made = LATENTS[family].prepare(Undrawn(loaded_vae(folder)), inputs.contiguous(), None)[0]
    mean = stored["mean"] if latent.get("posterior") == "moments" else stored
    assert torch.equal(LATENTS[family].rest(mean), made.squeeze(1) if made.ndim == 4 else made)


class Undrawn:
    """A VAE whose draws are the mean, so that whoever draws gets what was kept."""

    def __init__(self, vae: Any) -> None:
        self._vae = vae

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vae, name)

    def encode(self, *args: Any, **options: Any) -> Any:
        output = self._vae.encode(*args, **options)
        if not hasattr(output, "latent_dist"):
            return output
        mean = output.latent_dist.mode()
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: mean, sample=lambda *_: mean))


def test_the_page_has_every_family_once() -> None:
    """Its rows are those of the families that are tried here."""
    table = PAGE.read_text("utf-8").partition("## Family by family\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert rows == [latent_row(family) for family in FAMILIES]
