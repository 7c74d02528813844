"""Latents of clips are what the model's own pipeline makes of the same frames: real clips, tiny models, builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.config.encoders import DiffusersVideoVae
from precook.values import Pixels
from tests.support.clips import animation, clip, decoded, frame, turned, write_clip
from tests.support.projects import picture, project

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

from precook.encode.video_vae import VideoVaeEncoder  # noqa: E402 - after the skips
from tests.support.vaes import FAMILIES, wan  # noqa: E402 - likewise

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

SIDE = 64
KINDS: dict[str, Callable[[], Any]] = {
    "wan": wan,
    "wan 2.2": lambda: wan(
        is_residual=True, patch_size=2, in_channels=12, out_channels=12, decoder_base_dim=8, scale_factor_spatial=8
    ),
    "hunyuan": FAMILIES["AutoencoderKLHunyuanVideo"].make,
    "ltx": FAMILIES["AutoencoderKLLTXVideo"].make,
    "cogvideox": FAMILIES["AutoencoderKLCogVideoX"].make,
    "mochi": FAMILIES["AutoencoderKLMochi"].make,
}


def saved(folder: Path, kind: str) -> Any:
    """A tiny random model in a folder, as a download has it."""
    torch.manual_seed(0)
    model = KINDS[kind]().eval()
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()


def cut(pixels: Pixels) -> Image.Image:
    """The middle square, as training scripts cut it."""
    image = Image.fromarray(pixels)
    short = min(image.size)
    size = (SIDE * image.width // short, SIDE * image.height // short)
    scaled = image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)
    left, top = (round((side - SIDE) / 2) for side in size)
    return scaled.crop((left, top, left + SIDE, top + SIDE))


def live(vae: Any, frames: list[Pixels]) -> Any:
    """What a pipeline encodes: its processor makes a video of the frames, its VAE a distribution of that."""
    processor = diffusers.video_processor.VideoProcessor(do_resize=False)
    video = processor.preprocess_video([cut(one) for one in frames])
    with torch.no_grad():
        return vae.encode(video).latent_dist.mode()[0]


def scaled(kind: str, vae: Any, frames: list[Pixels]) -> Any:
    """The same by the pipeline's own method, scaled as its model learns it."""
    processor = diffusers.video_processor.VideoProcessor(do_resize=False)
    video = processor.preprocess_video([cut(one) for one in frames])
    if kind == "ltx":
        with torch.no_grad():
            latents = vae.encode(video).latent_dist.mode()
        return diffusers.LTXPipeline._normalize_latents(latents, vae.latents_mean, vae.latents_std)[0]
    stand_in = SimpleNamespace(
        vae=vae,
        vae_scale_factor_temporal=4,
        vae_scale_factor_spatial=4,
        scheduler=SimpleNamespace(add_noise=lambda latents, noise, timestep: latents),
    )
    with torch.no_grad():
        return diffusers.WanVideoToVideoPipeline.prepare_latents(
            stand_in, video, 1, 4, SIDE, SIDE, torch.float32, "cpu", torch.Generator()
        )[0]


def made(base: Path, **fields: Any) -> dict[str, Any]:
    """Latents and sizes by caption, built and fed one by one."""
    section = {"uses": "diffusers-video-vae", "model": "model", "batch_size": 1, **fields.pop("section", {})}
    image = {"resolutions": [f"{SIDE}x{SIDE}"], "step": 16, "resampling": "bilinear"}
    sections = {"encoders": {"latent": section}, "image": image, "keep": ["captions"], **fields}
    with project(base, **sections) as owner:
        report = owner.build()
        assert not report.failed
        with owner.feed(batch_size=1) as feed:
            return {batch["caption"][0]: (batch["latent"][0], batch["size"]) for batch in feed.epoch(0)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_latent_is_the_models_own(kind: str, tmp_path: Path) -> None:
    """Clips of several codecs, sizes and rates, turned ones and stills: to the bit what the live call makes of them."""
    vae = saved(tmp_path / "model", kind)
    step = 8 if kind == "ltx" else 6 if kind == "mochi" else 4
    count = 1 + step
    plain = clip(20, size=(96, 64))
    phone = turned(clip(14, size=(80, 64)), 90)
    odd = clip(26, codec="libvpx-vp9", form="webm", size=(67, 65), rate=32, pixels="yuv444p")
    slow = animation(count, form="WEBP", duration=125)
    for name, content in {"plain.mp4": plain, "phone.mov": phone, "odd.webm": odd, "slow.webp": slow}.items():
        write_clip(tmp_path / "data" / name, content, name.partition(".")[0])
    picture(tmp_path / "data/still.png", 7, (100, 80))
    (tmp_path / "data/still.txt").write_text("still")
    found = made(tmp_path, video={"frames": [1, count], "fps": 16})
    upright = [np.asarray(Image.fromarray(one).transpose(Image.Transpose.ROTATE_270)) for one in decoded(phone)]
    with Image.open(tmp_path / "data/slow.webp") as image:
        still = []
        for number in range(count):
            image.seek(number)
            still.append(np.asarray(image.convert("RGB")))
    frames = {
        "plain": decoded(plain)[:count],
        "phone": upright[:count],
        "odd": decoded(odd)[: 2 * count : 2],
        # Half the rate that is asked for: each frame is shown twice, the earlier one where two are as near.
        "slow": [still[number // 2] for number in range(count)],
        "still": [np.asarray(Image.open(tmp_path / "data/still.png").convert("RGB"))],
    }
    assert found.keys() == frames.keys()
    for name, shown in frames.items():
        latent, size = found[name]
        assert size == (len(shown), SIDE, SIDE)
        torch.testing.assert_close(latent, live(vae, shown), rtol=0, atol=0, msg=name)
    assert found["plain"][0].shape[1] > 1
    assert found["still"][0].shape[1] == 1


@pytest.mark.parametrize("kind", ["wan", "ltx"])
def test_a_scaled_latent_is_the_pipelines_own(kind: str, tmp_path: Path) -> None:
    """`scaled` gives what the pipeline's own method prepares of the clip."""
    vae = saved(tmp_path / "model", kind)
    content = clip(9, size=(96, 64))
    write_clip(tmp_path / "data/a.mp4", content, "a")
    found = made(tmp_path, video={"frames": [9]}, section={"scaled": True})
    expected = scaled(kind, vae, decoded(content))
    torch.testing.assert_close(found["a"][0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["wan", "ltx"])
def test_clips_that_are_encoded_together_are_close(kind: str, tmp_path: Path) -> None:
    """A batch of clips differs from single ones by rounding only, and a batch of a feed is frames x height x width."""
    vae = saved(tmp_path / "model", kind)
    contents = [clip(9, size=(64, 64), rate=rate) for rate in (16, 12, 10, 8)]
    for number, content in enumerate(contents):
        write_clip(tmp_path / f"data/{number}.mp4", content, str(number))
    section = {"uses": "diffusers-video-vae", "model": "model", "batch_size": 4}
    image = {"resolutions": [f"{SIDE}x{SIDE}"], "step": 16}
    encoders = {"latent": section}
    with project(
        tmp_path, encoders=encoders, image=image, keep=["captions"], video={"frames": [9], "fps": "source"}
    ) as owner:
        owner.build()
        with owner.feed(batch_size=4) as feed:
            (batch,) = feed.epoch(0)
    assert batch["size"] == (9, SIDE, SIDE)
    for caption, latent in zip(batch["caption"], batch["latent"], strict=True):
        expected = live(vae, decoded(contents[int(caption)]))
        torch.testing.assert_close(latent, expected, rtol=1e-3, atol=1e-4)


def test_drawn_latents_and_moments_are_those_of_the_clip(tmp_path: Path) -> None:
    """`sample` is drawn once, from noise that follows from the frames; `moments` are drawn from by the feed."""
    saved(tmp_path / "model", "wan")
    pixels = np.stack([frame(number, SIDE, SIDE) for number in range(5)])
    trees: dict[str, Any] = {}
    for posterior in ("mean", "sample", "moments"):
        encoder = VideoVaeEncoder(
            DiffusersVideoVae(uses="diffusers-video-vae", model="model", posterior=posterior), tmp_path / "model"
        )
        encoder.load("cpu")
        first, again, other = (
            encoder.encode([precook.Item(video=one)])[0] for one in (pixels, pixels, pixels[::-1].copy())
        )
        trees[posterior] = first
        if posterior == "sample":
            assert torch.equal(first, again)
            assert not torch.equal(first, other)
    assert torch.equal(trees["moments"]["mean"], trees["mean"])
    noise = (trees["sample"] - trees["mean"]) / torch.exp(0.5 * trees["moments"]["logvar"])
    assert 0.8 < float(noise.std()) < 1.2


def test_frames_that_a_model_would_leave_out_are_refused(tmp_path: Path) -> None:
    """Wan's VAE drops what is left over after its groups of frames: that is told, with numbers that fit."""
    saved(tmp_path / "model", "hunyuan")
    encoder = VideoVaeEncoder(DiffusersVideoVae(uses="diffusers-video-vae", model="model"), tmp_path / "model")
    encoder.load("cpu")
    with pytest.raises(precook.EncodeError, match="a clip of 6 frames") as caught:
        encoder.encode([precook.Item(video=np.zeros((6, 32, 32, 3), np.uint8))])
    assert "such as 1, 5 and 9" in (caught.value.hint or "")


def test_a_plan_says_once_which_numbers_of_frames_the_model_takes(tmp_path: Path) -> None:
    """By the place in the config, that of a concept too, before anything is decoded or loaded."""
    saved(tmp_path / "model", "wan")
    (tmp_path / "data").mkdir()
    write_clip(tmp_path / "data/a.mp4", b"nobody looks at it")
    config = """\
dataset: test
concepts:
  - name: a
    path: data
  - name: b
    path: data
    video: {frames: [1, 10]}
  - name: c
    path: data
    enabled: false
    video: {frames: [2]}
video: {frames: [1, 24, 25]}
encoders:
  latent: {uses: diffusers-video-vae, model: model}
"""
    (tmp_path / "precook.yaml").write_text(config)
    with precook.load(tmp_path / "precook.yaml") as owner, pytest.raises(precook.ConfigError) as caught:
        owner.plan()
    assert [(one.where, one.line, one.message, one.hint) for one in caught.value.problems] == [
        ("video.frames", 12, "24 frames: AutoencoderKLWan takes one and multiples of 4 more", "write 21 or 25"),
        (
            "concepts[1].video.frames",
            7,
            "10 frames: AutoencoderKLWan takes one and multiples of 4 more",
            "write 9 or 13",
        ),
    ]


def test_a_vae_for_pictures_is_refused_for_clips(tmp_path: Path) -> None:
    """A model without a dimension of frames is no model for clips, and the error says which encoder it is for."""
    FAMILIES["AutoencoderKL: SD"].make().save_pretrained(tmp_path / "model")
    encoder = VideoVaeEncoder(DiffusersVideoVae(uses="diffusers-video-vae", model="model"), tmp_path / "model")
    with pytest.raises(precook.EncodeError, match="encodes pictures, not videos") as caught:
        encoder.load("cpu")
    assert "diffusers-vae" in (caught.value.hint or "")
