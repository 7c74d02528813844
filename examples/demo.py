"""The main job on real files: pictures through a VAE, once.

Draws a folder of pictures, encodes them with a small diffusers VAE (random weights, made on the spot), and shows what a
second run, one edited picture, one new picture and other weights cost. Run it with `make demo`.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image, ImageDraw

import precook

SIZE = (256, 192)


def draw_picture(path: Path, seed: int) -> None:
    """A picture that no other seed gives."""
    dice = random.Random(seed)
    picture = Image.new("RGB", SIZE, tuple(dice.randrange(256) for _ in range(3)))
    pen = ImageDraw.Draw(picture)
    for _ in range(12):
        x, y, r = dice.randrange(SIZE[0]), dice.randrange(SIZE[1]), dice.randrange(8, 60)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=tuple(dice.randrange(256) for _ in range(3)))
    picture.save(path, quality=90)


def make_vae(seed: int) -> AutoencoderKL:
    """A small AutoencoderKL with random weights."""
    torch.manual_seed(seed)
    blocks = (32, 64, 64, 64)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=blocks,
        latent_channels=4,
    ).eval()


def encode_all(store: precook.Store, vae: AutoencoderKL, folder: Path, what: str) -> None:
    """Encode what is missing, and say how much that was."""

    @torch.no_grad()
    def encode(paths: list[Path]) -> list[dict[str, object]]:
        pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
        latents = vae.encode(batch).latent_dist.mean.half()
        return [{"latent": latent.clone(), "size": SIZE} for latent in latents]

    recipe = precook.Recipe("vae", {"model": precook.identify(vae), "posterior": "mean", "dtype": "float16"})
    cached = store.cached(encode, recipe, batch_size=8)
    started = time.perf_counter()
    trees = cached(sorted(folder.glob("*.jpg")))
    seconds = time.perf_counter() - started
    print(f"{what:34} {cached.misses:3} encoded {cached.hits:3} reused   {seconds:6.2f} s   recipe {recipe.hex[:8]}")
    assert all(tree["latent"].shape == (4, SIZE[1] // 8, SIZE[0] // 8) for tree in trees)


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory(prefix="precook-demo-") as scratch:
        folder, cache = Path(scratch) / "pictures", Path(scratch) / "cache"
        folder.mkdir()
        for i in range(24):
            draw_picture(folder / f"{i:03}.jpg", i)
        vae, other = make_vae(1), make_vae(2)
        with precook.open(cache) as store:
            encode_all(store, vae, folder, "24 pictures, an empty store")
            encode_all(store, vae, folder, "again")
            draw_picture(folder / "007.jpg", 1000)
            encode_all(store, vae, folder, "one picture edited")
            draw_picture(folder / "024.jpg", 1001)
            encode_all(store, vae, folder, "one picture added")
            folder = folder.rename(folder.with_name("moved"))
            encode_all(store, vae, folder, "the folder moved")
            encode_all(store, other, folder, "other weights, same settings")
            encode_all(store, vae, folder, "the first weights again")
        for command in ("status", "verify"):
            print(f"\n$ precook {command} --store cache", flush=True)
            subprocess.run([sys.executable, "-m", "precook", command, "--store", str(cache)], check=True)


if __name__ == "__main__":
    main()
