"""Pixels: pictures kept as they were cut, and masks made as small as the latents that they go with.

Nothing is loaded for either, and both are made on the CPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from precook.config import encoders
from precook.encode.encoder import BaseEncoder, Item
from precook.errors import EncodeError
from precook.plan.wanted import Input
from precook.store.tree import Tree
from precook.values import Pixels

_WHITE = 255


class ImageEncoder(BaseEncoder):
    """The pixels as they were cut: uint8, H x W x 3."""

    input: Input = "image"
    gives_away = True

    def __init__(self, section: encoders.ImageSection) -> None:
        """Nothing can be set but what every encoder has."""

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A copy of each picture, so that nobody's later changes reach the entry; their sizes may differ."""
        pictures: list[Tree] = []
        for item in batch:
            image = item.image
            if image is None or image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:  # noqa: PLR2004 - RGB
                raise EncodeError(f"a picture is uint8 of shape (height, width, 3), not {_given(image)}")
            pictures.append(np.array(image, order="C"))
        return pictures


class MaskEncoder(BaseEncoder):
    """Each value is the exact mean of the block of `factor` x `factor` pixels it stands for.

    Stored as float32, 1 x h x w, from 0 for black to 1 for white. The mask is cut with its picture's geometry, so with
    the VAE's factor it has the height and width of the picture's latent.
    """

    input: Input = "mask"
    gives_away = True

    def __init__(self, section: encoders.MaskSection) -> None:
        self._factor = section.factor

    def encode(self, batch: list[Item]) -> list[Tree]:
        """One array for each item; their sizes may differ."""
        return [self._block_means(item.mask) for item in batch]

    def _block_means(self, mask: Pixels | None) -> npt.NDArray[np.float32]:
        if mask is None or mask.ndim != 2 or mask.dtype != np.uint8:  # noqa: PLR2004 - height, width
            raise EncodeError(f"a mask is uint8 of shape (height, width), not {_given(mask)}")
        factor = self._factor
        height, width = mask.shape
        if height % factor or width % factor:
            hint = "set image.step (with native, image.multiple_of) and exact resolutions to multiples of the factor"
            raise EncodeError(f"a mask of {width} x {height} pixels has no whole blocks of {factor}", hint=hint)
        # Whole numbers until the one division: so the mean is exact, and white is 1 whatever the factor.
        sums = mask.reshape(height // factor, factor, width // factor, factor).sum(axis=(1, 3), dtype=np.int64)
        means: npt.NDArray[np.float32] = (sums / (_WHITE * factor * factor)).astype(np.float32)
        return means[np.newaxis]


def _given(pixels: Pixels | None) -> str:
    return "nothing" if pixels is None else f"{pixels.dtype} of shape {pixels.shape}"
