"""Tables of samples: a row names a picture, and may name its captions and its mask.

A table is read whole, once, from one descriptor, so that its rows and its digest are of the same bytes. A row that
cannot be used is a problem of that row. A table whose rows cannot be told apart, or that lacks a column, is refused.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from precook.config.schema import TABLES
from precook.errors import SourceChangedError, SourceError, printable
from precook.fs.read import NotAFileError, open_source, read_all
from precook.fs.stamps import stamp_of
from precook.identity.digest import digest
from precook.sources.captions import CaptionError, checked
from precook.values import Digest

_SHOWN = 12
"""Columns that an error lists."""
_COMPARED = 1000
"""Columns among which the nearest is looked for."""
_LONG = 80
"""Characters of a column's name that are compared and shown."""
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    bytes: "text that is not UTF-8",
}
_ESCAPED = re.compile("[\udc00-\udcff]")
_csv_limit = threading.Lock()
"""Held while the csv module's limit is not what others set."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One sample of a table, as it is written there."""

    number: int
    """For messages, from 1: the line in a .jsonl or .ndjson, elsewhere the row, header and blank lines not counted."""
    image: str
    captions: tuple[str, ...] | None
    """None where the row says nothing about them: no such field, null, or no column was asked for."""
    mask: str | None


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Why a row of a table is no sample, and the next step."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """What a table says, and the digest of the bytes that say it."""

    rows: tuple[TableRow, ...]
    problems: tuple[RowProblem, ...]
    digest: Digest


@dataclass(frozen=True, slots=True)
class _ColumnNames:
    """The columns that are asked for."""

    image: str
    caption: str | None
    mask: str | None

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in (self.image, self.caption, self.mask) if name is not None))


class _RowError(ValueError):
    """Why this row cannot be used."""


_Cells = tuple[int, object, object, object]
"""The number of a row and what the format gives for its image, captions and mask."""


def read_table(
    path: Path, *, image_column: str = "image", caption_column: str | None, mask_column: str | None
) -> SourceTable:
    """The samples in a table, its format told by the suffix.

    A cell with one text is one caption, line ends inside it or not; a list of texts, which .csv and .tsv do not have,
    is several. Captions are stripped and empty ones dropped.

    Python limits the length of a csv cell for the whole process. While a longer .csv or .tsv is parsed the limit is
    raised, and then put back.
    """
    columns = _ColumnNames(image_column, caption_column, mask_column)
    suffix = path.suffix.lower()
    if suffix not in TABLES:
        raise SourceError(path, "not a table", hint=f"the name of a table ends in {', '.join(TABLES)}")
    content = _read(path)
    if suffix == ".parquet":
        found = _parquet_rows(path, content, columns)
    elif suffix in (".csv", ".tsv"):
        found = _csv_rows(path, content, columns, delimiter="," if suffix == ".csv" else "\t")
    else:
        found = _json_rows(path, content, columns)
    rows: list[TableRow] = []
    problems: list[RowProblem] = []
    for cells in found:
        if isinstance(cells, RowProblem):
            problems.append(cells)
            continue
        number, image, caption, mask = cells
        try:
            rows.append(TableRow(number, _image(image, columns), _captions(caption, columns), _mask(mask, columns)))
        except _RowError as error:
            problems.append(RowProblem(number, str(error)))
    return SourceTable(tuple(rows), tuple(problems), digest(content))


def resolve(table: Path, image: str) -> Path:
    """Where a picture or mask named in a table lies: relative names start at the table's folder.

    >>> resolve(Path("data/cats.csv"), "more/cat.jpg").as_posix(), resolve(Path("data/cats.csv"), "/cat.jpg").as_posix()
    ('data/more/cat.jpg', '/cat.jpg')
    """
    return table.parent / image


# The file


def _read(path: Path) -> bytes:
    try:
        with open_source(path) as (descriptor, before):
            content = read_all(descriptor)
            after = os.fstat(descriptor)
    except NotAFileError as error:
        raise SourceError(path, error.reason, hint="name a file that holds a table") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SourceError(
            path, getattr(error, "strerror", None) or str(error), hint="check the path and its permissions"
        ) from error
    if stamp_of(before) != stamp_of(after):
        raise SourceChangedError(path)
    return content


# Columns


def _require(path: Path, found: Sequence[str], columns: _ColumnNames) -> None:
    """Refuse a table unless it has each column that is asked for, once."""
    for name in columns.names:
        if found.count(name) > 1:
            raise SourceError(path, f"column {_quoted(name)} stands there twice", hint="rename one of them")
        if name not in found:
            _refuse_for_want_of(path, name, found)


def _refuse_for_want_of(path: Path, name: str, found: Sequence[str]) -> NoReturn:
    shown = ", ".join(_quoted(column) for column in found[:_SHOWN]) or "none"
    rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    # Compared without case: `Image` is the likeliest mistake of all.
    known = {column[:_LONG].lower(): column for column in reversed(found[:_COMPARED])}
    near = get_close_matches(name[:_LONG].lower(), known, n=1)
    step = f"the nearest is {_quoted(known[near[0]])}: " if near else ""
    raise SourceError(
        path,
        f"no column {_quoted(name)} among its columns {shown}{rest}",
        hint=f"{step}rename the column, or name it in the config",
    )


def _quoted(name: str) -> str:
    return f"'{printable(name[:_LONG])}'"


# Cells


def _image(value: object, columns: _ColumnNames) -> str:
    if value is None or value == "":
        raise _RowError(f"no picture in column {_quoted(columns.image)}: write its path there")
    return _path(value, columns.image)


def _mask(value: object, columns: _ColumnNames) -> str | None:
    if value is None or value == "":
        return None
    return _path(value, columns.mask or "")


def _path(value: object, column: str) -> str:
    if not isinstance(value, str):
        raise _RowError(f"{_KINDS[type(value)]} in column {_quoted(column)}: write a path there")
    if "\0" in value:
        raise _RowError(f"a NUL character in the path in column {_quoted(column)}: no file has such a name")
    if not value.isascii():
        try:
            # Names that are not UTF-8 are written as Python writes them, with U+DC80 to U+DCFF for their bytes.
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise _RowError(
                f"a lone surrogate in the path in column {_quoted(column)}: no file has such a name"
            ) from None
    return value


def _captions(value: object, columns: _ColumnNames) -> tuple[str, ...] | None:
    if value is None:
        return None
    column = columns.caption or ""
    texts = value if isinstance(value, list) else [value]
    captions = []
    for text in texts:
        if not isinstance(text, str):
            place = "a list in " if texts is value else ""
            kind = _KINDS[type(text)]
            raise _RowError(f"{kind} in {place}column {_quoted(column)}: write a text, or a list of texts")
        try:
            stripped = checked(text).strip()
        except CaptionError as error:
            raise _RowError(f"column {_quoted(column)}: {error}") from error
        if stripped:
            captions.append(stripped)
    return tuple(captions)


# JSON lines


def _json_rows(path: Path, content: bytes, columns: _ColumnNames) -> Iterator[_Cells | RowProblem]:
    _refuse_utf16(path, content)
    image, caption, mask = columns.image, columns.caption, columns.mask
    seen: dict[str, None] = {}
    wanted = set(columns.names)
    lines = io.BytesIO(content)
    lines.seek(len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0)
    objects = 0
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            fields = _json_object(line)
        except _RowError as error:
            yield RowProblem(number, str(error))
            continue
        objects += 1
        if wanted:
            wanted -= fields.keys()
            seen.update(dict.fromkeys(fields))
        yield (
            number,
            fields.get(image),
            None if caption is None else fields.get(caption),
            None if mask is None else fields.get(mask),
        )
    if objects:
        _require(path, list(seen), columns)


def _json_object(line: bytes) -> dict[str, object]:
    try:
        value = _JSON.decode(line.decode())
    except _RowError:
        raise
    except UnicodeDecodeError as error:
        raise _RowError(
            f"byte 0x{line[error.start]:02x} at offset {error.start} of the line is not UTF-8: save the table as UTF-8"
        ) from None
    except RecursionError:
        raise _RowError("nested too deeply: write one flat object per line") from None
    except json.JSONDecodeError as error:
        raise _RowError(f"broken JSON at character {error.pos + 1}, {error.msg}: write one object per line") from None
    except ValueError as error:
        raise _RowError(f"unusable JSON, {error}") from None
    if not isinstance(value, dict):
        raise _RowError(f"{_KINDS[type(value)]}, not an object: write one object per line")
    return value


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise _RowError(f"field {_quoted(name)} stands there twice: remove one")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise _RowError(f"{name} is not JSON: write null, or leave the field out")


_JSON = json.JSONDecoder(object_pairs_hook=_unique_fields, parse_constant=_refuse_constant)


def _refuse_utf16(path: Path, content: bytes) -> None:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        raise SourceError(path, "the table is UTF-16 or UTF-32", hint="save it as UTF-8")


# Comma- and tab-separated values


def _csv_rows(path: Path, content: bytes, columns: _ColumnNames, *, delimiter: str) -> Iterator[_Cells | RowProblem]:
    _refuse_utf16(path, content)
    try:
        text, clean = content.decode(), b"\0" not in content
    except UnicodeDecodeError:
        text, clean = content.decode("utf-8", "surrogateescape"), False
    if not clean:
        # Escaped like the bytes that are not UTF-8, so that it is a problem of its row: before Python 3.11 the csv
        # module refuses the whole file for it.
        text = text.replace("\0", "\udc00")
    rows = _split_cells(path, text.removeprefix("\ufeff"), delimiter)
    if not rows:
        raise SourceError(path, "no header row", hint="name the columns in the first row")
    header = rows[0]
    _require(path, header, columns)
    image = header.index(columns.image)
    caption = None if columns.caption is None else header.index(columns.caption)
    mask = None if columns.mask is None else header.index(columns.mask)
    for number, cells in enumerate(rows[1:], 1):
        if len(cells) != len(header):
            reason = f"{len(cells)} cells, and the header has {len(header)}: quote a cell with a separator in it"
            yield RowProblem(number, reason)
        elif not clean and (found := _ESCAPED.search("\n".join(cells))):
            byte = ord(found[0]) - 0xDC00
            yield RowProblem(number, f"byte 0x{byte:02x} is not UTF-8 text: save the table as UTF-8, without NUL")
        else:
            yield (
                number,
                cells[image],
                None if caption is None else cells[caption],
                None if mask is None else cells[mask],
            )


def _split_cells(path: Path, text: str, delimiter: str) -> list[list[str]]:
    """The rows that are not blank; a table whose quotes are broken is refused, for its rows could be anywhere."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    start = 1
    with _room_for_cells(len(text)):
        try:
            for cells in reader:
                if cells:
                    rows.append(cells)
                start = reader.line_num + 1
        except csv.Error as error:
            raise SourceError(
                path,
                f"the row that begins in line {start} is broken: {error}",
                hint="put a cell with quotes, separators or line ends into quotes, and double the quotes in it",
            ) from error
    return rows


@contextmanager
def _room_for_cells(length: int) -> Iterator[None]:
    """Let the csv module read cells up to this length; its limit is left alone where it suffices."""
    with _csv_limit:
        before = csv.field_size_limit()
        if length <= before:
            yield
            return
        csv.field_size_limit(length)
        try:
            yield
        finally:
            # Whoever else set it in the meantime keeps what they set.
            if csv.field_size_limit() == length:
                csv.field_size_limit(before)


# Parquet


def _parquet_rows(path: Path, content: bytes, columns: _ColumnNames) -> Iterator[_Cells | RowProblem]:
    try:
        import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise SourceError(path, "parquet needs pyarrow", hint="pip install 'precook[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content)) as file:
            schema = file.schema_arrow
            _require(path, schema.names, columns)
            for name in columns.names:
                # Asked before anything in the column is read: it may well hold the pictures.
                kind = schema.field(name).type
                if not _holds_text(kind, lists=name == columns.caption):
                    raise SourceError(
                        path,
                        f"column {_quoted(name)} holds {printable(kind)}, not text",
                        hint="a picture or mask is a path, a caption a text or a list of texts",
                    )
            number = 1
            for batch in file.iter_batches(columns=columns.names, use_threads=False):
                yield from zip(
                    range(number, number + len(batch)),
                    *(_values(batch, name) for name in (columns.image, columns.caption, columns.mask)),
                    strict=True,
                )
                number += len(batch)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError(path, f"broken parquet: {printable(error)}", hint="write the file again") from error


def _holds_text(kind: Any, *, lists: bool) -> bool:
    from pyarrow import types  # noqa: PLC0415 - an extra, and slow to import

    if types.is_dictionary(kind):
        return _holds_text(kind.value_type, lists=False)
    if lists and (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return _holds_text(kind.value_type, lists=False)
    return str(kind) in ("string", "large_string", "string_view", "null")


def _values(batch: Any, name: str | None) -> list[object]:
    if name is None:
        return [None] * len(batch)
    column = batch.column(name)
    if hasattr(column, "dictionary_decode"):
        # Measured: 25 times as fast as looking up value by value.
        column = column.dictionary_decode()
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        # pyarrow hands out what the file says is UTF-8; one by one, the rows that are not can be told.
        values = [_value(cell) for cell in column]
    return values


def _value(cell: Any) -> object:
    try:
        value: object = cell.as_py()
    except UnicodeDecodeError:
        return b""
    return value
