"""Copies: the same entry in two packs, because two builders made it at once. One of them is enough."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError
from precook.store import database
from precook.store.census import Census, Chunk
from precook.store.index import Place
from precook.store.packfile import RowDamagedError, damage_reason
from precook.store.workings import Workings

COPY = np.dtype(
    [("key", "u1", (32,)), ("pack", "i8"), ("row", "i8"), ("nbytes", "i8"), ("of_pack", "i8"), ("of_row", "i8")]
)
"""A second copy: its key, place (packs as the census numbers them) and bytes, and the place that stays."""

Copies = npt.NDArray[Any]
"""Rows of `COPY`."""

_PLACES = "SELECT key, pack, row FROM entry WHERE key IN ({})"


def second_copies(chunk: Chunk, last: tuple[int, int]) -> Copies:
    """Places of keys that lie elsewhere, too, each with the place that stays: the first one of its key."""
    again = np.flatnonzero(~chunk.fresh)
    copies = np.empty(len(again), COPY)
    first = np.maximum.accumulate(np.where(chunk.fresh, np.arange(len(chunk.keys)), -1))
    owners = first[again]
    copies["key"], copies["nbytes"] = chunk.keys[again], chunk.nbytes[again]
    copies["pack"], copies["row"] = chunk.packs[again], chunk.rows[again]
    copies["of_pack"] = np.where(owners >= 0, chunk.packs[owners], last[0])
    copies["of_row"] = np.where(owners >= 0, chunk.rows[owners], last[1])
    return copies


def drop_copies(workings: Workings, census: Census, copies: Copies) -> int:
    """Drop second copies whose first one is sound; where it is not, it becomes a miss and the second stays."""
    sound = np.zeros(len(copies), bool)
    for number in np.unique(copies["of_pack"]).tolist():
        here = np.flatnonzero(copies["of_pack"] == number)
        sound[here] = list(_are_sound(workings, census.ids[number], copies[here]))
    copies = copies[sound]

    def change(db: sqlite3.Connection) -> int:
        dropped = 0
        for number in np.unique(copies["pack"]).tolist():
            here = copies[copies["pack"] == number]
            keys = [key.tobytes() for key in here["key"]]
            there = set(database.select(db, _PLACES, keys))
            # The first one may have been found damaged, or been dropped, since it was read.
            firsts = zip(keys, census.numbers[here["of_pack"]].tolist(), here["of_row"].tolist(), strict=True)
            still = np.array([first in there for first in firsts], bool)
            chosen = [key for key, stays in zip(keys, still.tolist(), strict=True) if stays]
            gone = database.drop(db, bytes.fromhex(census.ids[number]), chosen, here["row"][still])
            dropped += int(gone.sum())
        return dropped

    return workings.index.transact(change) if len(copies) else 0


def _are_sound(workings: Workings, name: str, copies: Copies) -> Iterator[bool]:
    """Whether the first one of each copy, all of them in one pack, is what was put."""
    try:
        pack = workings.open_pack(name)
    except (FileNotFoundError, DamagedPackError):
        yield from (False for _ in copies)
        return
    with pack.open() as descriptor:
        for copy in copies:
            row = int(copy["of_row"])
            table, number = pack.locate(row)
            try:
                table.verify(descriptor, number)
            except (RowDamagedError, OSError) as error:
                place = Place(copy["key"].tobytes(), name, row)
                workings.index.mark_damaged(place, damage_reason(error, pack.path))
                yield False
            else:
                yield True
