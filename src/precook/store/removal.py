"""Removal: which entries go and why, what keeps the others, and what the disk gains. A plan first, then the act.

Entries are dropped from the index in a few transactions, each of which first looks whether somebody has come to need
what it is about to drop. A pack that has lost all its entries is unlinked, one that has lost enough of them is
rewritten; until then its dead rows stay where they are and are told apart by a record in the index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError, NoSpaceError
from precook.report import SILENT, Reporter
from precook.store import database
from precook.store.census import Census, Chunk
from precook.store.keysets import ManyKeys, beginnings, split
from precook.store.moving import live_rows, move
from precook.store.protection import Protection, Protector
from precook.store.repacking import Piece
from precook.store.snapshots import SnapshotFile, list_snapshots, remove_snapshot
from precook.store.space import DEFAULT, Tally, Thresholds, plan_space
from precook.store.sweep import unlink_doomed
from precook.store.syncpoints import syncpoint
from precook.store.workings import Workings, maintaining

BATCH = 20_000
"""Entries dropped in one transaction: builders wait for the lock no longer than that takes."""


VICTIM = np.dtype([("key", "u1", (32,)), ("pack", "i8"), ("row", "i8"), ("nbytes", "i8"), ("fresh", "?")])
"""A place that goes: its key, pack (as the census numbers them) and row, its bytes, and whether it is the first place
of its key."""

Victims = npt.NDArray[Any]
"""Rows of `VICTIM`."""


@dataclass(frozen=True, slots=True)
class Share:
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

    goes: tuple[Share, ...]
    """What goes, by reason."""
    kept: tuple[Share, ...]
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
    _workings: Workings = field(repr=False)
    _census: Census = field(repr=False)
    _victims: Tally = field(repr=False)
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
        with maintaining(self._workings, self.command):
            return _Execution(self, report).run()


class _Execution:
    """One removal at work."""

    def __init__(self, plan: RemovalPlan, report: Reporter) -> None:
        self._plan = plan
        self._report = report
        self._workings = plan._workings  # noqa: SLF001 - the same module
        self._victims = plan._victims  # noqa: SLF001
        self._census = plan._census  # noqa: SLF001
        self._protection = plan._protection  # noqa: SLF001
        self._late = plan._late  # noqa: SLF001
        self._entries = self._nbytes = self._spared = 0

    def run(self) -> Removal:
        syncpoint("removal.planned")
        snapshots, freed = self._remove_snapshots()
        self._drop()
        syncpoint("removal.dropped")
        self._workings.index.transact(lambda db: database.doom(db, map(bytes.fromhex, self._plan.unlink)))
        unlinked = unlink_doomed(self._workings.layout, self._workings.index)
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
            with self._workings.index.exclusive():
                # Meanwhile somebody may have pinned it, or removed the one that had taken its place.
                roots = self._protection.roots.of(list_snapshots(self._workings.layout))
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
                with self._workings.index.exclusive():
                    self._drop_batch(batch)
                task.advance(len(batch))

    def _batches(self) -> Iterator[Victims]:
        found: list[Victims] = []
        for chunk in self._census.chunks():
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

        def change(db: sqlite3.Connection) -> tuple[int, int, int]:
            entries = nbytes = spared = 0
            for pack in np.unique(batch["pack"]).tolist():
                name = bytes.fromhex(self._census.ids[pack])
                here = np.flatnonzero(batch["pack"] == pack)
                keep = needed[here]
                if self._plan._mind_uses:  # noqa: SLF001
                    # By the record, not by the clock, which stands still for milliseconds.
                    seen = self._census.uses(pack)
                    keep |= (database.read_used(db, name, len(seen)) != seen)[batch["row"][here]]
                spared += int(keep.sum())
                here = here[~keep]
                gone = here[database.drop(db, name, split(batch["key"][here]), batch["row"][here])]
                gone = gone[batch["fresh"][gone]]
                entries += len(gone)
                nbytes += int(batch["nbytes"][gone].sum())
            database.removed(db)
            return entries, nbytes, spared

        entries, nbytes, spared = self._workings.index.transact(change)
        self._workings.reader.let_go(self._census.ids[pack] for pack in np.unique(batch["pack"]).tolist())
        self._entries += entries
        self._nbytes += nbytes
        self._spared += spared
        syncpoint("removal.batch")

    def _rewrite(self) -> tuple[int, int, str]:
        """Rewrite what the plan says; how many packs, what that gained, and why not all."""
        rewritten = gained = 0
        workings = self._workings
        with self._report.task("rewrite", total=len(self._plan.rewrite), unit="packs") as task:
            for name in self._plan.rewrite:
                try:
                    pack = workings.open_pack(name)
                    moved = move(workings, [Piece(pack, live_rows(workings, pack))])
                except (FileNotFoundError, DamagedPackError):
                    continue  # somebody else has rewritten it, or nothing of it can be used
                except NoSpaceError as error:
                    return rewritten, gained, error.reason
                unlink_doomed(workings.layout, workings.index)
                rewritten, gained = rewritten + 1, gained + pack.nbytes - moved.nbytes
                task.advance()
        return rewritten, gained, ""


Wanted = Callable[[Chunk], npt.NDArray[np.bool_]]


class Selection(Protocol):
    """Chooses among the entries that may go."""

    def offer(self, chunk: Chunk, open_: npt.NDArray[np.bool_]) -> None:
        """Some that may, in the order of their keys."""

    def choose(self, tally: Tally) -> tuple[Tally, int, int]:
        """Which do, beside all that lies in the packs; how many entries that are, and their bytes."""


class _All:
    """They all go."""

    def __init__(self, census: Census) -> None:
        self._victims = Tally(census)
        self._entries = self._nbytes = 0

    def offer(self, chunk: Chunk, open_: npt.NDArray[np.bool_]) -> None:
        self._victims.add(chunk.packs[open_], chunk.rows[open_], chunk.nbytes[open_])
        self._entries += int((open_ & chunk.fresh).sum())
        self._nbytes += int(chunk.nbytes[open_ & chunk.fresh].sum())

    def choose(self, tally: Tally) -> tuple[Tally, int, int]:  # noqa: ARG002 - others look at it
        return self._victims, self._entries, self._nbytes


def plan_removal(
    workings: Workings,
    command: str,
    *,
    protection: Protection,
    protectors: Sequence[Protector] = (),
    reason: str,
    wanted: Wanted | None = None,
    selection: Selection | None = None,
    snapshots: Sequence[SnapshotFile] = (),
    thresholds: Thresholds | None = DEFAULT,
    mind_uses: bool = True,
    census: Census | None = None,
    report: Reporter = SILENT,
) -> RemovalPlan:
    """Plan the removal of every `wanted` entry that nobody protects, or of a `selection` of them.

    Of an entry nothing is held but a few bits, so that the plan of a large store takes no more memory than others.
    """
    census = census or Census(workings.layout, workings.index)
    tally = Tally(census)
    selection = selection or _All(census)
    everybody: list[Protector] = [*protection.look(), *protectors]
    kept = [[0, 0] for _ in everybody]
    with report.task("look", total=int(census.entries.sum()), unit="entries") as task:
        for chunk in census.chunks():
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
    gain = plan_space(workings, census, tally, victims, thresholds)
    return RemovalPlan(
        goes=(Share(reason, entries, nbytes),) if entries else (),
        kept=tuple(
            Share(one.name, entries, nbytes) for one, (entries, nbytes) in zip(everybody, kept, strict=True) if entries
        ),
        snapshots=tuple(snapshots),
        unlink=gain.unlink,
        rewrite=gain.rewrite,
        packs_freed=gain.freed,
        snapshots_freed=sum(file.path.stat().st_size for file in snapshots),
        dead=gain.dead,
        size=int(census.nbytes.sum()),
        command=command,
        _workings=workings,
        _census=census,
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
