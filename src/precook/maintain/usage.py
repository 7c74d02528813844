"""Usage: what takes space in a store, and who uses it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from precook.errors import DamagedPackError, NewerFormatError
from precook.store.index.scan import Chunk, EntryScan
from precook.store.keysets import KeySet, among, beginnings, in_columns, keyset
from precook.store.snapshot import Snapshot, SnapshotFile, read_snapshot
from precook.store.store import Store

_DAY = 86400 * 10**9
AGES = (("today", _DAY), ("this week", 7 * _DAY), ("this month", 30 * _DAY), ("this year", 365 * _DAY), ("older", None))
"""How long ago, in nanoseconds, at the most."""


@dataclass(frozen=True, slots=True)
class UsagePart:
    """Some entries."""

    name: str
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class DatasetUsage:
    """What the latest snapshot of a dataset names."""

    dataset: str
    snapshot: SnapshotFile
    snapshots: int
    """How many there are of it."""
    samples: int
    entries: int
    nbytes: int
    shared: int
    """Bytes that other datasets need, too."""
    resolutions: tuple[UsagePart, ...]
    """What picture and mask encoders made, by resolution."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Who uses what in a store."""

    datasets: tuple[DatasetUsage, ...]
    unnamed: UsagePart
    """Entries that no dataset's latest snapshot names."""
    ages: tuple[UsagePart, ...]
    """By when they were last written or used."""
    unreadable: tuple[SnapshotFile, ...]
    """Latest snapshots that cannot be read: what they name is not known."""


def measure_usage(store: Store) -> Usage:
    """Count every entry, once for each of its keys; nothing is read but the index and the latest snapshots."""
    latest: list[tuple[SnapshotFile, int]] = []
    for _, group in groupby(store.snapshots(), key=lambda file: file.dataset):
        files = list(group)
        latest.append((files[-1], len(files)))
    shelves, unreadable = [], []
    for file, count in latest:
        try:
            shelves.append(_PackUse(read_snapshot(file), count))
        except (DamagedPackError, NewerFormatError):
            unreadable.append(file)
    internals = store.internals()
    scan = EntryScan(internals.layout, internals.index)
    unnamed, ages = _Sum(), [_Sum() for _ in AGES]
    for chunk in scan.chunks():
        named = [shelf.holds(chunk) & chunk.fresh for shelf in shelves]
        users = np.sum(named, axis=0) if named else np.zeros(len(chunk.keys), np.int64)
        for shelf, held in zip(shelves, named, strict=True):
            shelf.add(chunk, held, held & (users > 1))
        unnamed.add(chunk, chunk.fresh & (users == 0))
        old = scan.now - chunk.touched
        for number, (_, limit) in enumerate(AGES):
            since = AGES[number - 1][1] if number else -1
            assert since is not None
            ages[number].add(chunk, chunk.fresh & (old > since) & (True if limit is None else old <= limit))
    return Usage(
        datasets=tuple(shelf.usage() for shelf in shelves),
        unnamed=unnamed.part(""),
        ages=tuple(one.part(name) for one, (name, _) in zip(ages, AGES, strict=True)),
        unreadable=tuple(unreadable),
    )


class _Sum:
    """Entries and bytes, counted."""

    def __init__(self) -> None:
        self.entries = self.nbytes = 0

    def add(self, chunk: Chunk, held: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        self.entries += int(held.sum())
        self.nbytes += int(chunk.nbytes[held].sum())

    def part(self, name: str) -> UsagePart:
        return UsagePart(name, self.entries, self.nbytes)


class _PackUse:
    """What one snapshot names, counted as the entries come by."""

    def __init__(self, snapshot: Snapshot, snapshots: int) -> None:
        self._snapshot = snapshot
        self._snapshots = snapshots
        self._keys = in_columns(snapshot.key_columns())
        self._resolutions = {name: (keys, _Sum()) for name, keys in _by_resolution(snapshot).items()}
        self._all, self._shared = _Sum(), _Sum()

    def holds(self, chunk: Chunk) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return self._keys.among(chunk.starts)

    def add(
        self,
        chunk: Chunk,
        held: np.ndarray[tuple[int], np.dtype[np.bool_]],
        shared: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> None:
        self._all.add(chunk, held)
        self._shared.add(chunk, shared)
        for keys, total in self._resolutions.values():
            total.add(chunk, held & among(chunk.starts, keys))

    def usage(self) -> DatasetUsage:
        file = self._snapshot.file
        return DatasetUsage(
            dataset=file.dataset,
            snapshot=file,
            snapshots=self._snapshots,
            samples=self._snapshot.samples,
            entries=self._all.entries,
            nbytes=self._all.nbytes,
            shared=self._shared.nbytes,
            resolutions=tuple(total.part(name) for name, (_, total) in self._resolutions.items()),
        )


def _by_resolution(snapshot: Snapshot) -> dict[str, KeySet]:
    """The keys of cut pictures and masks, by the resolution as the config has it."""
    content = snapshot.content
    targets = content.pictures.target[:, 0]
    found = {}
    for number, resolution in enumerate(content.image.resolutions):
        columns = [keys[targets == number] for keys in content.picture_keys.values()]
        found[str(resolution)] = keyset([beginnings(keys[keys.any(axis=1)]) for keys in columns])
    return found
