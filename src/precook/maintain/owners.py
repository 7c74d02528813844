"""Owners: which datasets and samples need an entry, and which entries a dataset needs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from precook.errors import DamagedPackError, NewerFormatError, NoSnapshotError, StoreReadError
from precook.store.keysets import among, beginnings, keyset, split
from precook.store.layout import Layout
from precook.store.snapshot import Snapshot, SnapshotFile, read_snapshot, with_snapshots
from precook.store.store import Store


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


def dataset_keys(store: Store, dataset: str) -> set[bytes]:
    """Every entry that a snapshot of this dataset names; `NoSnapshotError` where it has none."""

    def keys_in(listed: list[SnapshotFile]) -> set[bytes]:
        files = [file for file in listed if file.dataset == dataset]
        if not files:
            raise NoSnapshotError(store.path, dataset)
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
    for columns, samples in (
        (content.picture_keys, content.pictures.sample),
        (content.line_keys, content.lines.sample),
    ):
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
    )
