"""Verification: every byte of the packs and snapshots is read and checked, and that entries are there; it only looks.

Others may build and remove meanwhile. What they remove is not damage: a removal takes names from the index before it
takes files, so a file that is gone is looked up once more, and what the index still names then is missing indeed.

A verification of part of a store is described by a `Scope`, and one that stops early leaves a `VerifyCursor` from which
the next one with the same scope goes on. Cursors are kept in the index's memory.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from precook.errors import DamagedPackError, NewerFormatError, StoreReadError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.maintain.owners import dataset_keys
from precook.maintain.protect import Roots
from precook.report import SILENT, Reporter
from precook.store import files
from precook.store.index.index import Place
from precook.store.internals import StoreInternals
from precook.store.keysets import BLOCK, split
from precook.store.packfile import PackFile, damage_reason
from precook.store.snapshot import SnapshotFile, list_snapshots, read_snapshot
from precook.store.store import Store
from precook.values import Flags, Key

_NO_KEY = bytes(32)
"""What stands in a snapshot for a mask that nobody has."""
_NOTES = "verify"
_KEPT = 50
"""Cursors that are kept, at the most."""


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
    refused: bool = False
    """Whether the system refused to read it: that may pass, and says nothing about the bytes."""


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
    lost: tuple[Key, ...] = ()
    """Entries that the latest snapshot of a dataset names, or a pinned one, and that no pack holds."""

    @property
    def clean(self) -> bool:
        """Whether nothing damaged was found and nothing is missing."""
        return not self.damage and not self.lost

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

    def rows(self, pack: PackFile) -> Flags:
        """Which rows of a pack are meant."""
        chosen = np.ones(pack.head.rows, bool)
        if self.recipes is not None:
            meant = np.array([digest in self.recipes for digest in pack.head.recipe_digests], bool)
            chosen &= meant[np.concatenate([np.zeros(0, np.int64), *(table.recipes for table in pack.head.tables)])]
        if self.keys is not None:
            keys = (key for table in pack.head.tables for key in split(table.keys))
            chosen &= np.fromiter((key in self.keys for key in keys), bool, len(chosen))
        return chosen


EVERYTHING = PackSelection()


@dataclass(frozen=True, slots=True)
class Scope:
    """What a verification looks at, in words that stay the same from one run to the next."""

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
        """What a cursor with these settings is kept under."""
        return digest(canonical(asdict(self))).bytes

    def selection(self, store: Store) -> PackSelection:
        """The entries that are meant; those of a dataset are what all its snapshots name."""
        keys: set[bytes] | None = {bytes.fromhex(key) for key in self.keys} if self.keys else None
        if self.dataset is not None:
            named = dataset_keys(store, self.dataset)
            keys = named if keys is None else keys & named
        recipes = frozenset(map(bytes.fromhex, self.recipes)) if self.recipes else None
        return PackSelection(frozenset(keys) if keys is not None else None, recipes)


@dataclass(frozen=True, slots=True)
class VerifyCursor:
    """How far a look at all that a scope means has come, in one run or in several."""

    began: int
    """Unix seconds."""
    finished: int | None
    after: str
    """The last pack that was looked at."""
    packs: int
    damaged: int
    scope: Scope


def verify_store(
    internals: StoreInternals,
    *,
    subset: tuple[int, int] = (1, 1),
    max_seconds: float | None = None,
    selection: PackSelection = EVERYTHING,
    after: str | None = None,
    report: Reporter = SILENT,
) -> Verification:
    """Check the k-th of n parts of all packs, for so many seconds at most, and the snapshots if everything is meant.

    `after` begins behind a pack of this name, "" at the first one. Rows that were dropped are nobody's any more. At the
    end it looks whether all that snapshots need is there.
    """
    part, parts = subset
    if not 1 <= part <= parts:
        message = f"subset {part}/{parts}: give k/n with k from 1 to n"
        raise ValueError(message)
    started = time.monotonic()
    names = sorted(internals.pack_names())
    files.reached("verify.listed")
    chosen = [name for name in names if int(name[:8], 16) % parts == part - 1 and name > (after or "")]
    if max_seconds is not None and after is None:
        # Whoever stops early and keeps no cursor starts elsewhere next time: short checks cover everything in time.
        random.shuffle(chosen)
    snapshots = list_snapshots(internals.layout) if selection == EVERYTHING else []
    files.reached("snapshots.listed")
    damage = [damaged for file in snapshots for damaged in _check_snapshot(file)]
    packs = entries = nbytes = 0
    rows_of: dict[Path, int] = {}
    last, finished = after or "", True
    with report.task("verify", total=len(chosen), unit="packs") as task:
        for name in chosen:
            # One at least: whoever gives it too little time still comes to the end.
            if packs and max_seconds is not None and time.monotonic() - started > max_seconds:
                finished = False
                break
            try:
                pack = internals.open_pack(name)
                files.reached("verify.opened")
            except FileNotFoundError:
                continue  # removed since it was listed
            except (DamagedPackError, OSError) as error:
                path = internals.layout.pack(name)
                refused = isinstance(error, OSError)
                damage.append(Damage(path, None, None, damage_reason(error, path), refused=refused))
            else:
                rows = selection.rows(pack) & ~internals.index.dropped_rows(name, pack.head.rows)
                damage += check_pack(pack, rows)
                rows_of[pack.path] = pack.head.rows
                entries += int(rows.sum())
                sizes = np.concatenate([np.zeros(0, np.int64), *(table.row_bytes() for table in pack.head.tables)])
                nbytes += pack.nbytes if rows.all() and selection == EVERYTHING else int(sizes[rows].sum())
            packs, last = packs + 1, name
            task.advance()
    files.reached("verify.read")
    damage = _still_there(internals, damage, rows_of)
    known = {damaged.key.bytes for damaged in damage if damaged.key is not None}
    lost = sorted(_find_lost(internals, selection) - known) if finished else []
    return Verification(
        packs=packs,
        packs_in_store=len(names),
        entries=entries,
        nbytes=nbytes,
        seconds=time.monotonic() - started,
        damage=tuple(damage),
        last=last,
        finished=finished,
        snapshots=len(snapshots),
        lost=tuple(map(Key, lost)),
    )


def _still_there(internals: StoreInternals, damage: Sequence[Damage], rows: dict[Path, int]) -> list[Damage]:
    """Those of some damages that are still in the store: somebody may have removed the others meanwhile.

    `rows` says how many a pack has.
    """
    there = []
    for path, found in groupby(damage, key=lambda damaged: damaged.pack):
        try:
            path.lstat()
        except FileNotFoundError:
            continue
        except OSError:
            pass  # it is there, and refused
        dropped = internals.index.dropped_rows(path.stem, rows[path]) if path in rows else None
        there += [one for one in found if dropped is None or one.row is None or not dropped[one.row]]
    return there


def _find_lost(internals: StoreInternals, selection: PackSelection) -> set[bytes]:
    """The keys of entries that the latest or a pinned snapshot names, if they are meant, and no pack holds.

    By what a recipe made nothing is told: a snapshot does not say which recipe made a key.
    """
    lost: set[bytes] = set()
    if selection.recipes is not None:
        return lost
    for file in Roots().of(list_snapshots(internals.layout)):
        missing = _missing(internals, file, selection)
        if missing:
            # The index may have been behind, or a removal was at work: that takes a snapshot before its entries, so
            # what a snapshot names that still counts, after the look, is missing indeed.
            internals.index.refresh()
            missing = missing & _missing(internals, file, selection)
            if file in Roots().of(list_snapshots(internals.layout)):
                lost |= missing
    return lost


def _missing(internals: StoreInternals, file: SnapshotFile, selection: PackSelection) -> set[bytes]:
    """What a snapshot names, of what is meant, and the index does not know."""
    missing: set[bytes] = set()
    try:
        columns = read_snapshot(file).key_columns()
    except (FileNotFoundError, DamagedPackError, StoreReadError, NewerFormatError):
        return missing  # removed since it was listed, or told as damage
    for column in columns:
        for start in range(0, len(column), BLOCK):
            keys = {*split(column[start : start + BLOCK])} - {_NO_KEY}
            keys = keys if selection.keys is None else keys & selection.keys
            missing |= keys - internals.index.present(list(keys))
    return missing


def check_pack(pack: PackFile, rows: Flags | None = None) -> Iterator[Damage]:
    """Read every row of a pack from the disk, or those that are meant, and check them."""
    if pack.nbytes != pack.head.file_bytes:
        reason = f"the file has {pack.nbytes} bytes and should have {pack.head.file_bytes}"
        yield Damage(pack.path, None, None, reason)
    else:
        try:
            # A second opinion: the format's own library has to agree that this is a safetensors file.
            with safetensors.safe_open(pack.path, framework="numpy"):
                pass
        except FileNotFoundError:
            return  # removed since it was opened
        except (safetensors.SafetensorError, OSError, MemoryError) as error:
            # Memory is what it has none of where the system has no more mappings to give.
            refused = not isinstance(error, safetensors.SafetensorError)
            yield Damage(pack.path, None, None, f"safetensors refuses it: {error}", refused=refused)
    try:
        for bad in pack.damage(None if rows is None else np.flatnonzero(rows).tolist()):
            table, number = pack.locate(bad.row)
            offset = table.table.leaves[0].span(number)[0] if table.table.leaves else None
            yield Damage(pack.path, Key(table.key(number)), offset, bad.reason, bad.row, bad.refused)
    except FileNotFoundError:
        return  # removed since it was opened
    except OSError as error:
        yield Damage(pack.path, None, None, damage_reason(error, pack.path), refused=True)


def _check_snapshot(file: SnapshotFile) -> Iterator[Damage]:
    try:
        read_snapshot(file)
    except NewerFormatError:
        return  # made by a newer precook, which can tell
    except (DamagedPackError, StoreReadError) as error:
        yield Damage(file.path, None, None, error.reason, refused=isinstance(error, StoreReadError))
    except FileNotFoundError:
        return  # removed since it was listed


def verify_scope(
    store: Store, scope: Scope, *, max_seconds: float | None = None, report: Reporter = SILENT
) -> tuple[Verification, VerifyCursor]:
    """Verify what a scope means, and say how far that has come; with `max_seconds` it goes on from the last cursor."""
    cursor = read_cursor(store, scope) if max_seconds is not None else None
    if cursor is None or cursor.finished is not None:
        cursor = VerifyCursor(int(time.time()), None, "", 0, 0, scope)
    verification = verify_store(
        store.internals(create=False),
        subset=scope.subset,
        max_seconds=max_seconds,
        selection=scope.selection(store),
        after=cursor.after,
        report=report,
    )
    return verification, replace(
        cursor,
        finished=int(time.time()) if verification.finished else None,
        after=verification.last,
        packs=cursor.packs + verification.packs,
        damaged=cursor.damaged + len(verification.damage) + len(verification.lost),
    )


def save_cursor(store: Store, cursor: VerifyCursor, damage: Sequence[Damage] = ()) -> None:
    """Keep how far a verification has come, and which entries it found damaged: from now on they are missing.

    Not those that the system refused to read: what is missing is not copied when its pack is written anew, and goes.
    """
    index = store.internals().index
    for entry in damage:
        if entry.key is not None and entry.row is not None and not entry.refused:
            index.mark_damaged(Place(entry.key.bytes, entry.pack.stem, entry.row), entry.reason)
    memory = store.memory()
    notes = memory.notes(_NOTES)
    # Each combination of settings leaves a cursor: without a bound they would only become more.
    oldest_first = sorted(notes, key=lambda key: int(json.loads(notes[key])["began"]))
    for key in oldest_first[: max(0, len(notes) - _KEPT)]:
        memory.write_note(_NOTES, key, None)
    memory.write_note(_NOTES, cursor.scope.key(), json.dumps(asdict(cursor)))
    store.remember(memory)


def read_cursor(store: Store, scope: Scope) -> VerifyCursor | None:
    """The last cursor with this scope."""
    note = store.memory().note(_NOTES, scope.key())
    return _parse_cursor(note) if note is not None else None


def last_full_verification(store: Store) -> VerifyCursor | None:
    """The last time that everything was looked at to the end; one that is under way does not count."""
    cursor = read_cursor(store, Scope())
    return cursor if cursor is not None and cursor.finished is not None else None


def unfinished_verifications(store: Store) -> list[VerifyCursor]:
    """Verifications that were begun and can go on."""
    cursors = [_parse_cursor(note) for note in store.memory().notes(_NOTES).values()]
    return [cursor for cursor in cursors if cursor.finished is None]


def _parse_cursor(note: str) -> VerifyCursor:
    form: dict[str, Any] = json.loads(note)
    scope = form.pop("scope")
    part, parts = scope["subset"]
    return VerifyCursor(
        **form, scope=Scope((part, parts), tuple(scope["keys"]), tuple(scope["recipes"]), scope["dataset"])
    )
