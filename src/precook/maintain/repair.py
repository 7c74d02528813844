"""Repair: drops exactly what is damaged, so that the next build makes it again.

A pack with damaged entries is written anew without them and the old file goes, so that nothing brings them back. A pack
whose head is damaged says nothing reliable about its entries and goes as a whole. Entries that have a sound copy in
another pack are not lost by any of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from precook.errors import DamagedPackError, ReadOnlyError
from precook.maintain.lock import maintaining
from precook.maintain.owners import Owner, find_owners
from precook.maintain.repack import Piece, live_rows, move, unlink_doomed
from precook.maintain.verify import Damage, Verification
from precook.report import SILENT, Reporter
from precook.store import files
from precook.store.internals import StoreInternals
from precook.store.packfile import damage_reason
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


@dataclass(frozen=True)
class RepairPlan:
    """What a repair would drop; making one changes nothing, `execute` does it."""

    store: Store
    wrecks: tuple[BadPack, ...]
    losses: tuple[LostEntry, ...]
    snapshots: tuple[Path, ...]
    """Damaged snapshots in whose place a newer one stands."""
    left: tuple[Path, ...]
    """Damaged snapshots that are the latest of their dataset: the next build writes a newer one."""

    @cached_property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.wrecks and not self.snapshots

    def execute(self, *, report: Reporter = SILENT) -> Repaired:
        """Do it; each pack is replaced as one step, and what is interrupted is found again by the next verification."""
        store = self.store
        if store.read_only:
            raise ReadOnlyError(store.path, "opened read-only")
        internals = store.internals()
        before = sum(wreck.nbytes for wreck in self.wrecks)
        after = rewritten = entries = 0
        with maintaining(internals, "repair"), report.task("repair", total=len(self.wrecks), unit="packs") as task:
            for wreck in self.wrecks:
                dropped, kept = _replace(internals, wreck)
                entries += dropped
                after += kept
                rewritten += kept > 0
                task.advance()
        for file in store.snapshots():
            if file.path in self.snapshots:
                store.unpin(file)
                store.remove_snapshot(file)
        return Repaired(entries, rewritten, len(self.wrecks) - rewritten, len(self.snapshots), before - after)


def plan_repair(store: Store, found: Verification) -> RepairPlan:
    """What would be dropped of a store in which a verification found damage."""
    internals = store.internals()
    latest = {file.dataset: file.path for file in store.snapshots()}
    broken = {file.path for file in store.snapshots()} & {damage.pack for damage in found.damage}
    wrecks, lost = [], {}
    damages = sorted((one for one in found.damage if one.pack not in broken), key=lambda one: str(one.pack))
    for path, group in groupby(damages, key=lambda one: one.pack):
        wreck, losses = _survey(internals, path, list(group))
        wrecks.append(wreck)
        lost.update(losses)
    gone = {wreck.name for wreck in wrecks}
    elsewhere = {place.key for place in internals.index.find(list(lost)) if place.pack not in gone} if lost else set()
    owners = find_owners(store, lost)
    return RepairPlan(
        store,
        tuple(wrecks),
        tuple(
            LostEntry(Key(key), reason, tuple(owners.get(key, ())))
            for key, reason in sorted(lost.items())
            if key not in elsewhere
        ),
        tuple(sorted(broken - set(latest.values()))),
        tuple(sorted(broken & set(latest.values()))),
    )


def _survey(internals: StoreInternals, path: Path, damages: list[Damage]) -> tuple[BadPack, dict[bytes, str]]:
    """What becomes of a pack, and the entries that are lost with it."""
    try:
        nbytes = path.lstat().st_size
    except FileNotFoundError:
        nbytes = 0
    name = path.name.partition(".")[0]
    try:
        internals.open_pack(name)
    except (DamagedPackError, OSError) as error:
        reason = damage_reason(error, path) if not isinstance(error, FileNotFoundError) else "it is gone"
        return BadPack(path, reason, nbytes), dict.fromkeys(internals.index.row_keys(name).values(), reason)
    return BadPack(path, "", nbytes), {one.key.bytes: one.reason for one in damages if one.key is not None}


def _replace(internals: StoreInternals, wreck: BadPack) -> tuple[int, int]:
    """Put a pack of its sound entries in the place of a damaged one; entries dropped, and bytes of the new file."""
    try:
        pack = internals.open_pack(wreck.name)
    except FileNotFoundError:
        return 0, 0  # somebody else was quicker
    except (DamagedPackError, OSError) as error:
        return _remove(internals, wreck, damage_reason(error, wreck.path)), 0
    rows = live_rows(internals, pack)
    moved = move(internals, [Piece(pack, rows)])
    unlink_doomed(internals.layout, internals.index)
    return len(rows) - moved.entries, moved.nbytes


def _remove(internals: StoreInternals, wreck: BadPack, reason: str) -> int:
    """Remove a pack that cannot be read at all; how many entries the index had there."""
    layout, index = internals.layout, internals.index
    with index.exclusive():
        entries = index.condemn(wreck.name, reason)
        unlink_doomed(layout, index)
        # A pack that could never be read has no row in the index that could be doomed.
        with files.explained(layout.root):
            files.unlink_inside(layout.root, wreck.path)
            files.sync_directory(wreck.path.parent)
    return entries
