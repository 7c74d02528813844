"""Manifests: what a group of a cache was made of, kept as a snapshot, so that it can be trained on without sources.

A manifest is a snapshot like every other: it keeps its entries from being collected, travels in exports, and the
newest one of a group counts. What only mgds needs stands in a part of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.integrations.mgds_groups import CacheGroup
from precook.store.snapshot import FORMAT
from precook.store.store import Store
from precook.values import Bytes


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The samples of one group, as they were built."""

    size: int
    keys: dict[int, Bytes]
    """By variation, the key of each member's entry."""
    paths: dict[str, list[str]]
    """By name, the path of each member, for names that are paths."""
    concepts: npt.NDArray[np.int32]
    """Which of the group's concepts each member belongs to."""
    aggregates: dict[int, Bytes]
    """By variation, the key of the entry that holds the aggregates of all members, where there is one."""


def manifest_name(cache: str, group: str, names: Sequence[str], model: object) -> str:
    """The dataset's name for a group of a cache: another model or other names are another dataset."""
    which = digest(canonical([group, sorted(names), model])).hex[:24]
    label = "".join(char if char.isalnum() and char.isascii() else "-" for char in cache)[:24]
    return f"mgds-{label}-{which}"


def write_manifest(store: Store, name: str, manifest: GroupRecord, group: CacheGroup, recipe: Recipe) -> None:
    """Keep a manifest; one that is the latest already is not written again."""
    count, variations = manifest.size, sorted(manifest.keys)
    members = np.arange(count, dtype=np.int32)
    targets = [np.stack([np.zeros(count, np.int32), np.full(count, one, np.int32)], axis=1) for one in variations]
    keys = np.concatenate([manifest.keys[one] for one in variations])
    tree: dict[str, Any] = {
        "format": FORMAT,
        "dataset": name,
        "image": {"resolutions": [], "variations": group.variations, "pick": "random"},
        "concepts": [
            {"name": f"{group.key}-{at}", "loss_weight": 1.0, "repeats": 1.0, "samples": None}
            for at in range(int(manifest.concepts.max(initial=-1)) + 1)
        ],
        "encoders": {
            "entry": {"input": "image", "recipe": recipe.form.decode("ascii")},
            **{f"aggregates-{one}": {"input": "image", "recipe": ""} for one in manifest.aggregates},
        },
        "samples": {
            "id": manifest.keys[variations[0]],
            "image": manifest.keys[variations[0]],
            "concept": manifest.concepts,
        },
        "pictures": {
            "sample": np.tile(members, len(variations)),
            "target": np.concatenate(targets),
            "size": np.zeros((len(keys), 2), np.int32),
        },
        "picture_keys": {"entry": keys},
        "lines": {"sample": np.zeros(0, np.int32)},
        "line_keys": {},
        "empty_keys": {f"aggregates-{one}": key for one, key in manifest.aggregates.items()},
        "mgds": {"variations": variations, "paths": {name: _pack(texts) for name, texts in manifest.paths.items()}},
    }
    store.freeze(name, tree)


def read_manifest(store: Store, name: str) -> GroupRecord:
    """The latest manifest of a group; `NoSnapshotError` where it was never built."""
    content: Mapping[str, Any] = store.snapshot(name).content
    variations: list[int] = content["mgds"]["variations"]
    count = len(content["samples"]["concept"])
    keys = content["picture_keys"]["entry"].reshape(len(variations), count, 32)
    paths = {one: _unpack(texts) for one, texts in content["mgds"]["paths"].items()}
    return GroupRecord(count, dict(zip(variations, keys, strict=True)), paths, content["samples"]["concept"], {})


def _pack(texts: Sequence[str]) -> dict[str, Any]:
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return {"text": np.frombuffer(b"".join(parts), np.uint8), "ends": ends}


def _unpack(column: Mapping[str, Any]) -> list[str]:
    text, ends = column["text"].tobytes(), column["ends"].tolist()
    return [text[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False)]
