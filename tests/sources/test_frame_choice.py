"""Which frames of a clip are taken: exactly by time stamps, whatever the rate and the container's rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook.config.sections import ClipStart
from precook.sources.frame_choice import EVERY, FrameChoice, FrameTimes, capacity, choose_frames, frame_numbers

TIMES = st.builds(
    lambda steps, numerator, denominator: FrameTimes(np.cumsum([0, *steps]), numerator, denominator),
    st.lists(st.integers(1, 5000), max_size=60),
    st.integers(1, 1001),
    st.sampled_from([1, 12, 24, 30, 1000, 12_800, 24_000, 90_000, 1_000_000]),
)
RATES = st.one_of(st.just(EVERY), st.integers(1, 240_000))
STARTS = st.sampled_from(["first", "middle", "random"])


def even(count: int, rate: int, *, base: int | None = None) -> FrameTimes:
    """A clip of an even rate, its time stamps rounded to a tick of one `base`-th second, or exact."""
    if base is None:
        return FrameTimes(np.arange(count), 1, rate)
    return FrameTimes(np.array([(2 * number * base + rate) // (2 * rate) for number in range(count)]), 1, base)


@given(TIMES, RATES, STARTS, st.integers(0, 2**64 - 1), st.sets(st.integers(1, 80), min_size=1))
def test_every_time_takes_the_frame_that_is_nearest(
    times: FrameTimes, rate: int, start: ClipStart, bits: int, counts: set[int]
) -> None:
    """A choice is what plain arithmetic with fractions says: the nearest frame of each time, the earlier of two."""
    tick = Fraction(times.numerator, times.denominator)
    shown = [int(number) * tick for number in times.ticks]
    choice = choose_frames(times, counts, rate, start, bits)
    if choice is None:
        assert capacity(times, rate) < min(counts)
        return
    assert choice.count == max(count for count in counts if count <= capacity(times, rate))
    numbers = frame_numbers(times, choice).tolist()
    if rate == EVERY:
        assert numbers == list(range(choice.start, choice.start + choice.count))
        return
    for step, number in enumerate(numbers):
        time = shown[choice.start] + step * Fraction(1000, rate)
        assert number == min(range(len(shown)), key=lambda one: (abs(shown[one] - time), one))
        assert time <= shown[-1] + Fraction(500, rate), "no frame is asked for after the end"


@given(TIMES, RATES, st.integers(0, 2**64 - 1), st.integers(1, 80))
def test_the_starts_are_in_order(times: FrameTimes, rate: int, bits: int, count: int) -> None:
    """The middle and a drawn start lie between the first frame and the last one from which the frames are there."""
    kinds: tuple[ClipStart, ...] = ("first", "middle", "random")
    starts = {start: choose_frames(times, [count], rate, start, bits) for start in kinds}
    last = choose_frames(times, [count], rate, "random", 2**64 - 1)
    if last is None:
        assert set(starts.values()) == {None}
        return
    assert starts["first"].start == 0
    assert all(0 <= choice.start <= last.start for choice in starts.values())
    if rate == EVERY:
        assert last.start == times.count - count
        assert starts["middle"].start == (times.count - count) // 2


@given(TIMES, RATES, STARTS, st.integers(0, 2**64 - 1), st.integers(1, 20), st.integers(2, 7))
def test_another_time_base_chooses_the_same_frames(
    times: FrameTimes, rate: int, start: ClipStart, bits: int, count: int, finer: int
) -> None:
    """A container that counts in finer ticks changes nothing: only time itself matters."""
    same = FrameTimes(times.ticks * finer, times.numerator, times.denominator * finer)
    assert choose_frames(same, [count], rate, start, bits) == choose_frames(times, [count], rate, start, bits)


@pytest.mark.parametrize("rate", [8, 12, 16, 24, 25, 30, 48, 50, 60])
@pytest.mark.parametrize("base", [None, 1000, 90_000, 600])
def test_a_clip_at_its_own_rate_gives_every_frame(rate: int, base: int | None) -> None:
    """Matroska rounds time stamps to milliseconds: at a clip's own rate that loses and doubles no frame."""
    times = even(49, rate, base=base)
    assert choose_frames(times, [49, 50], rate * 1000, "first", 0) == FrameChoice(0, 49, EVERY)


@pytest.mark.parametrize(("rate", "to", "expected"), [(30, 15, [0, 2, 4]), (8, 16, [0, 0, 1]), (24, 16, [0, 1, 3])])
def test_frames_are_left_out_or_shown_twice_to_keep_the_speed(rate: int, to: int, expected: list[int]) -> None:
    """Half the rate takes every second frame, twice the rate takes each twice."""
    times = even(40, rate)
    choice = choose_frames(times, [3], to * 1000, "first", 0)
    assert choice is not None
    assert frame_numbers(times, choice).tolist() == expected


def test_a_rate_that_varies_is_followed_by_time() -> None:
    """Where a phone drops to 10 frames per second, its frames are taken more often."""
    ticks = np.concatenate([np.arange(0, 1000, 33), np.arange(1000, 2000, 100)])
    times = FrameTimes(ticks, 1, 1000)
    choice = choose_frames(times, [20], 10_000, "first", 0)
    assert choice is not None
    assert ticks[frame_numbers(times, choice)].tolist() == [
        *[0, 99, 198, 297, 396, 495, 594, 693, 792, 891],
        *range(1000, 2000, 100),
    ]


def test_a_rate_that_changes_no_frame_changes_no_key() -> None:
    """Where every frame is taken one after the other, the choice does not say which rate asked for it."""
    times = even(25, 16)
    assert choose_frames(times, [25], 16_000, "first", 0) == choose_frames(times, [25], EVERY, "first", 0)
    assert choose_frames(times, [1], 8000, "first", 0) == choose_frames(times, [1], 24_000, "first", 0)
    assert choose_frames(times, [9], 8000, "first", 0) != choose_frames(times, [9], 16_000, "first", 0)
