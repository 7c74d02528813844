"""The small values that travel through every part of precook."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
"""Plain bytes; with two dimensions, values of one width, a row each: keys, digests."""
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
"""One yes or no for each row of something."""
Pixels = npt.NDArray[np.uint8]
"""A picture, H x W x 3, or a mask, H x W."""

_Self = TypeVar("_Self", bound="_Hash")


@total_ordering
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Hash:
    """32 bytes that name something: equal, ordered and hashed by value within one type."""

    bytes: bytes

    def __post_init__(self) -> None:
        if type(self.bytes) is not bytes or len(self.bytes) != 32:  # noqa: PLR2004 - BLAKE3-256
            message = f"{type(self).__name__} takes 32 bytes, not {self.bytes!r}"
            raise ValueError(message)

    @property
    def hex(self) -> str:
        """64 lower-case hexadecimal digits."""
        return self.bytes.hex()

    @classmethod
    def from_hex(cls: type[_Self], text: str) -> _Self:
        """The value whose `hex` is `text`."""
        return cls(bytes.fromhex(text))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.bytes == other.bytes

    def __lt__(self: _Self, other: _Self) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.bytes < other.bytes

    def __hash__(self) -> int:
        return hash(self.bytes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex})"


class Digest(_Hash):
    """BLAKE3-256 of some content.

    >>> import precook
    >>> precook.digest(b"").hex[:16]
    'af1349b9f5f9a1a6'
    """

    __slots__ = ()


class Key(_Hash):
    """Name of one entry: what made it, never where it lies. The same on every machine."""

    __slots__ = ()


def has_surrogates(text: str) -> bool:
    """Whether `text` holds code points that UTF-8 cannot (file names that were not UTF-8 do)."""
    return any("\ud800" <= char <= "\udfff" for char in text) if not text.isascii() else False
