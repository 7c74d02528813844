"""Streamable training datasets: lists of latents and conditionings, kept whole and read one at a time.

The folder is a store. Each latent and each conditioning is an entry under the digest of its content, so what is equal
is stored once; the list itself is a snapshot, so `gc` keeps what it names and a kill leaves the list as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import zip_longest
from types import TracebackType
from typing import NamedTuple, overload

from blake3 import blake3

from precook.errors import PrecookError
from precook.identity.canonical import canonical
from precook.identity.recipe import Recipe
from precook.integrations.lists import Cut, ListedSample, check_name, freeze, list_order
from precook.open_store import open_store
from precook.store.store import Store
from precook.store.tree import Parts, Tree, take_apart
from precook.store.writer import Writer
from precook.values import Array, Bytes, Digest, Key

NAME = "training"
"""The dataset's name in its store, unless another is given."""
_LATENT = Recipe("comfyui-dataset", {"part": "latent"})
_CONDITIONING = Recipe("comfyui-dataset", {"part": "conditioning"})
_END = object()
_TOGETHER = 1000
"""Samples that are looked up together by whoever goes through a list."""


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
            return [self[row] for row in range(*index.indices(len(self)))]
        return self._store.get(Key(self._keys[index].tobytes()), lazy=self._lazy)

    def __iter__(self) -> Iterator[Tree]:
        lookup = self._store.internals(create=False).lookup
        for start in range(0, len(self), _TOGETHER):
            keys = [row.tobytes() for row in self._keys[start : start + _TOGETHER]]
            lookup.find_many(keys)  # one question to the index instead of a thousand
            for key in keys:
                yield self._store.get(Key(key), lazy=self._lazy)


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
    return Dataset(ListColumn(store, columns.latent, lazy=lazy), ListColumn(store, columns.conditioning, lazy=lazy))


def _save(
    latents: Iterable[Tree], conditionings: Iterable[Tree], folder: str | os.PathLike[str], *, name: str, append: bool
) -> int:
    check_name(name)
    if isinstance(latents, Sized) and isinstance(conditionings, Sized) and len(latents) != len(conditionings):
        raise _uneven(f"{len(latents)} latents and {len(conditionings)} conditionings")
    with open_store(folder) as store:
        with store.writer() as writer:
            samples = [_put(writer, *pair) for pair in _paired(latents, conditionings)]
        store.claims()  # makes the store where nothing was put
        # Two who append at once: the second reads the list that the first has written.
        with store.internals().index.exclusive():
            if append and any(file.dataset == name for file in store.snapshots()):
                samples = [*_columns(store, name).samples(), *samples]
            freeze(store, name, samples, images={"latent": _LATENT}, texts={"conditioning": _CONDITIONING})
    return len(samples)


def _paired(latents: Iterable[Tree], conditionings: Iterable[Tree]) -> Iterator[tuple[Tree, Tree]]:
    for number, pair in enumerate(zip_longest(latents, conditionings, fillvalue=_END)):
        if pair[0] is _END or pair[1] is _END:
            raise _uneven(f"only one of the two has a sample {number}")
        yield pair


def _uneven(counts: str) -> PrecookError:
    return PrecookError(f"{counts}: the dataset is as it was", hint="give one conditioning for each latent")


def _put(writer: Writer, latent: Tree, conditioning: Tree) -> ListedSample:
    content, parts = _digested(latent)
    latent_key = _LATENT.key(content)
    writer.put_parts(latent_key, parts, recipe=_LATENT)
    size = next((leaf.shape[-2:] for leaf in parts.leaves if len(leaf.shape) > 1), (0, 0))
    conditioning_content, parts = _digested(conditioning)
    conditioning_key = _CONDITIONING.key(conditioning_content)
    writer.put_parts(conditioning_key, parts, recipe=_CONDITIONING)
    return _listed(content, size, latent_key, conditioning_key)


def _digested(tree: Tree) -> tuple[Digest, Parts]:
    parts = take_apart(tree)
    hasher = blake3(canonical([parts.skeleton, parts.values, [list(leaf.shape) for leaf in parts.leaves]]))
    for leaf in parts.leaves:
        hasher.update(leaf.data.data)
    return Digest(hasher.digest()), parts


def _listed(content: Digest, size: Sequence[int], latent: Key, conditioning: Key) -> ListedSample:
    cut = Cut((int(size[0]), int(size[1])), {"latent": latent})
    return ListedSample(content, (cut,), {"conditioning": conditioning})


class _Columns(NamedTuple):
    """What a snapshot says about the samples, in the order of the list."""

    content: Bytes
    size: Array
    latent: Bytes
    """Keys, as `conditioning`."""
    conditioning: Bytes

    def samples(self) -> Iterator[ListedSample]:
        for content, size, latent, conditioning in zip(*self, strict=True):
            yield _listed(Digest(content.tobytes()), size.tolist(), Key(latent.tobytes()), Key(conditioning.tobytes()))


def _columns(store: Store, name: str) -> _Columns:
    content = store.snapshot(name).content
    order = list_order(content)
    lengths = {len(content.pictures.sample), len(content.lines.sample)}
    names = set(content.encoders)
    if order is None or names != {"latent", "conditioning"} or lengths != {len(order)}:
        hint = "read it with precook.open(folder).snapshot(name)"
        raise PrecookError(f"the dataset {name!r} in {store.path} is not a list of samples", hint=hint)
    return _Columns(
        content=content.samples.image[order],
        size=content.pictures.size[order],
        latent=content.picture_keys["latent"][order],
        conditioning=content.line_keys["conditioning"][order],
    )
