"""Copying: an entry's leaves into memory of the caller's, from the disk at first and from the mapped file then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from precook.store.packfile import Array, RowDamagedError, TableFile

Verify = bool | Literal["always"]
"""When an entry's checksum is checked: True at this process's first read of it, "always" at each read, False never."""


def copy_row(table: TableFile, row: int, arrays: Sequence[Array], *, verify: Verify) -> None:
    """Copy a row's leaves into arrays of their shapes."""
    if table.checked[row] and table.pack.whole:
        copy_mapped(table, row, arrays, check=verify == "always")
    else:
        table.read_into(row, arrays, check=verify is not False)


def copy_mapped(table: TableFile, row: int, arrays: Sequence[Array], *, check: bool) -> None:
    """Copy a row that this process has read and checked before."""
    for array, take in zip(arrays, table.takers(), strict=True):
        array[...] = take(row)
    if check:
        # The copy, which is still in the processor's cache.
        table.check(row, [array if array.flags.c_contiguous else array.copy() for array in arrays])


def copy_leaves(tables: Sequence[TableFile], rows: Sequence[int], leaves: Sequence[Sequence[Array]]) -> None:
    """Copy many such rows, leaf by leaf, as plainly as can be: this loop is what reading a batch costs."""
    for number, arrays in enumerate(leaves):
        for array, table, row in zip(arrays, tables, rows, strict=True):
            array[...] = table.takers()[number](row)


def read_rows(
    table: TableFile, rows: Sequence[int], some: Sequence[int], arrays: Sequence[Sequence[Array]], *, check: bool
) -> Sequence[int]:
    """Read some of many rows, all of one table, from the disk; those that remain, from where that went wrong on."""
    done = 0
    try:
        with table.pack.open() as descriptor:
            for at in some:
                table.read_from(descriptor, rows[at], arrays[at], check=check)
                done += 1
    except (RowDamagedError, OSError):
        return some[done:]
    return []
