"""Geometry: how a picture is cut for a target size, as plain numbers worked out before it is decoded.

All numbers are whole, and the same on every machine. Many pictures are worked out at a time, one row each; a
`Geometry` is one such row with names. docs/concepts/geometry.md states the rules.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count, islice, takewhile
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from precook.config.sections import ImageSettings, Resampling, Resolution, Rounding
from precook.errors import ConfigError, ConfigProblem
from precook.sources.draws import Purpose, draw, pick
from precook.values import Bytes, Flags, Numbers

RESAMPLINGS: tuple[Resampling, ...] = get_args(Resampling)
"""A row holds a name's place in here, and rows are remembered on disk: new names go to the end."""
COLUMNS = 10
"""Numbers in a row: source, scaled, crop, target (two each), flip, resampling."""
SOURCE = slice(0, 2)
SCALED = slice(2, 4)
TARGET = slice(6, 8)
"""Where in a row the widths and heights of the picture, as it is scaled and of its target stand."""
RESAMPLING = 9
"""Where in a row the number of the filter stands."""
MAX_BUCKETS = 1 << 18
"""About twice what the largest resolution has with the smallest step and the usual `max_aspect`."""
_REDUCTIONS = (2, 4, 8)
"""What the JPEG decoder can do by leaving out frequencies."""
_NEAR = 1e-9
"""Relative distance to a border between two sizes within which floating point is not relied on."""

GeometryRows = npt.NDArray[np.int32]


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
    def reduction(self) -> int:
        """How many times smaller a JPEG may come from its decoder, which is quick at it: 1, 2, 4 or 8.

        With `draft`, the most that leaves it as large as it is scaled to; by this geometry alone, so that a picture is
        the same whatever else is made of its file.
        """
        if self.resampling != "draft":
            return 1
        times = min(side // to for side, to in zip(self.source, self.scaled, strict=True))
        return max((step for step in _REDUCTIONS if step <= times), default=1)

    @property
    def shown_crop(self) -> tuple[int, int]:
        """Top and left of the box, in the scaled picture as it is shown: mirrored, if `flip`."""
        left, top = self.crop
        return top, self.scaled[0] - self.target[0] - left if self.flip else left

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

    rows: GeometryRows
    refused: dict[int, str]
    """Reasons, by picture."""


def buckets(resolution: Resolution, *, step: int, max_aspect: float) -> list[tuple[int, int]]:
    """The sizes pictures may be cut to, from the tallest to the widest.

    An exact resolution is the only size. Else these are the square, each wider multiple of `step` with the largest
    height that keeps the area within the resolution's, and the same sizes upright; but for the square, none is more
    elongated than `max_aspect`. `ConfigError` if there are too many.

    >>> buckets(Resolution(256, 256, exact=False), step=64, max_aspect=2.0)
    [(192, 320), (256, 256), (320, 192)]
    """
    if resolution.exact:
        return [(resolution.width, resolution.height)]
    area = resolution.width * resolution.height
    square = resolution.width // step * step
    most, least = Fraction(str(max_aspect)).as_integer_ratio()  # as written: 1.9 is 19:10, not a little less

    def fits(size: tuple[int, int]) -> bool:
        return size[0] * least <= size[1] * most

    # Ever wider and never higher: so no two share an aspect ratio, and the first that does not fit is the last.
    candidates = ((width, area // width // step * step) for width in count(square + step, step))
    wide = list(islice(takewhile(fits, candidates), MAX_BUCKETS))
    sizes = [*((width, height) for height, width in reversed(wide)), (square, square), *wide]
    if len(sizes) > MAX_BUCKETS:
        message = f"{resolution.width} with step {step} and max_aspect {max_aspect} gives more than {MAX_BUCKETS} sizes"
        raise ConfigError(
            ConfigProblem("image.resolutions", None, message, "raise image.step, or lower image.max_aspect")
        )
    return sizes


def nearest(sizes: Numbers, choices: list[tuple[int, int]]) -> npt.NDArray[np.intp]:
    """Which choice comes nearest to each size's aspect ratio, by the ratio of the two ratios.

    `choices` go from the tallest to the widest. Halfway between two, the larger area wins, then the wider.
    """
    widths, heights = np.array(choices, np.float64).T
    # Between neighbours the border lies where (width / height)^2 is the product of their ratios.
    borders = (widths / heights)[:-1] * (widths / heights)[1:]
    squared = (sizes[:, 0] / sizes[:, 1]) ** 2
    chosen = np.searchsorted(borders, squared)

    @cache
    def exactly(width: int, height: int) -> int:
        def stops(border: int) -> bool:
            (a, b), (c, d) = choices[border : border + 2]
            left, right = width * width * b * d, height * height * a * c
            return left < right or (left == right and a * b > c * d)

        return bisect_left(range(len(borders)), True, key=stops)  # noqa: FBT003 - what is looked for

    # Floating point cannot tell sizes that lie on a border: those that come close are compared in whole numbers.
    close = np.searchsorted(borders * (1 - _NEAR), squared) != np.searchsorted(borders * (1 + _NEAR), squared)
    for row in np.flatnonzero(close).tolist():
        chosen[row] = exactly(*sizes[row].tolist())
    return chosen


def cut_rows(
    sizes: Numbers, digests: Bytes, settings: ImageSettings, *, resolution: Resolution, variation: int
) -> Cuts:
    """Work out how pictures of these sizes (width, height after orientation) are cut for one target."""
    if resolution.native:
        return _own_rows(sizes, digests, settings, variation)
    choices = buckets(resolution, step=settings.step, max_aspect=settings.max_aspect)
    target = np.array(choices, np.int64)[nearest(sizes, choices)]
    # The middle square of all pictures is what torchvision's Resize and CenterCrop make: so it rounds as they do.
    square = len(choices) == 1 and choices[0][0] == choices[0][1] and settings.crop == "center"
    rounding = "down" if settings.rounding == "auto" and square else settings.rounding
    scaled = _cover(sizes, target, rounding)
    refused = _refusals(sizes, scaled, target, choices[-1], settings)
    room = scaled - target
    if settings.crop == "random":
        crop = np.stack(
            [
                pick(draw(digests, purpose, number=variation, seed=settings.seed), room[:, axis] + 1)
                for axis, purpose in enumerate((Purpose.LEFT, Purpose.TOP))
            ],
            axis=1,
        )
    else:
        crop = (room + (room // 2 % 2 if rounding != "auto" else 0)) // 2  # halves to the even number, or down
    flip = _flips(digests, settings, variation)
    resampling = np.full(len(sizes), RESAMPLINGS.index(settings.resampling))
    rows = np.concatenate([sizes, scaled, crop, target, flip[:, None], resampling[:, None]], axis=1)
    rows[list(refused)] = 0  # nobody uses it, and it may be beyond what `pick` and 32 bits can hold
    return Cuts(rows.astype(np.int32), refused)


def _flips(digests: Bytes, settings: ImageSettings, variation: int) -> Numbers:
    """Which pictures are mirrored."""
    if settings.flip == "random":
        return pick(draw(digests, Purpose.FLIP, number=variation, seed=settings.seed), 2)
    return np.full(len(digests), int(settings.flip == "always"))


def _own_rows(sizes: Numbers, digests: Bytes, settings: ImageSettings, variation: int) -> Cuts:
    """How pictures that keep their size are scaled, and which are not: nothing of any is cut off."""
    fitting = own_sizes(
        sizes,
        multiple_of=settings.multiple_of,
        max_pixels=settings.max_pixels,
        down=settings.rounding == "down",
    )
    refused = _own_refusals(sizes, fitting, settings)
    resampling = own_filters(sizes, fitting, settings)
    flip = _flips(digests, settings, variation)
    rows = np.concatenate([sizes, fitting, np.zeros_like(sizes), fitting, flip[:, None], resampling[:, None]], axis=1)
    rows[list(refused)] = 0
    return Cuts(rows.astype(np.int32), refused)


def own_filters(sizes: Numbers, scaled: npt.NDArray[Any], settings: ImageSettings) -> Numbers:
    """How pictures of these sizes are resampled where they keep them: what is not scaled is the same by any filter.

    So the filter that was asked for stands in the keys of those alone that it makes a difference to.
    """
    filters = RESAMPLINGS.index(settings.resampling), RESAMPLINGS.index("nearest")
    return np.where((scaled != sizes).any(axis=1), *filters)


def own_sizes(sizes: Numbers, *, multiple_of: int, max_pixels: int, down: bool = False) -> Numbers:
    """What pictures are scaled to that keep their size: each side becomes the nearest multiple, or with `down` the
    one below it, and where that are too many pixels, the largest of the picture's shape that are not.

    A side is 0 where a picture is too elongated for that. These are the sizes of Qwen-VL's `smart_resize`, but for
    its least number of pixels.

    >>> import numpy
    >>> own_sizes(numpy.array([[1000, 705], [640, 40]]), multiple_of=28, max_pixels=200_000).tolist()
    [[532, 364], [644, 28]]
    """
    whole, rest = np.divmod(sizes, multiple_of)
    # Halves to the even number, as Python rounds.
    up = np.zeros_like(whole) if down else (2 * rest > multiple_of - whole % 2).astype(np.int64)
    near = np.maximum(whole + up, 1) * multiple_of
    # In whole numbers throughout: width times the root of a fraction, rounded down, is the root of a whole number.
    squares = sizes * max_pixels // np.maximum(sizes[:, ::-1], 1) // multiple_of**2
    return np.where(_too_many(near, max_pixels)[:, None], _root(squares) * multiple_of, near)


def _root(squares: Numbers) -> Numbers:
    """The whole part of each square root."""
    roots = np.sqrt(squares).astype(np.int64)
    roots -= roots * roots > squares
    return roots + ((roots + 1) ** 2 <= squares)


def shown_crops(rows: GeometryRows) -> GeometryRows:
    """Top and left of each row's box, as `Geometry.shown_crop` says them."""
    scaled, left, top, target, flip = rows[:, [2, 4, 5, 6, 8]].T
    return np.stack([top, np.where(flip, scaled - target - left, left)], axis=1)


def _cover(sizes: Numbers, target: Numbers, rounding: Rounding) -> Numbers:
    """The smallest size with the picture's aspect ratio that covers the target: one side fits, the other is rounded."""
    width, height = sizes.T
    to_width, to_height = target.T
    wide = width * to_height >= to_width * height
    return np.stack(
        [
            np.where(wide, _scale(width, to_height, height, rounding), to_width),
            np.where(wide, to_height, _scale(height, to_width, width, rounding)),
        ],
        axis=1,
    )


def _scale(side: Numbers, to_other: Numbers, other: Numbers, rounding: Rounding) -> Numbers:
    """What one side of a picture becomes where the other fits."""
    if rounding == "nearest":
        # In the double precision of those who round so: where a half comes out decides a pixel.
        return np.rint(side * (to_other / other)).astype(np.int64)
    half = 0 if rounding == "down" else 1
    return (2 * side * to_other + half * other) // (2 * other)


def _refusals(
    sizes: Numbers,
    scaled: Numbers,
    target: Numbers,
    longest: tuple[int, int],
    settings: ImageSettings,
) -> dict[int, str]:
    """Why pictures cannot or shall not be cut to their target; of several reasons, the last one here."""
    refused: dict[int, str] = {}
    if settings.upscale == "refuse":
        for row in np.flatnonzero((target > sizes).any(axis=1)).tolist():
            refused[row] = f"too small for {_size_text(target[row])}, and image.upscale is refuse"
    if settings.extreme_aspect == "refuse":
        beyond = sizes.max(axis=1) * min(longest) > sizes.min(axis=1) * max(longest)
        for row in np.flatnonzero(beyond).tolist():
            refused[row] = f"more elongated than {_size_text(target[row])}, and image.extreme_aspect is refuse"
    limit = settings.most_pixels
    for row in np.flatnonzero(_too_many(scaled, limit)).tolist():
        scaling = f"to cover {_size_text(target[row])} it would be scaled to {_size_text(scaled[row])}"
        refused[row] = f"{scaling}, more pixels than image.max_pixels, {limit}"
    return refused | _too_large(sizes, limit)


def _own_refusals(sizes: Numbers, fitting: Numbers, settings: ImageSettings) -> dict[int, str]:
    """Why pictures cannot or shall not keep their size; of several reasons, the last one here."""
    refused: dict[int, str] = {}
    if settings.upscale == "refuse":
        for row in np.flatnonzero((sizes < settings.multiple_of).any(axis=1)).tolist():
            refused[row] = (
                f"a side is shorter than image.multiple_of, {settings.multiple_of}, and image.upscale is refuse"
            )
    if settings.extreme_aspect == "refuse":
        most, least = Fraction(str(settings.max_aspect)).as_integer_ratio()
        # As numbers of Python: those of an aspect with many digits have no room in 64 bits.
        longer, shorter = sizes.max(axis=1).astype(object), sizes.min(axis=1).astype(object)
        for row in np.flatnonzero(longer * least > shorter * most).tolist():
            aspect = f"image.max_aspect, {settings.max_aspect}"
            refused[row] = f"more elongated than {aspect}, and image.extreme_aspect is refuse"
    for row in np.flatnonzero((fitting == 0).any(axis=1)).tolist():
        most_text = f"image.max_pixels, {settings.max_pixels}"
        side = f"image.multiple_of, {settings.multiple_of}" if settings.multiple_of > 1 else "a pixel"
        refused[row] = f"too elongated: scaled down to {most_text}, its shorter side would be less than {side}"
    return refused | _too_large(sizes, settings.most_pixels)


def _too_large(sizes: Numbers, limit: int) -> dict[int, str]:
    """Pictures with too many pixels; mostly found before, by `check_pixels`, in these words."""
    rows = np.flatnonzero(_too_many(sizes, limit)).tolist()
    return {row: "{} x {} pixels are more than the {} allowed".format(*sizes[row].tolist(), limit) for row in rows}


def _too_many(sizes: Numbers, limit: int) -> Flags:
    """Which sizes have more pixels than that: their number itself may be beyond 64 bits."""
    return sizes[:, 0] > limit // sizes[:, 1]


def _size_text(size: Numbers) -> str:
    return "{}x{}".format(*size.tolist())
