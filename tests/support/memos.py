"""Kinds, keys and values for tests of what is remembered."""

from __future__ import annotations

from typing import Any

import numpy as np

from precook.memo.columns import Kind
from precook.values import Bytes

PLAIN = Kind("plain", key=16, value=4)
SLOTTED = Kind("slotted", key=16, value=4, slot=8)
OTHER = Kind("other", key=16, value=4)
ALONE = Kind("alone", key=16, value=0)
Row = tuple[int, int, int]
"""A key's slot, the rest of the key, and the value."""


def keys_of(rows: list[Any]) -> Bytes:
    """Keys of 16 bytes: a slot of 8, and 8 more."""
    return np.array([row[:2] for row in rows], "<u8").reshape(-1, 2).view(np.uint8).reshape(len(rows), 16)


def values_of(rows: list[Row]) -> Bytes:
    return np.array([row[2] for row in rows], "<u4").reshape(-1, 1).view(np.uint8)


def some_rows(count: int, *, start: int = 0) -> list[Row]:
    return [(number, 7, number) for number in range(start, start + count)]


def numbers(values: Bytes) -> list[int]:
    found: list[int] = np.ascontiguousarray(values).view("<u4").ravel().tolist()
    return found
