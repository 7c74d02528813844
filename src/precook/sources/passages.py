"""Passages: long texts, split at paragraphs, at headings or at any word, with or without overlap.

Where a passage ends depends on the text before it in the same document only, so that an edit changes the passages from
there on at most; with headings, those up to the next heading.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator

from precook.config.texts import PassageSettings

_PARAGRAPH = re.compile(r"(?:\r\n|\r(?!\n)|\n)[^\S\r\n]*[\r\n]\s*")
"""A blank line, and all white space behind it; the two characters at the end of a line on Windows are one end."""
_HEADING = re.compile(r"^ {0,3}#{1,6}(?=[ \t])", re.MULTILINE)
_SPACE = re.compile(r"\s+")


def split_passages(text: str, settings: PassageSettings) -> Iterator[str]:
    r"""The passages of a text, in order, without the white space around them; none has more than `size` characters.

    A passage ends at the last paragraph that fits, with `headings` before the next heading, and where nothing of that
    kind is near enough at the last word that fits. With an overlap it begins with the last words of the one before,
    except at a heading.

    >>> list(split_passages("One.\n\nTwo two.\n\nThree.", PassageSettings(size=16)))
    ['One.\n\nTwo two.', 'Three.']
    """
    headings = [match.start() for match in _HEADING.finditer(text)] if settings.by == "headings" else []
    paragraphs = [] if settings.by == "characters" else [match.end() for match in _PARAGRAPH.finditer(text)]
    at_heading = set(headings)
    begin = end = 0
    while end < len(text):
        next_end = _end(text, begin, settings.size, paragraphs, headings, after=end)
        if next_end is None:
            # What is repeated left no room for anything new.
            begin = end
            continue
        end = next_end
        if passage := text[begin:end].strip():
            yield passage
        begin = end if end in at_heading else _overlap(text, begin, end, settings.overlap)


def _end(text: str, begin: int, size: int, paragraphs: list[int], headings: list[int], *, after: int) -> int | None:
    """Where the passage that begins here ends; None where that would not be behind `after`."""
    most = begin + size
    following = bisect.bisect_right(headings, after)
    if following < len(headings):
        if headings[following] <= most:
            return headings[following]
    elif len(text) <= most:
        return len(text)
    last = bisect.bisect_right(paragraphs, most) - 1
    if last >= 0 and paragraphs[last] > after:
        return paragraphs[last]
    if most <= after:
        return None
    words = [match.end() for match in _SPACE.finditer(text, after, most) if match.end() > after]
    return words[-1] if words else min(most, len(text))


def _overlap(text: str, begin: int, end: int, overlap: int) -> int:
    """Where the passage behind `end` begins: so many characters before it, at a word."""
    if not overlap:
        return end
    first = max(end - overlap, begin + 1)
    if first > 0 and text[first - 1].isspace():
        return first
    space = _SPACE.search(text, first, end)
    return end if space is None else space.end()
