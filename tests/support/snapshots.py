"""Snapshots of entries that are already there, without a build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import precook


def columns(keys: Sequence[precook.Key]) -> np.ndarray:
    """Keys as rows of 32 bytes."""
    return np.frombuffer(b"".join(key.bytes for key in keys), np.uint8).reshape(-1, 32)


def freeze(store: precook.Store, dataset: str, keys: Sequence[precook.Key]) -> precook.Snapshot:
    """A snapshot of a dataset of so many pictures, whose latents are these entries."""
    count = len(keys)
    numbers = np.arange(count, dtype=np.int32)
    ids = np.repeat(numbers.astype(np.uint8)[:, None] + 1, 32, axis=1)
    return store.freeze(
        dataset,
        {
            "format": 1,
            "dataset": dataset,
            "image": {"resolutions": [512], "variations": 1, "pick": "one"},
            "concepts": [{"name": "all", "loss_weight": 1.0, "repeats": 1.0, "samples": None}],
            "encoders": {"latent": {"input": "image", "recipe": '["frozen",{}]'}},
            "samples": {"id": ids, "image": ids, "concept": numbers * 0},
            "pictures": {
                "sample": numbers,
                "target": np.zeros((count, 2), np.int32),
                "size": np.ones((count, 2), np.int32),
            },
            "picture_keys": {"latent": columns(keys)},
            "lines": {"sample": numbers[:0]},
            "line_keys": {},
            "empty_keys": {},
        },
    )


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
