"""Lists of samples that no plan made, as snapshots: `gc` keeps their entries, and a feed trains from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precook.errors import PrecookError
from precook.identity.canonical import canonical
from precook.identity.digest import derived_digest
from precook.identity.recipe import Recipe
from precook.store.snapshot import Snapshot
from precook.store.snapshot_content import (
    FrozenConcept,
    FrozenEncoder,
    FrozenImage,
    LineColumns,
    PictureColumns,
    SampleColumns,
    SnapshotContent,
    is_dataset,
)
from precook.store.store import Store
from precook.values import Bytes, Digest, Key, Numbers


@dataclass(frozen=True, slots=True)
class Cut:
    """One form of a sample's picture, with the entries that picture encoders made of it."""

    size: tuple[int, int]
    """Height and width."""
    keys: Mapping[str, Key]


@dataclass(frozen=True, slots=True)
class ListedSample:
    """One sample of a list."""

    content: Digest
    """Of its picture, or of whatever tells it from others."""
    cuts: Sequence[Cut]
    lines: Mapping[str, Key]
    """What text encoders made of its caption; empty where there are none."""


def check_name(dataset: str) -> None:
    """Refuse a name that no dataset can have, before anything is stored for it."""
    if not is_dataset(dataset):
        hint = "use letters, digits, dots, dashes and underscores, at most 64 of them, beginning with a letter or digit"
        raise PrecookError(f"a dataset cannot be called {dataset!a}", hint=hint)


def freeze(
    store: Store,
    dataset: str,
    samples: Sequence[ListedSample],
    *,
    images: Mapping[str, Recipe],
    texts: Mapping[str, Recipe],
) -> Snapshot:
    """Keep a list as the latest snapshot of a dataset, if every entry it names is there."""
    content = _content(dataset, samples, images=images, texts=texts)
    return store.freeze(dataset, content, needs=np.concatenate(content.key_columns()))


def list_order(content: SnapshotContent) -> Numbers | None:
    """The row of each sample of a list, in the order of the list; None where a snapshot is not one of ours."""
    order = content.extra.get("order")
    if not isinstance(order, np.ndarray) or order.dtype != np.int64:
        return None
    return order if sorted(order.tolist()) == list(range(len(content.samples.id))) else None


def _content(
    dataset: str, samples: Sequence[ListedSample], *, images: Mapping[str, Recipe], texts: Mapping[str, Recipe]
) -> SnapshotContent:
    """The content of a snapshot, with one part more: `order`, the row of each sample of the list."""
    repeats: dict[Digest, int] = {}
    ids = []
    for sample in samples:
        # Equal samples are told apart by how many of them came before.
        repeat = repeats[sample.content] = repeats.get(sample.content, -1) + 1
        ids.append(derived_digest("precook sample 1", canonical([dataset, sample.content.bytes, repeat])))
    by_id = sorted(range(len(samples)), key=ids.__getitem__)
    order = np.empty(len(samples), np.int64)
    order[by_id] = np.arange(len(samples))
    rows = [samples[number] for number in by_id]
    cuts = [(row, number, cut) for row, sample in enumerate(rows) for number, cut in enumerate(sample.cuts)]
    recipes = [(name, "image", recipe) for name, recipe in images.items()]
    recipes += [(name, "text", recipe) for name, recipe in texts.items()]
    return SnapshotContent(
        dataset=dataset,
        image=FrozenImage(resolutions=[], variations=1, pick="one"),
        concepts=[FrozenConcept(dataset, loss_weight=1.0, repeats=1.0)],
        encoders={name: FrozenEncoder(input_, recipe.form.decode("ascii")) for name, input_, recipe in recipes},
        samples=SampleColumns(
            id=_bytes([ids[number] for number in by_id]),
            image=_bytes([sample.content.bytes for sample in rows]),
            concept=np.zeros(len(rows), np.int32),
        ),
        pictures=PictureColumns(
            sample=np.array([row for row, _, _ in cuts], np.int32),
            target=np.array([(number, 0) for _, number, _ in cuts], np.int32).reshape(-1, 2),
            size=np.array([cut.size for _, _, cut in cuts], np.int32).reshape(-1, 2),
        ),
        picture_keys={name: _bytes([cut.keys[name].bytes for _, _, cut in cuts]) for name in images},
        lines=LineColumns(np.arange(len(rows) if texts else 0, dtype=np.int32)),
        line_keys={name: _bytes([sample.lines[name].bytes for sample in rows]) for name in texts},
        empty_keys={},
        extra={"order": order},
    )


def _bytes(rows: Sequence[bytes]) -> Bytes:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 32)
