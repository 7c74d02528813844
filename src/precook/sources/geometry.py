"""Geometry: how a picture is cut for a target size, as plain numbers worked out before it is decoded.

Everything is whole numbers and the same on every machine. Many pictures are worked out at a time, one row each; a
`Geometry` is one such row with names. docs/geometry.md states the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from precook.config.models import ImageSettings, Resolution
from precook.sources.draws import Digests, Purpose, draw, pick

Resampling = Literal["nearest", "area", "bilinear", "bicubic", "lanczos"]

RESAMPLINGS: tuple[Resampling, ...] = get_args(Resampling)
COLUMNS = 10
"""Numbers in a row: source, scaled, crop, target (two each), flip, resampling."""
_NEAR = 1e-9
_FLIPPED = 8

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The whole transform: scale to `scaled`, cut the box of size `target` at `crop`, then mirror if `flip`.

    All pairs are (width, height) or (left, top). A mask is cut with its picture's geometry.
    """

    source: tuple[int, int]
    """Size after the EXIF orientation is applied."""
    scaled: tuple[int, int]
    crop: tuple[int, int]
    """Left and top of the box in the scaled picture."""
    target: tuple[int, int]
    flip: bool
    resampling: Resampling

    @classmethod
    def of(cls, row: npt.NDArray[np.int32] | list[int]) -> Geometry:
        """The geometry in a row of numbers."""
        a, b, c, d, e, f, g, h, flip, resampling = (int(number) for number in row)
        return cls((a, b), (c, d), (e, f), (g, h), bool(flip), RESAMPLINGS[resampling])

    @property
    def form(self) -> dict[str, object]:
        """The plain data that stands in keys."""
        return {
            "source": list(self.source),
            "scaled": list(self.scaled),
            "crop": list(self.crop),
            "target": list(self.target),
            "flip": self.flip,
            "resampling": self.resampling,
        }


@dataclass(frozen=True, slots=True)
class Cuts:
    """How many pictures are cut for one target, and which of them are not."""

    rows: Rows
    refused: dict[int, str]
    """Reasons, by picture."""


def buckets(resolution: Resolution, *, step: int, max_aspect: float) -> list[tuple[int, int]]:
    """The sizes pictures may be cut to, from the tallest to the widest.

    An exact resolution is the only size. Else each width that is a multiple of `step` goes with the largest height that
    keeps the area within that of the square, likewise each height with the largest width, and the square itself is
    always there. Sizes more elongated than `max_aspect` are left out, and the smaller of two with one aspect ratio.

    >>> buckets(Resolution(256, 256, exact=False), step=64, max_aspect=2.0)
    [(192, 320), (256, 256), (320, 192)]
    """
    if resolution.exact:
        return [(resolution.width, resolution.height)]
    area = resolution.width * resolution.height
    square = resolution.width // step * step
    sizes = {(square, square)}
    for side in range(step, area // step + 1, step):
        other = area // side // step * step
        if other and max(side, other) <= max_aspect * min(side, other):
            sizes |= {(side, other), (other, side)}
    by_aspect: dict[Fraction, tuple[int, int]] = {}
    for width, height in sorted(sizes):  # the larger of two alike comes later
        by_aspect[Fraction(width, height)] = (width, height)
    return [by_aspect[aspect] for aspect in sorted(by_aspect)]


def nearest(sizes: npt.NDArray[np.int64], choices: list[tuple[int, int]]) -> npt.NDArray[np.intp]:
    """Which choice comes nearest to each size's aspect ratio, by the ratio of the two ratios.

    `choices` go from the tallest to the widest. Halfway between two, the larger area wins, then the wider.
    """
    # Between neighbours the border lies where (w/h)^2 is the product of their ratios.
    borders = [Fraction(a[0] * b[0], a[1] * b[1]) for a, b in pairwise(choices)]
    to_wider = [b[0] * b[1] >= a[0] * a[1] for a, b in pairwise(choices)]
    limits = np.array([float(border) for border in borders])
    squared = (sizes[:, 0] / sizes[:, 1]) ** 2
    found = np.searchsorted(limits, squared)
    # Floating point cannot tell sizes that lie on a border: those few are compared as fractions.
    below, above = np.maximum(found - 1, 0), np.minimum(found, len(limits) - 1)
    if borders:
        gap = np.minimum(
            np.abs(limits[below] - squared) / limits[below], np.abs(limits[above] - squared) / limits[above]
        )
        for row in np.flatnonzero(gap < _NEAR).tolist():
            width, height = (int(number) for number in sizes[row])
            exact = Fraction(width * width, height * height)
            passed = [
                exact > border or (exact == border and wider) for border, wider in zip(borders, to_wider, strict=True)
            ]
            found[row] = sum(passed)
    return found


def cut_rows(
    sizes: npt.NDArray[np.int64], digests: Digests, settings: ImageSettings, *, resolution: Resolution, variation: int
) -> Cuts:
    """Work out how pictures of these sizes (width, height after orientation) are cut for one target."""
    count = len(sizes)
    choices = buckets(resolution, step=settings.step, max_aspect=settings.max_aspect)
    target = np.array(choices, np.int64).reshape(-1, 2)[nearest(sizes, choices)]
    scaled = _cover(sizes, target)
    room = scaled - target
    if settings.crop == "random":
        crop = np.stack(
            [
                pick(draw(digests, purpose, number=variation, seed=settings.seed), room[:, axis] + 1)
                for axis, purpose in enumerate((Purpose.LEFT, Purpose.TOP))
            ],
            axis=1,
        ).reshape(count, 2)
    else:
        crop = room // 2
    refused = _refusals(sizes, scaled, target, choices, settings)
    flip = _flips(digests, settings, variation)
    resampling = np.full(count, RESAMPLINGS.index(settings.resampling))
    columns: list[Any] = [sizes, scaled, crop, target, flip[:, None], resampling[:, None]]
    # What is refused may not fit into 32 bits; nobody uses it.
    rows = np.where(np.isin(np.arange(count), list(refused))[:, None], 0, np.concatenate(columns, axis=1))
    return Cuts(rows.astype(np.int32), refused)


def _cover(sizes: npt.NDArray[np.int64], target: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The smallest size with the picture's aspect ratio that covers the target: one side fits, the other is rounded."""
    width, height = sizes.T
    to_width, to_height = target.T
    wide = width * to_height >= to_width * height
    return np.stack(
        [
            np.where(wide, np.maximum(to_width, (2 * width * to_height + height) // (2 * height)), to_width),
            np.where(wide, to_height, np.maximum(to_height, (2 * height * to_width + width) // (2 * width))),
        ],
        axis=1,
    )


def _flips(digests: Digests, settings: ImageSettings, variation: int) -> npt.NDArray[np.int64]:
    if settings.flip == "random":
        return pick(draw(digests, Purpose.FLIP, number=variation, seed=settings.seed), 2)
    return np.full(len(digests), int(settings.flip == "always"))


def _refusals(
    sizes: npt.NDArray[np.int64],
    scaled: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    choices: list[tuple[int, int]],
    settings: ImageSettings,
) -> dict[int, str]:
    """Why pictures cannot or shall not be cut to their target."""
    refused: dict[int, str] = {}
    if settings.upscale == "refuse":
        for row in np.flatnonzero((scaled > sizes).any(axis=1)).tolist():
            width, height = target[row].tolist()
            refused[row] = f"too small: it would be enlarged to {width}x{height}, and image.upscale is refuse"
    if settings.extreme_aspect == "refuse":
        (tall_width, tall_height), (wide_width, wide_height) = choices[0], choices[-1]
        width, height = sizes.T
        beyond = (width * wide_height > wide_width * height) | (width * tall_height < tall_width * height)
        for row in np.flatnonzero(beyond).tolist():
            refused[row] = "more elongated than any target size, and image.extreme_aspect is refuse"
    for row in np.flatnonzero(scaled[:, 0] * scaled[:, 1] > settings.max_pixels).tolist():
        width, height = scaled[row].tolist()
        refused[row] = f"too elongated: it would be scaled to {width}x{height}, more pixels than image.max_pixels"
    return refused
