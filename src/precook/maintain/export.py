"""What every export needs: the snapshot that is meant, and the entries that it names, read and checked."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.errors import (
    DamagedEntryError,
    MissingEntryError,
    NoSnapshotError,
    PrecookError,
    SnapshotEntriesError,
    printable,
)
from precook.identity.recipe import recipe_digest
from precook.store import files
from precook.store.entry_table import EntryTable
from precook.store.format.build import Entry
from precook.store.format.pack import NO_RECIPE, checksum
from precook.store.layout import Layout
from precook.store.leaves import Leaf
from precook.store.packfile import TableFile
from precook.store.snapshot import Snapshot, SnapshotFile, read_snapshot, with_snapshots
from precook.store.store import Store
from precook.store.tree import Parts
from precook.values import Array, Bytes, Key, Numbers

FOREIGN = "precook did not write it: move it away, or export to another name"
"""The hint where a name is taken by something that no export may replace."""
_NO_LABELS = b"null"


@contextlib.contextmanager
def hold_snapshot(store: Store, dataset: str, name: str | None = None) -> Iterator[Snapshot]:
    """The latest snapshot of a dataset, or the one with this number or these first digits of its id.

    What it names stays until the export is over.
    """
    layout = Layout(store.path)

    def choose(listed: list[SnapshotFile]) -> SnapshotFile:
        return _choose(store, listed, dataset, name)

    def read() -> Snapshot:
        return with_snapshots(layout, lambda listed: read_snapshot(choose(listed)))

    chosen = read()
    with store.lease(f"export of {dataset}") as lease:
        files.reached("export.chosen")
        lease.protect(chosen.entry_keys())
        # Before that call a newer one may have taken its place, and a collection what only this one names.
        while with_snapshots(layout, choose).id != chosen.file.id:
            chosen = read()
            lease.protect(chosen.entry_keys())
        yield chosen


def _choose(store: Store, listed: list[SnapshotFile], dataset: str, name: str | None) -> SnapshotFile:
    """The one that is meant among these."""
    snapshots = [file for file in listed if file.dataset == dataset]
    if not snapshots:
        raise NoSnapshotError(store.location, dataset)
    if name is None:
        return snapshots[-1]
    meant = [file for file in snapshots if is_meant(file, name)]
    if len(meant) != 1:
        many = "more than one snapshot" if meant else "no snapshot"
        names = ", ".join(f"{file.number} ({file.id[:8]})" for file in snapshots[-5:])
        raise PrecookError(
            f"{many} of {printable(dataset)!r} is meant by {printable(name)!r}",
            hint=f"give its number or the first digits of its id; there are {names}",
        )
    return meant[0]


def is_meant(file: SnapshotFile, name: str) -> bool:
    """Whether a snapshot is named by its number, or by at least four digits of its id."""
    if name.isdigit() and int(name) == file.number:
        return True
    return len(name) >= 4 and file.id.startswith(name.lower())  # noqa: PLR2004 - fewer are a number


def name_taken(path: Path, hint: str = "--force replaces it") -> PrecookError:
    """The error for an export to a name that is taken."""
    return wrong_place(f"{printable(path)} exists already", hint)


def wrong_place(message: str, hint: str) -> PrecookError:
    """The error for an export to a place where nothing can be written."""
    error = PrecookError(message, hint=hint)
    error.exit_code = 2
    return error


@dataclass(frozen=True, slots=True, eq=False)
class EntryList:
    """Some entries in the order in which they lie on the disk: packs by name, then row by row."""

    places: EntryTable
    numbers: Numbers
    """The number of each entry in `places`, in that order."""
    nbytes: Numbers
    """What each of them takes."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def keys(self) -> Bytes:
        """Their keys, one per row."""
        return self.places.keys[self.numbers]


class EntryReader:
    """Reads the entries that a snapshot names, and notes those that cannot be read."""

    def __init__(self, store: Store, dataset: str) -> None:
        self._store = store
        self._dataset = dataset
        self._lost: dict[bytes, str] = {}
        """Entries that cannot be read, and why."""

    def find(self, keys: Bytes) -> EntryList:
        """Where some entries lie; those that are missing are noted."""
        internals = self._store.internals()
        (places,) = EntryTable.find_all(internals.lookup, [keys], verify=True)
        self._note_missing(places)
        numbers = np.flatnonzero(places.there(np.arange(len(keys))))
        tables, rows = places.locate(numbers)
        in_order = sorted(places.tables, key=lambda number: _position(places.tables[number]))
        ranks = np.empty(len(in_order), np.int64)
        ranks[in_order] = np.arange(len(in_order))
        order = np.lexsort((rows, ranks[tables]))
        numbers, tables, rows = numbers[order], tables[order], rows[order]
        nbytes = np.zeros(len(numbers), np.int64)
        for run in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(tables)) + 1) if len(numbers) else ():
            nbytes[run] = places.tables[int(tables[run[0]])].table.row_bytes()[rows[run]]
        return EntryList(places, numbers, nbytes)

    def _note_missing(self, places: EntryTable) -> None:
        damaged = self._store.damaged() if len(places.missing) else {}
        bad_packs = self._store.internals().packs.bad_packs
        for number in places.missing.tolist():
            key = places.keys[number].tobytes()
            bad_pack = bad_packs.get(places.refused.get(key, ""))
            self._lost[key] = damaged.get(key) or bad_pack or "there is no such entry"

    def read(self, entries: EntryList, some: slice) -> list[Entry]:
        """Some of these entries without their labels; those that cannot be read are left out and noted."""
        read: list[Entry] = []
        for number in entries.numbers[some].tolist():
            try:
                read.append(without_labels(stored_entry(*entries.places.read(number))))
            except DamagedEntryError as error:
                self._lost[error.key.bytes] = error.reason
            except MissingEntryError as error:
                self._lost[error.key.bytes] = error.message
        return read

    @property
    def complete(self) -> bool:
        """Whether every entry could be read so far."""
        return not self._lost

    def check(self) -> None:
        """`SnapshotEntriesError` that lists every entry that could not be read, if there are any."""
        if self._lost:
            entries = tuple((Key(key), reason) for key, reason in sorted(self._lost.items()))
            raise SnapshotEntriesError(self._store.location, self._dataset, entries)


def _position(table: TableFile) -> tuple[str, int]:
    """Where a table stands: its pack, and its first row there."""
    return table.pack.head.id, table.pack.first_row(table)


def stored_entry(table: TableFile, row: int, arrays: Sequence[Array]) -> Entry:
    """A row of a pack as an entry that can be written elsewhere; `arrays` are its leaves."""
    leaves = tuple(
        Leaf(leaf.dtype, leaf.library, array.shape, array.reshape(-1).view("u1"))
        for leaf, array in zip(table.table.leaves, arrays, strict=True)
    )
    number = table.table.recipes.item(row)
    return Entry(
        key=table.key(row),
        parts=Parts(
            skeleton=table.table.skeleton,
            leaves=leaves,
            # For people only, as in the pack it comes from: what tells equal names apart is added anew.
            paths=tuple(leaf.name.partition("leaf.")[2].partition("~")[0] for leaf in table.table.leaves),
            values=table.table.values.row(row),
        ),
        recipe=table.pack.head.recipes[number - 1] if number else b"",
        labels=table.table.labels.row(row),
        checksum=table.table.checksums[row].tobytes(),
        made=table.pack.head.made[number],
    )


def without_labels(entry: Entry) -> Entry:
    """The same entry without what its maker noted beside it, which is not for others."""
    if entry.labels == _NO_LABELS:
        return entry
    changed = checksum(
        key=entry.key,
        recipe=recipe_digest(entry.recipe).bytes if entry.recipe else NO_RECIPE,
        skeleton=entry.parts.skeleton,
        values=entry.parts.values,
        labels=_NO_LABELS,
        leaves=((leaf.shape, (leaf.data,)) for leaf in entry.parts.leaves),
    )
    return dataclasses.replace(entry, labels=_NO_LABELS, checksum=changed)
