"""Keys in bulk, and large sets of them: the first eight bytes of each, in order.

Keys are digests: the chance that two of a million begin with the same eight bytes is one in forty million. Where it
happens, a key that is not in a set counts as in it. Sets say what must stay, so an entry too many stays, and none goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from precook.values import Bytes, Flags

KeySet = npt.NDArray[np.uint64]
"""Beginnings of keys, in order, each once."""

BLOCK = 1 << 16
"""Keys that are read at a time."""
_PART = 1 << 18
"""Keys that are held in order at a time."""


def split(keys: Bytes) -> list[bytes]:
    """Each key by itself, of many that stand one per row of 32 bytes."""
    raw = keys.tobytes()
    return [raw[start : start + 32] for start in range(0, len(raw), 32)]


def beginnings(keys: Bytes) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each key, one key per row, as numbers in the order of the keys."""
    numbers = np.ascontiguousarray(keys).view(">u8")[:, 0]
    return numbers.astype(np.uint64)


def keyset(parts: Iterable[npt.NDArray[np.uint64]]) -> KeySet:
    """One set of many beginnings."""
    ordered = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
    # Not `np.unique`, which takes ten times as long for numbers that hardly ever repeat.
    new: Flags = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return ordered[new]


def among(keys: npt.NDArray[np.uint64], keyset: KeySet) -> Flags:
    """Which of some beginnings are in a set."""
    if not len(keyset):
        return np.zeros(len(keys), bool)
    nearest = np.minimum(np.searchsorted(keyset, keys), len(keyset) - 1)
    same: Flags = keyset[nearest] == keys
    return same


class ManyKeys:
    """Keys in any order and of any number, which stay where they lie: in a file, or in memory that others hold.

    They are divided into parts by their first bits, and one part at a time is held in memory, in order. Whoever asks in
    the order of the keys has each part read once.
    """

    def __init__(self, count: int, blocks: Callable[[], Iterator[npt.NDArray[np.uint64]]]) -> None:
        self._blocks = blocks
        # A power of two of parts, told by the first bits of a key.
        self._shift = np.uint64(64 - max((max(count, 1) - 1) // _PART, 1).bit_length())
        self._held = -1
        self._part: KeySet = np.zeros(0, np.uint64)

    def among(self, starts: npt.NDArray[np.uint64]) -> Flags:
        """Which of some beginnings are among these keys."""
        present = np.zeros(len(starts), bool)
        parts = starts >> self._shift
        for part in sorted({*parts[:1].tolist(), *parts[1:][parts[1:] != parts[:-1]].tolist()}):
            here = parts == np.uint64(part)
            present[here] = among(starts[here], self._ordered(part))
        return present

    def _ordered(self, part: int) -> KeySet:
        if part != self._held:
            # Without a look at which are equal: `among` does not mind.
            chosen = (block[block >> self._shift == np.uint64(part)] for block in self._blocks())
            self._held, self._part = -1, np.zeros(0, np.uint64)  # not two of them at a time, nor half of one
            self._part = np.concatenate([self._part, *chosen])
            self._part.sort()
            self._held = part
        return self._part


def in_columns(columns: Sequence[Bytes]) -> ManyKeys:
    """The keys of columns, one key per row of 32 bytes."""

    def blocks() -> Iterator[npt.NDArray[np.uint64]]:
        for column in columns:
            for start in range(0, len(column), BLOCK):
                yield beginnings(column[start : start + BLOCK])

    return ManyKeys(sum(map(len, columns)), blocks)


def rows_that_begin_with(column: Bytes, digits: str) -> list[int]:
    """The rows of a column, of 32 bytes each, that begin with some hexadecimal digits."""
    whole = np.frombuffer(bytes.fromhex(digits[: len(digits) // 2 * 2]), np.uint8)
    near = np.flatnonzero((column[:, : len(whole)] == whole).all(axis=1)).tolist()
    return [row for row in near if column[row].tobytes().hex().startswith(digits)]
