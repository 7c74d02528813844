"""Copies of rows into memory that somebody else gives: a row, many rows leaf by leaf, or a stack of them.

A row that this process has checked before is copied from the mapped file, any other is read from the disk and checked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from xxhash import xxh3_128

from precook.errors import TreeError
from precook.fs.system import system
from precook.store.leaves import Library, converter
from precook.store.packfile import NO_MATCH, RowDamagedError, TableFile, stack_signature
from precook.store.tree import Tree, read_values
from precook.values import Array, Key

Verify = bool | Literal["always"]
"""When an entry's checksum is checked: True at this process's first read of it, "always" at each read, False never."""

Places = Array | Sequence[Array]
"""Where one leaf of many rows goes: an array for each row, or a whole one that has a row of its own for each."""


def copy_row(table: TableFile, row: int, arrays: Sequence[Array], *, verify: Verify) -> None:
    """Copy a row's leaves into arrays of their shapes."""
    if table.is_mapped(row):
        copy_mapped(table, row, arrays, check=verify == "always")
    else:
        table.read_into(row, arrays, check=verify is not False)


def copy_mapped(table: TableFile, row: int, arrays: Sequence[Array], *, check: bool) -> None:
    """Copy a row that this process has read and checked before."""
    for array, take in zip(arrays, table.takers or table.make_takers(), strict=True):
        array[...] = take(row)
    if check:
        # The copy, which is still in the processor's cache.
        table.check(row, [array if array.flags.c_contiguous else array.copy() for array in arrays])


def all_mapped(tables: Sequence[TableFile]) -> bool:
    """Whether checked rows of these tables may be taken from the mapped files; plain for the same reason."""
    now = time.monotonic()
    for table in tables:  # noqa: SIM110 - a generator takes half as long again
        if table.pack.look_at <= now and not table.pack.look():
            return False
    return True


def copy_leaves(tables: Sequence[TableFile], rows: Sequence[int], leaves: Sequence[Places]) -> None:
    """Copy many such rows, leaf by leaf. Plain on purpose: this loop is what reading a batch costs.

    The caller has asked `all_mapped`, once for all.
    """
    for number, places in enumerate(leaves):
        taken = [(table.takers or table.make_takers())[number](row) for table, row in zip(tables, rows, strict=True)]
        if isinstance(places, np.ndarray):
            # In one call: threads that make batches beside each other wait for Python more than for memory.
            np.concatenate(taken, out=places.reshape(len(taken) * places.shape[1], *places.shape[2:]))
            continue
        for array, leaf in zip(places, taken, strict=True):
            array[...] = leaf


def copy_checked(tables: Sequence[TableFile], rows: Sequence[int], leaves: Sequence[Places]) -> None:
    """The same row by row, each checked as soon as it is copied: its bytes are in the processor's cache then.

    `RowDamagedError` at the first one that is damaged. Plain values were looked at when each row was first read: they
    stand in the pack's head, which lies in memory.
    """
    entries = zip(*leaves, strict=True) if leaves else itertools.repeat(())
    if not all([isinstance(places, np.ndarray) and places.flags.c_contiguous for places in leaves]):  # noqa: C419 - quicker
        for table, row, arrays in zip(tables, rows, entries, strict=False):
            copy_mapped(table, row, arrays, check=True)
        return
    # Between two copies next to nothing but the hash: each copy takes the processor's cache away from whatever Python
    # does there, which then takes twice as long.
    firsts = [table.hashed_first(row) for table, row in zip(tables, rows, strict=True)]
    wanted = [table.table.checksums[row].tobytes() for table, row in zip(tables, rows, strict=True)]
    for table, row, arrays, first, checksum in zip(tables, rows, entries, firsts, wanted, strict=False):
        state = xxh3_128(first)
        for array, take in zip(arrays, table.takers or table.make_takers(), strict=True):
            array[...] = take(row)
            state.update(array)
        if state.digest() != checksum:
            raise RowDamagedError(NO_MATCH)


def gather_leaves(
    tables: Sequence[TableFile], rows: Sequence[int], leaves: Sequence[Places]
) -> Callable[[], bool] | None:
    """What copies many such rows in one call of the system, and says whether it has; None where it takes more calls.

    That is a fifth slower than a copy by numpy. But a thread that copies so asks for Python once, and not after every
    row: beside threads that are busy with Python, each time it asks it waits longer than a row takes.
    """
    filled: list[int] = []
    copied: list[int] = []
    for number, places in enumerate(leaves):
        whole = isinstance(places, np.ndarray)
        arrays: Sequence[Array] = [places] if isinstance(places, np.ndarray) else places
        for array in arrays:
            if not array.flags.c_contiguous:
                return None
            filled += (array.__array_interface__["data"][0], array.nbytes)
        size = filled[-1] // len(rows)
        for table, row in zip(tables, rows, strict=True):
            leaf, start = table.table.leaves[number], table.address or table.find_address()
            begin, length = leaf.span(row)
            if whole and length != size:
                return None
            copied += (start + begin, length)
    spans = np.array(filled + copied, np.uint64).reshape(-1, 2)

    def gather(tables: Any = tables, leaves: Any = leaves) -> bool:  # noqa: ARG001 - both have to live till then
        return system.gather(spans, len(filled) // 2)

    return gather


def read_rows(
    table: TableFile, rows: Sequence[int], some: Sequence[int], arrays: Sequence[Sequence[Array]], *, verify: Verify
) -> Sequence[int]:
    """Read some of many rows, all of one table, through one descriptor of their pack.

    `some` are positions in `rows` and `arrays`. Ends at the first row that cannot be read, and returns what is left.
    """
    done = 0
    try:
        with table.pack.open() as descriptor:
            for position in some:
                if table.is_mapped(rows[position]):  # since a row near it was read
                    copy_mapped(table, rows[position], arrays[position], check=verify == "always")
                else:
                    table.read_from(descriptor, rows[position], arrays[position], check=verify is not False)
                done += 1
    except (RowDamagedError, OSError):
        return some[done:]
    return []


class StackedBatch:
    """Entries of equal nesting and shapes, copied one after the other into one buffer for each leaf."""

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

    def fill_all(self, places: Sequence[tuple[TableFile, int]]) -> bool:
        """Copy all entries at once, if they are alike and this process has read them before; whether they were.

        One by one, what Python does for an entry of 400 kB takes a tenth as long as its copy.
        """
        tables, rows = [table for table, _ in places], [row for _, row in places]
        distinct = list(dict.fromkeys(tables))
        alike = all(table.signature is self._signature for table in distinct)
        if not alike or not all(table.checked[row] for table, row in places) or not all_mapped(distinct):
            return False
        # Of leaves without dimensions, a place for each.
        leaves = [buffer if buffer.ndim > 1 else list(buffer.reshape(-1, 1)) for buffer in self._buffers]
        try:
            (copy_checked if self._verify == "always" else copy_leaves)(tables, rows, leaves)
        except (RowDamagedError, OSError):
            return False  # each for itself: what is damaged is looked for elsewhere, or named
        self._texts = [table.table.values.row(row) for table, row in places]
        return True

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
