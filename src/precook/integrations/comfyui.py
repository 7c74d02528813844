"""Streamable training datasets: lists of latents and conditionings, kept whole and read one at a time.

The folder is a store. Each latent and each conditioning is an entry under the digest of its content, so what is equal
is stored once; the list itself is a snapshot, so `gc` keeps what it names and a kill leaves the list as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import zip_longest
from types import TracebackType
from typing import Any, NamedTuple, overload

import numpy as np
from blake3 import blake3

from precook.errors import PrecookError
from precook.identity.canonical import canonical
from precook.identity.recipe import Recipe
from precook.integrations.lists import Cut, ListedSample, check_name, freeze
from precook.open_store import open_store
from precook.store.store import Store
from precook.store.tree import Parts, Tree, take_apart
from precook.store.writer import Writer
from precook.values import Bytes, Digest, Key

NAME = "training"
"""The dataset's name in its store, unless another is given."""
_LATENT = Recipe("comfyui-dataset", {"part": "latent"})
_CONDITIONING = Recipe("comfyui-dataset", {"part": "conditioning"})
_END = object()


class ListColumn(Sequence[Tree]):
    """Latents or conditionings in their order, each read when it is asked for and kept by nobody."""

    def __init__(self, store: Store, keys: Bytes, *, lazy: bool) -> None:
        self._store = store
        self._keys = keys
        self._lazy = lazy

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Tree: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...
    def __getitem__(self, index: int | slice) -> Tree:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return self._store.get(Key(self._keys[index].tobytes()), lazy=self._lazy)


class Dataset(NamedTuple):
    """`latents, conditionings = load_dataset(folder)`; also a context manager, which closes the store."""

    latents: ListColumn
    conditionings: ListColumn

    def close(self) -> None:
        """Close the store; what was read stays valid."""
        self.latents._store.close()  # noqa: SLF001 - the store is opened for the dataset

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def save_dataset(
    latents: Iterable[Tree],
    conditionings: Iterable[Tree],
    folder: str | os.PathLike[str],
    *,
    name: str = NAME,
) -> int:
    """Make these the samples of the dataset in `folder`; how many there are.

    Both may be iterators: no more than a commit's worth of them is in memory. The dataset is what it was before until
    everything is durable.
    """
    return _save(latents, conditionings, folder, name=name, append=False)


def append_dataset(
    latents: Iterable[Tree],
    conditionings: Iterable[Tree],
    folder: str | os.PathLike[str],
    *,
    name: str = NAME,
) -> int:
    """Add samples at the end of the dataset in `folder`, without writing the others again; how many there are now."""
    return _save(latents, conditionings, folder, name=name, append=True)


def load_dataset(folder: str | os.PathLike[str], *, name: str = NAME, lazy: bool = False) -> Dataset:
    """The latents and conditionings of the dataset in `folder`, in their order; nothing of them is read yet.

    With `lazy`, the tensors of a sample are `precook.LazyTensor`s until they are loaded.
    """
    store = open_store(folder, read_only=True)
    try:
        columns = _columns(store, name)
    except BaseException:
        store.close()
        raise
    return Dataset(*(ListColumn(store, columns[part], lazy=lazy) for part in ("latent", "conditioning")))


def _save(
    latents: Iterable[Tree], conditionings: Iterable[Tree], folder: str | os.PathLike[str], *, name: str, append: bool
) -> int:
    check_name(name)
    if isinstance(latents, Sized) and isinstance(conditionings, Sized) and len(latents) != len(conditionings):
        raise _uneven(f"{len(latents)} latents and {len(conditionings)} conditionings")
    with open_store(folder) as store:
        with store.writer() as writer:
            samples = _put(writer, latents, conditionings)
        store.claims()  # makes the store where nothing was put
        # Two who append at once: the second reads the list that the first has written.
        with store.internals().index.exclusive():
            if append and any(one.dataset == name for one in store.snapshots()):
                samples = [*_read(store, name), *samples]
            recipes = {"images": {"latent": _LATENT}, "texts": {"conditioning": _CONDITIONING}}
            freeze(store, name, samples, **recipes)
    return len(samples)


def _put(writer: Writer, latents: Iterable[Tree], conditionings: Iterable[Tree]) -> list[ListedSample]:
    samples = []
    for latent, conditioning in _paired(latents, conditionings):
        content, parts = _digested(latent)
        key = _LATENT.key(content)
        writer.put_parts(key, parts, recipe=_LATENT)
        size = next((leaf.shape[-2:] for leaf in parts.leaves if len(leaf.shape) > 1), (0, 0))
        other, parts = _digested(conditioning)
        line = _CONDITIONING.key(other)
        writer.put_parts(line, parts, recipe=_CONDITIONING)
        cut = Cut((int(size[0]), int(size[1])), {"latent": key})
        samples.append(ListedSample(content, (cut,), {"conditioning": line}))
    return samples


def _paired(latents: Iterable[Tree], conditionings: Iterable[Tree]) -> Iterator[tuple[Tree, Tree]]:
    for number, pair in enumerate(zip_longest(latents, conditionings, fillvalue=_END)):
        if pair[0] is _END or pair[1] is _END:
            raise _uneven(f"only one of the two has a sample {number}")
        yield pair


def _uneven(found: str) -> PrecookError:
    return PrecookError(f"{found}: the dataset is as it was", hint="give one conditioning for each latent")


def _digested(tree: Tree) -> tuple[Digest, Parts]:
    parts = take_apart(tree)
    hasher = blake3(canonical([parts.skeleton, parts.values, [list(leaf.shape) for leaf in parts.leaves]]))
    for leaf in parts.leaves:
        hasher.update(leaf.data.data)
    return Digest(hasher.digest()), parts


def _columns(store: Store, name: str) -> dict[str, Any]:
    """The samples' keys, contents and sizes, in the order of the list."""
    content = store.snapshot(name).content
    order = content.extra.get("order")
    count = len(content.samples.id)
    lengths = {len(content.pictures.sample), len(content.lines.sample)}
    if set(content.encoders) != {"latent", "conditioning"} or lengths != {count} or not _is_order(order, count):
        hint = "read it with precook.open(folder).snapshot(name)"
        raise PrecookError(f"the dataset {name!r} in {store.path} is not a list of samples", hint=hint)
    return {
        "latent": content.picture_keys["latent"][order],
        "conditioning": content.line_keys["conditioning"][order],
        "content": content.samples.image[order],
        "size": content.pictures.size[order],
    }


def _read(store: Store, name: str) -> list[ListedSample]:
    columns = _columns(store, name)
    return [
        ListedSample(
            Digest(content.tobytes()),
            (Cut((int(size[0]), int(size[1])), {"latent": Key(latent.tobytes())}),),
            {"conditioning": Key(conditioning.tobytes())},
        )
        for latent, conditioning, content, size in zip(*columns.values(), strict=True)
    ]


def _is_order(order: object, count: int) -> bool:
    return isinstance(order, np.ndarray) and order.dtype == np.int64 and sorted(order.tolist()) == list(range(count))
