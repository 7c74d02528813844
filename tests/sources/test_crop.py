"""How pictures and masks are cut to a geometry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from precook.sources.crop import cut, cut_mask
from precook.sources.geometry import Geometry, Resampling
from tests.support.pictures import (
    HEIGHT,
    WIDTH,
    scene,
)

RESAMPLINGS: list[Resampling] = ["nearest", "area", "bilinear", "bicubic", "lanczos"]
FILTERS = dict(zip(RESAMPLINGS, ("NEAREST", "BOX", "BILINEAR", "BICUBIC", "LANCZOS"), strict=True))


@st.composite
def geometries(draw: st.DrawFn, source: tuple[int, int]) -> Geometry:
    """Any valid cut of a picture of this size."""
    scaled = (draw(st.integers(1, 90)), draw(st.integers(1, 90)))
    target = (draw(st.integers(1, scaled[0])), draw(st.integers(1, scaled[1])))
    crop = (draw(st.integers(0, scaled[0] - target[0])), draw(st.integers(0, scaled[1] - target[1])))
    return Geometry(source, scaled, crop, target, draw(st.booleans()), draw(st.sampled_from(RESAMPLINGS)))


@given(geometry=geometries((WIDTH, HEIGHT)))
def test_a_cut_is_scale_then_crop_then_flip(geometry: Geometry) -> None:
    """The cut is the whole picture scaled by Pillow, the box of it, mirrored; greys are cut like colours."""
    scaled = Image.fromarray(scene()).resize(geometry.scaled, Image.Resampling[FILTERS[geometry.resampling]])
    (left, top), (width, height) = geometry.crop, geometry.target
    expected = scaled.crop((left, top, left + width, top + height))
    expected = ImageOps.mirror(expected) if geometry.flip else expected
    result = cut(scene(), geometry)
    assert (result == np.asarray(expected)).all()
    assert result.flags.c_contiguous
    assert (cut(np.ascontiguousarray(scene()[..., 1]), geometry) == result[..., 1]).all()


@given(
    size=st.tuples(st.integers(7, 20), st.integers(7, 20)),
    finer=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    edge=st.floats(0, 1, exclude_max=True),
    across=st.booleans(),
    data=st.data(),
)
def test_mask_and_picture_stay_aligned(
    size: tuple[int, int], finer: tuple[int, int], edge: float, across: bool, data: st.DataObject
) -> None:
    """An edge at the same place of a picture and of a mask in any other size is at the same place of their cuts."""
    width, height = size
    # Three pixels from the border: nearer, the widest filter sees more of one side than of the other.
    place = 3 + int(edge * ((height if across else width) - 5))
    coarse = np.zeros((height, width), np.uint8)
    coarse[(slice(place), slice(None)) if across else (slice(None), slice(place))] = 255
    source, mask = (np.kron(coarse, np.ones((times, times), np.uint8)) for times in finer)
    geometry = data.draw(geometries((source.shape[1], source.shape[0])))

    axis = 1 if across else 0
    expected_edge = place * geometry.scaled[axis] / size[axis] - geometry.crop[axis]
    centres = np.arange(geometry.target[axis]) + 0.5
    if geometry.flip and not across:
        centres = centres[::-1]
    # Within a pixel of the edge, filters blur it each in its own way.
    certain = np.abs(centres - expected_edge) > 1
    for result in (cut(np.stack([source] * 3, axis=2), geometry)[..., 0], cut_mask(mask, geometry)):
        assert result.shape == geometry.target[::-1]
        line = result[:, 0] if across else result[0]
        assert ((line >= 128) == (centres < expected_edge))[certain].all()


@given(geometry=geometries((WIDTH, HEIGHT)), size=st.tuples(st.integers(1, 99), st.integers(1, 99)))
def test_a_mask_of_any_size_gets_the_size_of_the_cut(geometry: Geometry, size: tuple[int, int]) -> None:
    """A mask never disagrees with its picture's shape, and what is all white or all black stays so."""
    for value in (0, 255):
        result = cut_mask(np.full(size, value, np.uint8), geometry)
        assert result.shape == cut(scene(), geometry).shape[:2]
        assert (result == value).all()


def test_a_shrinking_mask_is_the_mean_of_what_it_covers() -> None:
    """Halving a mask keeps how much of each pixel was masked, whatever the picture's resampling."""
    mask = np.array([[255, 0, 0, 0], [255, 0, 0, 255]], np.uint8)
    assert cut_mask(mask, Geometry((8, 4), (2, 1), (0, 0), (2, 1), False, "lanczos")).tolist() == [[128, 64]]


def test_a_growing_mask_is_bilinear() -> None:
    """Enlarging a mask makes a ramp, whatever the picture's resampling."""
    mask = np.array([[0, 255]], np.uint8)
    assert cut_mask(mask, Geometry((8, 1), (8, 1), (0, 0), (8, 1), False, "nearest"))[0].tolist() == [
        *(0, 0, 32, 96),
        *(159, 223, 255, 255),
    ]


def test_a_picture_of_another_size_than_its_geometry_is_refused() -> None:
    """A geometry worked out for another picture is an error, not a stretched picture."""
    geometry = Geometry((WIDTH + 1, HEIGHT), (8, 8), (0, 0), (8, 8), False, "area")
    with pytest.raises(ValueError, match="37 x 20 pixels and a geometry for 38 x 20"):
        cut(scene(), geometry)


@pytest.mark.parametrize("crop", [(-9, 0), (0, -9), (5, 0), (0, 5)])
def test_a_box_outside_of_the_picture_is_refused(crop: tuple[int, int]) -> None:
    """A box that reaches beyond the scaled picture is an error, not a smaller picture."""
    geometry = Geometry((WIDTH, HEIGHT), (12, 12), crop, (8, 8), False, "area")
    with pytest.raises(ValueError, match="not inside of"):
        cut(scene(), geometry)


def test_cutting_leaves_the_picture_alone() -> None:
    """The cut is a copy: writing to it changes no source."""
    source = scene()
    result = cut(source, Geometry((WIDTH, HEIGHT), (WIDTH, HEIGHT), (0, 0), (WIDTH, HEIGHT), False, "area"))
    assert (result == source).all()
    result[:] = 0
    assert (source == scene()).all()
