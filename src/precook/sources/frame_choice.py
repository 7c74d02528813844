"""Frame choice: which frames of a clip are taken, by their time stamps and in whole numbers.

A rate asks for a frame at its start and at every later time that is a whole number of intervals away from it. Each
time takes the frame whose time stamp is nearest, the earlier one of two. So clips of any rate, and of a rate that
varies, are shown at the same speed, and time stamps that a container has rounded lose no frame. docs/guides/video.md
has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from precook.config.sections import ClipStart
from precook.values import Numbers

EVERY = 0
"""The rate of a choice that takes every frame, one after the other."""
_THOUSAND = 1000


@dataclass(frozen=True, slots=True, eq=False)
class FrameTimes:
    """When the frames of a clip are shown."""

    ticks: Numbers
    """The time stamp of each, from that of the first on: 0 and then ever more."""
    numerator: int
    """A tick lasts so many seconds, by the denominator; 0 where nothing says how long a frame is shown."""
    denominator: int

    @property
    def count(self) -> int:
        """Number of frames."""
        return len(self.ticks)

    @property
    def seconds(self) -> float:
        """From the first time stamp to the last."""
        return int(self.ticks[-1]) * self.numerator / self.denominator


@dataclass(frozen=True, slots=True)
class FrameChoice:
    """Which frames of a clip are taken: so many from the one with the number `start` on."""

    start: int
    count: int
    rate: int
    """Thousandths of frames per second; `EVERY` where they follow each other, whatever rate was asked for."""

    @property
    def form(self) -> dict[str, int]:
        """The plain data that stands in keys: what decides pixels, and not how it was asked for."""
        return {"start": self.start, "count": self.count, "rate": self.rate}


def capacity(times: FrameTimes, rate: int) -> int:
    """How many frames a clip gives at a rate: one for each time up to half an interval after its last time stamp.

    >>> ticks = np.arange(30)  # a second at 30 frames per second
    >>> capacity(FrameTimes(ticks, 1, 30), 16_000), capacity(FrameTimes(ticks, 1, 30), EVERY)
    (16, 30)
    """
    if rate == EVERY or not times.numerator:
        return times.count
    last = int(times.ticks[-1]) * times.numerator * rate
    whole = _THOUSAND * times.denominator
    return (2 * last + whole) // (2 * whole) + 1


def choose_frames(
    times: FrameTimes, counts: Iterable[int], rate: int, start: ClipStart, bits: int
) -> FrameChoice | None:
    """The most frames that a clip has of these counts, from its first frame, its middle or a drawn one on.

    None where it has fewer than all of them. `bits` are 64 random ones, for `random`.
    """
    if not times.numerator:
        rate = EVERY
    most = capacity(times, rate)
    count = max((count for count in counts if count <= most), default=0)
    if not count:
        return None
    if rate == EVERY:
        starts = times.count - count + 1
        middle = (starts - 1) // 2
    else:
        # What is left of the clip behind the last frame: up to there it may begin.
        taken, interval = (count - 1) * _THOUSAND * times.denominator, rate * times.numerator
        room = max(0, int(times.ticks[-1]) * interval - taken)
        starts = int(np.searchsorted(times.ticks, room // interval, side="right"))
        middle = _nearest(times.ticks[:starts], room, 2 * interval)
    number = {"first": 0, "middle": middle, "random": (bits >> 32) * starts >> 32}[start]
    choice = FrameChoice(number, count, rate)
    numbers = frame_numbers(times, choice)
    one_by_one = numbers[-1] - number == count - 1 and bool((np.diff(numbers) == 1).all())
    return FrameChoice(number, count, EVERY) if one_by_one else choice


def frame_numbers(times: FrameTimes, choice: FrameChoice) -> Numbers:
    """The numbers of the frames that a choice takes, in order; a frame may be taken several times.

    >>> ticks = np.array([0, 33, 67, 100, 133, 167, 200])  # about 30 frames per second, in milliseconds
    >>> frame_numbers(FrameTimes(ticks, 1, 1000), FrameChoice(start=1, count=3, rate=15_000)).tolist()
    [1, 3, 5]
    """
    steps = np.arange(choice.count, dtype=np.int64)
    if choice.rate == EVERY:
        return choice.start + steps
    # In ticks, the k-th time is k * whole / interval: the whole ticks of it, and the rest in parts of `interval`.
    whole, interval = _THOUSAND * times.denominator, choice.rate * times.numerator
    ticks, rest = np.divmod(steps * whole, interval)
    ticks += times.ticks[choice.start]
    after = np.searchsorted(times.ticks, ticks, side="right")
    last = times.count - 1
    before, after = after - 1, np.minimum(after, last)
    # How much farther the later frame is than the earlier one, in ticks, but for twice the rest.
    farther = times.ticks[after] + times.ticks[before] - 2 * ticks
    nearer = (farther < 0) | ((farther == 0) & (rest > 0)) | ((farther == 1) & (2 * rest > interval))
    return np.where(nearer, after, before)


def _nearest(ticks: Numbers, numerator: int, denominator: int) -> int:
    """The number of the time stamp that is nearest to a fraction of ticks; the earlier one of two."""
    tick, rest = divmod(numerator, denominator)
    after = int(np.searchsorted(ticks, tick, side="right"))
    if after == len(ticks):
        return after - 1
    farther = int(ticks[after]) + int(ticks[after - 1]) - 2 * tick
    return after if farther * denominator < 2 * rest else after - 1
