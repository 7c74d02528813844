"""Compaction: dead rows and second copies go, small packs become large ones. No entry is lost and nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from precook.errors import DamagedPackError, StoreError
from precook.maintain.copies import COPY, Copies, drop_copies, second_copies
from precook.report import SILENT, Reporter
from precook.store import database
from precook.store.census import Census, Numbers
from precook.store.header import HeaderError
from precook.store.moving import check_space, live_rows, move
from precook.store.repacking import Piece, repack
from precook.store.space import DEFAULT, Tally, Thresholds
from precook.store.store import Store
from precook.store.sweep import unlink_doomed
from precook.store.workings import Workings, maintaining
from precook.store.writer import MAX_ROWS

TARGET = 64 << 20
"""Bytes of a pack that is large enough; merged ones are no larger."""
_SMALL = 4
"""A pack of less than this part of the target is merged with others."""

Lives = Callable[[int], Numbers]
"""The living rows of a pack."""


@dataclass(frozen=True, slots=True)
class Group:
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

    groups: tuple[Group, ...]
    unlink: tuple[str, ...]
    """Packs of which nothing lives."""
    unlink_bytes: int
    packs: int
    """Number of packs as it is."""
    size: int
    """Bytes of all packs as they are."""
    copies: int
    """Entries that lie in more than one place, counted without their first."""
    _workings: Workings = field(repr=False)
    _census: Census = field(repr=False)
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
        with maintaining(self._workings, "compact"):
            if self.scratch:
                check_space(self._workings, self.scratch)
            copies = drop_copies(self._workings, self._census, self._copies)
            _doom(self._workings, self.unlink)
            unlinked = unlink_doomed(self._workings.layout, self._workings.index)
            freed = sum(size for _, size in unlinked)
            rewritten = written = 0
            with report.task("compact", total=sum(group.nbytes for group in self.groups), unit="bytes") as task:
                for group in self.groups:
                    pieces = list(_pieces(self._workings, group.packs))
                    if pieces:
                        moved = move(self._workings, pieces)
                        unlink_doomed(self._workings.layout, self._workings.index)
                        rewritten += len(pieces)
                        written += moved.pack is not None
                        freed += sum(piece.pack.nbytes for piece in pieces) - moved.nbytes
                    task.advance(group.nbytes)
        return Compaction(copies, len(unlinked), rewritten, written, freed)


def plan_compact(
    store: Store, *, target: int = TARGET, thresholds: Thresholds = DEFAULT, report: Reporter = SILENT
) -> CompactPlan:
    """What a compaction would do: packs with much that is dead are rewritten, small ones merged, copies dropped."""
    workings = store.workings(create=False)
    census = Census(workings.layout, workings.index)
    tally = Tally(census)
    found: list[Copies] = []
    last: tuple[int, int] = (0, 0)
    with report.task("look", total=int(census.entries.sum()), unit="entries") as task:
        for chunk in census.chunks():
            tally.add(chunk.packs, chunk.rows, chunk.nbytes)
            found.append(second_copies(chunk, last))
            last = int(chunk.packs[-1]), int(chunk.rows[-1])
            task.advance(len(chunk.keys))
    copies = np.concatenate([np.empty(0, COPY), *found])
    rows = tally.rows - np.bincount(copies["pack"], minlength=census.packs)
    living = tally.nbytes - np.bincount(copies["pack"], copies["nbytes"], minlength=census.packs).astype(np.int64)
    gone = rows == 0
    # Rows without bytes of their own still take room in the head.
    alive = np.where(census.payload > 0, living / np.maximum(census.payload, 1), rows / np.maximum(census.entries, 1))
    worth = ~gone & (rows < census.entries) & (1 - alive >= thresholds.of_pack)
    chosen = ~gone & (worth | (census.nbytes * _SMALL < target))

    def lives(pack: int) -> Numbers:
        return np.setdiff1d(tally.rows_of(pack), copies["row"][copies["pack"] == pack])

    groups = [
        group
        for packs in _together(census, np.flatnonzero(chosen).tolist(), rows, living, target)
        if len(packs) > 1 or worth[packs[0]]
        for group in _groups(workings, census, lives, packs)
    ]
    return CompactPlan(
        groups=tuple(groups),
        unlink=tuple(census.ids[pack] for pack in np.flatnonzero(gone).tolist()),
        unlink_bytes=int(census.nbytes[gone].sum()),
        packs=census.packs,
        size=int(census.nbytes.sum()),
        copies=len(copies),
        _workings=workings,
        _census=census,
        _copies=copies,
    )


def _together(census: Census, packs: Sequence[int], rows: Numbers, living: Numbers, target: int) -> Iterator[list[int]]:
    """Packs to merge, neighbours in time: what was written together is read together."""
    group: list[int] = []
    nbytes = count = 0
    for pack in sorted(packs, key=lambda pack: (int(census.born[pack]), census.ids[pack])):
        # The head is counted whole: an upper bound that needs no look into the file.
        size = int(living[pack]) + int(census.nbytes[pack] - census.payload[pack])
        if group and (nbytes + size > target or count + int(rows[pack]) > MAX_ROWS):
            yield group
            group, nbytes, count = [], 0, 0
        group.append(pack)
        nbytes, count = nbytes + size, count + int(rows[pack])
    if group:
        yield group


def _groups(workings: Workings, census: Census, lives: Lives, packs: Sequence[int]) -> Iterator[Group]:
    """The packs as one group, or as several where one head could not hold them."""
    try:
        pieces = [Piece(workings.open_pack(census.ids[pack]), lives(pack)) for pack in packs]
        size = repack(pieces).nbytes
        for piece in pieces:
            piece.pack.release()
    except (FileNotFoundError, StoreError):
        return  # a pack that cannot be read is left to `verify`
    except HeaderError:
        if len(packs) > 1:
            half = len(packs) // 2
            yield from _groups(workings, census, lives, packs[:half])
            yield from _groups(workings, census, lives, packs[half:])
        return
    yield Group(tuple(census.ids[pack] for pack in packs), int(census.nbytes[list(packs)].sum()), size)


def _pieces(workings: Workings, names: Sequence[str]) -> Iterator[Piece]:
    for name in names:
        try:
            pack = workings.open_pack(name)
        except (FileNotFoundError, DamagedPackError):
            continue  # removed meanwhile, or nothing of it can be used
        yield Piece(pack, live_rows(workings, pack))


def _doom(workings: Workings, packs: Sequence[str]) -> None:
    workings.index.transact(lambda db: database.doom(db, map(bytes.fromhex, packs)))
