"""Padding: which dimension of a leaf differs from entry to entry, and how the entries of a batch are made alike."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np

from precook.errors import FeedError
from precook.feed.content import EntryColumn
from precook.store.format.pack import LeafColumn
from precook.store.lookup import EntryTable
from precook.values import Numbers

Pad = Literal["longest", "list"] | int
"""To the longest of a batch, not at all (a list of tensors), or to so many."""


def find_axes(column: EntryColumn, places: EntryTable, buckets: Numbers) -> dict[bytes, list[int | None]]:
    """For each leaf of an encoder's entries, the dimension that is padded; None where all of a batch are alike.

    By skeleton: entries of different ones cannot meet in a batch. `buckets` says which others may: rows with the same
    number. Of the texts that our own encoders make, the tokens are padded always, so that a batch has its mask also
    where all texts happen to be of one length.
    """
    # One look: another thread may find entries gone, or elsewhere, at any time.
    tables, rows = places.locate(np.arange(len(places.keys)))
    groups = _by_table(tables)
    alike: dict[bytes, list[int]] = {}
    for number in groups:
        alike.setdefault(places.tables[number].table.skeleton, []).append(number)
    axes: dict[bytes, list[int | None]] = {}
    for skeleton, numbers in alike.items():
        leaves = places.tables[numbers[0]].table.leaves
        axes[skeleton] = [
            known
            if (known := _tokens(column, leaf)) is not None
            else _varying(
                [(places.tables[one].table.leaves[at], groups[one]) for one in numbers], rows, buckets, column
            )
            for at, leaf in enumerate(leaves)
        ]
    return axes


def _by_table(tables: Numbers) -> dict[int, Numbers]:
    """Which entries lie in each table."""
    order = np.argsort(tables, kind="stable")
    order = order[np.searchsorted(tables, 0, sorter=order) :]
    edges = np.flatnonzero(np.diff(tables[order], prepend=-1)).tolist()
    return {int(tables[order[begin]]): order[begin:end] for begin, end in itertools.pairwise([*edges, len(order)])}


def _tokens(column: EntryColumn, leaf: LeafColumn) -> int | None:
    if column.kind == "transformers-tokens":
        return 0
    if column.kind == "transformers-text" and not column.settings.get("keep_padding") and leaf.rank > 1:
        return leaf.rank - 2
    return None


def _varying(
    leaves: list[tuple[LeafColumn, Numbers]], rows: Numbers, buckets: Numbers, column: EntryColumn
) -> int | None:
    """The dimension in which one leaf of entries differs that may meet; the leaf in each table, and its entries."""
    fixed = {leaf.shape for leaf, _ in leaves}
    if len(fixed) == 1 and None not in fixed:
        return None
    # Of each table first: what is compared then across tables is a line for each of its buckets.
    found = [_extremes(buckets[entries], *[_shapes(leaf, rows[entries])] * 2) for leaf, entries in leaves]
    _, lowest, highest = _extremes(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    axes = np.flatnonzero((lowest != highest).any(axis=0)).tolist()
    if len(axes) > 1:
        hint = f'ask for them as they are: pad={{"{column.name}": "list"}}'
        raise FeedError(
            f"{column.name}: entries of one batch differ in {len(axes)} dimensions and cannot be padded", hint=hint
        )
    return axes[0] if axes else None


def _shapes(leaf: LeafColumn, rows: Numbers) -> Numbers:
    """The shape of one leaf of each entry."""
    if leaf.shapes is not None:
        return leaf.shapes[rows].astype(np.int64)
    return np.broadcast_to(np.array(leaf.shape, np.int64), (len(rows), leaf.rank))


def _extremes(buckets: Numbers, lows: Numbers, highs: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Each bucket once, with the least and the greatest of what stands there for it."""
    order = np.argsort(buckets, kind="stable")
    edges = np.flatnonzero(np.diff(buckets[order], prepend=-1))
    lowest, highest = np.minimum.reduceat(lows[order], edges, axis=0), np.maximum.reduceat(highs[order], edges, axis=0)
    return buckets[order[edges]], lowest, highest


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
