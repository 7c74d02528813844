"""Old shards of pickled datasets, `shard_NNNN.pkl`, converted into a dataset that streams.

`torch.save` wrote them: a zip file with the bytes of each tensor and a pickle that says how they hang together. This is
the one place where a pickle is read, and torch's reader for plain weights does it: it makes containers, numbers, text
and tensors, and refuses every other name in the pickle instead of looking it up.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import Any

from precook.errors import PrecookError, SourceError
from precook.integrations.comfyui import NAME, save_dataset
from precook.store.dtypes import load_torch
from precook.store.tree import Tree

_NAMES = re.compile(r"shard_([0-9]{4,})\.pkl")
_SAFE_TORCH = (2, 10)
"""Before this version, a file could be made that ran code although only weights were asked for."""
_ZIP_START = b"PK\x03\x04"
_PLAIN = (str, int, float, bool, type(None))
_MAX_SPREAD = 1 << 30
"""Bytes that a tensor may take which has fewer of its own: strides of zero repeat them at no cost to the file."""


class _NotPlainError(ValueError):
    """Why a shard is refused."""


def convert_pickled(folder: str | Path, out: str | Path, *, name: str = NAME) -> int:
    """Make a dataset in `out` of the old `shard_NNNN.pkl` files in `folder`, which stay as they are; its samples.

    A shard is in memory while it is converted, as it was in its trainer. One that is missing or that says anything but
    tensors and plain values is refused, and then nothing is made.
    """
    shards = _list(Path(folder))
    version = load_torch().__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _SAFE_TORCH:
        hint = f"install torch {'.'.join(map(str, _SAFE_TORCH))} or newer for this step"
        raise PrecookError(f"old shards are not read with torch {version}: a hostile one could run code", hint=hint)
    # Both are asked for in turn, so no more than one sample waits for its other half.
    first, second = tee(_samples(shards))
    return save_dataset((latent for latent, _ in first), (conditioning for _, conditioning in second), out, name=name)


def _list(folder: Path) -> list[Path]:
    """The shards in their order, none missing."""
    shards = {int(match[1]): path for path in sorted(folder.iterdir()) if (match := _NAMES.fullmatch(path.name))}
    if not shards:
        raise SourceError(folder, "no shard_NNNN.pkl here")
    count = len(shards)
    metadata = folder / "metadata.json"
    if metadata.is_file():
        try:
            count = int(json.loads(metadata.read_bytes())["num_shards"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(metadata, f"not the metadata of a dataset: {error!r}") from error
    # The metadata may be older than a second, shorter save; a hole in the numbers is a lost shard either way.
    for number in range(max(count, max(shards) + 1)):
        if number not in shards:
            raise SourceError(folder / f"shard_{number:04d}.pkl", "this shard is missing")
    return [shards[number] for number in sorted(shards)]


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
    torch = load_torch()
    try:
        _check_archive(path)
        return _plain(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # whatever it stumbles over, this file is not what it claims to be
        raise SourceError(path, f"not a shard that can be converted: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, _NotPlainError):
        return str(error)
    if isinstance(error, (OSError, zipfile.BadZipFile)):
        return f"damaged: {error!r}"
    # No more of torch's own text: it recommends to load the file without any check.
    called = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f"the pickle calls {called[1]}, which no plain value needs" if called else f"damaged: {type(error).__name__}"


def _check_archive(path: Path) -> None:
    """Refuse what torch would not read as a zip file, and what would take more memory than it has bytes."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        # By these bytes torch, too, tells it from its older formats.
        if file.read(len(_ZIP_START)) != _ZIP_START:
            raise _NotPlainError("it was not written by torch.save in its zip format")
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise _NotPlainError(f"{member.filename} is compressed or too large")


def _plain(value: Any) -> Any:
    """A value with plain containers; what is neither a plain value nor a tensor is refused."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        return {key: _plain(item) for key, item in value.items()}
    if kind is list:
        return [_plain(item) for item in value]
    torch = load_torch()
    if kind in (tuple, torch.Size):
        return tuple(_plain(item) for item in value)
    if kind is torch.Tensor:
        if value.numel() * value.itemsize > max(value.untyped_storage().nbytes(), _MAX_SPREAD):
            raise _NotPlainError("the pickle has a tensor that is far larger than its bytes")
    elif kind not in _PLAIN:
        raise _NotPlainError(f"the pickle holds a {kind.__name__}, which is no plain value")
    return value
