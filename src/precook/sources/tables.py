"""Tables of samples: a row names a picture, and may name its captions and its mask.

A table is read whole, once, from one descriptor, so that its rows and its digest are of the same bytes. A row that
cannot be used is a problem of that row. A table whose rows cannot be told apart, or that lacks a column, is refused.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from precook.config.concept import TABLES
from precook.errors import SourceChangedError, SourceError
from precook.fs.read import NotAFileError, bytes_there, open_source, read_all
from precook.fs.stamps import Stamp, stamp_of
from precook.fs.system import calls
from precook.identity.digest import digest
from precook.sources.captions import CaptionError, checked
from precook.sources.table_formats import (
    JSON,
    Cells,
    RowError,
    RowProblem,
    TableColumns,
    kind_name,
    parquet_columns,
    quoted,
    read_rows,
)
from precook.units import format_size
from precook.values import Digest

MAX_BYTES = 1 << 30
"""Of a table: it is in memory as a whole, and several times while it is taken apart."""
_MAX_HOLES = 64 << 20
_BEGINNING = 16 << 20
"""Bytes of a table that are looked at for its columns: a line of JSON has no more."""
_FIRST_ROWS = 100
_T = TypeVar("_T")

MAX_PROBLEMS = 100_000
"""Rows that cannot be used: with more of them it is another table that was meant."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One sample of a table, as it is written there."""

    number: int
    """For messages, from 1: the line in a .jsonl or .ndjson, elsewhere the row, header and blank lines not counted."""
    image: str
    captions: tuple[str, ...] | None
    """None where the row says nothing about them: no such field, null, or no column was asked for."""
    mask: str | None
    further: tuple[str | None, ...] = ()
    """Further pictures, in the order of the columns that were asked for."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """What a table says, and the digest of the bytes that say it."""

    rows: tuple[TableRow, ...]
    problems: tuple[RowProblem, ...]
    digest: Digest


def read_table(
    path: Path,
    *,
    image_column: str = "image",
    caption_column: str | None,
    mask_column: str | None,
    further_columns: tuple[str, ...] = (),
) -> SourceTable:
    """The samples in a table, its format told by the suffix.

    A cell with one text is one caption, line ends inside it or not; a list of texts, which .csv and .tsv do not have,
    is several. Captions are stripped and empty ones dropped.

    Python limits the length of a csv cell for the whole process. While a longer .csv or .tsv is parsed the limit is
    raised, and then put back.
    """
    if path.suffix.lower() not in TABLES:
        raise SourceError(path, "not a table", hint=f"the name of a table ends in {', '.join(TABLES)}")
    columns = TableColumns(image_column, caption_column, mask_column, further=further_columns)
    _, content = read_content(path)
    rows, problems = usable_rows(path, content, columns, lambda cells: _row(cells, columns))
    return SourceTable(tuple(rows), tuple(problems), digest(content))


def usable_rows(
    path: Path, content: bytes, columns: TableColumns, make: Callable[[Cells], _T]
) -> tuple[list[_T], list[RowProblem]]:
    """What `make` makes of each row, and the rows that cannot be used; it raises for those."""
    rows: list[_T] = []
    problems: list[RowProblem] = []
    for cells in read_rows(path, content, columns):
        if len(problems) > MAX_PROBLEMS:
            message = f"more than {MAX_PROBLEMS:,} rows cannot be used; row {problems[0].number}: {problems[0].reason}"
            raise SourceError(path, message, hint="check that this is the table, and how it was written")
        if isinstance(cells, RowProblem):
            problems.append(cells)
            continue
        try:
            rows.append(make(cells))
        except (RowError, CaptionError) as error:
            problems.append(RowProblem(cells[0], str(error)))
    return rows, problems


def read_columns(path: Path) -> list[str]:
    """What the columns of a table are called, by its beginning; `SourceError` where it cannot be read.

    Of JSON lines, all fields that the first rows have; nothing where there are no rows.
    """
    try:
        if path.suffix.lower() == ".parquet":
            return parquet_columns(path)
        with open_source(path) as (descriptor, _), open(descriptor, "rb", closefd=False) as opened:
            text = opened.read(_BEGINNING).decode("utf-8-sig", "replace")
        lines = io.StringIO(text, newline="")
        if path.suffix.lower() in (".csv", ".tsv"):
            return next(csv.reader(lines, delimiter="," if path.suffix.lower() == ".csv" else "\t"), [])
    except (OSError, csv.Error) as error:
        raise SourceError(path, getattr(error, "strerror", None) or str(error)) from error
    found: dict[str, None] = {}
    for line in itertools.islice(filter(str.strip, lines), _FIRST_ROWS):
        try:
            row = JSON.decode(line)
        except (ValueError, RecursionError):
            continue
        found.update(dict.fromkeys(row if isinstance(row, dict) else ()))
    return list(found)


def resolve(table: Path, image: str) -> Path:
    """Where a picture or mask named in a table lies: relative names start at the table's folder.

    >>> resolve(Path("data/cats.csv"), "more/cat.jpg").as_posix(), resolve(Path("data/cats.csv"), "/cat.jpg").as_posix()
    ('data/more/cat.jpg', '/cat.jpg')
    """
    return table.parent / image


def read_content(path: Path) -> tuple[Stamp, bytes]:
    """The stamp and the bytes of a table; `SourceError` where they cannot be had, or are too many."""
    try:
        with open_source(path) as (descriptor, before):
            size = before.st_size
            if size > MAX_BYTES or bytes_there(descriptor, size) + _MAX_HOLES < size:
                hint = "split it, or check what it is; a table holds paths and texts, not pictures"
                raise SourceError(path, f"{format_size(size)}, or mostly holes: more than a table may have", hint=hint)
            content = read_all(descriptor)
            after = calls.fstat(descriptor)
    except NotAFileError as error:
        raise SourceError(path, error.reason, hint="name a file that holds a table") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SourceError(
            path, getattr(error, "strerror", None) or str(error), hint="check the path and its permissions"
        ) from error
    if stamp_of(before) != stamp_of(after):
        raise SourceChangedError(path)
    return stamp_of(after), content


def _row(cells: Cells, columns: TableColumns) -> TableRow:
    number, image, caption, mask, further = cells
    if image is None or image == "":
        raise RowError(f"no picture in column {quoted(columns.image)}: write its path there")
    return TableRow(
        number,
        _path(image, columns.image),
        _captions(caption, columns.caption or ""),
        None if mask is None or mask == "" else _path(mask, columns.mask or ""),
        tuple(
            None if path is None or path == "" else _path(path, name)
            for path, name in zip(further, columns.further, strict=True)
        ),
    )


def _path(value: object, column: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"{kind_name(value)} in column {quoted(column)}: write a path there")
    if "\0" in value:
        raise RowError(f"a NUL character in the path in column {quoted(column)}: no file has such a name")
    if not value.isascii():
        try:
            # Names that are not UTF-8 are written as Python writes them, with U+DC80 to U+DCFF for their bytes.
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise RowError(
                f"a lone surrogate in the path in column {quoted(column)}: no file has such a name"
            ) from None
    return value


def _captions(value: object, column: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    texts = value if isinstance(value, list) else [value]
    captions = []
    for text in texts:
        if not isinstance(text, str):
            place = "a list in " if texts is value else ""
            raise RowError(f"{kind_name(text)} in {place}column {quoted(column)}: write a text, or a list of texts")
        try:
            stripped = checked(text).strip()
        except CaptionError as error:
            raise RowError(f"column {quoted(column)}: {error}") from error
        if stripped:
            captions.append(stripped)
    return tuple(captions)
