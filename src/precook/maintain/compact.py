"""Compaction: dead rows and second copies go, small packs become large ones. No entry is lost and nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError, StoreError
from precook.maintain.lock import maintaining
from precook.maintain.remove import DEFAULT, RowSet, Thresholds
from precook.maintain.repack import Piece, check_space, live_rows, move, repack, unlink_doomed
from precook.report import SILENT, Reporter
from precook.store.format.header import HeaderError
from precook.store.index.index import Place
from precook.store.index.packs import RowChoice
from precook.store.index.scan import Chunk, EntryScan
from precook.store.internals import StoreInternals
from precook.store.keysets import split
from precook.store.packfile import RowDamagedError, damage_reason
from precook.store.store import Store
from precook.store.writer import MAX_ROWS
from precook.values import Numbers

COPY = np.dtype(
    [("key", "u1", (32,)), ("pack", "i8"), ("row", "i8"), ("nbytes", "i8"), ("of_pack", "i8"), ("of_row", "i8")]
)
"""A second copy: its key, place (packs as the scan numbers them) and bytes, and the place that stays."""

Copies = npt.NDArray[Any]
"""Rows of `COPY`."""


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


def drop_copies(internals: StoreInternals, scan: EntryScan, copies: Copies) -> int:
    """Drop second copies whose first one is sound; where it is not, it becomes a miss and the second stays."""
    sound = np.zeros(len(copies), bool)
    for number in np.unique(copies["of_pack"]).tolist():
        here = np.flatnonzero(copies["of_pack"] == number)
        sound[here] = list(_are_sound(internals, scan.ids[number], copies[here]))
    copies = copies[sound]

    choices = []
    for number in np.unique(copies["pack"]).tolist():
        here = copies[copies["pack"] == number]
        firsts = [(scan.ids[pack], row) for pack, row in here[["of_pack", "of_row"]].tolist()]
        choices.append(RowChoice(scan.ids[number], split(here["key"]), here["row"], others=firsts))
    return sum(int(gone.sum()) for gone, _ in internals.index.drop_rows(choices)) if choices else 0


def _are_sound(internals: StoreInternals, name: str, copies: Copies) -> Iterator[bool]:
    """Whether the first one of each copy, all of them in one pack, is what was put."""
    try:
        pack = internals.open_pack(name)
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
                internals.index.mark_damaged(place, damage_reason(error, pack.path))
                yield False
            else:
                yield True


TARGET = 64 << 20
"""Bytes of a pack that is large enough; merged ones are no larger."""
_SMALL = 4
"""A pack of less than this part of the target is merged with others."""

Lives = Callable[[int], Numbers]
"""The living rows of a pack."""


@dataclass(frozen=True, slots=True)
class PackGroup:
    """Packs that become one."""

    packs: tuple[str, ...]
    nbytes: int
    """Size of the files as they are."""
    size: int
    """Size of the new one."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did."""

    copies: int
    packs_unlinked: int
    packs_rewritten: int
    packs_written: int
    freed: int


@dataclass(frozen=True, slots=True, eq=False)
class CompactPlan:
    """What a compaction would do. Making one changes nothing; `execute` does it."""

    groups: tuple[PackGroup, ...]
    unlink: tuple[str, ...]
    """Packs of which nothing lives."""
    unlink_bytes: int
    packs: int
    """Number of packs as it is."""
    size: int
    """Bytes of all packs as they are."""
    copies: int
    """Entries that lie in more than one place, counted without their first."""
    _internals: StoreInternals = field(repr=False)
    _scan: EntryScan = field(repr=False)
    _copies: Copies = field(repr=False)

    @property
    def freed(self) -> int:
        """Bytes that the disk gains."""
        return self.unlink_bytes + sum(group.nbytes - group.size for group in self.groups)

    @property
    def scratch(self) -> int:
        """Bytes that must be free to begin with."""
        return max((group.size for group in self.groups), default=0)

    @property
    def packs_after(self) -> int:
        """Number of packs once it is done."""
        return self.packs - len(self.unlink) - sum(len(group.packs) - 1 for group in self.groups)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.groups or self.unlink or self.copies)

    def execute(self, report: Reporter = SILENT) -> Compaction:
        """Do it; `NoSpaceError`, before anything is touched, where the disk has no room for a new pack."""
        with maintaining(self._internals, "compact"):
            if self.scratch:
                check_space(self._internals, self.scratch)
            copies = drop_copies(self._internals, self._scan, self._copies)
            _doom(self._internals, self.unlink)
            unlinked = unlink_doomed(self._internals.layout, self._internals.index)
            freed = sum(size for _, size in unlinked)
            rewritten = written = 0
            with report.task("compact", total=sum(group.nbytes for group in self.groups), unit="bytes") as task:
                for group in self.groups:
                    pieces = list(_pieces(self._internals, group.packs))
                    if pieces:
                        moved = move(self._internals, pieces)
                        unlink_doomed(self._internals.layout, self._internals.index)
                        rewritten += len(pieces)
                        written += moved.pack is not None
                        freed += sum(piece.pack.nbytes for piece in pieces) - moved.nbytes
                    task.advance(group.nbytes)
        return Compaction(copies, len(unlinked), rewritten, written, freed)


def plan_compact(
    store: Store, *, target: int = TARGET, thresholds: Thresholds = DEFAULT, report: Reporter = SILENT
) -> CompactPlan:
    """What a compaction would do: packs with much that is dead are rewritten, small ones merged, copies dropped."""
    internals = store.internals(create=False)
    scan = EntryScan(internals.layout, internals.index)
    tally = RowSet(scan)
    found: list[Copies] = []
    last: tuple[int, int] = (0, 0)
    with report.task("look", total=int(scan.entries.sum()), unit="entries") as task:
        for chunk in scan.chunks():
            tally.add(chunk.packs, chunk.rows, chunk.nbytes)
            found.append(second_copies(chunk, last))
            last = int(chunk.packs[-1]), int(chunk.rows[-1])
            task.advance(len(chunk.keys))
    copies = np.concatenate([np.empty(0, COPY), *found])
    rows = tally.rows - np.bincount(copies["pack"], minlength=scan.packs)
    living = tally.nbytes - np.bincount(copies["pack"], copies["nbytes"], minlength=scan.packs).astype(np.int64)
    gone = rows == 0
    # Rows without bytes of their own still take room in the head.
    alive = np.where(scan.payload > 0, living / np.maximum(scan.payload, 1), rows / np.maximum(scan.entries, 1))
    worth = ~gone & (rows < scan.entries) & (1 - alive >= thresholds.of_pack)
    chosen = ~gone & (worth | (scan.nbytes * _SMALL < target))

    def lives(pack: int) -> Numbers:
        return np.setdiff1d(tally.rows_of(pack), copies["row"][copies["pack"] == pack])

    groups = [
        group
        for packs in _together(scan, np.flatnonzero(chosen).tolist(), rows, living, target)
        if len(packs) > 1 or worth[packs[0]]
        for group in _groups(internals, scan, lives, packs)
    ]
    return CompactPlan(
        groups=tuple(groups),
        unlink=tuple(scan.ids[pack] for pack in np.flatnonzero(gone).tolist()),
        unlink_bytes=int(scan.nbytes[gone].sum()),
        packs=scan.packs,
        size=int(scan.nbytes.sum()),
        copies=len(copies),
        _internals=internals,
        _scan=scan,
        _copies=copies,
    )


def _together(
    scan: EntryScan, packs: Sequence[int], rows: Numbers, living: Numbers, target: int
) -> Iterator[list[int]]:
    """Packs to merge, neighbours in time: what was written together is read together."""
    group: list[int] = []
    nbytes = count = 0
    for pack in sorted(packs, key=lambda pack: (int(scan.born[pack]), scan.ids[pack])):
        # The head is counted whole: an upper bound that needs no look into the file.
        size = int(living[pack]) + int(scan.nbytes[pack] - scan.payload[pack])
        if group and (nbytes + size > target or count + int(rows[pack]) > MAX_ROWS):
            yield group
            group, nbytes, count = [], 0, 0
        group.append(pack)
        nbytes, count = nbytes + size, count + int(rows[pack])
    if group:
        yield group


def _groups(internals: StoreInternals, scan: EntryScan, lives: Lives, packs: Sequence[int]) -> Iterator[PackGroup]:
    """The packs as one group, or as several where one head could not hold them."""
    try:
        pieces = [Piece(internals.open_pack(scan.ids[pack]), lives(pack)) for pack in packs]
        size = repack(pieces).nbytes
        for piece in pieces:
            piece.pack.release()
    except (FileNotFoundError, StoreError):
        return  # a pack that cannot be read is left to `verify`
    except HeaderError:
        if len(packs) > 1:
            half = len(packs) // 2
            yield from _groups(internals, scan, lives, packs[:half])
            yield from _groups(internals, scan, lives, packs[half:])
        return
    yield PackGroup(tuple(scan.ids[pack] for pack in packs), int(scan.nbytes[list(packs)].sum()), size)


def _pieces(internals: StoreInternals, names: Sequence[str]) -> Iterator[Piece]:
    for name in names:
        try:
            pack = internals.open_pack(name)
        except (FileNotFoundError, DamagedPackError):
            continue  # removed meanwhile, or nothing of it can be used
        yield Piece(pack, live_rows(internals, pack))


def _doom(internals: StoreInternals, packs: Sequence[str]) -> None:
    internals.index.doom(packs)
