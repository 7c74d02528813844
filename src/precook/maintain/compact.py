"""Compaction: dead rows and second copies go, small packs become large ones. No entry is lost and nobody waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError, StoreReadError
from precook.maintain.lock import maintaining
from precook.maintain.remove import DEFAULT, Thresholds
from precook.maintain.repack import check_space, planned_size, rewrite_packs, unlink_doomed, unlink_packs
from precook.maintain.rowset import LivingRows, RowSet
from precook.report import SILENT, Reporter
from precook.store import files
from precook.store.format.header import HeaderError
from precook.store.index.index import Place
from precook.store.index.scan import Chunk, EntryScan
from precook.store.index.schema import RowChoice
from precook.store.internals import StoreInternals
from precook.store.keysets import split
from precook.store.store import Store

TARGET = 64 << 20
"""Bytes of a pack that is large enough; merged ones are no larger."""
_SMALL = 4
"""A pack of less than this part of the target is merged with others."""
_MOST_ROWS = 100_000
"""Rows of a merged pack, at the most: while one is made, each takes some hundred bytes of memory."""

COPY = np.dtype(
    [("key", "u1", (32,)), ("pack", "i8"), ("row", "i8"), ("nbytes", "i8"), ("of_pack", "i8"), ("of_row", "i8")]
)
"""A second copy: its key, place (packs as the scan numbers them) and bytes, and the place that stays."""

Copies = npt.NDArray[Any]
"""Rows of `COPY`."""


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
    unread: tuple[StoreReadError, ...] = ()
    """Why some packs were left as they are: the system refused to read them, which may pass."""


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
    unread: tuple[StoreReadError, ...]
    """Why some packs are left as they are: the system refuses to read them, which may pass."""
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
            copies, unread = _drop_copies(self._internals, self._scan, self._copies)
            unread = [*self.unread, *unread]
            unlinked = unlink_packs(self._internals, self.unlink)
            freed = sum(size for _, size in unlinked)
            rewritten = written = 0
            with report.task("compact", total=sum(group.nbytes for group in self.groups), unit="bytes") as task:
                for group in self.groups:
                    rewrite = rewrite_packs(self._internals, group.packs)
                    rewritten += rewrite.packs
                    written += rewrite.nbytes > 0
                    freed += rewrite.freed
                    unread += rewrite.left
                    task.advance(group.nbytes)
        return Compaction(copies, len(unlinked), rewritten, written, freed, tuple(unread))


def plan_compact(
    store: Store, *, target: int = TARGET, thresholds: Thresholds = DEFAULT, report: Reporter = SILENT
) -> CompactPlan:
    """What a compaction would do: packs with much that is dead are rewritten, small ones merged, copies dropped."""
    store.check_removable("compact")
    internals = store.internals(create=False)
    scan = EntryScan(internals.layout, internals.index)
    everything, copies = _look(scan, report)
    dropped = RowSet(scan)
    dropped.add(copies["pack"], copies["row"], copies["nbytes"])
    living = LivingRows(scan, everything, dropped)
    worth = living.partly_dead & (living.dead_share >= thresholds.of_pack)
    chosen = ~living.none & (worth | (scan.nbytes * _SMALL < target))
    unread: list[StoreReadError] = []
    groups = [
        group
        for packs in _neighbours(scan, living, np.flatnonzero(chosen).tolist(), target)
        if len(packs) > 1 or worth[packs[0]]
        for group in _groups(internals, scan, living, packs, unread)
    ]
    return CompactPlan(
        groups=tuple(groups),
        unlink=tuple(scan.ids[pack] for pack in np.flatnonzero(living.none).tolist()),
        unlink_bytes=int(scan.nbytes[living.none].sum()),
        packs=scan.packs,
        size=int(scan.nbytes.sum()),
        copies=len(copies),
        unread=tuple(unread),
        _internals=internals,
        _scan=scan,
        _copies=copies,
    )


def drop_second_copies(internals: StoreInternals) -> int:
    """Drop all places of an entry but one that is sound, whoever protects the entry; how many went.

    A rewrite that was cut off after its new pack was published leaves such copies.
    """
    if internals.index.places() == internals.index.count():
        return 0
    scan = EntryScan(internals.layout, internals.index)
    _, copies = _look(scan, SILENT)
    with maintaining(internals, "evict"):
        dropped, _ = _drop_copies(internals, scan, copies)
        unlink_doomed(internals.layout, internals.index)
    return dropped


def _look(scan: EntryScan, report: Reporter) -> tuple[RowSet, Copies]:
    """All places of a scan, and those of them that are second copies."""
    everything = RowSet(scan)
    pages: list[Copies] = []
    last: tuple[int, int] = (0, 0)
    with report.task("look", total=int(scan.entries.sum()), unit="entries") as task:
        for chunk in scan.chunks():
            everything.add(chunk.packs, chunk.rows, chunk.nbytes)
            pages.append(_second_copies(chunk, last))
            last = int(chunk.packs[-1]), int(chunk.rows[-1])
            task.advance(len(chunk.keys))
    return everything, np.concatenate([np.empty(0, COPY), *pages])


def _second_copies(chunk: Chunk, last: tuple[int, int]) -> Copies:
    """Places of keys that lie elsewhere, too, each with the place that stays: the first one of its key.

    `last` is the last place of the chunk before.
    """
    again = np.flatnonzero(~chunk.fresh)
    copies = np.empty(len(again), COPY)
    first = np.maximum.accumulate(np.where(chunk.fresh, np.arange(len(chunk.keys)), -1))
    owners = first[again]
    copies["key"], copies["nbytes"] = chunk.keys[again], chunk.nbytes[again]
    copies["pack"], copies["row"] = chunk.packs[again], chunk.rows[again]
    copies["of_pack"] = np.where(owners >= 0, chunk.packs[owners], last[0])
    copies["of_row"] = np.where(owners >= 0, chunk.rows[owners], last[1])
    return copies


def _neighbours(scan: EntryScan, living: LivingRows, packs: Sequence[int], target: int) -> Iterator[list[int]]:
    """Packs to merge, neighbours in time: what was written together is read together."""
    group: list[int] = []
    nbytes = rows = 0
    for pack in sorted(packs, key=lambda pack: (int(scan.born[pack]), scan.ids[pack])):
        # The head is counted whole: an upper bound that needs no look into the file.
        size = int(living.nbytes[pack]) + int(scan.nbytes[pack] - scan.payload[pack])
        if group and (nbytes + size > target or rows + int(living.rows[pack]) > _MOST_ROWS):
            yield group
            group, nbytes, rows = [], 0, 0
        group.append(pack)
        nbytes, rows = nbytes + size, rows + int(living.rows[pack])
    if group:
        yield group


def _groups(
    internals: StoreInternals,
    scan: EntryScan,
    living: LivingRows,
    packs: Sequence[int],
    unread: list[StoreReadError],
) -> Iterator[PackGroup]:
    """The packs as one group, or as several where one head could not hold them; `unread` takes what cannot be read."""
    try:
        size = planned_size(internals, {scan.ids[pack]: living.rows_of(pack) for pack in packs})
    except HeaderError:
        if len(packs) > 1:
            half = len(packs) // 2
            yield from _groups(internals, scan, living, packs[:half], unread)
            yield from _groups(internals, scan, living, packs[half:], unread)
        return
    except StoreReadError as error:
        unread.append(error)
        others = [pack for pack in packs if internals.layout.pack(scan.ids[pack]) != error.path]
        if 1 < len(others) < len(packs):
            yield from _groups(internals, scan, living, others, unread)
        return
    if size is not None:  # a pack that is damaged is left to `verify`
        yield PackGroup(tuple(scan.ids[pack] for pack in packs), int(scan.nbytes[list(packs)].sum()), size)


def _drop_copies(internals: StoreInternals, scan: EntryScan, copies: Copies) -> tuple[int, list[StoreReadError]]:
    """Drop second copies whose first one is sound; where it is damaged, it becomes a miss and the second stays.

    How many were dropped, and why some first ones could not be read: both copies stay then.
    """
    sound = np.zeros(len(copies), bool)
    unread: list[StoreReadError] = []
    for pack in np.unique(copies["of_pack"]).tolist():
        here = np.flatnonzero(copies["of_pack"] == pack)
        firsts = copies["of_row"][here]
        path = internals.layout.pack(scan.ids[pack])
        # Read from the disk, not believed: the copy that goes may be the only sound one.
        try:
            with files.reading(path):
                bad = {one.row: one for one in internals.open_pack(scan.ids[pack]).damage(firsts.tolist())}
        except (FileNotFoundError, DamagedPackError):
            continue
        except StoreReadError as error:
            unread.append(error)
            continue
        for number in here[np.isin(firsts, list(bad))].tolist():
            first = bad[int(copies["of_row"][number])]
            if first.refused:
                unread.append(StoreReadError(path, first.reason))
            else:
                place = Place(copies["key"][number].tobytes(), scan.ids[pack], first.row)
                internals.index.mark_damaged(place, first.reason)
        sound[here] = ~np.isin(firsts, list(bad))
    copies = copies[sound]
    choices = []
    for pack in np.unique(copies["pack"]).tolist():
        here = copies[copies["pack"] == pack]
        others = [(scan.ids[number], row) for number, row in here[["of_pack", "of_row"]].tolist()]
        choices.append(RowChoice(scan.ids[pack], split(here["key"]), here["row"], others=others))
    dropped = sum(int(gone.sum()) for gone, _ in internals.index.drop_rows(choices)) if choices else 0
    return dropped, unread
