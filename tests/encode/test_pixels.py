"""The encoders without a model: masks made small, and the cut pictures themselves."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook import EncodeError
from precook.config import encoders
from precook.encode.encoder import Item
from precook.encode.pixels import ImageEncoder, MaskEncoder
from precook.sources.crop import cut, cut_mask
from precook.sources.geometry import Geometry

Bytes = npt.NDArray[np.uint8]


def shrink(mask: Bytes, factor: int) -> npt.NDArray[np.float32]:
    encoder = MaskEncoder(encoders.MaskSection(uses="mask", factor=factor))
    encoder.load("cpu")
    (result,) = encoder.encode([Item(mask=mask)])
    encoder.unload()
    return result


def noise(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_each_value_of_a_mask_is_the_mean_of_its_block(factor: int, rows: int, columns: int, seed: int) -> None:
    """Whatever the factor and the size, what is kept is numpy's mean of each block, as a share of white."""
    mask = noise(rows * factor, columns * factor, seed=seed)
    result = shrink(mask, factor)
    assert (result.dtype, result.shape) == (np.float32, (1, rows, columns))
    for row in range(rows):
        for column in range(columns):
            block = mask[row * factor : (row + 1) * factor, column * factor : (column + 1) * factor]
            assert result[0, row, column] == np.float32(np.mean(block, dtype=np.float64) / 255)


@given(st.integers(1, 64))
def test_white_is_one_and_black_is_nothing(factor: int) -> None:
    """A white mask changes no loss and a black one leaves none: exactly 1 and 0, whatever the factor."""
    side = 2 * factor
    assert (shrink(np.full((side, side), 255, np.uint8), factor) == 1).all()
    assert (shrink(np.zeros((side, side), np.uint8), factor) == 0).all()


@pytest.mark.parametrize("flip", [False, True])
def test_a_mask_lies_over_its_picture(flip: bool) -> None:
    """Cut and mirrored with one geometry, a mask made of the picture's own brightness still equals it."""
    mask = noise(40, 60)
    picture = np.repeat(mask[:, :, np.newaxis], 3, axis=2)
    geometry = Geometry((60, 40), (30, 20), (5, 4), (24, 16), flip, "area")
    shown = cut(picture, geometry)[:, :, 0].reshape(4, 4, 6, 4).mean(axis=(1, 3)) / 255
    np.testing.assert_allclose(shrink(cut_mask(mask, geometry), 4)[0], shown, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(60, 64), (64, 60), (4, 4)])
def test_a_mask_without_whole_blocks_is_refused_with_its_numbers(height: int, width: int) -> None:
    """Nothing is rounded away: the error names the size, the factor and the setting to change."""
    with pytest.raises(EncodeError, match=rf"{width} x {height} pixels .* blocks of 8.*image\.step"):
        shrink(noise(height, width), 8)


def test_masks_of_several_sizes_keep_their_order() -> None:
    """A batch of masks need not have one size, and the answers come in the order asked."""
    encoder = MaskEncoder(encoders.MaskSection(uses="mask"))
    masks = [np.full((8 * rows, 16), 51 * rows, np.uint8) for rows in (3, 1, 2)]
    results = encoder.encode([Item(mask=mask) for mask in masks])
    assert [result.shape for result in results] == [(1, 3, 2), (1, 1, 2), (1, 2, 2)]
    assert [float(result.max()) for result in results] == pytest.approx([0.6, 0.2, 0.4])


def test_the_image_encoder_keeps_the_cut_pixels() -> None:
    """What is kept is the picture itself, and what happens to its buffer afterwards does not reach it."""
    pictures = [noise(8, 16, 3), noise(16, 8, 3, seed=1)[:, ::-1]]
    before = [picture.copy() for picture in pictures]
    encoder = ImageEncoder(encoders.ImageSection(uses="image"))
    encoder.load("cpu")
    results = encoder.encode([Item(image=picture) for picture in pictures])
    encoder.unload()
    for picture in pictures:
        picture[:] = 0
    for result, expected in zip(results, before, strict=True):
        np.testing.assert_array_equal(result, expected)
        assert (result.dtype, result.flags.c_contiguous, result.flags.owndata) == (np.uint8, True, True)


@pytest.mark.parametrize("item", [Item(), Item(mask=noise(8, 8, 3)), Item(mask=noise(8, 8).astype(np.float32))])  # type: ignore[arg-type]
def test_what_is_no_mask_is_refused(item: Item) -> None:
    """Colours, floats and nothing at all are not taken for a mask."""
    with pytest.raises(EncodeError, match=r"a mask is uint8 of shape \(height, width\), not "):
        MaskEncoder(encoders.MaskSection(uses="mask")).encode([item])


@pytest.mark.parametrize("item", [Item(), Item(image=noise(8, 8)), Item(image=noise(8, 8, 4))])
def test_what_is_no_picture_is_refused(item: Item) -> None:
    """Grey pictures, alpha channels and nothing at all are not taken for a picture."""
    with pytest.raises(EncodeError, match=r"a picture is uint8 of shape \(height, width, 3\), not "):
        ImageEncoder(encoders.ImageSection(uses="image")).encode([item])


def test_pixels_need_no_torch() -> None:
    """Masks and pictures are encoded where torch is not installed."""
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
from precook.config import encoders
from precook.encode.encoder import Item
from precook.encode.pixels import ImageEncoder
from precook.encode.pixels import MaskEncoder
MaskEncoder(encoders.MaskSection(uses="mask")).encode([Item(mask=np.zeros((8, 8), np.uint8))])
ImageEncoder(encoders.ImageSection(uses="image")).encode([Item(image=np.zeros((8, 8, 3), np.uint8))])
"""
    subprocess.run([sys.executable, "-c", code], check=True)
