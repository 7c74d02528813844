"""Usage: what takes space in a store, and who uses it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from precook.errors import DamagedPackError, NewerFormatError, StoreReadError
from precook.store.index.scan import Chunk, EntryScan
from precook.store.keysets import KeySet, among, beginnings, in_columns, keyset
from precook.store.snapshot import Snapshot, SnapshotFile, read_snapshot, with_snapshots
from precook.store.store import Store
from precook.values import Flags

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
    internals = store.internals()
    datasets, unreadable = with_snapshots(internals.layout, _read_latest)
    scan = EntryScan(internals.layout, internals.index)
    unnamed, ages = _Count(), [_Count() for _ in AGES]
    for chunk in scan.chunks():
        named = [dataset.keys.among(chunk.starts) & chunk.fresh for dataset in datasets]
        users = np.sum(named, axis=0) if named else np.zeros(len(chunk.keys), np.int64)
        for dataset, held in zip(datasets, named, strict=True):
            dataset.add(chunk, held, held & (users > 1))
        unnamed.add(chunk, chunk.fresh & (users == 0))
        old = scan.now - chunk.touched
        for number, (_, limit) in enumerate(AGES):
            since = AGES[number - 1][1] if number else -1
            assert since is not None
            ages[number].add(chunk, chunk.fresh & (old > since) & (True if limit is None else old <= limit))
    return Usage(
        datasets=tuple(dataset.usage() for dataset in datasets),
        unnamed=unnamed.part(""),
        ages=tuple(count.part(name) for count, (name, _) in zip(ages, AGES, strict=True)),
        unreadable=tuple(unreadable),
    )


def _read_latest(listed: list[SnapshotFile]) -> tuple[list[_DatasetCount], list[SnapshotFile]]:
    """The latest snapshot of each dataset, to count what it names, and those that cannot be read."""
    datasets: list[_DatasetCount] = []
    unreadable: list[SnapshotFile] = []
    for _, group in groupby(listed, key=lambda file: file.dataset):
        files = list(group)
        try:
            datasets.append(_DatasetCount(read_snapshot(files[-1]), len(files)))
        except (DamagedPackError, StoreReadError, NewerFormatError):
            unreadable.append(files[-1])
    return datasets, unreadable


class _Count:
    """A number of entries and their bytes."""

    def __init__(self) -> None:
        self.entries = self.nbytes = 0

    def add(self, chunk: Chunk, counted: Flags) -> None:
        """Count some of a chunk's entries."""
        self.entries += int(counted.sum())
        self.nbytes += int(chunk.nbytes[counted].sum())

    def part(self, name: str) -> UsagePart:
        """The same as a value."""
        return UsagePart(name, self.entries, self.nbytes)


class _DatasetCount:
    """What the latest snapshot of a dataset names, counted as the entries come by."""

    def __init__(self, snapshot: Snapshot, snapshots: int) -> None:
        self._snapshot = snapshot
        self._snapshots = snapshots
        self.keys = in_columns(snapshot.key_columns())
        self._all, self._shared = _Count(), _Count()
        content = snapshot.content
        targets = content.pictures.target[:, 0]
        self._resolutions: dict[str, tuple[KeySet, _Count]] = {}
        """The keys of cut pictures and masks, by the resolution as the config has it."""
        for number, resolution in enumerate(content.image.resolutions):
            columns = [keys[targets == number] for keys in content.picture_keys.values()]
            if content.pairs is not None:
                columns += [keys[targets[content.pairs.cut] == number] for keys in content.pair_keys.values()]
            cuts = keyset([beginnings(keys[keys.any(axis=1)]) for keys in columns])
            self._resolutions[str(resolution)] = cuts, _Count()

    def add(self, chunk: Chunk, held: Flags, shared: Flags) -> None:
        """Count the entries that it names, and those of them that other datasets name, too."""
        self._all.add(chunk, held)
        self._shared.add(chunk, shared)
        for keys, count in self._resolutions.values():
            count.add(chunk, held & among(chunk.starts, keys))

    def usage(self) -> DatasetUsage:
        """What was counted."""
        file = self._snapshot.file
        return DatasetUsage(
            dataset=file.dataset,
            snapshot=file,
            snapshots=self._snapshots,
            samples=self._snapshot.samples,
            entries=self._all.entries,
            nbytes=self._all.nbytes,
            shared=self._shared.nbytes,
            resolutions=tuple(count.part(name) for name, (_, count) in self._resolutions.items()),
        )
