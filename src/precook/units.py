"""Sizes and durations as people write and read them.

A size needs a unit, because nobody agrees on what a bare number means: `200GB` is 200 * 10^9 bytes, `64MiB` is
64 * 2^20.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from fractions import Fraction

SIZES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([A-Za-z]*)")
_IEC = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_AGES = (
    ("year", 365 * 86400),
    ("month", 30 * 86400),
    ("week", 7 * 86400),
    ("day", 86400),
    ("hour", 3600),
    ("minute", 60),
    ("second", 1),
)
_KEEP_UNIT = 2
"""Ages change to a larger unit at two of it: "26 hours" says more than "1 day"."""


def by_number(text: str) -> tuple[list[object], str]:
    """What texts are sorted by where numbers in them count by their value.

    >>> sorted(["row 10", "row 9", "row 09"], key=by_number)
    ['row 09', 'row 9', 'row 10']
    """
    # By their places: digits of other scripts are decimals, too, and stand among the texts. And by how many there are:
    # Python makes no number of very many.
    parts = re.split(r"([0-9]+)", text)
    digits = [part.lstrip("0") for part in parts]
    return [(len(digits[at]), digits[at]) if at % 2 else part for at, part in enumerate(parts)], text


def parse_size(text: str) -> int:
    """Bytes of a size such as `64MiB` or `1.5GB`; `ValueError` says what is wrong with it.

    >>> parse_size("64MiB"), parse_size("1.5GB")
    (67108864, 1500000000)
    """
    return int(_parse(text, SIZES, example="64MiB or 64MB"))


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `90s`, `15m`, `36h`, `14d` or `2w`; `ValueError` says what is wrong with it.

    >>> parse_duration("15m")
    900.0
    """
    return float(_parse(text, DURATIONS, example="90s, 15m, 36h, 14d or 2w"))


def format_size(nbytes: int) -> str:
    """A size to read, in binary units.

    >>> format_size(512), format_size(1536), format_size(2**20 - 1)
    ('512 B', '1.5 KiB', '1.0 MiB')
    """
    if abs(nbytes) < 1024:  # noqa: PLR2004 - a KiB
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in _IEC:
        size /= 1024
        # Compared after rounding, so that nothing is ever "1024.0 KiB".
        if abs(round(size, 1)) < 1024 or unit == _IEC[-1]:  # noqa: PLR2004
            return f"{size:,.1f} {unit}"
    raise AssertionError


def format_duration(seconds: float) -> str:
    """How long something took.

    >>> format_duration(0.25), format_duration(42), format_duration(200), format_duration(9000), format_duration(4e-5)
    ('0.25 s', '42 s', '3 min 20 s', '2 h 30 min', '0 s')
    """
    if seconds < 10:  # noqa: PLR2004 - whole seconds say enough from here on
        return f"{max(round(seconds, 3), 0):.2g} s"
    whole = round(seconds)
    for large, large_name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            count, rest = divmod(whole, large)
            return f"{count} {large_name} {rest // small} {small_name}" if rest // small else f"{count} {large_name}"
    return f"{whole} s"


def format_age(seconds: float) -> str:
    """How long ago something happened, in one unit; what seems to come from the future is taken as now.

    >>> format_age(0), format_age(61), format_age(26 * 3600), format_age(86400 * 20)
    ('just now', '61 seconds ago', '26 hours ago', '2 weeks ago')
    """
    for name, length in _AGES:
        count = int(seconds // length)
        if count >= _KEEP_UNIT or (length == 1 and count >= 1):
            return f"{count:,} {name}{'s' if count > 1 else ''} ago"
    return "just now"


def format_count(number: int, noun: str) -> str:
    """So many of something.

    >>> format_count(1, "entry"), format_count(1200, "entry"), format_count(0, "pack")
    ('1 entry', '1,200 entries', '0 packs')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def utc_time(seconds: int) -> str | None:
    """A moment in UTC as ISO text, None where no calendar reaches.

    >>> utc_time(0)
    '1970-01-01T00:00:00Z'
    """
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def local_time(seconds: int) -> str:
    """A moment as people here write it, with its offset from UTC."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(" ")
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def _parse(text: str, units: dict[str, int], *, example: str) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        message = f"{text[:40]!a} is not a number with a unit: write {example}"
        raise ValueError(message)
    number, unit = match.groups()
    if not unit:
        message = f"{text!a} has no unit: write {example}"
        raise ValueError(message)
    if unit not in units:
        meant = [known for known in units if known.lower() == unit.lower()]
        wanted = f"{number}{meant[0]}" if meant else example
        message = f"{text!a} has an unknown unit {unit!a}: write {wanted}"
        raise ValueError(message)
    return Fraction(number) * units[unit]
