"""Removal: which entries go and why, what keeps the others, and what the disk gains. A plan first, then the act.

`find_candidates` looks at every entry once and tells what may go. Whoever plans a removal chooses among those, and
`plan_removal` makes a `RemovalPlan` of the choice. Executing it drops entries from the index in a few transactions,
each of which first looks whether somebody has come to need what it is about to drop. A pack that has lost all its
entries is unlinked, one that has lost enough of them is rewritten; until then its dead rows stay where they are, and a
record in the index tells them from the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from precook.errors import NoSpaceError, StoreReadError
from precook.maintain.lock import maintaining
from precook.maintain.protect import Protection, Protector
from precook.maintain.repack import planned_size, rewrite_packs, unlink_packs
from precook.maintain.rowset import LivingRows, RowSet
from precook.report import SILENT, Reporter
from precook.store import files
from precook.store.index.scan import Chunk, EntryScan
from precook.store.index.schema import RowChoice
from precook.store.internals import StoreInternals
from precook.store.keysets import ManyKeys, split
from precook.store.snapshot import SnapshotFile, list_snapshots, remove_snapshot

_BATCH = 20_000
"""Entries dropped in one transaction: builders wait for the lock no longer than that takes."""


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
class RemovalShare:
    """Some entries, and what they have in common."""

    name: str
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Dropped:
    """Places that go."""

    places: RowSet
    entries: int
    """How many entries that are: an entry may have several places."""
    nbytes: int


class Candidates:
    """What a removal may take, after a look at every entry of a scan, and what keeps the others."""

    def __init__(self, scan: EntryScan, protection: Protection) -> None:
        self.scan = scan
        self.protection = protection
        self.everything = RowSet(scan)
        """All places of the scan, those that may go and the others."""
        self.places = RowSet(scan)
        """Places that may go."""
        self.first = RowSet(scan)
        """Those of them that are the first place of their key."""
        self.kept: list[RemovalShare] = []
        """What protects the rest, each entry under the first that does."""
        self.moment_rows, self.moment_bytes, self.moment_first_bytes = np.zeros((3, len(scan.moments)), np.int64)
        """Of the places that may go, by the moment of their last use: their number, their bytes, and the bytes of those
        that are the first place of their key."""

    def add(self, chunk: Chunk) -> None:
        """Count some places that may go."""
        first = chunk.take(chunk.fresh)
        self.places.add(chunk.packs, chunk.rows, chunk.nbytes)
        self.first.add(first.packs, first.rows, first.nbytes)
        count = len(self.moment_rows)
        self.moment_rows += np.bincount(chunk.moments, minlength=count)
        self.moment_bytes += np.bincount(chunk.moments, chunk.nbytes, minlength=count).astype(np.int64)
        self.moment_first_bytes += np.bincount(first.moments, first.nbytes, minlength=count).astype(np.int64)

    def all(self) -> Dropped:
        """All that may go."""
        return Dropped(self.places, int(self.first.rows.sum()), int(self.first.nbytes.sum()))


def find_candidates(
    scan: EntryScan,
    protection: Protection,
    protectors: Sequence[Protector] = (),
    *,
    recipes: Collection[bytes] | None = None,
    keys: ManyKeys | None = None,
    report: Reporter = SILENT,
) -> Candidates:
    """Look at every entry: it may go if nobody protects it and, where those are given, it is of a recipe or a key.

    Recipes are given by their canonical forms.
    """
    candidates = Candidates(scan, protection)
    everybody: list[Protector] = [*protection.look(), *protectors]
    kept = np.zeros((len(everybody), 2), np.int64)
    with report.task("look", total=int(scan.entries.sum()), unit="entries") as task:
        for chunk in scan.chunks():
            candidates.everything.add(chunk.packs, chunk.rows, chunk.nbytes)
            removable = np.ones(len(chunk.keys), bool)
            if recipes is not None:
                removable &= np.isin(chunk.recipes, scan.recipe_numbers(recipes))
            if keys is not None:
                removable &= keys.among(chunk.starts)
            for number, protector in enumerate(everybody):
                held = removable & protector.holds(chunk)
                kept[number] += (held & chunk.fresh).sum(), chunk.nbytes[held & chunk.fresh].sum()
                removable &= ~held
            candidates.add(chunk.take(removable))
            task.advance(len(chunk.keys))
    for protector, (entries, nbytes) in zip(everybody, kept.tolist(), strict=True):
        if entries:
            candidates.kept.append(RemovalShare(protector.name, entries, nbytes))
    return candidates


@dataclass(frozen=True, slots=True)
class PackChanges:
    """What is done about packs, and what that frees."""

    unlink: tuple[str, ...]
    rewrite: tuple[str, ...]
    freed: int
    dead: int
    """Bytes of dead rows that stay in their packs."""
    unread: tuple[StoreReadError, ...] = ()
    """Why packs that are worth it are not rewritten: the system refuses to read them."""


def plan_packs(
    internals: StoreInternals, candidates: Candidates, dropped: RowSet, thresholds: Thresholds | None
) -> PackChanges:
    """What to do about packs once some places are dropped; without thresholds nothing is rewritten."""
    scan = candidates.scan
    living = LivingRows(scan, candidates.everything, dropped)
    chosen = np.zeros(scan.packs, bool)
    if thresholds is not None and living.dead.sum() >= thresholds.of_store * int(scan.nbytes[~living.none].sum()):
        chosen = living.partly_dead & (living.dead_share >= thresholds.of_pack)
    freed = int(scan.nbytes[living.none].sum())
    rewrite: list[str] = []
    unread: list[StoreReadError] = []
    dead = int(living.dead[~chosen].sum())
    for pack in np.flatnonzero(chosen).tolist():
        size = None
        try:
            size = planned_size(internals, {scan.ids[pack]: living.rows_of(pack)})
        except StoreReadError as error:
            unread.append(error)
        if size is not None and size < scan.nbytes[pack]:
            rewrite.append(scan.ids[pack])
            freed += int(scan.nbytes[pack]) - size
        else:
            dead += int(living.dead[pack])
    unlink = tuple(scan.ids[pack] for pack in np.flatnonzero(living.none).tolist())
    return PackChanges(unlink, tuple(rewrite), freed, dead, tuple(unread))


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
    """Why some packs were not rewritten for lack of space, empty where there was enough."""
    unread: tuple[StoreReadError, ...] = ()
    """Why others were left as they are: the system refused to read them, which may pass."""


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
    unread: tuple[StoreReadError, ...]
    """Why packs that are worth it are not rewritten: the system refuses to read them, which may pass."""
    _internals: StoreInternals = field(repr=False)
    _scan: EntryScan = field(repr=False)
    _dropped: RowSet = field(repr=False)
    _protection: Protection = field(repr=False)
    _spare_used: bool = field(repr=False)
    """Whether an entry that was used since the plan was made stays."""
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
            files.reached("removal.planned")
            # What names entries goes before the entries: a process that dies in between leaves entries that nobody
            # names, and the next collection takes them. The other way round a snapshot would lead nowhere.
            snapshot_sizes = self._remove_snapshots()
            entries, nbytes, spared = self._drop_entries(report)
            files.reached("removal.dropped")
            unlinked = unlink_packs(self._internals, self.unlink)
            rewritten = self._rewrite(report)
        return Removal(
            entries=entries,
            nbytes=nbytes,
            spared=spared,
            snapshots=len(snapshot_sizes),
            packs_unlinked=len(unlinked),
            packs_rewritten=rewritten.packs,
            freed=sum(snapshot_sizes) + sum(size for _, size in unlinked) + rewritten.freed,
            left=rewritten.left,
            unread=(*self.unread, *rewritten.unread),
        )

    def _remove_snapshots(self) -> list[int]:
        """Remove snapshots that still may go; the size of each."""
        sizes = []
        for file in self.snapshots:
            with self._internals.index.exclusive():
                # Meanwhile somebody may have pinned it, or removed the one that had taken its place.
                roots = self._protection.roots.of(list_snapshots(self._internals.layout))
                status = file.status()
                if file.id in {root.id for root in roots} or status is None:
                    continue
                remove_snapshot(file)
                sizes.append(status.st_size)
        return sizes

    def _drop_entries(self, report: Reporter) -> tuple[int, int, int]:
        """Drop what goes from the index: entries, their bytes, and how many were spared."""
        counts = np.zeros(3, np.int64)
        with report.task("remove", total=int(self._dropped.rows.sum()), unit="entries") as task:
            for batch in self._batches():
                with self._internals.index.exclusive():
                    counts += self._drop_batch(batch)
                task.advance(len(batch.keys))
        entries, nbytes, spared = counts.tolist()
        return entries, nbytes, spared

    def _batches(self) -> Iterator[Chunk]:
        """What goes, in the order of the keys.

        As much at a time as one transaction may drop: each writes the records of all the packs that it touches.
        """
        waiting: list[Chunk] = []
        for chunk in self._scan.chunks():
            chosen = chunk.take(self._dropped.has(chunk.packs, chunk.rows))
            if waiting and sum(len(other.keys) for other in waiting) + len(chosen.keys) > _BATCH:
                yield Chunk.join(waiting)
                waiting = []
            if len(chosen.keys):
                waiting.append(chosen)
        if waiting:
            yield Chunk.join(waiting)

    def _drop_batch(self, batch: Chunk) -> tuple[int, int, int]:
        """Drop some places in one transaction: entries, their bytes, and how many were spared."""
        # The caller holds the store's lock, and so does whoever adds keys to a lease or writes a snapshot: nobody can
        # come to need an entry between this look and the drop.
        self._late.extend(protector.keys for protector in self._protection.look())
        needed = np.zeros(len(batch.keys), bool)
        for keys in self._late:
            needed |= keys.among(batch.starts)
        files.reached("removal.checked")
        packs = np.unique(batch.packs).tolist()
        parts = [batch.take((batch.packs == pack) & ~needed) for pack in packs]
        choices = [
            RowChoice(
                self._scan.ids[pack],
                split(part.keys),
                part.rows,
                # By the record, not by the clock, which stands still for milliseconds.
                uses=self._scan.uses(pack) if self._spare_used else None,
            )
            for pack, part in zip(packs, parts, strict=True)
        ]
        entries, nbytes, spared = 0, 0, int(needed.sum())
        for part, (gone, stays) in zip(parts, self._internals.index.drop_rows(choices), strict=True):
            entries += int((gone & part.fresh).sum())
            nbytes += int(part.nbytes[gone & part.fresh].sum())
            spared += int(stays.sum())
        # What was removed is a miss in this process, too: its readers forget where it lay.
        self._internals.packs.let_go(self._scan.ids[pack] for pack in packs)
        files.reached("removal.batch")
        return entries, nbytes, spared

    def _rewrite(self, report: Reporter) -> _Rewritten:
        """Rewrite what the plan says."""
        done = _Rewritten()
        with report.task("rewrite", total=len(self.rewrite), unit="packs") as task:
            for name in self.rewrite:
                try:
                    rewrite = rewrite_packs(self._internals, [name])
                except NoSpaceError as error:
                    done.left = error.reason
                    break
                done.packs += rewrite.packs
                done.freed += rewrite.freed
                done.unread += rewrite.left
                task.advance()
        return done


@dataclass(slots=True)
class _Rewritten:
    """How many packs were rewritten, what that gained, and why not all."""

    packs: int = 0
    freed: int = 0
    left: str = ""
    unread: tuple[StoreReadError, ...] = ()


def plan_removal(
    internals: StoreInternals,
    command: str,
    candidates: Candidates,
    dropped: Dropped,
    *,
    reason: str,
    snapshots: Sequence[SnapshotFile] = (),
    thresholds: Thresholds | None = DEFAULT,
    spare_used: bool = True,
) -> RemovalPlan:
    """Plan the removal of some candidates, and of snapshots."""
    changes = plan_packs(internals, candidates, dropped.places, thresholds)
    sizes = {file: status.st_size for file in snapshots if (status := file.status()) is not None}
    return RemovalPlan(
        goes=(RemovalShare(reason, dropped.entries, dropped.nbytes),) if dropped.entries else (),
        kept=tuple(candidates.kept),
        snapshots=tuple(sizes),
        unlink=changes.unlink,
        rewrite=changes.rewrite,
        packs_freed=changes.freed,
        snapshots_freed=sum(sizes.values()),
        dead=changes.dead,
        size=int(candidates.scan.nbytes.sum()),
        command=command,
        unread=changes.unread,
        _internals=internals,
        _scan=candidates.scan,
        _dropped=dropped.places,
        _protection=candidates.protection,
        _spare_used=spare_used,
    )
