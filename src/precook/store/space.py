"""Space: what lives and what is dead in each pack, and what the disk gains when dead rows go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import StoreError
from precook.store.census import Census, Chunk, Numbers
from precook.store.repacking import Piece, repack
from precook.store.workings import Workings

VICTIM = np.dtype(
    [("key", "u1", (32,)), ("pack", "i8"), ("row", "i8"), ("nbytes", "i8"), ("fresh", "?"), ("time", "i8")]
)
"""A place that goes: its key, pack (as the census numbers them) and row, its bytes, whether it is the first place of
its key, and when it was last written or used."""

Victims = npt.NDArray[Any]
"""Rows of `VICTIM`."""


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
    """What lives in each pack."""

    def __init__(self, census: Census) -> None:
        self.rows = np.zeros(census.packs, np.int64)
        self.nbytes = np.zeros(census.packs, np.int64)
        self._packs: list[npt.NDArray[np.int32]] = []
        self._numbers: list[npt.NDArray[np.int32]] = []

    def add(self, chunk: Chunk) -> None:
        """Count some entries."""
        count = len(self.rows)
        self.rows += np.bincount(chunk.packs, minlength=count)
        self.nbytes += np.bincount(chunk.packs, chunk.nbytes, minlength=count).astype(np.int64)
        self._packs.append(chunk.packs.astype(np.int32))
        self._numbers.append(chunk.rows.astype(np.int32))

    def rows_of(self, packs: Sequence[int]) -> Iterator[tuple[int, Numbers]]:
        """The living rows of some packs, in order."""
        owners = np.concatenate([np.zeros(0, np.int32), *self._packs])
        numbers = np.concatenate([np.zeros(0, np.int32), *self._numbers])
        chosen = np.isin(owners, packs)
        owners, numbers = owners[chosen], numbers[chosen]
        order = np.lexsort((numbers, owners))
        owners, numbers = owners[order], numbers[order]
        for pack in packs:
            first, last = np.searchsorted(owners, [pack, pack + 1])
            yield pack, numbers[first:last].astype(np.int64)


def victims_of(chunk: Chunk, chosen: npt.NDArray[np.bool_]) -> Victims:
    """Some entries as victims."""
    victims = np.empty(int(chosen.sum()), VICTIM)
    for name, column in (
        ("key", chunk.keys),
        ("pack", chunk.packs),
        ("row", chunk.rows),
        ("nbytes", chunk.nbytes),
        ("fresh", chunk.fresh),
        ("time", chunk.touched),
    ):
        victims[name] = column[chosen]
    return victims


def plan_space(
    workings: Workings, census: Census, tally: Tally, victims: Victims, thresholds: Thresholds | None
) -> Gain:
    """What to do about packs once the victims are gone; without thresholds nothing is rewritten."""
    packs = victims["pack"]
    rows = tally.rows - np.bincount(packs, minlength=census.packs)
    living = tally.nbytes - np.bincount(packs, victims["nbytes"], minlength=census.packs).astype(np.int64)
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
    order = np.argsort(packs, kind="stable")
    owners = packs[order]
    for pack, living_rows in tally.rows_of(np.flatnonzero(chosen).tolist()):
        first, last = np.searchsorted(owners, [pack, pack + 1])
        left = np.setdiff1d(living_rows, victims["row"][order[first:last]])
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
        return repack([Piece(workings.open_pack(name), rows)]).nbytes
    except (FileNotFoundError, StoreError):
        return None
