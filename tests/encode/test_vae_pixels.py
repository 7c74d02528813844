"""Pixels on their way into a VAE: files of several formats against diffusers' processor and torchvision's transforms.

torchvision itself need not be installed: what its Resize, CenterCrop, ToTensor and Normalize do with a picture of
Pillow's is written down here, as its version 0.29 has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import precook
from tests.support.pictures import exif
from tests.support.projects import Watched, project

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
vae_model = pytest.importorskip("precook.encode.vae_model")

SIDE = 64
SIZES = [(96, 64), (151, 100), (100, 151), (301, 97), (97, 301), (64, 64), (77, 50), (50, 77), (333, 500), (640, 427)]
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("png", {}),
    ("jpg", {"quality": 90}),
    ("jpg", {"quality": 80, "exif": b"Exif\0\0" + exif(6)}),
    ("webp", {"quality": 80}),
    ("bmp", {}),
]
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures of many shapes in every form, some grey, one turned by its EXIF data."""
    folder = tmp_path_factory.mktemp("files") / "data"
    folder.mkdir()
    made = []
    for number, (width, height) in enumerate(SIZES):
        y, x = np.mgrid[:height, :width]
        waves = [np.sin(x / 7 + number) + np.sin(y / (5 + channel)) for channel in range(3)]
        pixels = (np.stack(waves, 2) * 63 + 127).astype(np.uint8)
        ending, options = FORMS[number % len(FORMS)]
        image = Image.fromarray(pixels)
        made.append(folder / f"p{number}.{ending}")
        (image.convert("L") if number % 4 == 3 else image).save(made[-1], **options)
    return made


def cuts(files: list[Path], base: Path, **image: Any) -> dict[str, Any]:
    """Each file's picture as an encoder gets it."""
    encoder = Watched("image", lambda item: item.image)
    fields = {"resolutions": [f"{SIDE}x{SIDE}"], "step": 16, **image}
    concepts = [{"name": "things", "path": str(files[0].parent)}]
    with project(base, concepts=concepts, image=fields, encoders={"pixels": encoder}, keep=["paths"]) as owner:
        owner.build()
        content = owner.store.snapshot("test").content
        assert content.paths is not None
        keys = content.picture_keys["pixels"]
        return {
            Path(path.decode()).name: np.asarray(owner.store.get(precook.Key(key.tobytes())))
            for path, key in zip(content.paths.split(), keys, strict=True)
        }


def upright(file: Path) -> Image.Image:
    turned = ImageOps.exif_transpose(Image.open(file))
    assert turned is not None
    return turned.convert("RGB")


def transformed(image: Image.Image, resampling: Image.Resampling) -> Any:
    """Resize(SIDE), CenterCrop(SIDE), ToTensor() and Normalize([0.5], [0.5])."""
    short, long = sorted(image.size)
    longer = int(SIDE * long / short)
    size = (SIDE, longer) if image.width <= image.height else (longer, SIDE)
    scaled = image if image.size == size else image.resize(size, resampling)
    left, top = (round((side - SIDE) / 2.0) for side in size)
    levels = torch.from_numpy(np.array(scaled.crop((left, top, left + SIDE, top + SIDE)))).permute(2, 0, 1)
    return levels.contiguous().to(torch.float32).div(255).sub(0.5).div(0.5)


def inputs(pixels: Any) -> Any:
    return vae_model._inputs(torch.from_numpy(pixels)[None], "-1 to 1")[0]


@pytest.mark.parametrize("resampling", FILTERS)
def test_one_square_is_what_training_scripts_give_their_vae(files: list[Path], tmp_path: Path, resampling: str) -> None:
    """Every pixel of every picture is the number that torchvision's transforms make of it, to the last bit."""
    found = cuts(files, tmp_path, resampling=resampling)
    assert len(found) == len(files)
    for file in files:
        expected = transformed(upright(file), FILTERS[resampling])
        assert torch.equal(inputs(found[file.name]), expected), file.name


def test_pixels_are_those_of_diffusers_processor(files: list[Path], tmp_path: Path) -> None:
    """What VaeImageProcessor makes of a picture that is cut already is what the VAE is given here, to the last bit."""
    processor = diffusers.image_processor.VaeImageProcessor(do_resize=False)
    for pixels in cuts(files, tmp_path).values():
        assert torch.equal(inputs(pixels), processor.preprocess(Image.fromarray(pixels))[0])


@pytest.mark.parametrize("resampling", FILTERS)
def test_a_picture_that_keeps_its_shape_is_scaled_as_diffusers_scales_it(
    files: list[Path], tmp_path: Path, resampling: str
) -> None:
    """Where nothing is cut off, VaeImageProcessor's own resize gives the same numbers."""
    processor = diffusers.image_processor.VaeImageProcessor(vae_scale_factor=1, resample=resampling)
    (file,) = (file for file in files if upright(file).size == (96, 64))
    found = cuts(files, tmp_path, resolutions=["48x32"], resampling=resampling)[file.name]
    assert torch.equal(inputs(found), processor.preprocess(upright(file), height=32, width=48)[0])
