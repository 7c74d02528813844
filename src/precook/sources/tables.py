"""Tables of samples: a row names a picture or holds it, and may have its captions and its mask.

All that is used of a table is read from one descriptor, between two looks at its stamp. A row that cannot be used is a
problem of that row. A table whose rows cannot be told apart, or that lacks a column, is refused.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from precook.config.concept import TABLES
from precook.errors import SourceChangedError, SourceError, printable
from precook.fs.read import NotAFileError, bytes_there, open_source, read_all, read_small
from precook.fs.stamps import SIZE, Stamp, stamp_of
from precook.fs.system import calls
from precook.identity.digest import digest, digest_open
from precook.sources.captions import CaptionError, checked
from precook.sources.parquet import TableFileError, read_footer
from precook.sources.table_formats import (
    JSON,
    Cells,
    RowError,
    RowProblem,
    TableColumns,
    TableContent,
    broken,
    in_columns,
    kind_name,
    quoted,
    read_parts,
    read_rows,
)
from precook.sources.walk import walk
from precook.units import format_size
from precook.values import Digest

SAVED = ".arrow"
"""How the files of a folder end that `Dataset.save_to_disk` wrote: tables as well, where that folder is named."""
MAX_BYTES = 1 << 30
"""Of a table: it is in memory as a whole, and several times while it is taken apart."""
_MAX_HOLES = 64 << 20
_BEGINNING = 16 << 20
"""Bytes of a table that are looked at for its columns: a line of JSON has no more."""
_FIRST_ROWS = 100
_STATE = "state.json"
SPLITS = "dataset_dict.json"
"""The file of a folder that `DatasetDict.save_to_disk` wrote."""
_MAX_STATE = 16 << 20
_T = TypeVar("_T")

MAX_PROBLEMS = 100_000
"""Rows that cannot be used: with more of them it is another table that was meant."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One sample of a table, as it is written there."""

    number: int
    """For messages, from 1: the line in a .jsonl or .ndjson, elsewhere the row, header and blank lines not counted."""
    image: str
    """The path; of a picture that the table holds itself it may be empty."""
    captions: tuple[str, ...] | None
    """None where the row says nothing about them: no such field, null, or no column was asked for."""
    mask: str | None
    further: tuple[str | None, ...] = ()
    """Further pictures, in the order of the columns that were asked for."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """What a table says."""

    rows: tuple[TableRow, ...]
    problems: tuple[RowProblem, ...]
    stamp: Stamp
    """How its file looked."""
    embedded: frozenset[str] = frozenset()
    """Columns that hold pictures themselves."""


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
    if path.suffix.lower() not in (*TABLES, SAVED):
        raise SourceError(path, "not a table", hint=f"the name of a table ends in {', '.join(TABLES)}")
    columns = TableColumns(image_column, caption_column, mask_column, further=further_columns, embedded=True)
    table, stamp = read_content(path, columns)
    rows, problems = usable_rows(path, table, columns, lambda cells: _row(cells, columns, table.embedded))
    return SourceTable(tuple(rows), tuple(problems), stamp, table.embedded)


def find_tables(path: Path, *, recursive: bool = True, outside: bool = False) -> tuple[Path, list[str]]:
    """The files of a table: the folder that they are in, and their names in it, in the order of their rows.

    A path is that of one file, or of several by a star in its last part; or a folder of .parquet files, or one that
    `Dataset.save_to_disk` wrote. `SourceError` where there is none.
    """
    if path.suffix.lower() in TABLES:
        if "*" in path.name and not os.path.lexists(path):
            return path.parent, _matching(path)
        return path.parent, [path.name]
    if (path / SPLITS).is_file():
        hint = "name one of its splits, such as train, as the path"
        raise SourceError(path, "several datasets, as `DatasetDict.save_to_disk` writes them", hint=hint)
    if is_saved_dataset(path):
        return path, _saved_files(path)
    listing = walk(path, {"parquet": 1}, recursive=recursive, outside=outside)
    for row in np.flatnonzero(~listing.regular()).tolist():
        raise SourceError(path / listing.path(row), listing.problem(row), hint="check the path, or remove it")
    names = sorted(listing.path(row) for row in range(len(listing.names)))
    if not names:
        hint = f"the concept names a column, and columns are of tables: name one ({', '.join(TABLES)}), or a folder"
        raise SourceError(path, "a folder without tables", hint=f"{hint} with .parquet files in it")
    return path, names


def is_saved_dataset(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` wrote a folder."""
    return (folder / _STATE).is_file() and (folder / "dataset_info.json").is_file()


def _matching(path: Path) -> list[str]:
    """The files of a folder whose names match one with stars."""
    pattern = re.compile(".*".join(map(re.escape, path.name.split("*"))), re.DOTALL)
    try:
        names = sorted(file.name for file in path.parent.iterdir() if file.name[0] != ".")
    except OSError as error:
        hint = "is the drive mounted? An absent folder is not an empty dataset"
        raise SourceError(path.parent, error.strerror or str(error), hint=hint) from error
    names = [name for name in names if pattern.fullmatch(name)]
    if not names:
        raise SourceError(path, "no file has such a name", hint="a star stands for any characters of the last part")
    return names


def _saved_files(folder: Path) -> list[str]:
    """The files that hold the rows of a saved dataset, as it says itself."""
    hint = "write it again by `Dataset.save_to_disk`"
    try:
        state = JSON.decode(read_small(folder / _STATE, _MAX_STATE).decode())
        names = [file["filename"] for file in state["_data_files"]]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise SourceError(folder / _STATE, f"not what it should be: {printable(error)}", hint=hint) from error
    if state.get("_indices_data_files"):
        raise SourceError(folder, "its rows are chosen by a second file", hint=f"flatten_indices(), and {hint}")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix != SAVED:
            raise SourceError(folder / _STATE, f"it names {printable(repr(name)[:80])} as a file", hint=hint)
    return names


def usable_rows(
    path: Path, table: TableContent, columns: TableColumns, make: Callable[[Cells], _T]
) -> tuple[list[_T], list[RowProblem]]:
    """What `make` makes of each row, and the rows that cannot be used; it raises for those."""
    rows: list[_T] = []
    problems: list[RowProblem] = []
    for cells in read_rows(path, table, columns):
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
            with open_table(path) as (descriptor, stamp):
                return read_footer(descriptor, stamp[SIZE]).names
        with open_source(path) as (descriptor, _), open(descriptor, "rb", closefd=False) as opened:
            text = opened.read(_BEGINNING).decode("utf-8-sig", "replace")
        lines = io.StringIO(text, newline="")
        if path.suffix.lower() in (".csv", ".tsv"):
            return next(csv.reader(lines, delimiter="," if path.suffix.lower() == ".csv" else "\t"), [])
    except (TableFileError, EOFError) as error:
        raise broken(path, error) from error
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


@contextmanager
def open_table(path: Path, *, stamp: Stamp | None = None) -> Iterator[tuple[int, Stamp]]:
    """A descriptor of a table and its stamp; `SourceError` where it cannot be had.

    `SourceChangedError` where it has another stamp in the end, or than the one that is expected.
    """
    try:
        with open_source(path) as (descriptor, status):
            before = stamp_of(status)
            if stamp is not None and stamp != before:
                raise SourceChangedError(path)
            try:
                yield descriptor, before
            finally:
                # Also where it could not be understood: half of an edit cannot be.
                if stamp_of(calls.fstat(descriptor)) != before:
                    raise SourceChangedError(path)
    except NotAFileError as error:
        raise SourceError(path, error.reason, hint="name a file that holds a table") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(path, reason, hint="check the path and its permissions") from error


def read_content(path: Path, columns: TableColumns) -> tuple[TableContent, Stamp]:
    """What is asked for of a table, and its stamp; `SourceError` where it cannot be had, or is too much."""
    if "\0" in str(path):
        raise SourceError(path, "embedded null character", hint="check the path and its permissions")
    with open_table(path) as (descriptor, stamp):
        size = stamp[SIZE]
        if in_columns(path):
            return read_parts(path, descriptor, size, columns), stamp
        if size > MAX_BYTES or bytes_there(descriptor, size) + _MAX_HOLES < size:
            hint = "split it, or check what it is; a table holds paths and texts, not pictures"
            raise SourceError(path, f"{format_size(size)}, or mostly holes: more than a table may have", hint=hint)
        return TableContent(read_all(descriptor)), stamp


def content_digest(path: Path, table: TableContent, stamp: Stamp) -> Digest:
    """The digest of all bytes of a table that was read; `SourceChangedError` where it has changed since."""
    if not in_columns(path):
        return digest(table.content)
    with open_table(path, stamp=stamp) as (descriptor, _):
        return digest_open(descriptor, path)


def _row(cells: Cells, columns: TableColumns, embedded: frozenset[str]) -> TableRow:
    number, image, caption, mask, further = cells
    if columns.image in embedded:
        image = image or ""  # whether it has a picture is not known yet
    elif image is None or image == "":
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
