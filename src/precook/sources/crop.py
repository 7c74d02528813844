"""Crop: a picture or a mask brought to the size that its geometry says."""

from __future__ import annotations

import numpy as np
from PIL import Image

from precook.config.sections import Resampling
from precook.sources.geometry import Geometry
from precook.sources.pictures import DecodedPicture
from precook.values import Pixels

_FILTERS: dict[Resampling, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "area": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "draft": Image.Resampling.LANCZOS,
}


def cut(picture: Pixels | DecodedPicture, geometry: Geometry) -> Pixels:
    """The part of a picture that its geometry names, H x W x 3 or H x W as given; the picture itself is not changed.

    The whole picture is scaled before the box is cut out of it: so the box's edges are made of their true neighbours.
    It may be one that its decoder has made smaller by the geometry's `reduction`.
    """
    if not isinstance(picture, DecodedPicture):
        image = Image.fromarray(picture)
        picture = DecodedPicture(image, (0, 0, *image.size))
    smaller = tuple(-(-side // geometry.reduction) for side in geometry.source)
    if picture.image.size not in (geometry.source, smaller):
        size, source = (f"{width} x {height}" for width, height in (picture.image.size, geometry.source))
        raise ValueError(f"a picture of {size} pixels and a geometry for {source} do not belong together")
    return _cut(picture, geometry, _FILTERS[geometry.resampling])


def cut_mask(mask: Pixels, geometry: Geometry) -> Pixels:
    """The part of a mask, H x W, that lies over the cut picture, in the same size.

    The mask may have any size: it is stretched over the whole picture. Each value is the mean of the area it covers
    where no side grows, and bilinear otherwise; the picture's resampling does not matter.
    """
    height, width = mask.shape
    grows = geometry.scaled[0] > width or geometry.scaled[1] > height
    image = Image.fromarray(mask)
    resampling = Image.Resampling.BILINEAR if grows else Image.Resampling.BOX
    return _cut(DecodedPicture(image, (0, 0, width, height)), geometry, resampling)


def _cut(picture: DecodedPicture, geometry: Geometry, resampling: Image.Resampling) -> Pixels:
    image = picture.image
    if picture.box != (0, 0, *geometry.scaled):
        image = image.resize(geometry.scaled, resampling, picture.box)
    pixels = np.asarray(image)
    (left, top), (width, height) = geometry.crop, geometry.target
    # Image.crop would warn of large boxes and fill up what lies outside.
    part = pixels[top : top + height, left : left + width]
    if part.shape[:2] != (height, width) or left < 0 or top < 0:
        raise ValueError(f"the box at {geometry.crop} of size {geometry.target} is not inside of {geometry.scaled}")
    return np.array(part[:, ::-1] if geometry.flip else part, order="C")
