"""The cut pictures themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from precook.config import encoders
from precook.encode.encoder import Item
from precook.errors import EncodeError
from precook.plan.wants import Input


class ImageEncoder:
    """The pixels as they were cut: uint8, H x W x 3."""

    input: Input = "image"
    gives_away = True

    def __init__(self, section: encoders.ImageEncoder) -> None:
        """Nothing can be set but what every encoder has."""

    def load(self, device: str) -> None:
        """Nothing to load."""

    def encode(self, batch: list[Item]) -> list[npt.NDArray[np.uint8]]:
        """A copy of each picture, so that nobody's later changes reach the entry; their sizes may differ."""
        return [_copied(item.image) for item in batch]

    def unload(self) -> None:
        """Nothing was loaded."""


def _copied(image: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8]:
    if image is None or image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:  # noqa: PLR2004 - RGB
        given = "nothing" if image is None else f"{image.dtype} of shape {image.shape}"
        raise EncodeError(f"a picture is uint8 of shape (height, width, 3), not {given}")
    return np.array(image, order="C")
