"""Repair: drops exactly what is damaged, so that the next build makes it again.

A pack with damaged entries is written anew without them and the old file goes, so that nothing brings them back. A pack
whose head is damaged says nothing reliable about its entries and goes as a whole. Entries that have a sound copy in
another pack are not lost by any of this. What the system refused to read is read again, when the repair is planned and
when it is done. Only a repair, which somebody asked for, gives up what still cannot be read, while other files can.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from precook.errors import DamagedPackError, ReadOnlyError
from precook.fs.system import calls
from precook.maintain.lock import maintaining
from precook.maintain.owners import Owner, find_owners
from precook.maintain.repack import rewrite_packs, unlink_doomed
from precook.maintain.verify import Damage, Verification
from precook.report import SILENT, Reporter
from precook.store import files
from precook.store.internals import StoreInternals
from precook.store.packfile import damage_reason, forget_cached
from precook.store.store import Store
from precook.values import Key


@dataclass(frozen=True, slots=True)
class LostEntry:
    """An entry that is to be made again."""

    key: Key
    reason: str
    owners: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class BadPack:
    """A pack that is to be replaced or removed."""

    path: Path
    reason: str
    """Why it goes as a whole; empty where it is written anew without its damaged entries."""
    nbytes: int
    refused: frozenset[int] = frozenset()
    """Rows that the system refused to read, when the pack was verified and when the repair was planned."""

    @property
    def name(self) -> str:
        """The pack's id."""
        return self.path.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did."""

    entries: int
    """Entries that were dropped."""
    rewritten: int
    removed: int
    snapshots: int
    nbytes: int
    """Bytes by which the packs became smaller."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would drop; making one changes nothing, `execute` does it."""

    store: Store
    bad_packs: tuple[BadPack, ...]
    lost: tuple[LostEntry, ...]
    snapshots: tuple[Path, ...]
    """Damaged snapshots in whose place a newer one stands."""
    left: tuple[Path, ...]
    """Damaged snapshots that are the latest of their dataset: the next build writes a newer one."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.bad_packs and not self.snapshots

    def execute(self, *, report: Reporter = SILENT) -> Repaired:
        """Do it; each pack is replaced as one step, and what is interrupted is found again by the next verification."""
        store = self.store
        if store.read_only:
            raise ReadOnlyError(store.path, "opened read-only")
        internals = store.internals()
        before = sum(pack.nbytes for pack in self.bad_packs)
        after = rewritten = entries = 0
        with maintaining(internals, "repair"), report.task("repair", total=len(self.bad_packs), unit="packs") as task:
            for pack in self.bad_packs:
                lost, nbytes = _replace(internals, pack)
                entries += lost
                after += nbytes
                rewritten += nbytes > 0
                task.advance()
        for file in store.snapshots():
            if file.path in self.snapshots:
                store.unpin(file)
                store.remove_snapshot(file)
        return Repaired(entries, rewritten, len(self.bad_packs) - rewritten, len(self.snapshots), before - after)


def plan_repair(store: Store, verification: Verification) -> RepairPlan:
    """What would be dropped of a store in which a verification found damage."""
    store.check_removable("repair")
    internals = store.internals()
    snapshots = store.snapshots()
    latest = {file.dataset: file.path for file in snapshots}
    paths = {file.path for file in snapshots}
    bad_snapshots = paths & {damage.pack for damage in verification.damage if not damage.refused}
    bad_packs: list[BadPack] = []
    reasons = dict.fromkeys((key.bytes for key in verification.lost), "no pack holds it")
    in_packs = (damage for damage in verification.damage if damage.pack not in paths)
    for path, damages in groupby(sorted(in_packs, key=lambda damage: str(damage.pack)), key=lambda damage: damage.pack):
        pack, lost = _examine(internals, path, list(damages))
        if pack is not None:
            bad_packs.append(pack)
            reasons.update(lost)
    names = {pack.name for pack in bad_packs}
    # Entries that have a copy in a pack that stays are not lost.
    elsewhere = {place.key for place in internals.index.find(list(reasons)) if place.pack not in names}
    owners = find_owners(store, reasons)
    return RepairPlan(
        store,
        tuple(bad_packs),
        tuple(
            LostEntry(Key(key), reason, tuple(owners.get(key, ())))
            for key, reason in sorted(reasons.items())
            if key not in elsewhere
        ),
        tuple(sorted(bad_snapshots - set(latest.values()))),
        tuple(sorted(bad_snapshots & set(latest.values()))),
    )


def _examine(
    internals: StoreInternals, path: Path, damages: Sequence[Damage]
) -> tuple[BadPack | None, dict[bytes, str]]:
    """What becomes of a pack, and the entries that are lost with it, with the reason; None where it can stay.

    It can where all that was wrong is that the system refused to read it, and does so no longer.
    """
    try:
        nbytes = path.lstat().st_size
    except FileNotFoundError:
        nbytes = 0
    bad = BadPack(path, "", nbytes)
    try:
        pack = internals.open_pack(bad.name)
        refused = [damage.row for damage in damages if damage.refused and damage.row is not None]
        again = {one.row: one.reason for one in pack.damage(refused)}
    except (DamagedPackError, OSError) as error:
        reason = damage_reason(error, path) if not isinstance(error, FileNotFoundError) else "it is gone"
        return BadPack(path, reason, nbytes), dict.fromkeys(internals.index.row_keys(bad.name).values(), reason)
    lost = {
        damage.key.bytes: again.get(damage.row, damage.reason)
        for damage in damages
        if damage.key is not None and damage.row is not None and (not damage.refused or damage.row in again)
    }
    if not lost and all(damage.refused for damage in damages):
        return None, {}
    return replace(bad, refused=frozenset(again)), lost


def _replace(internals: StoreInternals, bad: BadPack) -> tuple[int, int]:
    """Put a pack of its sound entries in the place of a damaged one; entries dropped, and bytes of the new file.

    `StoreReadError`, and all of it stays, where the system refuses to read what it gave when the repair was planned.
    """
    try:
        internals.open_pack(bad.name)
    except FileNotFoundError:
        return 0, 0  # somebody else was quicker
    except (DamagedPackError, OSError) as error:
        reason = damage_reason(error, bad.path)
        if isinstance(error, OSError):
            if not bad.reason:
                raise files.read_error(bad.path, error) from error
            _check_disk(internals)
        return _remove(internals, bad, reason), 0
    if bad.refused:
        _check_disk(internals)
    rewrite = rewrite_packs(internals, [bad.name], give_up=bad.refused)
    for unread in rewrite.left:
        raise unread
    return rewrite.lost, rewrite.nbytes


def _check_disk(internals: StoreInternals) -> None:
    """Make sure that the disk can be read before something is given up because it cannot; else `StoreReadError`.

    A bad sector is bad beside others that are not; a disk that is away for a moment gives nothing.
    """
    path = internals.layout.marker
    with files.reading(path):
        descriptor = calls.open(path, os.O_RDONLY | calls.O_CLOEXEC)
        try:
            forget_cached(descriptor)
            calls.pread(descriptor, 1, 0)
        finally:
            os.close(descriptor)


def _remove(internals: StoreInternals, bad: BadPack, reason: str) -> int:
    """Remove a pack that cannot be read at all; how many entries the index had there."""
    layout, index = internals.layout, internals.index
    with index.exclusive():
        entries = index.condemn(bad.name, reason)
        unlink_doomed(layout, index)
        # A pack that could never be read has no row in the index that could be doomed.
        with files.explained(layout.root):
            files.unlink_inside(layout.root, bad.path)
            files.sync_directory(bad.path.parent)
    return entries
