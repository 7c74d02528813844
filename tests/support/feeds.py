"""Made-up snapshot trees, for tests of what a feed draws."""

from __future__ import annotations

from typing import Any

import numpy as np

import precook
from precook.feed.content import FeedContent
from precook.store.snapshot import SnapshotContent

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
