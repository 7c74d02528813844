"""Verification: every byte of every pack against what the store promised."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors

from precook.errors import DamagedPackError, NewerFormatError
from precook.report import Reporter
from precook.store.layout import Layout, list_packs
from precook.store.packfile import Guard, PackFile, TableFile, damage_reason
from precook.store.snapshots import SnapshotFile, read_snapshot
from precook.values import Key

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was put."""

    pack: Path
    """The file: a pack, or a snapshot."""
    key: Key | None
    """The entry, or None where the pack as a whole is damaged."""
    offset: int | None
    """Where its bytes begin in the pack."""
    reason: str
    row: int | None = None
    """Its row in the pack."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked and what was found."""

    packs: int
    packs_in_store: int
    entries: int
    nbytes: int
    seconds: float
    damage: tuple[Damage, ...]
    last: str = ""
    """The last pack that was looked at, where they were looked at in order."""
    finished: bool = True
    """Whether all that was asked for was looked at."""
    snapshots: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing damaged was found."""
        return not self.damage

    @property
    def complete(self) -> bool:
        """Whether every pack of the store was looked at."""
        return self.packs == self.packs_in_store


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries are looked at: those under some keys, and those that some recipes made; None for all."""

    keys: frozenset[bytes] | None = None
    recipes: frozenset[bytes] | None = None
    """Digests."""

    def rows(self, table: TableFile) -> Mask:
        """Which rows of a table are meant."""
        chosen = np.ones(table.table.rows, bool)
        if self.recipes is not None:
            meant = np.array([digest in self.recipes for digest in table.pack.head.recipe_digests], bool)
            chosen &= meant[table.table.recipes]
        if self.keys is not None:
            raw = table.table.keys.tobytes()
            chosen &= np.fromiter((raw[at : at + 32] in self.keys for at in range(0, len(raw), 32)), bool, len(chosen))
        return chosen


EVERYTHING = Selection()


def verify_packs(
    layout: Layout,
    *,
    subset: tuple[int, int],
    max_seconds: float | None,
    report: Reporter,
    selection: Selection = EVERYTHING,
    after: str | None = None,
    dropped: Callable[[PackFile], Mask] | None = None,
    snapshots: list[SnapshotFile] | None = None,
) -> Verification:
    """Check the k-th of n parts of all packs, for so many seconds at most, and these snapshots.

    `after` begins behind a pack of this name, "" at the first one. Rows that were `dropped` are nobody's any more.
    """
    part, parts = subset
    if not 1 <= part <= parts:
        message = f"subset {part}/{parts}: give k/n with k from 1 to n"
        raise ValueError(message)
    started = time.monotonic()
    every = sorted(list_packs(layout)[0])
    chosen = [name for name in every if int(name[:8], 16) % parts == part - 1 and name > (after or "")]
    if max_seconds is not None and after is None:
        # Whoever stops early and remembers nothing starts elsewhere next time: short checks cover everything in time.
        random.shuffle(chosen)
    damage = [found for file in snapshots or () for found in _check_snapshot(file)]
    packs = entries = nbytes = 0
    last, finished = after or "", True
    with report.task("verify", total=len(chosen), unit="packs") as task:
        for name in chosen:
            # One at least: whoever gives it too little time still comes to the end.
            if packs and max_seconds is not None and time.monotonic() - started > max_seconds:
                finished = False
                break
            path = layout.pack(name)
            try:
                pack = PackFile(path, name, Guard())
            except FileNotFoundError:
                continue  # removed since it was listed
            except (DamagedPackError, OSError) as error:
                damage.append(Damage(path, None, None, damage_reason(error, path)))
            else:
                masks = _masks(pack, selection, dropped)
                damage += check_pack(pack, masks)
                rows = pack.head.rows if masks is None else sum(int(mask.sum()) for mask in masks)
                entries += rows
                nbytes += pack.nbytes if masks is None else _row_bytes(pack, masks)
            packs, last = packs + 1, name
            task.advance()
    return Verification(
        packs=packs,
        packs_in_store=len(every),
        entries=entries,
        nbytes=nbytes,
        seconds=time.monotonic() - started,
        damage=tuple(damage),
        last=last,
        finished=finished,
        snapshots=len(snapshots or ()),
    )


def check_pack(pack: PackFile, masks: list[Mask] | None = None) -> Iterator[Damage]:
    """Read every row of a pack from the disk, or those in a mask for each table, and check them."""
    if pack.nbytes != pack.head.file_bytes:
        reason = f"the file has {pack.nbytes} bytes and should have {pack.head.file_bytes}"
        yield Damage(pack.path, None, None, reason)
    else:
        try:
            # A second opinion: the format's own library has to agree that this is a safetensors file.
            with safetensors.safe_open(pack.path, framework="numpy"):
                pass
        except (safetensors.SafetensorError, OSError) as error:
            yield Damage(pack.path, None, None, f"safetensors refuses it: {error}")
    try:
        with pack.open() as descriptor:
            for number, table in enumerate(pack.tables):
                rows = np.flatnonzero(masks[number]).tolist() if masks is not None else None
                for row, reason in table.damage(descriptor, rows):
                    offset = table.table.leaves[0].span(row)[0] if table.table.leaves else None
                    place = pack.first_row(table) + row
                    yield Damage(pack.path, Key(table.key(row)), offset, reason, place)
    except FileNotFoundError:
        return  # removed since it was opened


def _masks(pack: PackFile, selection: Selection, dropped: Callable[[PackFile], Mask] | None) -> list[Mask] | None:
    """Which rows of each table are looked at; None for all of them."""
    gone = dropped(pack) if dropped is not None else np.zeros(pack.head.rows, bool)
    if selection == EVERYTHING and not gone.any():
        return None
    masks, first = [], 0
    for table in pack.tables:
        masks.append(selection.rows(table) & ~gone[first : first + table.table.rows])
        first += table.table.rows
    return masks


def _row_bytes(pack: PackFile, masks: list[Mask]) -> int:
    sizes: list[Any] = [table.table.row_bytes()[mask].sum() for table, mask in zip(pack.tables, masks, strict=True)]
    return int(sum(sizes))


def _check_snapshot(file: SnapshotFile) -> Iterator[Damage]:
    try:
        read_snapshot(file)
    except NewerFormatError:
        return  # made by a newer precook, which can tell
    except DamagedPackError as error:
        yield Damage(file.path, None, None, error.reason)
    except FileNotFoundError:
        return  # removed since it was listed
