"""Captions: how the bytes of a caption file, or the name of a picture, become text.

One line is one caption. The text is taken as it is written: no Unicode normalisation, no guessed encoding.
"""

from __future__ import annotations

import codecs
import re

MAX_BYTES = 16 << 20
"""The largest caption file: what is larger is something else under a caption's name."""
MAX_LINES = 100_000
"""Captions in one file: each takes memory of its own, which a file of short ones would multiply by a hundred."""

_MARKS = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
_NOT_FOR_FILES = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Python's codecs for host names and source code; on long texts some of them take hours."""
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
_LINE_END = re.compile("\r\n|\r|\n")
_SAVE = "save the file as UTF-8, or set `caption_encoding`"


class CaptionError(ValueError):
    """Why something cannot be a caption, and the next step; the caller knows which file it is about."""


def decode_caption(content: bytes, encoding: str = "utf-8") -> str:
    r"""The text of a caption file, in UTF-8 or in the `encoding` its owner names, decoded strictly.

    A byte order mark of UTF-8, UTF-16 or UTF-32 overrules `encoding` and is no part of the text.

    >>> decode_caption("\ufeffa cat".encode()), decode_caption(b"caf\xe9", "cp1252")
    ('a cat', 'café')
    """
    name = _codec(content, encoding)
    try:
        text = content.decode(name)
    except UnicodeDecodeError as error:
        problem = f"byte 0x{content[error.start]:02x} at offset {error.start} is not {name.upper()}"
        raise CaptionError(_looks_like_utf16(problem, content) or f"{problem}: {_SAVE}") from None
    except LookupError:
        # Python has codecs from bytes to bytes too, such as zlib.
        raise CaptionError(_unknown(encoding)) from None
    if "\0" in text and (reason := _looks_like_utf16("the text has NUL characters", content)):
        raise CaptionError(reason)
    # Only the first is a mark; a second U+FEFF is a character of the text.
    return checked(text.removeprefix("\ufeff"))


def split_lines(text: str) -> list[str]:
    r"""The captions in a text, one per line: stripped of surrounding white space, empty ones dropped.

    Lines end at \n, \r\n and \r only. Order and repetitions are kept.

    >>> split_lines("a cat\r\n\r\n  a dog ")
    ['a cat', 'a dog']
    """
    return [stripped for line in _LINE_END.split(text) if (stripped := line.strip())]


def read_lines(content: bytes, encoding: str = "utf-8") -> list[str]:
    """The captions in a caption file of at most `MAX_BYTES` and `MAX_LINES`."""
    if len(content) > MAX_BYTES:
        raise CaptionError(
            f"{len(content):,} bytes, and a caption file has at most {MAX_BYTES:,}: split it, or name another file"
        )
    text = decode_caption(content, encoding)
    count = text.count("\n") + text.count("\r")
    if count > MAX_LINES:
        raise CaptionError(f"{count:,} lines, and a caption file has at most {MAX_LINES:,}: name another file")
    return split_lines(text)


def from_file_name(stem: str) -> str:
    """A file's name without its suffix, as a caption: stripped, otherwise as it stands.

    Nothing is read into it: underscores, numbers and a trailing " (2)" stay.

    >>> from_file_name("a cat, sleeping (2)")
    'a cat, sleeping (2)'
    """
    if _UNUSABLE.search(stem):
        raise CaptionError("the name has bytes that are not UTF-8: rename the file, or take the caption from elsewhere")
    return stem.strip()


def checked(text: str) -> str:
    """The text itself, if it can be a caption: lone surrogates are no text, and a NUL ends one for many readers."""
    # The first two questions take no time, and most captions need no third.
    if ("\0" in text or not text.isascii()) and (unusable := _UNUSABLE.search(text)):
        kind = "a NUL character" if unusable[0] == "\0" else "a lone surrogate"
        raise CaptionError(f"the text has {kind} (U+{ord(unusable[0]):04X}) at position {unusable.start()}: remove it")
    return text


def _codec(content: bytes, encoding: str) -> str:
    """Python's name of the codec that decodes `content`."""
    for mark, name in _MARKS:
        if content.startswith(mark):
            return name
    try:
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise CaptionError(_unknown(encoding)) from None
    if name in _NOT_FOR_FILES:
        raise CaptionError(_unknown(encoding))
    if name in ("utf-16", "utf-32") and content:
        # Python would take this machine's byte order, and another machine might read another text.
        raise CaptionError(
            f"{name.upper()} without a byte order mark: set `caption_encoding` to {name}-le or {name}-be"
        )
    return name


def _looks_like_utf16(problem: str, content: bytes) -> str | None:
    """The problem and the UTF-16 that explains it, judging by where the zero bytes are; None where it does not."""
    first, second = content[0::2].count(0), content[1::2].count(0)
    # One byte of each Latin letter is zero; with fewer than most, a stray NUL in an ASCII text would look like it.
    if max(first, second) <= len(content) / 4:
        return None
    name = "utf-16-be" if first > second else "utf-16-le"
    try:
        if "\0" in content.decode(name):
            return None
    except UnicodeDecodeError:
        return None
    return f"{problem}, and its zero bytes look like UTF-16 without a byte order mark: {_SAVE} to {name}"


def _unknown(encoding: str) -> str:
    return f"{encoding!a} is no encoding of text files: set `caption_encoding` to one such as utf-8 or cp1252"
