"""Stacks: many entries of one shape, copied once, straight into one buffer for each leaf."""

from __future__ import annotations

from typing import Any

import numpy as np

from precook.errors import TreeError
from precook.store.copying import Verify, copy_row
from precook.store.leaves import Library, converter
from precook.store.packfile import Array, TableFile, stack_signature
from precook.store.tree import Tree, read_values
from precook.values import Key


class Stack:
    """A batch in the making."""

    def __init__(self, table: TableFile, row: int, *, rows: int, verify: Verify) -> None:
        self._model = table.table
        self._verify = verify
        self._shapes: list[Any] = [leaf.row_shape(row) for leaf in self._model.leaves]
        self._buffers: list[Array] = [
            np.empty((rows, *shape), leaf.dtype.bits)
            for leaf, shape in zip(self._model.leaves, self._shapes, strict=True)
        ]
        self._texts: list[bytes] = [b""] * rows
        self._signature = stack_signature(self._model.skeleton, self._shapes)

    def fill(self, number: int, key: Key, table: TableFile, row: int) -> None:
        """Copy one entry to its place in the batch."""
        if table.signature is not self._signature:
            self._compare(key, table, row)
        copy_row(table, row, [buffer[number, ...] for buffer in self._buffers], verify=self._verify)
        self._texts[number] = table.table.values.row(row)

    def tree(self, tensors: Library | None) -> Tree:
        """The batch: tensors with a new first dimension, plain parts as lists."""
        leaves = [
            converter(leaf.dtype, tensors or leaf.library)(buffer)
            for buffer, leaf in zip(self._buffers, self._model.leaves, strict=True)
        ]
        rows = read_values(b"[" + b",".join(self._texts) + b"]")
        return self._model.build(leaves, [list(parts) for parts in zip(*rows, strict=True)])

    def _compare(self, key: Key, table: TableFile, row: int) -> None:
        other = table.table
        if other.skeleton != self._model.skeleton:
            raise TreeError(key.hex, "differs in nesting or type from the first entry of the stack")
        if [leaf.row_shape(row) for leaf in other.leaves] != self._shapes:
            raise TreeError(key.hex, "differs in shape from the first entry of the stack")
