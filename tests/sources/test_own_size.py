"""Pictures at their own size: what they are scaled to, and which are refused."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import precook
from precook.config.sections import ImageSettings
from precook.sources.geometry import Geometry, cut_rows, own_sizes
from tests.support.projects import picture, project

MOST = 178_956_970


def fitting(width: int, height: int, **settings: Any) -> tuple[int, int] | str:
    """What a picture is scaled to, or why it is refused."""
    image = ImageSettings(resolutions=("native",), **settings)
    sizes = np.array([[width, height]])
    cuts = cut_rows(sizes, np.zeros((1, 32), np.uint8), image, resolution=image.sizes[0], variation=0)
    if cuts.refused:
        return cuts.refused[0]
    geometry = Geometry.of(cuts.rows[0])
    assert geometry.source == (width, height)
    assert geometry.scaled == geometry.target
    assert geometry.crop == (0, 0)
    return geometry.target


sides = st.one_of(st.integers(1, 64), st.integers(1, 20_000))


@given(width=sides, height=sides, multiple=st.integers(1, 64), pixels=st.integers(4096, MOST), down=st.booleans())
def test_sizes_follow_the_page(width: int, height: int, multiple: int, pixels: int, down: bool) -> None:
    """Each side is the nearest multiple, or the one below; too many pixels become the most that are not too many."""
    (made,) = own_sizes(np.array([[width, height]]), multiple_of=multiple, max_pixels=pixels, down=down).tolist()
    near = [
        max((side // multiple if down else round(Fraction(side, multiple))), 1) * multiple for side in (width, height)
    ]
    if near[0] * near[1] <= pixels:
        assert made == near
    else:
        ways = ((width, height), (height, width))
        assert made == [multiple * isqrt(side * pixels // other // multiple**2) for side, other in ways]
        assert made[0] * made[1] <= pixels
        # The next multiple of a side would be beyond the size of the picture's shape that has so many pixels.
        assert all((side + multiple) ** 2 * other > one * pixels for side, (one, other) in zip(made, ways, strict=True))


def test_sizes_are_those_of_qwens_smart_resize() -> None:
    """Pictures that are scaled by us are left alone by the processor that they are for, and the other way round."""
    module = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    smart_resize = pytest.importorskip(module, reason="transformers is not installed").smart_resize
    sizes = np.random.default_rng(0).integers(28, 3000, (2000, 2))
    made = own_sizes(sizes, multiple_of=28, max_pixels=1_003_520)
    for (width, height), own in zip(sizes.tolist(), made.tolist(), strict=True):
        assert own[::-1] == list(smart_resize(height, width, 28, 28 * 28, 1_003_520))


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        ((641, 480), {}, (641, 480)),
        ((1, 20_000), {}, (1, 20_000)),
        ((641, 480), {"multiple_of": 28}, (644, 476)),
        ((641, 480), {"multiple_of": 28, "rounding": "down"}, (616, 476)),
        ((5, 480), {"multiple_of": 28}, (28, 476)),
        ((5, 480), {"multiple_of": 28, "upscale": "refuse"}, "a side is shorter than image.multiple_of, 28"),
        ((401, 100), {"extreme_aspect": "refuse"}, "more elongated than image.max_aspect, 4.0"),
        ((400, 100), {"extreme_aspect": "refuse"}, (400, 100)),
        ((900, 800), {"extreme_aspect": "refuse", "max_aspect": 1.3333333333333333}, (900, 800)),
        ((4000, 100), {"extreme_aspect": "refuse", "max_aspect": 1.3333333333333333}, "more elongated than"),
        ((4000, 100), {"extreme_aspect": "refuse", "max_aspect": 1e300}, (4000, 100)),
        ((1, 20_000), {"max_pixels": 1000}, "its shorter side would be less than a pixel"),
        ((20, 20_000), {"max_pixels": 10_000, "multiple_of": 14}, "would be less than image.multiple_of, 14"),
        ((10_000, 10_000), {"max_pixels": 10**6}, "10000 x 10000 pixels are more than the 89478485 allowed"),
        ((10_000, 10_000), {"max_pixels": 10**8}, (10_000, 10_000)),
    ],
)
def test_what_becomes_of_a_picture(size: tuple[int, int], settings: dict[str, Any], expected: object) -> None:
    """A picture keeps its size, is scaled, or is refused with a reason that names the setting."""
    made = fitting(*size, **settings)
    assert made == expected if isinstance(expected, tuple) else str(expected) in str(made)


def test_pictures_are_as_their_files_have_them(tmp_path: Path) -> None:
    """Nothing is cut off or resampled, only turned upright and mirrored; larger pictures are scaled down."""
    sizes = {"a.png": (37, 90), "b.png": (300, 11), "c.png": (1, 200)}
    for number, (name, size) in enumerate(sizes.items()):
        picture(tmp_path / "data" / name, number, size)
    image = {"resolutions": "native", "max_pixels": 3400, "resampling": "bicubic"}
    with project(tmp_path, image=image, encoders={"pixels": {"uses": "image"}}) as owner:
        owner.build()
        plan = owner.plan()
        assert len(plan.ready) == 3
        for name in sizes:
            (sample,) = plan.explain(tmp_path / "data" / name).samples
            (entry,) = sample.entries
            with Image.open(tmp_path / "data" / name) as opened:
                direct = opened.convert("RGB")
            assert np.array_equal(owner.store.get(entry.key, tensors="numpy"), np.asarray(direct))
        picture(tmp_path / "data/d.png", 4, (100, 136))
        owner.build()
        ((entry,),) = [sample.entries for sample in owner.plan().explain(tmp_path / "data/d.png").samples]
        with Image.open(tmp_path / "data/d.png") as opened:
            direct = opened.convert("RGB").resize((50, 68), Image.Resampling.BICUBIC)
        assert entry.what == "native as 50x68"
        assert np.array_equal(owner.store.get(entry.key, tensors="numpy"), np.asarray(direct))


def test_pictures_that_cannot_keep_their_shape_are_told_and_the_others_go_on(tmp_path: Path) -> None:
    """A strip of one pixel cannot be scaled down, and is named with the reason; a mask has its picture's size."""
    picture(tmp_path / "data/strip.png", 1, (1, 20_000))
    picture(tmp_path / "data/page.png", 2, (200, 120))
    picture(tmp_path / "data/page-masklabel.png", 3, (100, 60))
    concepts = [{"name": "pages", "path": "data", "masks": "{stem}-masklabel.png"}]
    encoders = {"pixels": {"uses": "image"}, "mask": {"uses": "mask", "factor": 4}}
    image = {"resolutions": "native", "max_pixels": 6000, "multiple_of": 4}
    with project(tmp_path, concepts=concepts, image=image, encoders=encoders) as owner:
        report = owner.build()
        assert report.encoded == {"pixels": 1, "mask": 1}
        (failure,) = owner.plan().failed
        assert failure.path == "strip.png"
        assert "too elongated" in failure.reason
        (batch,) = owner.feed(batch_size=2).epoch(0)
        assert batch["pixels"].shape == (1, 60, 100, 3)
        assert batch["mask"].shape == (1, 1, 15, 25)


def test_a_control_picture_of_another_size_is_resampled_as_asked_for(tmp_path: Path) -> None:
    """It is laid over a page that keeps its size: the page is not resampled, and the control by the filter."""
    picture(tmp_path / "data/a.png", 1, (90, 66))
    picture(tmp_path / "control/a.png", 2, (45, 33))
    concepts = [{"name": "pages", "path": "data", "images": {"control": "../control/{stem}.png"}}]
    encoders = {"control": {"uses": "image", "of": "control"}}
    for resampling in ("bicubic", "bilinear"):
        image = {"resolutions": "native", "resampling": resampling}
        with project(tmp_path, concepts=concepts, image=image, encoders=encoders) as owner:
            assert owner.build().encoded == {"control": 1}
            (batch,) = owner.feed(batch_size=1, tensors="numpy").epoch(0)
        with Image.open(tmp_path / "control/a.png") as opened:
            direct = opened.convert("RGB").resize((90, 66), getattr(Image.Resampling, resampling.upper()))
        assert np.array_equal(batch["control"][0], np.asarray(direct))


def test_other_settings_of_a_store_stay_in_use(tmp_path: Path) -> None:
    """Pictures at their own size and cut ones lie beside each other: nothing is made twice."""
    picture(tmp_path / "data/a.png", 1, (96, 64))
    encoders = {"pixels": {"uses": "image"}}
    made = []
    for resolutions in ([64], "native", ["native", 64]):
        with project(tmp_path, image={"resolutions": resolutions, "step": 16}, encoders=encoders) as owner:
            made.append(owner.build().encoded.get("pixels", 0))
    assert made == [1, 1, 0]
    with precook.open(tmp_path / "cache") as store:
        assert len(store) == 2
