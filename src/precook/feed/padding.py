"""Padding: which dimension of a leaf differs from entry to entry, and how the entries of a batch are made alike."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from precook.errors import FeedError
from precook.feed.content import Column, Numbers
from precook.store.pack import LeafColumn
from precook.store.places import Places

Pad = Literal["longest", "list"] | int
"""To the longest of a batch, not at all (a list of tensors), or to so many."""


def find_axes(column: Column, places: Places, buckets: Numbers) -> dict[bytes, list[int | None]]:
    """For each leaf of an encoder's entries, the dimension that is padded; None where all of a batch are alike.

    By skeleton: entries of different ones cannot meet in a batch. `buckets` says which others may: rows with the same
    number. Of the texts that our own encoders make, the tokens are padded always, so that a batch has its mask also
    where all texts happen to be of one length.
    """
    # One look: another thread may find entries gone, or elsewhere, at any time.
    tables, rows = places.locate(np.arange(len(places.keys)))
    there = np.flatnonzero(tables >= 0)
    alike: dict[bytes, list[int]] = {}
    for number in np.unique(tables[there]).tolist():
        alike.setdefault(places.tables[number].table.skeleton, []).append(number)
    axes: dict[bytes, list[int | None]] = {}
    for skeleton, numbers in alike.items():
        some = there[np.isin(tables[there], numbers)]
        leaves = places.tables[numbers[0]].table.leaves
        axes[skeleton] = [
            known
            if (known := _tokens(column, leaf)) is not None
            else _varying(_shapes(places, tables[some], rows[some], at, leaf.rank), buckets[some], column.name)
            for at, leaf in enumerate(leaves)
        ]
    return axes


def _tokens(column: Column, leaf: LeafColumn) -> int | None:
    if column.kind == "transformers-tokens":
        return 0
    if column.kind == "transformers-text" and not column.settings.get("keep_padding") and leaf.rank > 1:
        return leaf.rank - 2
    return None


def _varying(shapes: Numbers, buckets: Numbers, name: str) -> int | None:
    order = np.argsort(buckets, kind="stable")
    edges = np.flatnonzero(np.diff(buckets[order], prepend=-1))
    lowest = np.minimum.reduceat(shapes[order], edges, axis=0)
    highest = np.maximum.reduceat(shapes[order], edges, axis=0)
    axes = np.flatnonzero((lowest != highest).any(axis=0)).tolist()
    if len(axes) > 1:
        hint = f'ask for them as they are: pad={{"{name}": "list"}}'
        raise FeedError(
            f"{name}: entries of one batch differ in {len(axes)} dimensions and cannot be padded", hint=hint
        )
    return axes[0] if axes else None


def _shapes(places: Places, tables: Numbers, rows: Numbers, number: int, rank: int) -> Numbers:
    """The shape of one leaf of each entry."""
    shapes = np.zeros((len(rows), rank), np.int64)
    for at in np.unique(tables).tolist():
        chosen = tables == at
        leaf = places.tables[at].table.leaves[number]
        shapes[chosen] = leaf.shapes[rows[chosen]] if leaf.shapes is not None else np.array(leaf.shape, np.int64)
    return shapes


class Padded:
    """A leaf that was padded, and which of its places are real, on its way into the tree."""

    def __init__(self, tensor: Any, lengths: tuple[int, ...], mask: Any) -> None:
        self.tensor = tensor
        self.lengths = lengths
        self.mask = mask


def with_masks(tree: Any, where: str) -> Any:
    """The tree with each padded leaf in its place and a mask beside it: `mask`, or one of its own where they differ."""
    if not isinstance(tree, dict):
        if isinstance(tree, Padded) or (
            isinstance(tree, (list, tuple)) and any(isinstance(one, Padded) for one in tree)
        ):
            hint = f'ask for them as they are: pad={{"{where.partition(".")[0]}": "list"}}'
            raise FeedError(f"{where}: a list has no place for the mask of a padded tensor", hint=hint)
        return tree
    padded = {name: one for name, one in tree.items() if isinstance(one, Padded)}
    alike = len({one.lengths for one in padded.values()}) == 1 and "mask" not in tree
    made: dict[Any, Any] = {}
    for name, one in tree.items():
        made[name] = one.tensor if isinstance(one, Padded) else with_masks(one, f"{where}.{name}")
    for name, one in padded.items():
        made["mask" if alike else f"{name}_mask"] = one.mask
    return made
