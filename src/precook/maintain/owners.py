"""Owners: which datasets and samples need an entry, and which entries a dataset needs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from precook.errors import DamagedPackError, NewerFormatError, NoSnapshotError, StoreReadError
from precook.store.keysets import among, beginnings, keyset, rows_that_begin_with, split
from precook.store.layout import Layout
from precook.store.snapshot import Snapshot, SnapshotFile, read_snapshot, with_snapshots
from precook.store.snapshot_content import Small, SnapshotContent
from precook.store.store import Store
from precook.values import Bytes


@dataclass(frozen=True, slots=True)
class Owner:
    """A sample that needs an entry."""

    dataset: str
    snapshot: int
    """The number of the newest snapshot of that dataset that names the entry."""
    encoder: str
    sample: str | None
    """The sample's id; None for the empty prompt."""
    concept: str | None
    path: str | None
    """The picture's, where the snapshot keeps paths."""
    image: bytes | None = None
    """The digest of its picture."""

    def as_json(self) -> dict[str, object]:
        """What `--json` tells of it."""
        return {
            "dataset": self.dataset,
            "snapshot": self.snapshot,
            "encoder": self.encoder,
            "sample": self.sample,
            "concept": self.concept,
            "path": self.path,
        }


@dataclass(frozen=True, slots=True)
class SnapshotSample:
    """A sample as a snapshot has it."""

    dataset: str
    snapshot: int
    """The number of the newest snapshot of that dataset that has it."""
    sample: str
    concept: str
    path: str | None
    image: bytes
    entries: tuple[tuple[str, str], ...]
    """The encoder and the key of each of its entries."""


def dataset_keys(store: Store, dataset: str) -> set[bytes]:
    """Every entry that a snapshot of this dataset names; `NoSnapshotError` where it has none."""

    def keys_in(listed: list[SnapshotFile]) -> set[bytes]:
        files = [file for file in listed if file.dataset == dataset]
        if not files:
            raise NoSnapshotError(store.location, dataset)
        return {key for file in files for key in split(read_snapshot(file).all_keys())}

    return with_snapshots(Layout(store.path), keys_in)


def find_owners(store: Store, keys: Collection[bytes]) -> dict[bytes, list[Owner]]:
    """Who needs some entries: in each dataset, by the newest snapshot that names them."""
    owners: dict[bytes, list[Owner]] = {}
    if not keys:
        return owners
    for _, files in groupby(store.snapshots(), key=lambda file: file.dataset):
        left = set(keys)
        for file in reversed(list(files)):
            if not left:
                break
            try:
                snapshot = read_snapshot(file)
            except (DamagedPackError, StoreReadError, NewerFormatError, FileNotFoundError):
                continue  # `verify` lists it, or it was removed just now
            named = set()
            for key, owner in _owners(snapshot, left):
                owners.setdefault(key, []).append(owner)
                named.add(key)
            left -= named
    return owners


def _owners(snapshot: Snapshot, keys: set[bytes]) -> Iterator[tuple[bytes, Owner]]:
    """Each of the keys that a snapshot names, with every sample that needs it."""
    content = snapshot.content
    beginning = keyset([beginnings(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32))])
    for columns, samples in _places(content):
        for encoder, column in columns.items():
            for row in np.flatnonzero(among(beginnings(column), beginning)).tolist():
                if (key := column[row].tobytes()) in keys:
                    yield key, _owner(snapshot, encoder, int(samples[row]))
    for encoder, column in content.empty_keys.items():
        if (key := column.tobytes()) in keys:
            yield key, Owner(snapshot.file.dataset, snapshot.file.number, encoder, None, None, None)


def _owner(snapshot: Snapshot, encoder: str, sample: int) -> Owner:
    content = snapshot.content
    return Owner(
        dataset=snapshot.file.dataset,
        snapshot=snapshot.file.number,
        encoder=encoder,
        sample=content.samples.id[sample].tobytes().hex(),
        concept=content.concepts[int(content.samples.concept[sample])].name,
        path=None if content.paths is None else os.fsdecode(content.paths[sample]),
        image=content.samples.image[sample].tobytes(),
    )


def find_samples(store: Store, digits: str) -> list[SnapshotSample]:
    """The samples whose identity begins with some digits: in each dataset, by the newest snapshot that has them."""
    found: list[SnapshotSample] = []
    for _, files in groupby(store.snapshots(), key=lambda file: file.dataset):
        for file in reversed(list(files)):
            try:
                content = read_snapshot(file).content
            except (DamagedPackError, StoreReadError, NewerFormatError, FileNotFoundError):
                continue  # as above
            rows = rows_that_begin_with(content.samples.id, digits)
            found += [_sample(file, content, row) for row in rows]
            if rows:
                break
    return found


def _sample(file: SnapshotFile, content: SnapshotContent, row: int) -> SnapshotSample:
    return SnapshotSample(
        dataset=file.dataset,
        snapshot=file.number,
        sample=content.samples.id[row].tobytes().hex(),
        concept=content.concepts[int(content.samples.concept[row])].name,
        path=None if content.paths is None else os.fsdecode(content.paths[row]),
        image=content.samples.image[row].tobytes(),
        entries=tuple(_entries(content, row)),
    )


def _entries(content: SnapshotContent, sample: int) -> Iterator[tuple[str, str]]:
    """The entries of one sample, encoder by encoder; zeros stand for a mask that nobody has."""
    places = _places(content)
    for name in content.encoders:
        for columns, samples in places:
            for row in np.flatnonzero(samples == sample).tolist() if name in columns else ():
                if columns[name][row].any():
                    yield name, columns[name][row].tobytes().hex()


def _places(content: SnapshotContent) -> list[tuple[dict[str, Bytes], Small]]:
    """All columns of keys that belong to samples, each with the sample of each row."""
    places = [(content.picture_keys, content.pictures.sample), (content.line_keys, content.lines.sample)]
    if content.pairs is not None:
        places.append((content.pair_keys, content.pictures.sample[content.pairs.cut]))
    return places
