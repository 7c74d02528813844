"""Draws: random choices that belong to a picture, not to its place in a list.

A draw is a function of the picture's digest, its purpose, a number (variation or epoch) and a seed. So a new file
changes the crop of no other picture, and equal pictures are cut alike wherever they lie.
docs/concepts/geometry.md states the arithmetic.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from precook.values import Array, Bytes, Numbers

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class Purpose(enum.IntEnum):
    """What a draw is for; each purpose has numbers of its own."""

    LEFT = 1
    TOP = 2
    FLIP = 3
    LINES = 4
    RESOLUTION = 5
    VARIATION = 6
    CAPTION = 7
    SAMPLES = 8
    DROPOUT = 9
    ORDER = 10
    STEPS = 11
    NOISE = 12
    TAG_ORDER = 13
    TAG_DROPOUT = 14
    START = 15


def draw(digests: Bytes, purpose: Purpose, *, number: int | Numbers, seed: int) -> npt.NDArray[np.uint64]:
    """64 random bits for each digest, of one number for all or of one for each; a row of `digests` has 32 bytes.

    >>> import numpy
    >>> draw(numpy.zeros((1, 32), "u1"), Purpose.LEFT, number=0, seed=0).tolist()
    [502293085195412968]
    """
    words = np.ascontiguousarray(digests).view("<u8").astype(np.uint64, copy=False)
    state = np.zeros(1, np.uint64)  # an array from the start: numpy lets arrays wrap, and warns of single numbers
    numbers = number.astype(np.uint64) if isinstance(number, np.ndarray) else np.uint64(number & _MASK)
    for word in (np.uint64(purpose), numbers, np.uint64(seed & _MASK), *words.T):
        state = _mix((state ^ word) + np.uint64(_STEP))
    return state


def pick(bits: npt.NDArray[np.uint64], counts: Array | int) -> Numbers:
    """A number from 0 to count - 1 for each draw; counts go up to 2**32.

    >>> import numpy
    >>> pick(numpy.array([0, 2**63, 2**64 - 1], "u8"), 10).tolist()
    [0, 5, 9]
    """
    return (((bits >> np.uint64(32)) * np.asarray(counts, np.uint64)) >> np.uint64(32)).astype(np.int64)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input moves about half of the output's."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
