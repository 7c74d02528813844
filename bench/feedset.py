"""Training sets for feeds: entries put straight into a store, and the snapshot that names them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import precook
from bench.samples import Kind, Samples, Tree
from precook.store.snapshot_content import SnapshotContent

DATASET = "bench"
ENCODERS: dict[Kind, dict[str, str]] = {
    "large": {"latent": "image", "prompt": "text"},
    "small": {"tokens": "text"},
}
"""What a feed calls the parts of a sample, and what they are made of."""
_SIDE = 512


def store_samples(folder: Path, samples: Samples) -> None:
    """Samples as a build would leave them: an entry for each encoder, and a snapshot that keeps captions."""
    captions = [tree["caption"] for tree in samples.trees] if samples.kind == "large" else None
    store_entries(folder, ENCODERS[samples.kind], len(samples), _entries(samples), captions=captions)


def _entries(samples: Samples) -> Iterator[Tree]:
    for tree in samples.trees:
        if samples.kind == "large":
            yield {"latent": tree["latent"], "prompt": {"hidden": tree["prompt"]}}
        else:
            yield {"tokens": {"ids": tree["ids"], "attention": tree["mask"]}}


def store_entries(
    folder: Path, encoders: dict[str, str], count: int, entries: Iterable[Tree], *, captions: list[str] | None = None
) -> float:
    """Put an entry of each encoder for each sample and freeze them; the seconds that took."""
    start = time.perf_counter()
    recipes = {name: precook.Recipe(f"bench-{name}", {}) for name in encoders}
    keys = {name: np.zeros((count, 32), np.uint8) for name in encoders}
    with precook.open(folder) as store:
        with store.writer() as writer:
            for number, entry in enumerate(entries):
                for name, tree in entry.items():
                    key = recipes[name].key(number)
                    keys[name][number] = np.frombuffer(key.bytes, np.uint8)
                    writer.put(key, tree, recipe=recipes[name])
        store.freeze(DATASET, SnapshotContent.of(_tree(encoders, recipes, keys, captions)))
    return time.perf_counter() - start


def _tree(
    encoders: dict[str, str],
    recipes: dict[str, precook.Recipe],
    keys: dict[str, Any],
    captions: list[str] | None,
) -> dict[str, Any]:
    """What docs/reference/format.md calls a snapshot: samples of one size with one caption each."""
    count = len(next(iter(keys.values())))
    ids = np.zeros((count, 32), np.uint8)
    ids[:, :8] = np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)
    numbers = np.arange(count, dtype=np.int32)
    tree = {
        "format": 1,
        "dataset": DATASET,
        "image": {"resolutions": [_SIDE], "variations": 1, "pick": "one"},
        "concepts": [{"name": "bench", "loss_weight": 1.0, "repeats": 1.0, "samples": None}],
        "encoders": {
            name: {"input": given, "recipe": recipes[name].form.decode("ascii")} for name, given in encoders.items()
        },
        "samples": {"id": ids, "image": ids, "concept": np.zeros(count, np.int32)},
        "pictures": {
            "sample": numbers,
            "target": np.zeros((count, 2), np.int32),
            "size": np.full((count, 2), _SIDE, np.int32),
        },
        "picture_keys": {name: keys[name] for name, given in encoders.items() if given != "text"},
        "lines": {"sample": numbers},
        "line_keys": {name: keys[name] for name, given in encoders.items() if given == "text"},
        "empty_keys": {},
    }
    if captions is not None:
        texts = [text.encode() for text in captions]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        tree["captions"] = {"text": np.frombuffer(b"".join(texts), np.uint8), "ends": ends}
    return tree


def batch_bytes(batch: dict[str, Any]) -> int:
    """Bytes of the tensors of a batch."""
    total = 0
    for value in batch.values():
        if isinstance(value, dict):
            total += batch_bytes(value)
        elif hasattr(value, "element_size"):
            total += value.element_size() * math.prod(value.shape)
    return total
