"""What the three nodes do: encode pictures and texts, keep a dataset in a folder, and give it back unread.

Inputs come as ComfyUI hands them over: where a node takes lists, each single value is a list of one.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from precook.errors import NoSnapshotError, NoStoreError, PrecookError, TreeError
from precook.identity.digest import digest
from precook.integrations.comfyui import NAME, load_dataset, save_dataset
from precook.integrations.shards import convert_pickled, list_shards
from precook.open_store import open_store
from precook.store.lazy import LazyArray
from precook.store.tree import Tree

_log = logging.getLogger("precook")

_CONVERTED = "precook"
"""The store inside of a folder of old shards that they are converted into."""


def make(
    images: Sequence[Any], vae: Sequence[Any], clip: Sequence[Any], texts: Sequence[str] | None = None
) -> tuple[list[Tree], list[Tree]]:
    """Latents of the pictures and conditionings of their texts; each different text is encoded once."""
    texts = list(texts or [""])
    if len(texts) == 1:
        texts *= len(images)
    if len(texts) != len(images):
        message = f"{len(images)} pictures and {len(texts)} texts"
        raise PrecookError(message, hint="give one text for each picture, one for all, or none")
    latents: list[Tree] = [{"samples": vae[0].encode(image[:, :, :, :3])} for image in images]
    encoded = {text: clip[0].encode_from_tokens_scheduled(clip[0].tokenize(text)) for text in dict.fromkeys(texts)}
    # A list and dicts of its own for each sample: a node after this one may add to one and must not change others.
    conditionings: list[Tree] = [[[one[0], dict(one[1])] for one in encoded[text]] for text in texts]
    return latents, conditionings


def save(
    latents: Sequence[Tree], conditioning: Sequence[Tree], folder_name: Sequence[str], shard_size: Sequence[int]
) -> tuple[()]:
    """Keep a dataset in a folder of the output directory; it takes the place of one that is there."""
    del shard_size  # a sample can be read without any other: there are no shards to be sized
    folder = _folder(folder_name[0])
    try:
        samples = save_dataset(latents, conditioning, folder)
    except TreeError as error:
        hint = (
            "ControlNets, hooks and other objects are applied after Load Training Dataset; their pictures can be kept"
        )
        raise PrecookError(f"the dataset is as it was: {error}", hint=hint) from error
    _log.info("%s holds %d samples", folder, samples)
    return ()


def load(folder_name: str) -> tuple[list[Tree], list[Tree]]:
    """The latents and conditionings of a dataset, their tensors lazy: each is read when it is used."""
    folder, name = _home(folder_name)
    latents, conditionings = load_dataset(folder, name=name, lazy=True)
    return [_arrays_loaded(tree) for tree in latents], [_arrays_loaded(tree) for tree in conditionings]


def state(folder_name: str) -> str:
    """What a folder's dataset is now: ComfyUI keeps what a node gave as long as this stays the same."""
    folder = _folder(folder_name)
    shards = _shard_stamps(folder)
    if shards is not None:
        return shards
    try:
        with open_store(folder, read_only=True) as store:
            return next((file.id for file in reversed(store.snapshots()) if file.dataset == NAME), "")
    except PrecookError:
        return ""  # loading it says what is wrong


def _folder(name: str) -> Path:
    """A folder in ComfyUI's output directory."""
    output = Path(importlib.import_module("folder_paths").get_output_directory()).resolve()
    folder = (output / name).resolve()
    if folder == output or output not in folder.parents:
        raise PrecookError(f"the folder {name!a} is not inside of the output directory", hint="give a name alone")
    return folder


def _home(name: str) -> tuple[Path, str]:
    """The store of a folder's dataset and its name there; old shards are converted first."""
    folder = _folder(name)
    stamps = _shard_stamps(folder)
    if stamps is None:
        return folder, NAME
    store = folder / _CONVERTED
    dataset = f"shards-{stamps}"
    try:
        load_dataset(store, name=dataset).close()
    except (NoStoreError, NoSnapshotError):
        _log.info("%s holds pickles, which are converted once into %s", folder, store)
        convert_pickled(folder, store, name=dataset)
    return store, dataset


def _shard_stamps(folder: Path) -> str | None:
    """The look of the old shards in a folder, None where it has none: shards that are saved anew look different."""
    if (folder / "store.toml").exists() or not folder.is_dir():
        return None
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in list_shards(folder).values()]
    return digest(repr(stamps)).hex[:32] if stamps else None


def _arrays_loaded(tree: Tree) -> Tree:
    """A tree whose lazy tensors are torch's: other nodes know numpy arrays, and no lazy ones."""
    if type(tree) is dict:
        return {key: _arrays_loaded(item) for key, item in tree.items()}
    if type(tree) is list or type(tree) is tuple:
        return type(tree)(_arrays_loaded(item) for item in tree)
    return tree.load() if isinstance(tree, LazyArray) else tree
