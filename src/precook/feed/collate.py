"""Collating: the entries of one encoder, copied once, straight into the tensors of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from precook.errors import FeedError
from precook.feed.buffers import Buffers
from precook.feed.content import Column, Numbers
from precook.feed.padding import Pad, Padded, find_axes, with_masks
from precook.store.dtypes import DTYPES
from precook.store.pack import LeafColumn, Table
from precook.store.packfile import Array
from precook.store.places import Found, Places
from precook.store.tree import read_values

_MASK = "mask"
"""The kind of the mask encoder, whose white we know how to write."""


class Collator:
    """Makes one encoder's part of any batch; safe to use from several threads."""

    def __init__(self, column: Column, places: Places, buckets: Numbers, *, pad: Pad) -> None:
        self.column = column
        self.places = places
        self._pad = pad
        self._buckets = buckets
        self._axes: dict[bytes, list[int | None]] = {}
        self.look()
        found = [axis for axes in self._axes.values() for axis in axes]
        if isinstance(pad, int) and found and all(axis is None for axis in found):
            told = f"pad is {pad}, but those of a batch have one shape: nothing to pad"
            raise FeedError(f"{column.name}: {told}", hint="leave pad out for this encoder")
        self._white = not places.keys.any(axis=1).all() if not column.of_text else False
        if self._white and column.kind != _MASK:
            hint = "give every concept masks, or leave this encoder out of the config"
            raise FeedError(f"{column.name}: some concepts have no masks, and only `uses: mask` knows white", hint=hint)

    def look(self) -> None:
        """See which dimensions differ between the entries that are there."""
        if self._pad != "list":
            self._axes = find_axes(self.column, self.places, self._buckets)

    def collate(self, rows: Numbers, size: tuple[int, int], buffers: Buffers) -> dict[str, Any]:
        """The entries of some rows as they stand in a batch: one tree under the encoder's name, perhaps with a mask."""
        name = self.column.name
        if self._white and not self.places.keys[rows].any(axis=1).all():
            return {name: self._with_white(rows, size, buffers)}
        found = self.places.place_all(rows)
        tables = [table.table for table in found.distinct]
        first = tables[0]
        if any(table.skeleton != first.skeleton for table in tables):
            hint = "make them alike, or feed with batch_size=1"
            raise FeedError(f"{name}: entries of one batch differ in nesting or type", hint=hint)
        axes = self._axes.get(first.skeleton) or [None] * len(first.leaves)
        leaves: list[Any] = []
        arrays: list[list[Array]] = []
        for number, leaf in enumerate(first.leaves):
            shapes = _shapes(found, [table.leaves[number] for table in tables], number)
            if self._pad == "list":
                made = [buffers.make(leaf.dtype, shape) for shape in shapes]
                leaves.append([tensor for _, tensor in made])
                arrays.append([array for array, _ in made])
            else:
                tensor, places = self._leaf(number, leaf, shapes, axes[number], buffers)
                leaves.append(tensor)
                arrays.append(places)
        self.places.copy_all(found, arrays)
        return self._named(first.build(leaves, _values(found, tables)))

    def _leaf(
        self, number: int, leaf: LeafColumn, shapes: list[tuple[int, ...]], axis: int | None, buffers: Buffers
    ) -> tuple[Any, list[Array]]:
        """A leaf of the whole batch, and where each entry's part goes."""
        name = self.column.name
        if axis is None:
            if shapes.count(shapes[0]) < len(shapes):
                hint = f'ask for them as they are: pad={{"{name}": "list"}}'
                raise FeedError(f"{name}: entries of one batch have shapes {sorted(set(shapes))}", hint=hint)
            array, tensor = buffers.make(leaf.dtype, (len(shapes), *shapes[0]))
            return tensor, list(array) if leaf.rank else [array[i : i + 1].reshape(()) for i in range(len(shapes))]
        lengths = tuple(shape[axis] for shape in shapes)
        longest = max(lengths)
        if isinstance(self._pad, int):
            if longest > self._pad:
                hint = "raise it, or pad to the longest of each batch"
                raise FeedError(f"{name}: an entry is {longest} long, and pad is {self._pad}", hint=hint)
            longest = self._pad
        shape = (*shapes[0][:axis], longest, *shapes[0][axis + 1 :])
        fill = self._filler(number) if min(lengths) < longest else None
        array, tensor = buffers.make(leaf.dtype, (len(shapes), *shape), fill=fill)
        mask, mask_tensor = buffers.make(DTYPES["BOOL"], (len(shapes), longest))
        mask[...] = np.arange(longest) < np.array(lengths)[:, None]
        before = (slice(None),) * axis
        places = [one[(*before, slice(length))] for one, length in zip(array, lengths, strict=True)]
        return Padded(tensor, lengths, mask_tensor), places

    def _filler(self, number: int) -> int:
        """What stands where there is no token: the tokenizer's own choice for ids, nothing elsewhere."""
        if self.column.kind != "transformers-tokens" or number:
            return 0
        if self.column.pad is None:
            # Or transformers was not there to tell when the samples were frozen.
            hint = (
                "give its tokenizer a pad token and build where transformers is installed, "
                f'or ask for them as they are: pad={{"{self.column.name}": "list"}}'
            )
            raise FeedError(f"{self.column.name}: the tokenizer has no pad token that is known", hint=hint)
        return self.column.pad

    def _named(self, tree: Any) -> dict[str, Any]:
        name = self.column.name
        if isinstance(tree, Padded):
            return {name: tree.tensor, f"{name}_mask": tree.mask}
        return {name: with_masks(tree, name)}

    def _with_white(self, rows: Numbers, size: tuple[int, int], buffers: Buffers) -> Any:
        """Masks of a batch in which some samples have none: all of such a picture counts."""
        factor = int(self.column.settings["factor"])
        array, tensor = buffers.make(DTYPES["F32"], (len(rows), 1, size[0] // factor, size[1] // factor))
        for at, row in enumerate(rows.tolist()):
            if self.places.keys[row].any():
                self.places.copy(row, [array[at]])
            else:
                array[at] = 1
        return tensor


def _shapes(found: Found, columns: list[LeafColumn], number: int) -> list[tuple[int, ...]]:
    """The shape of one leaf of each entry."""
    shapes = {column.shape for column in columns}
    if len(shapes) == 1 and (shape := shapes.pop()) is not None:
        return [shape] * len(found.rows)
    return [table.table.leaves[number].row_shape(row) for table, row in zip(found.tables, found.rows, strict=True)]


def _values(found: Found, tables: list[Table]) -> list[list[Any]]:
    """The parts of a batch without tensors, each a list of what the entries have there."""
    if all(table.values.offsets is None for table in tables) and len({table.values.text for table in tables}) == 1:
        return [[value] * len(found.rows) for value in read_values(tables[0].values.text)]
    texts = [table.table.values.row(row) for table, row in zip(found.tables, found.rows, strict=True)]
    return [list(parts) for parts in zip(*read_values(b"[" + b",".join(texts) + b"]"), strict=True)]
