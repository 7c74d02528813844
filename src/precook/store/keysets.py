"""Keys in bulk, and large sets of them: the first eight bytes of each, in order.

Keys are digests, so two of a million that begin alike are a matter of one in ten million. Where it happens, one entry
counts as in the set that is not: sets say what must stay, and one too many stays.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

KeySet = npt.NDArray[np.uint64]
"""Beginnings of keys, in order, each once."""


def split(keys: npt.NDArray[np.uint8]) -> list[bytes]:
    """Each key by itself, of many that stand one per row of 32 bytes."""
    raw = keys.tobytes()
    return [raw[at : at + 32] for at in range(0, len(raw), 32)]


def beginnings(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each key, one key per row, as numbers in the order of the keys."""
    return np.ascontiguousarray(keys[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


def keyset(parts: Iterable[npt.NDArray[np.uint64]]) -> KeySet:
    """One set of many beginnings."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]))


def among(keys: npt.NDArray[np.uint64], found: KeySet) -> npt.NDArray[np.bool_]:
    """Which of some beginnings are in a set."""
    if not len(found):
        return np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(found, keys), len(found) - 1)
    same: npt.NDArray[np.bool_] = found[at] == keys
    return same
