"""Snapshots of entries that are already there, without a build."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import precook
from precook.store.snapshot_content import (
    FrozenConcept,
    FrozenEncoder,
    FrozenImage,
    LineColumns,
    PictureColumns,
    SampleColumns,
    SnapshotContent,
)


def columns(keys: Sequence[precook.Key]) -> np.ndarray:
    """Keys as rows of 32 bytes."""
    return np.frombuffer(b"".join(key.bytes for key in keys), np.uint8).reshape(-1, 32)


def freeze(store: precook.Store, dataset: str, keys: Sequence[precook.Key]) -> precook.Snapshot:
    """A snapshot of a dataset of so many pictures, whose latents are these entries."""
    count = len(keys)
    numbers = np.arange(count, dtype=np.int32)
    ids = np.repeat(numbers.astype(np.uint8)[:, None] + 1, 32, axis=1)
    content = SnapshotContent(
        dataset=dataset,
        image=FrozenImage([512], variations=1, pick="one"),
        concepts=[FrozenConcept("all", loss_weight=1.0, repeats=1.0)],
        encoders={"latent": FrozenEncoder("image", '["frozen",{}]')},
        samples=SampleColumns(ids, ids, numbers * 0),
        pictures=PictureColumns(numbers, np.zeros((count, 2), np.int32), np.ones((count, 2), np.int32)),
        picture_keys={"latent": columns(keys)},
        lines=LineColumns(numbers[:0]),
        line_keys={},
        empty_keys={},
    )
    return store.freeze(dataset, content)


def repeated(content: SnapshotContent, repeats: float) -> SnapshotContent:
    """The same with another number of repeats for its first concept: another snapshot of the same entries."""
    first = dataclasses.replace(content.concepts[0], repeats=repeats)
    return dataclasses.replace(content, concepts=[first, *content.concepts[1:]])


def packs(path: Path) -> list[Path]:
    """The packs of a store, the oldest first."""
    return sorted(path.glob("packs/*/*.safetensors"), key=lambda pack: pack.stat().st_mtime_ns)


def disk_bytes(path: Path) -> int:
    """What packs and snapshots take on the disk."""
    return sum(file.stat().st_size for file in path.rglob("*.safetensors"))


def make_older(path: Path, seconds: float) -> None:
    """Let all packs and snapshots have been written so long ago."""
    for file in path.rglob("*.safetensors"):
        modified = file.stat().st_mtime_ns - int(seconds * 1e9)
        os.utime(file, ns=(modified, modified))


def put_packs(store: precook.Store, recipe: precook.Recipe, groups: Sequence[Sequence[int]], size: int = 1000) -> None:
    """Entries by number, one pack for each group."""
    for group in groups:
        with store.writer() as writer:
            for number in group:
                writer.put(recipe.key(number), {"x": np.full(size, number), "number": number}, recipe=recipe)
