"""Owners: which datasets and samples need an entry."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from precook.errors import DamagedPackError, NewerFormatError
from precook.store.keysets import among, beginnings, keyset
from precook.store.snapshot import Snapshot, read_snapshot
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


def find_owners(store: Store, keys: Collection[bytes]) -> dict[bytes, list[Owner]]:
    """Who needs some entries: in each dataset, by the newest snapshot that names them."""
    found: dict[bytes, list[Owner]] = {}
    wanted = set(keys)
    if not wanted:
        return found
    for _, group in groupby(store.snapshots(), key=lambda file: file.dataset):
        left = set(wanted)
        for file in reversed(list(group)):
            if not left:
                break
            try:
                snapshot = read_snapshot(file)
            except (DamagedPackError, NewerFormatError, FileNotFoundError):
                continue  # `verify` lists it
            named = [(key, owner) for key, owner in _owners(snapshot, left)]
            for key, owner in named:
                found.setdefault(key, []).append(owner)
            left -= {key for key, _ in named}
    return found


def _owners(snapshot: Snapshot, keys: set[bytes]) -> Iterator[tuple[bytes, Owner]]:
    content = snapshot.content
    first = keyset([beginnings(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32))])
    for columns, samples in (
        (content.picture_keys, content.pictures.sample),
        (content.line_keys, content.lines.sample),
    ):
        for encoder, column in columns.items():
            for row in np.flatnonzero(among(beginnings(column), first)).tolist():
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
