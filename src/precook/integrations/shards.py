"""Old shards of pickled datasets, `shard_NNNN.pkl`, converted into a dataset that streams.

`torch.save` wrote them, and `torch_file.py` reads them: containers, numbers, text and tensors, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import Any

from precook.errors import SourceError, printable
from precook.fs.read import NotAFileError, read_small
from precook.integrations.comfyui import NAME, save_dataset
from precook.integrations.torch_file import read_torch_file
from precook.store.dtypes import load_torch
from precook.store.tree import Tree

_NAMES = re.compile(r"shard_([0-9]{4,})\.pkl")
_HINT = "get it again from whoever made it, or leave it out: its samples stand in no other shard"
_MAX_METADATA = 1 << 20


def convert_pickled(folder: str | Path, out: str | Path, *, name: str = NAME) -> int:
    """Make a dataset in `out` of the old `shard_NNNN.pkl` files in `folder`, which stay as they are; its samples.

    A shard is in memory while it is converted, as it was in its trainer. One that is missing or that says anything but
    tensors and plain values is refused, and then nothing is made.
    """
    shards = _whole_list(Path(folder))
    load_torch()  # before anything is made: without it no shard can be read
    # Both are asked for in turn, so no more than one sample waits for its other half.
    first, second = tee(_samples(shards))
    return save_dataset((latent for latent, _ in first), (conditioning for _, conditioning in second), out, name=name)


def list_shards(folder: Path) -> dict[int, Path]:
    """The shards in a folder by their numbers, in order; nothing is opened."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := _NAMES.fullmatch(path.name))}
    return dict(sorted(found.items()))


def _whole_list(folder: Path) -> list[Path]:
    """The shards in their order, none missing."""
    shards = list_shards(folder)
    if not shards:
        raise SourceError(folder, "no shard_NNNN.pkl here")
    count = len(shards)
    metadata = folder / "metadata.json"
    if metadata.is_file():
        try:
            count = int(json.loads(read_small(metadata, _MAX_METADATA))["num_shards"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            hint = "remove it: the shards are counted by their names, too"
            raise SourceError(metadata, f"not the metadata of a dataset: {error!r}", hint=hint) from error
    for number in range(max(count, max(shards) + 1)):
        if number not in shards:
            raise SourceError(folder / f"shard_{number:04d}.pkl", "this shard is missing")
    if len(shards) > count:
        # A save of fewer samples leaves the last shards of the one before; one that was cut short leaves old metadata.
        hint = f"remove shards from shard_{count:04d}.pkl on if they are of an earlier save, else {metadata.name}"
        raise SourceError(folder, f"{len(shards)} shards where {metadata.name} counts {count}", hint=hint)
    return list(shards.values())


def _samples(shards: list[Path]) -> Iterator[tuple[Tree, Tree]]:
    for path in shards:
        shard = _read(path)
        latents, conditionings = (
            (shard.get("latents"), shard.get("conditioning")) if isinstance(shard, dict) else (None, None)
        )
        if not isinstance(latents, list) or not isinstance(conditionings, list):
            raise SourceError(path, "not a shard: it has no lists of latents and conditioning")
        if len(latents) != len(conditionings):
            raise SourceError(path, "its latents and conditionings differ in number")
        yield from zip(latents, conditionings, strict=True)


def _read(path: Path) -> Any:
    """What a shard holds, if that is nothing but tensors and plain values."""
    try:
        return read_torch_file(path)
    except NotAFileError as error:
        raise SourceError(path, error.reason, hint=_HINT) from error
    except (OSError, ValueError) as error:
        raise SourceError(path, f"not a shard that can be converted: {printable(error)}", hint=_HINT) from error
