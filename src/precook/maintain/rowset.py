"""Sets of rows of many packs, and what lives in the packs once such a set is dropped.

Of a row nothing is held but a bit, so that a plan for a large store takes little memory.
"""

from __future__ import annotations

import numpy as np

from precook.store.index.scan import EntryScan
from precook.values import Bytes, Flags, Numbers


class RowSet:
    """Some places of a scan: a bit for each, their number and their bytes by pack."""

    def __init__(self, scan: EntryScan) -> None:
        self.rows = np.zeros(scan.packs, np.int64)
        """How many there are of each pack."""
        self.nbytes = np.zeros(scan.packs, np.int64)
        self._first = scan.first
        self._entries = scan.entries
        self._bits = np.zeros(-(-int(scan.entries.sum()) // 8), np.uint8)

    def add(self, packs: Numbers, rows: Numbers, nbytes: Numbers) -> None:
        """Add places that are not among these yet."""
        count = len(self.rows)
        self.rows += np.bincount(packs, minlength=count)
        self.nbytes += np.bincount(packs, nbytes, minlength=count).astype(np.int64)
        np.bitwise_or.at(self._bits, *self._find(packs, rows))

    def add_pack(self, pack: int, rows: Numbers, nbytes: int) -> None:
        """The same for rows of one pack that take so many bytes together."""
        self.rows[pack] += len(rows)
        self.nbytes[pack] += nbytes
        np.bitwise_or.at(self._bits, *self._find(np.full(len(rows), pack), rows))

    def has(self, packs: Numbers, rows: Numbers) -> Flags:
        """Which of some places are among these."""
        byte, bit = self._find(packs, rows)
        among: Flags = self._bits[byte] & bit != 0
        return among

    def rows_of(self, pack: int) -> Numbers:
        """The rows of one pack, in order."""
        first, entries = int(self._first[pack]), int(self._entries[pack])
        begin = first // 8
        bits = np.unpackbits(self._bits[begin : -(-(first + entries) // 8)], bitorder="little")
        return np.flatnonzero(bits[first - 8 * begin :][:entries])

    def _find(self, packs: Numbers, rows: Numbers) -> tuple[Numbers, Bytes]:
        """The byte and the bit of each place."""
        numbers = self._first[packs] + rows
        return numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8)


class LivingRows:
    """What lives in each pack of a scan once some of its rows are dropped."""

    def __init__(self, scan: EntryScan, everything: RowSet, dropped: RowSet) -> None:
        self._everything = everything
        self._dropped = dropped
        self.rows = everything.rows - dropped.rows
        self.nbytes = everything.nbytes - dropped.nbytes
        self.none = self.rows == 0
        """Packs of which nothing lives."""
        self.dead = np.where(self.none, 0, scan.payload - self.nbytes)
        """Bytes of dead rows in packs that stay."""
        # Rows without bytes of their own still take room in the head.
        by_rows = 1 - self.rows / np.maximum(scan.entries, 1)
        self.dead_share = np.where(scan.payload > 0, self.dead / np.maximum(scan.payload, 1), by_rows)
        self.partly_dead = ~self.none & (self.rows < scan.entries)
        """Packs of which some rows live and others do not."""

    def rows_of(self, pack: int) -> Numbers:
        """The living rows of a pack, in order."""
        return np.setdiff1d(self._everything.rows_of(pack), self._dropped.rows_of(pack), assume_unique=True)
