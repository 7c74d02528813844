"""Made-up snapshots and built projects, for tests of what a feed draws and what is in its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import precook
from precook.feed.content import FeedContent
from precook.store.snapshot_content import SnapshotContent
from tests.support.projects import Watched, picture, project

LATENT = precook.Recipe("latent", {})
PROMPT = precook.Recipe("prompt", {})


def tree(
    samples: list[tuple[str, int]],
    *,
    sizes: int = 1,
    resolutions: int = 1,
    variations: int = 1,
    lines: int = 1,
    shares: dict[str, dict[str, Any]] | None = None,
    pick: str = "one",
    pictures: bool = True,
) -> dict[str, Any]:
    """A snapshot of samples that are given as (concept, number); equal numbers are equal pictures.

    A picture's number decides everything else about it, whatever other samples there are.
    """
    names = sorted({concept for concept, _ in samples})
    images = [precook.digest(f"picture {number}").bytes for _, number in samples]
    ids = [
        precook.digest(f"{concept} {number} {samples[:at].count((concept, number))}").bytes
        for at, (concept, number) in enumerate(samples)
    ]
    order = sorted(range(len(samples)), key=lambda at: ids[at])
    cuts = [(resolution, variation) for resolution in range(resolutions) for variation in range(variations)]
    numbers = [samples[at][1] for at in order]
    picture_rows = [(row, cut, _size(number, cut[0], sizes)) for row, number in enumerate(numbers) for cut in cuts]
    line_rows = [(row, line) for row in range(len(order)) for line in range(lines)]
    keys = [LATENT.key(numbers[row], cut=list(cut)).bytes for row, cut, _ in picture_rows]
    texts = [PROMPT.key(numbers[row], line=line).bytes for row, line in line_rows]
    captions = [f"{numbers[row]}/{line}".encode() for row, line in line_rows]
    encoders = {"prompt": {"input": "text", "recipe": PROMPT.form.decode()}}
    if pictures:
        encoders["latent"] = {"input": "image", "recipe": LATENT.form.decode()}
    return {
        "format": 1,
        "dataset": "made-up",
        "image": {"resolutions": [64] * resolutions, "variations": variations, "pick": pick},
        "concepts": [
            {"name": name, "loss_weight": 1.0, "repeats": 1.0, "samples": None, **(shares or {}).get(name, {})}
            for name in names
        ],
        "encoders": encoders,
        "samples": {
            "id": _rows([ids[at] for at in order]),
            "image": _rows([images[at] for at in order]),
            "concept": np.array([names.index(samples[at][0]) for at in order], np.int32),
        },
        "pictures": {
            "sample": np.array([row for row, _, _ in picture_rows], np.int32),
            "target": np.array([cut for _, cut, _ in picture_rows], np.int32).reshape(-1, 2),
            "size": np.array([size for _, _, size in picture_rows], np.int32).reshape(-1, 2),
        },
        "picture_keys": {"latent": _rows(keys)} if pictures else {},
        "lines": {"sample": np.array([row for row, _ in line_rows], np.int32)},
        "line_keys": {"prompt": _rows(texts)},
        "empty_keys": {"prompt": np.frombuffer(PROMPT.key("").bytes, np.uint8)},
        "captions": {
            "text": np.frombuffer(b"".join(captions), np.uint8),
            "ends": np.cumsum([len(caption) for caption in captions], dtype=np.int64),
        },
    }


def content(samples: list[tuple[str, int]], **options: Any) -> FeedContent:
    """The same, ready to draw from."""
    return FeedContent(SnapshotContent.of(tree(samples, **options)))


def _size(number: int, resolution: int, sizes: int) -> tuple[int, int]:
    return (64 * (1 + number % sizes), 64 * (1 + resolution))


def _rows(values: list[bytes]) -> Any:
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, 32)


def images(base: Path, count: int = 6, *, lines: int = 2) -> Path:
    """Pictures of two sizes, each with captions and a mask of its own."""
    for number in range(count):
        size = (96, 64) if number % 3 else (64, 96)
        path = picture(base / "data" / f"p{number}.png", number, size)
        path.with_suffix(".txt").write_text("".join(f"picture {number} line {line}\n" for line in range(lines)))
        # As bright as its number, so that a batch tells whose it is.
        Image.new("L", size, 10 * number).save(path.with_name(f"p{number}-mask.png"))
    return base


def everything(base: Path, **changes: Any) -> precook.Project:
    """A project with pictures, masks and texts, whose entries are their own inputs."""
    return project(
        base,
        **{
            "concepts": [{"name": "things", "path": "data", "masks": "{stem}-mask.png", "loss_weight": 0.5}],
            "encoders": {
                "pixels": {"uses": "image"},
                "mask": {"uses": "mask", "factor": 8},
                "words": Watched("text"),
            },
            **changes,
        },
    )


def same(one: Any, other: Any) -> bool:
    """Whether two batches are equal, tensors bit for bit."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if hasattr(one, "dtype"):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return bool(one == other)


def equal(ones: Any, others: Any) -> bool:
    """Whether two series of batches are equal."""
    ones, others = list(ones), list(others)
    return len(ones) == len(others) and all(same(*pair) for pair in zip(ones, others, strict=True))


def frozen(store: precook.Store, recipe: precook.Recipe, entries: list[Any]) -> Any:
    """A snapshot of pictures that have these entries."""
    snapshot = tree([("cats", number) for number in range(len(entries))])
    snapshot["encoders"] = {"latent": {"input": "image", "recipe": recipe.form.decode()}}
    snapshot["line_keys"], snapshot["empty_keys"] = {}, {}
    snapshot["lines"] = {"sample": np.zeros(0, np.int32)}
    del snapshot["captions"]
    for key, entry in zip(snapshot["picture_keys"]["latent"], entries, strict=True):
        store.put(precook.Key(key.tobytes()), entry, recipe=recipe)
    store.freeze("made-up", SnapshotContent.of(snapshot))
    return store.snapshot("made-up")
