"""`precook init` on videos: a config whose numbers fit the VAE, which plans and builds as it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.config.check import read_config
from precook.config.schema import Settings
from tests.support.clips import clip, write_clip
from tests.support.commands import run
from tests.support.projects import picture, text_folder, vae_folder

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")

from precook.encode.vae_model import frames_per_latent, pixels_per_latent  # noqa: E402 - after the skips
from tests.support.vaes import FAMILIES, wan  # noqa: E402 - likewise

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

LENGTHS = (9, 20, 30)


def written() -> Settings:
    """What the config file says."""
    return read_config(Path("precook.yaml"))[0]


def clips(folder: Path, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Clips of so many frames at 16 per second, with captions."""
    for number, count in enumerate(lengths):
        write_clip(folder / f"{number}.mp4", clip(count, size=(96, 64)), f"dance {number}")


def video_vae(folder: Path, kind: str = "wan") -> Any:
    """A tiny VAE for videos, as a download has it."""
    torch.manual_seed(0)
    model = wan() if kind == "wan" else FAMILIES[kind].make()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("kind", "frames"),
    [
        ("wan", [1, 25]),
        ("AutoencoderKLLTX2Video", [1, 25]),
        ("AutoencoderKLMochi", [1, 25]),
        ("AutoencoderKLHunyuanVideo", [1, 25]),
    ],
)
def test_captioned_clips_with_a_vae_are_built_as_they_are(here: Path, kind: str, frames: list[int]) -> None:
    """Frames and sizes are those that the VAE takes, by its own config: every clip has its latent, and none fails."""
    clips(here / "data")
    video_vae(here / "vae", kind)
    ended = run("init", "data", "--vae", "vae")
    assert ended.code == 0, ended.err
    assert "data: 3 clips, all with captions (.txt), about 78 pixels a side" in ended.out
    assert "the clips that were looked at have 9 to 30 at 16 per second" in ended.out
    settings = written()
    assert settings.video.frames == tuple(frames)
    assert {name: one.uses for name, one in settings.encoders.items()} == {"latent": "diffusers-video-vae"}
    built = run("build", "--json")
    assert built.code == 0, built.out + built.err
    with precook.load("precook.yaml") as project:
        plan = project.plan()
        assert (len(plan.ready), len(plan.missing), len(plan.failed)) == (3, 0, 0)
        with project.feed(batch_size=1) as feed:
            sizes = sorted(batch["size"][0] for batch in feed.epoch(0))
    assert sizes == [1, 1, 25]


def test_clips_that_are_all_short_are_no_stills(here: Path) -> None:
    """Where no clip has as many frames as models usually take, the number is one that most of them have."""
    clips(here / "data", (6, 10, 11))
    video_vae(here / "vae")
    assert run("init", "data", "--vae", "vae").code == 0
    assert written().video.frames == (1, 9)


def test_a_still_beside_clips_is_told_and_kept(here: Path) -> None:
    """It is a clip of one frame; with a text encoder its prompt is kept, too, and masks fit the latents."""
    clips(here / "data")
    picture(here / "data/still.png", 1)
    for name in ("0", "1", "2", "still"):
        picture(here / f"data/{name}-masklabel.png", 9)
    video_vae(here / "vae")
    text_folder(here / "text")
    ended = run("init", "data", "--vae", "vae", "--text", "text", "--json")
    assert ended.document["video"] == {"frames": [1, 25], "fps": 16}
    (concept,) = ended.document["concepts"]
    assert (concept["clips"], concept["pictures"], concept["captioned"], concept["masked"]) == (3, 1, 3, 4)
    settings = written()
    assert list(settings.encoders) == ["latent", "prompt", "mask"]
    assert settings.encoders["mask"].factor == 4  # type: ignore[union-attr]
    assert run("plan", "--json").document["samples"] == 4


def test_without_a_model_clips_have_a_config_for_clips(here: Path) -> None:
    """It names a folder to put a VAE into, and says so; before, the captions were taken for a dataset of texts."""
    clips(here / "data")
    ended = run("init", "data")
    assert ended.code == 0, ended.err
    assert "hint: the file names models/video-vae" in ended.err
    assert written().encoders["latent"].uses == "diffusers-video-vae"
    assert written().concepts[0].texts is None
    video_vae(here / "models/video-vae")
    assert run("build").code == 0


def test_more_pictures_than_clips_are_a_dataset_of_pictures_and_the_clips_are_told(here: Path) -> None:
    """Nobody named a model: the pictures are kept, and a line says how to keep the clips."""
    for number in range(3):
        picture(here / f"data/{number}.png", number)
    write_clip(here / "data/one.mp4", clip(9))
    ended = run("init", "data")
    assert "1 video in there, left aside: there are more pictures" in ended.out
    assert list(written().encoders) == ["pixels"]
    assert run("build").code == 0


def test_a_model_of_pictures_leaves_clips_aside_and_says_so(here: Path) -> None:
    """With clips alone there is nothing left for it."""
    clips(here / "data")
    vae_folder(here / "vae")
    for option in (["--vae", "vae"], ["--for", "sdxl"]):
        ended = run("init", "data", *option)
        assert ended.code == 1
        assert ended.err == (
            "error: data: no pictures in there\n"
            "hint: 3 videos in there, and the model that is named takes pictures alone\n"
        )
    picture(here / "data/still.png", 1)
    ended = run("init", "data", "--vae", "vae")
    assert "3 videos in there, left aside: the model that is named takes pictures alone" in ended.out
    assert written().encoders["latent"].uses == "diffusers-vae"


@pytest.mark.parametrize(("family", "step"), [("wan", 4), ("ltx", 8), ("cogvideox", 4), ("hunyuan-video", 4)])
def test_a_family_of_videos_takes_clips(here: Path, family: str, step: int) -> None:
    """--for writes the encoder of videos and frames that fit; with pictures alone it writes what it did."""
    clips(here / "data")
    ended = run("init", "data", "--for", family, "--json")
    settings = written()
    assert settings.encoders["latent"].uses == "diffusers-video-vae"
    assert all((count - 1) % step == 0 for count in settings.video.frames)
    reasons = {one["setting"]: one["reason"] for one in ended.document["for"]["settings"]}
    assert f"multiples of {step} more" in reasons["video.frames"]
    picture(here / "stills/1.png", 1)
    assert run("init", "stills", "--for", family, "--force").code == 0
    assert written().encoders["latent"].uses == "diffusers-vae"


def test_the_folder_of_a_pipeline_is_built_with_clips(here: Path, pipeline_of: Any) -> None:
    """Wan's own VAE and text encoder, from its folder, on captioned clips."""
    clips(here / "data")
    folder = pipeline_of("wan")
    ended = run("init", "data", "--for", folder)
    assert ended.code == 0, ended.err
    assert list(written().encoders) == ["latent", "prompt"]
    content = Path("precook.yaml").read_text()
    Path("precook.yaml").write_text(content.replace("832x480", "96x64"))
    built = run("build")
    assert built.code == 0, built.out + built.err


def test_a_vae_without_its_config_is_refused(here: Path) -> None:
    """What it takes cannot be told, and a plan would refuse it anyway."""
    clips(here / "data")
    (here / "vae").mkdir()
    ended = run("init", "data", "--vae", "vae")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: --vae vae")


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_what_a_config_says_of_latents_is_what_the_class_says(kind: str) -> None:
    """Pixels and frames of a latent, by the config alone, are those that the model itself names, if it does."""
    model = FAMILIES[kind].make()
    config = json.loads(model.to_json_string())
    pixels, frames = pixels_per_latent(config), frames_per_latent(config)
    assert pixels is not None
    assert vars(model).get("spatial_compression_ratio") in (None, pixels)
    assert vars(model).get("temporal_compression_ratio") in (None, frames or 1)
