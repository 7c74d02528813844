"""Space: what lives and what is dead in each pack, and what the disk gains when dead rows go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import StoreError
from precook.store.census import Census, Numbers
from precook.store.repacking import Piece, repack
from precook.store.workings import Workings


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a pack with dead rows is rewritten: where both shares are reached."""

    of_pack: float = 0.10
    """Dead share of the pack."""
    of_store: float = 0.02
    """Dead share of all packs together."""


DEFAULT = Thresholds()
ALL_DEAD = Thresholds(0.0, 0.0)
"""Every pack with a dead row is rewritten."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What is done about packs, and what that frees."""

    unlink: tuple[str, ...]
    rewrite: tuple[str, ...]
    freed: int
    dead: int
    """Bytes of dead rows that stay in their packs."""


class Tally:
    """Some places of a census: a bit for each, their number and their bytes by pack."""

    def __init__(self, census: Census) -> None:
        self.rows = np.zeros(census.packs, np.int64)
        self.nbytes = np.zeros(census.packs, np.int64)
        self._first = census.first
        self._entries = census.entries
        self._bits = np.zeros(-(-int(census.entries.sum()) // 8), np.uint8)

    def add(self, packs: npt.NDArray[Any], rows: npt.NDArray[Any], nbytes: npt.NDArray[Any]) -> None:
        """Count some places, which were not counted before."""
        count = len(self.rows)
        self.rows += np.bincount(packs, minlength=count)
        self.nbytes += np.bincount(packs, nbytes, minlength=count).astype(np.int64)
        np.bitwise_or.at(self._bits, *self._find(packs, rows))

    def add_pack(self, pack: int, rows: Numbers, nbytes: int) -> None:
        """The same for rows of one pack that take so many bytes together."""
        self.rows[pack] += len(rows)
        self.nbytes[pack] += nbytes
        np.bitwise_or.at(self._bits, *self._find(np.full(len(rows), pack), rows))

    def has(self, packs: Numbers, rows: Numbers) -> npt.NDArray[np.bool_]:
        """Which of some places are among these."""
        byte, bit = self._find(packs, rows)
        found: npt.NDArray[np.bool_] = self._bits[byte] & bit != 0
        return found

    def rows_of(self, pack: int) -> Numbers:
        """The rows of one pack, in order."""
        first, entries = int(self._first[pack]), int(self._entries[pack])
        begin = first // 8
        bits = np.unpackbits(self._bits[begin : -(-(first + entries) // 8)], bitorder="little")
        return np.flatnonzero(bits[first - 8 * begin :][:entries])

    def _find(self, packs: npt.NDArray[Any], rows: npt.NDArray[Any]) -> tuple[Numbers, npt.NDArray[np.uint8]]:
        at = self._first[packs] + rows
        return at >> 3, np.left_shift(1, at & 7).astype(np.uint8)


def plan_space(workings: Workings, census: Census, tally: Tally, going: Tally, thresholds: Thresholds | None) -> Gain:
    """What to do about packs once the places that are `going` are gone; without thresholds nothing is rewritten."""
    rows = tally.rows - going.rows
    living = tally.nbytes - going.nbytes
    gone = rows == 0
    dead = np.where(gone, 0, census.payload - living)
    share = dead / np.maximum(census.payload, 1)
    # Rows without bytes of their own still take room in the head.
    share = np.where(census.payload > 0, share, 1 - rows / np.maximum(census.entries, 1))
    chosen = np.zeros(census.packs, bool)
    if thresholds is not None:
        enough = dead.sum() >= thresholds.of_store * int(census.nbytes[~gone].sum())
        chosen = ~gone & (rows < census.entries) & (share >= thresholds.of_pack) & enough
    freed = int(census.nbytes[gone].sum())
    rewrite: list[str] = []
    stays = int(dead[~chosen].sum())
    for pack in np.flatnonzero(chosen).tolist():
        left = np.setdiff1d(tally.rows_of(pack), going.rows_of(pack), assume_unique=True)
        size = _rewritten(workings, census.ids[pack], left)
        if size is not None and size < census.nbytes[pack]:
            rewrite.append(census.ids[pack])
            freed += int(census.nbytes[pack]) - size
        else:
            stays += int(dead[pack])
    unlink = tuple(census.ids[pack] for pack in np.flatnonzero(gone).tolist())
    return Gain(unlink, tuple(rewrite), freed, stays)


def _rewritten(workings: Workings, name: str, rows: Numbers) -> int | None:
    """The size of a pack with these rows alone, None where the pack cannot be read."""
    try:
        pack = workings.open_pack(name)
        size = repack([Piece(pack, rows)]).nbytes
    except (FileNotFoundError, StoreError):
        return None
    pack.release()
    return size
