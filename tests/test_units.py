"""Sizes and durations as people write and read them."""

from __future__ import annotations

import doctest

import pytest

from precook import units
from precook.units import format_age, format_duration, format_size, local_time, parse_duration, parse_size, utc_time


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1KB", 1000),
        ("1KiB", 1024),
        ("64MB", 64 * 10**6),
        ("64MiB", 64 * 2**20),
        ("200GB", 200 * 10**9),
        ("3GiB", 3 * 2**30),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 * 2**40),
        ("1.5GB", 1_500_000_000),
        ("0.1GB", 100_000_000),
        (" 7 MiB ", 7 * 2**20),
        ("12B", 12),
    ],
)
def test_a_size_is_its_number_times_its_unit(text: str, nbytes: int) -> None:
    """KB to TB are powers of 1000, KiB to TiB powers of 1024, and fractions are exact."""
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["64", "0", "1.5"])
def test_a_size_without_a_unit_is_refused(text: str) -> None:
    """A bare number is an error that shows how to write it."""
    with pytest.raises(ValueError, match="has no unit: write 64MiB or 64MB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "meant"), [("64mib", "64MiB"), ("64mb", "64MB"), ("1gIb", "1GiB"), ("5kB", "5KB")])
def test_a_unit_in_the_wrong_case_is_refused_with_the_right_one(text: str, meant: str) -> None:
    """Units are case-sensitive; the error names the one that was meant."""
    with pytest.raises(ValueError, match=f"write {meant}$"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1MiB", "1e3MB", "1,5GB", "٣MB", "1MiB2", "1XB", "nanMB", "1" * 40 + "MB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """Signs, exponents, commas, foreign digits and unknown units are no sizes."""
    with pytest.raises(ValueError, match="write 64MiB or 64MB"):
        parse_size(text)


def test_an_error_shows_what_was_given_escaped() -> None:
    """Control characters in a size reach nobody's terminal."""
    with pytest.raises(ValueError, match=r"'\\x1b\[31m1'"):
        parse_size("\x1b[31m1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("36h", 129_600), ("14d", 1_209_600), ("2w", 1_209_600), ("1.5h", 5400)],
)
def test_a_duration_is_its_number_times_its_unit(text: str, seconds: float) -> None:
    """Seconds, minutes, hours, days and weeks."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["90", "90S", "1M", "", "h", "1h30m", "-5m", "5min"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A bare number, a capital, two units or a sign is an error that shows what to write."""
    with pytest.raises(ValueError, match="write "):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (10 * 2**30, "10.0 GiB"),
        (2**40 * 3 // 2, "1.5 TiB"),
        (5000 * 2**60, "5,000.0 EiB"),
    ],
)
def test_a_size_is_shown_in_binary_units(nbytes: int, text: str) -> None:
    """The number before the unit stays below 1024 as long as there is a larger unit."""
    assert format_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.004, "0.004 s"),
        (9.99, "10 s"),
        (59.7, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_is_shown_in_two_units_at_most(seconds: float, text: str) -> None:
    """Short times keep two digits, long ones lose what no longer matters."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-500, "just now"),
        (0.9, "just now"),
        (1, "1 second ago"),
        (119, "119 seconds ago"),
        (120, "2 minutes ago"),
        (47 * 3600, "47 hours ago"),
        (48 * 3600, "2 days ago"),
        (13 * 86400, "13 days ago"),
        (14 * 86400, "2 weeks ago"),
        (61 * 86400, "2 months ago"),
        (800 * 86400, "2 years ago"),
    ],
)
def test_an_age_is_shown_in_one_unit(seconds: float, text: str) -> None:
    """An age takes the largest unit of which there are two; the future is now."""
    assert format_age(seconds) == text


def test_a_time_no_calendar_reaches_is_said_to_be_unknown() -> None:
    """A pack from a hostile store may claim any time; showing it must not fail."""
    assert utc_time(10**18) is None
    assert local_time(10**18) == "at an unknown time"
    assert utc_time(1_700_000_000) == "2023-11-14T22:13:20Z"


def test_the_examples_hold() -> None:
    """What the docstrings show is what happens."""
    assert doctest.testmod(units).failed == 0
