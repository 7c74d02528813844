"""Removal: which entries go and why, what keeps the others, and what the disk gains. A plan first, then the act.

Entries are dropped from the index in a few transactions, each of which first looks whether somebody has come to need
what it is about to drop. A pack that has lost all its entries is unlinked, one that has lost enough of them is
rewritten; until then its dead rows stay where they are and are told apart by a record in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError, NoSpaceError, StoreError
from precook.maintain.lock import maintaining
from precook.maintain.protect import Protection, Protector
from precook.maintain.repack import Piece, live_rows, move, repack, unlink_doomed
from precook.report import SILENT, Reporter
from precook.store.files import syncpoint
from precook.store.index.packs import RowChoice
from precook.store.index.scan import Chunk, EntryScan
from precook.store.internals import StoreInternals
from precook.store.keysets import ManyKeys, beginnings, split
from precook.store.snapshot import SnapshotFile, list_snapshots, remove_snapshot
from precook.values import Numbers


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


class RowSet:
    """Some places of a scan: a bit for each, their number and their bytes by pack."""

    def __init__(self, scan: EntryScan) -> None:
        self.rows = np.zeros(scan.packs, np.int64)
        self.nbytes = np.zeros(scan.packs, np.int64)
        self._first = scan.first
        self._entries = scan.entries
        self._bits = np.zeros(-(-int(scan.entries.sum()) // 8), np.uint8)

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


def plan_space(
    internals: StoreInternals, scan: EntryScan, tally: RowSet, going: RowSet, thresholds: Thresholds | None
) -> Gain:
    """What to do about packs once the places that are `going` are gone; without thresholds nothing is rewritten."""
    rows = tally.rows - going.rows
    living = tally.nbytes - going.nbytes
    gone = rows == 0
    dead = np.where(gone, 0, scan.payload - living)
    share = dead / np.maximum(scan.payload, 1)
    # Rows without bytes of their own still take room in the head.
    share = np.where(scan.payload > 0, share, 1 - rows / np.maximum(scan.entries, 1))
    chosen = np.zeros(scan.packs, bool)
    if thresholds is not None:
        enough = dead.sum() >= thresholds.of_store * int(scan.nbytes[~gone].sum())
        chosen = ~gone & (rows < scan.entries) & (share >= thresholds.of_pack) & enough
    freed = int(scan.nbytes[gone].sum())
    rewrite: list[str] = []
    stays = int(dead[~chosen].sum())
    for pack in np.flatnonzero(chosen).tolist():
        left = np.setdiff1d(tally.rows_of(pack), going.rows_of(pack), assume_unique=True)
        size = _rewritten(internals, scan.ids[pack], left)
        if size is not None and size < scan.nbytes[pack]:
            rewrite.append(scan.ids[pack])
            freed += int(scan.nbytes[pack]) - size
        else:
            stays += int(dead[pack])
    unlink = tuple(scan.ids[pack] for pack in np.flatnonzero(gone).tolist())
    return Gain(unlink, tuple(rewrite), freed, stays)


def _rewritten(internals: StoreInternals, name: str, rows: Numbers) -> int | None:
    """The size of a pack with these rows alone, None where the pack cannot be read."""
    try:
        pack = internals.open_pack(name)
        size = repack([Piece(pack, rows)]).nbytes
    except (FileNotFoundError, StoreError):
        return None
    pack.release()
    return size


BATCH = 20_000
"""Entries dropped in one transaction: builders wait for the lock no longer than that takes."""


VICTIM = np.dtype([("key", "u1", (32,)), ("pack", "i8"), ("row", "i8"), ("nbytes", "i8"), ("fresh", "?")])
"""A place that goes: its key, pack (as the scan numbers them) and row, its bytes, and whether it is the first place
of its key."""

Victims = npt.NDArray[Any]
"""Rows of `VICTIM`."""


@dataclass(frozen=True, slots=True)
class RemovalShare:
    """Some entries, and what they have in common."""

    name: str
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed."""

    entries: int
    nbytes: int
    """Bytes of their tensors and plain values."""
    spared: int
    """Entries that were to go and that somebody has come to need meanwhile."""
    snapshots: int
    packs_unlinked: int
    packs_rewritten: int
    freed: int
    """Bytes that the disk has gained, packs and snapshots."""
    left: str = ""
    """Why some packs were not rewritten, empty where all were."""


@dataclass(frozen=True, slots=True, eq=False)
class RemovalPlan:
    """What a removal would do. Making one changes nothing; `execute` does it."""

    goes: tuple[RemovalShare, ...]
    """What goes, by reason."""
    kept: tuple[RemovalShare, ...]
    """What protects the rest, each entry under the first that does."""
    snapshots: tuple[SnapshotFile, ...]
    """Snapshots that go."""
    unlink: tuple[str, ...]
    """Packs that are unlinked."""
    rewrite: tuple[str, ...]
    """Packs that are rewritten without their dead rows."""
    packs_freed: int
    """Bytes that the disk gains by packs."""
    snapshots_freed: int
    """Bytes that it gains by snapshots."""
    dead: int
    """Bytes of dead rows that stay in their packs for now."""
    size: int
    """Bytes of all packs as they are."""
    command: str
    """What it is a plan of, for those who have to wait for it."""
    _internals: StoreInternals = field(repr=False)
    _scan: EntryScan = field(repr=False)
    _victims: RowSet = field(repr=False)
    _protection: Protection = field(repr=False)
    _mind_uses: bool = field(repr=False)
    _late: list[ManyKeys] = field(default_factory=list, repr=False)
    """What has come to be protected since it was made: also where it is executed again, after an interruption."""

    @property
    def entries(self) -> int:
        """How many entries go."""
        return sum(share.entries for share in self.goes)

    @property
    def nbytes(self) -> int:
        """Bytes of their tensors and plain values."""
        return sum(share.nbytes for share in self.goes)

    @property
    def freed(self) -> int:
        """Bytes that the disk gains."""
        return self.packs_freed + self.snapshots_freed

    @property
    def size_after(self) -> int:
        """Bytes of all packs once it is done."""
        return self.size - self.packs_freed

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.entries or self.snapshots or self.unlink or self.rewrite)

    def execute(self, report: Reporter = SILENT) -> Removal:
        """Do it. What has been leased, named by a snapshot or used since the plan was made is spared."""
        with maintaining(self._internals, self.command):
            return _Execution(self, report).run()


class _Execution:
    """One removal at work."""

    def __init__(self, plan: RemovalPlan, report: Reporter) -> None:
        self._plan = plan
        self._report = report
        self._internals = plan._internals  # noqa: SLF001 - the same module
        self._victims = plan._victims  # noqa: SLF001
        self._scan = plan._scan  # noqa: SLF001
        self._protection = plan._protection  # noqa: SLF001
        self._late = plan._late  # noqa: SLF001
        self._entries = self._nbytes = self._spared = 0

    def run(self) -> Removal:
        syncpoint("removal.planned")
        snapshots, freed = self._remove_snapshots()
        self._drop()
        syncpoint("removal.dropped")
        self._internals.index.doom(self._plan.unlink)
        unlinked = unlink_doomed(self._internals.layout, self._internals.index)
        freed += sum(size for _, size in unlinked)
        rewritten, gained, left = self._rewrite()
        return Removal(
            entries=self._entries,
            nbytes=self._nbytes,
            spared=self._spared,
            snapshots=snapshots,
            packs_unlinked=len(unlinked),
            packs_rewritten=rewritten,
            freed=freed + gained,
            left=left,
        )

    def _remove_snapshots(self) -> tuple[int, int]:
        """Remove what names entries before the entries."""
        count = nbytes = 0
        for file in self._plan.snapshots:
            with self._internals.index.exclusive():
                # Meanwhile somebody may have pinned it, or removed the one that had taken its place.
                roots = self._protection.roots.of(list_snapshots(self._internals.layout))
                if file.id in {root.id for root in roots} or not file.path.exists():
                    continue
                size = file.path.stat().st_size
                remove_snapshot(file)
            count, nbytes = count + 1, nbytes + size
        return count, nbytes

    def _drop(self) -> None:
        """Walk through the index once more, in the order of the keys: what goes is gathered in a few of its pages."""
        with self._report.task("remove", total=int(self._victims.rows.sum()), unit="entries") as task:
            for batch in filter(len, self._batches()):
                with self._internals.index.exclusive():
                    self._drop_batch(batch)
                task.advance(len(batch))

    def _batches(self) -> Iterator[Victims]:
        found: list[Victims] = []
        for chunk in self._scan.chunks():
            chosen = self._victims.has(chunk.packs, chunk.rows)
            if sum(map(len, found)) + int(chosen.sum()) > BATCH:
                yield np.concatenate([np.empty(0, VICTIM), *found])
                found = []
            found.append(_victims_of(chunk, chosen))
        yield np.concatenate([np.empty(0, VICTIM), *found])

    def _drop_batch(self, batch: Victims) -> None:
        starts = beginnings(batch["key"])
        needed = np.zeros(len(batch), bool)
        for protector in self._protection.look():
            self._late.append(protector.keys)
        for keys in self._late:
            needed |= keys.among(starts)
        syncpoint("removal.checked")

        packs = np.unique(batch["pack"]).tolist()
        rows_of = [np.flatnonzero((batch["pack"] == pack) & ~needed) for pack in packs]
        choices = [
            RowChoice(
                self._scan.ids[pack],
                split(batch["key"][here]),
                batch["row"][here],
                uses=self._scan.uses(pack) if self._plan._mind_uses else None,  # noqa: SLF001
            )
            for pack, here in zip(packs, rows_of, strict=True)
        ]
        self._spared += int(needed.sum())
        for here, (gone, stays) in zip(rows_of, self._internals.index.drop_rows(choices), strict=True):
            entries = here[gone & batch["fresh"][here]]
            self._entries += len(entries)
            self._nbytes += int(batch["nbytes"][entries].sum())
            self._spared += int(stays.sum())
        self._internals.reader.let_go(self._scan.ids[pack] for pack in packs)
        syncpoint("removal.batch")

    def _rewrite(self) -> tuple[int, int, str]:
        """Rewrite what the plan says; how many packs, what that gained, and why not all."""
        rewritten = gained = 0
        internals = self._internals
        with self._report.task("rewrite", total=len(self._plan.rewrite), unit="packs") as task:
            for name in self._plan.rewrite:
                try:
                    pack = internals.open_pack(name)
                    moved = move(internals, [Piece(pack, live_rows(internals, pack))])
                except (FileNotFoundError, DamagedPackError):
                    continue  # somebody else has rewritten it, or nothing of it can be used
                except NoSpaceError as error:
                    return rewritten, gained, error.reason
                unlink_doomed(internals.layout, internals.index)
                rewritten, gained = rewritten + 1, gained + pack.nbytes - moved.nbytes
                task.advance()
        return rewritten, gained, ""


Wanted = Callable[[Chunk], npt.NDArray[np.bool_]]


class RemovalChoice(Protocol):
    """Chooses among the entries that may go."""

    def offer(self, chunk: Chunk, open_: npt.NDArray[np.bool_]) -> None:
        """Some that may, in the order of their keys."""

    def choose(self, tally: RowSet) -> tuple[RowSet, int, int]:
        """Which do, beside all that lies in the packs; how many entries that are, and their bytes."""


class _All:
    """They all go."""

    def __init__(self, scan: EntryScan) -> None:
        self._victims = RowSet(scan)
        self._entries = self._nbytes = 0

    def offer(self, chunk: Chunk, open_: npt.NDArray[np.bool_]) -> None:
        self._victims.add(chunk.packs[open_], chunk.rows[open_], chunk.nbytes[open_])
        self._entries += int((open_ & chunk.fresh).sum())
        self._nbytes += int(chunk.nbytes[open_ & chunk.fresh].sum())

    def choose(self, tally: RowSet) -> tuple[RowSet, int, int]:  # noqa: ARG002 - others look at it
        return self._victims, self._entries, self._nbytes


def plan_removal(
    internals: StoreInternals,
    command: str,
    *,
    protection: Protection,
    protectors: Sequence[Protector] = (),
    reason: str,
    wanted: Wanted | None = None,
    selection: RemovalChoice | None = None,
    snapshots: Sequence[SnapshotFile] = (),
    thresholds: Thresholds | None = DEFAULT,
    mind_uses: bool = True,
    scan: EntryScan | None = None,
    report: Reporter = SILENT,
) -> RemovalPlan:
    """Plan the removal of every `wanted` entry that nobody protects, or of a `selection` of them.

    Of an entry nothing is held but a few bits, so that the plan of a large store takes no more memory than others.
    """
    scan = scan or EntryScan(internals.layout, internals.index)
    tally = RowSet(scan)
    selection = selection or _All(scan)
    everybody: list[Protector] = [*protection.look(), *protectors]
    kept = [[0, 0] for _ in everybody]
    with report.task("look", total=int(scan.entries.sum()), unit="entries") as task:
        for chunk in scan.chunks():
            tally.add(chunk.packs, chunk.rows, chunk.nbytes)
            open_ = np.ones(len(chunk.keys), bool) if wanted is None else wanted(chunk)
            for counts, protector in zip(kept, everybody, strict=True):
                held = open_ & protector.holds(chunk)
                counts[0] += int((held & chunk.fresh).sum())
                counts[1] += int(chunk.nbytes[held & chunk.fresh].sum())
                open_ &= ~held
            selection.offer(chunk, open_)
            task.advance(len(chunk.keys))
    victims, entries, nbytes = selection.choose(tally)
    gain = plan_space(internals, scan, tally, victims, thresholds)
    return RemovalPlan(
        goes=(RemovalShare(reason, entries, nbytes),) if entries else (),
        kept=tuple(
            RemovalShare(one.name, entries, nbytes)
            for one, (entries, nbytes) in zip(everybody, kept, strict=True)
            if entries
        ),
        snapshots=tuple(snapshots),
        unlink=gain.unlink,
        rewrite=gain.rewrite,
        packs_freed=gain.freed,
        snapshots_freed=sum(file.path.stat().st_size for file in snapshots),
        dead=gain.dead,
        size=int(scan.nbytes.sum()),
        command=command,
        _internals=internals,
        _scan=scan,
        _victims=victims,
        _protection=protection,
        _mind_uses=mind_uses,
    )


def _victims_of(chunk: Chunk, chosen: npt.NDArray[np.bool_]) -> Victims:
    victims = np.empty(int(chosen.sum()), VICTIM)
    for name, column in (
        ("key", chunk.keys),
        ("pack", chunk.packs),
        ("row", chunk.rows),
        ("nbytes", chunk.nbytes),
        ("fresh", chunk.fresh),
    ):
        victims[name] = column[chosen]
    return victims
