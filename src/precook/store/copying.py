"""Copying: an entry's leaves into memory of the caller's, from the disk at first and from the mapped file then."""

from __future__ import annotations

from collections.abc import Sequence

from precook.store.packfile import Array, RowDamagedError, TableFile
from precook.store.stack import Verify


def copy_row(table: TableFile, row: int, arrays: Sequence[Array], *, verify: Verify) -> None:
    """Copy a row's leaves into arrays of their shapes."""
    if table.checked[row] and table.pack.whole:
        copy_mapped(table, row, arrays, check=verify == "always")
    elif _contiguous(arrays):
        table.read_into(row, list(arrays), check=verify is not False)
    else:
        for array, source in zip(arrays, table.read(row, check=verify is not False), strict=True):
            array[...] = source


def copy_mapped(table: TableFile, row: int, arrays: Sequence[Array], *, check: bool) -> None:
    """Copy a row that this process has read and checked before."""
    sources = table.view(row) if table.signature is None else [column[row] for column in table.columns()]
    for array, source in zip(arrays, sources, strict=True):
        array[...] = source
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
                if _contiguous(arrays[at]):
                    table.read_from(descriptor, rows[at], list(arrays[at]), check=check)
                else:
                    for array, source in zip(arrays[at], table.read(rows[at], check=check), strict=True):
                        array[...] = source
                done += 1
    except (RowDamagedError, OSError):
        return some[done:]
    return []


def _contiguous(arrays: Sequence[Array]) -> bool:
    return all(array.flags.c_contiguous for array in arrays)
