"""Checking: verifications that go on where the last one with the same settings stopped, and are remembered."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from precook.errors import DamagedPackError, NewerFormatError, NoSnapshotError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.report import SILENT, Reporter
from precook.store.index.index import Place
from precook.store.internals import StoreInternals
from precook.store.keysets import split
from precook.store.layout import Layout, list_packs
from precook.store.packfile import Guard, PackFile, TableFile, damage_reason
from precook.store.snapshot import SnapshotFile, list_snapshots, read_snapshot
from precook.store.store import Store
from precook.values import Flags, Key


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
class PackSelection:
    """Which entries are looked at: those under some keys, and those that some recipes made; None for all."""

    keys: frozenset[bytes] | None = None
    recipes: frozenset[bytes] | None = None
    """Digests."""

    def rows(self, table: TableFile) -> Flags:
        """Which rows of a table are meant."""
        chosen = np.ones(table.table.rows, bool)
        if self.recipes is not None:
            meant = np.array([digest in self.recipes for digest in table.pack.head.recipe_digests], bool)
            chosen &= meant[table.table.recipes]
        if self.keys is not None:
            raw = table.table.keys.tobytes()
            chosen &= np.fromiter((raw[at : at + 32] in self.keys for at in range(0, len(raw), 32)), bool, len(chosen))
        return chosen


EVERYTHING = PackSelection()


def verify_packs(
    layout: Layout,
    *,
    subset: tuple[int, int],
    max_seconds: float | None,
    report: Reporter,
    selection: PackSelection = EVERYTHING,
    after: str | None = None,
    dropped: Callable[[PackFile], Flags] | None = None,
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


def verify_store(
    internals: StoreInternals,
    *,
    subset: tuple[int, int] = (1, 1),
    max_seconds: float | None = None,
    selection: PackSelection = EVERYTHING,
    after: str | None = None,
    report: Reporter = SILENT,
) -> Verification:
    """Check the packs of a store, but for rows that were dropped, and its snapshots where everything is meant."""

    def dropped(pack: PackFile) -> Flags:
        return internals.index.dropped_rows(pack.head.id, pack.head.rows)

    return verify_packs(
        internals.layout,
        subset=subset,
        max_seconds=max_seconds,
        report=report,
        selection=selection,
        after=after,
        dropped=dropped,
        snapshots=list_snapshots(internals.layout) if selection == EVERYTHING else None,
    )


def check_pack(pack: PackFile, masks: list[Flags] | None = None) -> Iterator[Damage]:
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


def _masks(pack: PackFile, selection: PackSelection, dropped: Callable[[PackFile], Flags] | None) -> list[Flags] | None:
    """Which rows of each table are looked at; None for all of them."""
    gone = dropped(pack) if dropped is not None else np.zeros(pack.head.rows, bool)
    if selection == EVERYTHING and not gone.any():
        return None
    masks, first = [], 0
    for table in pack.tables:
        masks.append(selection.rows(table) & ~gone[first : first + table.table.rows])
        first += table.table.rows
    return masks


def _row_bytes(pack: PackFile, masks: list[Flags]) -> int:
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


_NOTES = "verify"
_KEPT = 50
"""Passes that are remembered, at the most."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a verification looks at."""

    subset: tuple[int, int] = (1, 1)
    keys: tuple[str, ...] = ()
    """In hexadecimal."""
    recipes: tuple[str, ...] = ()
    """Digests, in hexadecimal."""
    dataset: str | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Scope()

    def key(self) -> bytes:
        """What a pass with these settings is remembered by."""
        return digest(canonical(asdict(self))).bytes

    def selection(self, store: Store) -> PackSelection:
        """The entries that are meant; those of a dataset are what all its snapshots name."""
        keys: set[bytes] | None = {bytes.fromhex(key) for key in self.keys} if self.keys else None
        if self.dataset is not None:
            named = named_keys(store, self.dataset)
            keys = named if keys is None else keys & named
        recipes = frozenset(bytes.fromhex(one) for one in self.recipes) if self.recipes else None
        return PackSelection(frozenset(keys) if keys is not None else None, recipes)


@dataclass(frozen=True, slots=True)
class VerifyCursor:
    """One look at all that was meant, in one run or in several."""

    began: int
    """Unix seconds."""
    finished: int | None
    after: str
    """The last pack that was looked at."""
    packs: int
    damaged: int
    scope: Scope


def check_store(
    store: Store,
    scope: Scope,
    *,
    max_seconds: float | None = None,
    report: Reporter = SILENT,
) -> tuple[Verification, VerifyCursor]:
    """Verify, and say how far the pass has come; with `max_seconds` it goes on where the last one stopped."""
    now = int(time.time())
    before = read_pass(store, scope) if max_seconds is not None else None
    if before is None or before.finished is not None:
        before = VerifyCursor(now, None, "", 0, 0, scope)
    selection = scope.selection(store)
    found = verify_store(
        store.internals(create=False),
        subset=scope.subset,
        max_seconds=max_seconds,
        selection=selection,
        after=before.after,
        report=report,
    )
    return found, replace(
        before,
        finished=int(time.time()) if found.finished else None,
        after=found.last,
        packs=before.packs + found.packs,
        damaged=before.damaged + len(found.damage),
    )


def remember_pass(store: Store, done: VerifyCursor, damage: Sequence[Damage] = ()) -> None:
    """Keep how far a pass has come, in the index, and which entries it found damaged: from now on they are missing."""
    index = store.internals().index
    for one in damage:
        if one.key is not None and one.row is not None:
            index.mark_damaged(Place(one.key.bytes, one.pack.stem, one.row), one.reason)
    memory = store.memory()
    notes = memory.notes(_NOTES)
    kept = sorted(notes, key=lambda key: _time_of(notes[key]))
    for key in kept[: max(0, len(kept) - _KEPT)]:
        memory.write_note(_NOTES, key, None)
    memory.write_note(_NOTES, done.scope.key(), json.dumps(asdict(done)))
    store.remember(memory)


def read_pass(store: Store, scope: Scope) -> VerifyCursor | None:
    """The last pass with these settings."""
    note = store.memory().note(_NOTES, scope.key())
    return _read(note) if note is not None else None


def last_full_pass(store: Store) -> VerifyCursor | None:
    """The last time that everything was looked at to the end; a pass under way is not."""
    found = read_pass(store, Scope())
    return found if found is not None and found.finished is not None else None


def unfinished_passes(store: Store) -> list[VerifyCursor]:
    """Passes that were begun and can go on."""
    found = [_read(note) for note in store.memory().notes(_NOTES).values()]
    return [one for one in found if one.finished is None]


def _read(note: str) -> VerifyCursor:
    form: dict[str, Any] = json.loads(note)
    scope = form.pop("scope")
    return VerifyCursor(
        **form,
        scope=Scope(
            (scope["subset"][0], scope["subset"][1]), tuple(scope["keys"]), tuple(scope["recipes"]), scope["dataset"]
        ),
    )


def _time_of(note: str) -> int:
    return int(json.loads(note)["began"])


def named_keys(store: Store, dataset: str) -> set[bytes]:
    """Every entry that a snapshot of this dataset names; `NoSnapshotError` where it has none."""
    files = [file for file in store.snapshots() if file.dataset == dataset]
    if not files:
        raise NoSnapshotError(store.path, dataset)
    keys: set[bytes] = set()
    for file in files:
        keys.update(split(read_snapshot(file).all_keys()))
    return keys
