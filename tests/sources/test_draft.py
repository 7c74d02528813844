"""`resampling: draft`: the decoder of a JPEG does the first part of the scaling."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

import precook
from precook.sources.crop import cut
from precook.sources.geometry import Geometry
from precook.sources.pictures import RefusedError, decode_image
from tests.support.pictures import exif, save

WIDTH, HEIGHT = 203, 157


def photo(seed: int = 0) -> Image.Image:
    """Smooth colours with some detail, of a size that no reduction divides."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize(
        (WIDTH, HEIGHT), Image.Resampling.BICUBIC
    )
    detail = rng.integers(-12, 13, (HEIGHT, WIDTH, 1))
    return Image.fromarray((np.asarray(coarse).astype(int) + detail).clip(0, 255).astype(np.uint8))


def drafted(scaled: tuple[int, int], source: tuple[int, int] = (WIDTH, HEIGHT), **changes: Any) -> Geometry:
    """A geometry that keeps all of the scaled picture."""
    fields: dict[str, Any] = {"crop": (0, 0), "target": scaled, "flip": False, "resampling": "draft"}
    return Geometry(source=source, scaled=scaled, **(fields | changes))


def made(content: bytes, geometry: Geometry) -> np.ndarray[Any, Any]:
    """What a build makes of a file."""
    return cut(decode_image(content, reduction=geometry.reduction), geometry)


@pytest.mark.parametrize(
    ("scaled", "reduction"), [((102, 79), 1), ((101, 78), 2), ((51, 40), 2), ((50, 39), 4), ((25, 19), 8), ((8, 6), 8)]
)
def test_a_jpeg_comes_as_small_as_its_scaled_size_allows(scaled: tuple[int, int], reduction: int) -> None:
    """The picture is the one that Pillow drafts and scales, and close to the one that is scaled at once."""
    geometry = drafted(scaled)
    assert geometry.reduction == reduction
    content = save(photo(), "JPEG", quality=95)
    with Image.open(io.BytesIO(content)) as image:
        box = None
        if reduction > 1:
            drawn = image.draft("RGB", scaled)
            assert drawn is not None
            box = drawn[1]
        expected = np.asarray(image.resize(scaled, Image.Resampling.LANCZOS, box=box))
    result = made(content, geometry)
    assert (result == expected).all()
    exact = made(content, drafted(scaled, resampling="lanczos"))
    assert np.abs(result.astype(int) - exact).max() <= (0 if reduction == 1 else 16)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_drafted_picture_is_upright_and_lies_where_it_should(orientation: int) -> None:
    """Turned by EXIF it is what the same file is without it, scaled and then turned, to the last bit or so."""
    plain = save(photo(), "JPEG", quality=95)
    content = save(photo(), "JPEG", quality=95, exif=b"Exif\0\0" + exif(orientation))
    scaled, swapped = (50, 39), orientation > 4
    source = (HEIGHT, WIDTH) if swapped else (WIDTH, HEIGHT)
    result = made(content, drafted(scaled[::-1] if swapped else scaled, source))
    turned = Image.fromarray(made(plain, drafted(scaled)))
    turned.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(turned))
    assert drafted(scaled).reduction == 4
    assert result.shape == expected.shape
    # The filter rounds after each direction, and takes them in turn.
    assert np.abs(result.astype(int) - expected).max() <= 2


def test_a_drafted_picture_is_cut_like_any_other() -> None:
    """Cropped and mirrored, it is the box of the whole one."""
    content = save(photo(), "JPEG", quality=95)
    whole = made(content, drafted((50, 39)))
    part = made(content, drafted((50, 39), crop=(3, 5), target=(40, 30), flip=True))
    assert (part == whole[5:35, 3:43][:, ::-1]).all()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
def test_other_formats_are_as_with_lanczos(kind: str) -> None:
    """Only a JPEG's decoder makes pictures smaller."""
    content = save(photo(), kind)
    exact = made(content, drafted((25, 19), resampling="lanczos"))
    assert (made(content, drafted((25, 19))) == exact).all()


@pytest.mark.parametrize("lenient", [False, True])
def test_a_cut_jpeg_is_refused_in_every_size(lenient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody told Pillow to fill in what is missing."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    content = save(photo(), "JPEG", quality=95)
    with pytest.raises(RefusedError):
        decode_image(content[: len(content) // 2], reduction=4)
    assert decode_image(content, reduction=4).image.size == (51, 40)


def test_an_entry_is_the_same_whatever_else_is_made_of_its_file(tmp_path: Path) -> None:
    """Two resolutions of a picture, built together, are those that are built alone, under the same keys."""
    (tmp_path / "data").mkdir()
    photo().save(tmp_path / "data" / "a.jpg", quality=95)

    def build(store: str, *resolutions: int) -> dict[bytes, Any]:
        with precook.Project(
            base=tmp_path,
            store=store,
            dataset="d",
            concepts=[{"name": "c", "path": "data"}],
            image={"resolutions": list(resolutions), "step": 8, "resampling": "draft"},
            encoders={"pixels": {"uses": "image"}},
        ) as project:
            plan = project.plan()
            assert not plan.build().failed
            wants = plan.encoders["pixels"].wants
            return {key.tobytes(): project.store.get(precook.Key(key.tobytes())) for key in wants.keys}

    together, large, small = build("both", 96, 24), build("large", 96), build("small", 24)
    assert together.keys() == large.keys() | small.keys()
    assert len(together) == 2
    for key, tree in (large | small).items():
        assert np.array_equal(np.asarray(together[key]), np.asarray(tree))
