"""Formats of tables: the cells of each row of JSON lines, comma- or tab-separated values, Parquet or Arrow.

A row that cannot be read is a problem of that row. A table that lacks a column, or whose rows cannot be told apart, is
refused with a `SourceError`.
"""

from __future__ import annotations

import codecs
import csv
import importlib.util
import io
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from precook.config.texts import usual_texts
from precook.errors import SourceError, printable
from precook.sources.arrow import ArrowFile
from precook.sources.parquet import UNFOLDING, Leaf, TableFileError, most_unfolded, read_footer, text_or_bytes
from precook.sources.parquet_values import ParquetCells
from precook.units import format_size

_SHOWN_COLUMNS = 12
"""Columns that an error lists."""
_COMPARED_COLUMNS = 1000
"""Columns among which the nearest is looked for."""
_SHOWN_NAME = 80
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
_MAX_LINE = 16 << 20
"""Bytes of a line of JSON: its values take up to 24 times as much while it is read."""
_MAX_ROWS = 1_000_000
"""Rows of a Parquet file, or texts of a column, beyond one for each of its bytes."""
_ESCAPED = re.compile("[\udc00-\udcff]")
_TOO_MUCH = f"its texts are more than {UNFOLDING} times the file"
_WRITE_AGAIN = "write the file again"
_csv_limit = threading.Lock()
"""Held while the csv module's limit is not what others set."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of the columns that are asked for."""

    image: str
    caption: str | None
    mask: str | None
    nested: bool = False
    """Whether a cell may hold objects and lists of them, such as the messages of a conversation."""
    further: tuple[str, ...] = ()
    """Those of further pictures."""
    texts: bool = False
    """Whether texts are asked for, and no pictures."""
    embedded: bool = False
    """Whether the columns of pictures and masks may hold these themselves, in place of their paths."""

    @property
    def names(self) -> list[str]:
        """Each name once."""
        every = (self.image, self.caption, self.mask, *self.further)
        return list(dict.fromkeys(name for name in every if name is not None))


@dataclass(frozen=True, slots=True)
class TableContent:
    """What was read of a table: all of it or, where its columns lie apart from each other, those that are asked for."""

    content: bytes
    """Of Parquet, a file of these columns alone; of Arrow, nothing."""
    rows: int = 0
    """Of Parquet and Arrow, how many there are."""
    most: int = 0
    """Of Parquet, bytes that the texts of the content may have."""
    dictionaries: tuple[str, ...] = ()
    """Of Parquet, columns of values in the content of which that is not known yet."""
    cells: Mapping[str, list[object]] = field(default_factory=dict)
    """Of Parquet and Arrow, what stands in columns that are not in the content."""
    embedded: frozenset[str] = frozenset()
    """Columns that hold pictures themselves: of these the cells are the paths beside them, or null."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Why a row of a table is no sample, and the next step."""

    number: int
    reason: str


class RowError(ValueError):
    """Why this row cannot be used."""


Cells = tuple[int, object, object, object, Sequence[object]]
"""The number of a row and what the format gives for its image, captions, mask and further pictures."""


def in_columns(path: Path) -> bool:
    """Whether a table is of a format whose columns are read apart from each other; its suffix tells."""
    return path.suffix.lower() in (".parquet", ".arrow")


def require_pyarrow(path: Path) -> None:
    """Say what is missing where a table of Parquet or Arrow cannot be read at all."""
    if importlib.util.find_spec("pyarrow") is None:
        name = "parquet" if path.suffix.lower() == ".parquet" else "arrow"
        raise SourceError(path, f"{name} needs pyarrow", hint="pip install 'precook[parquet]'")


def check_rows(path: Path, rows: int, size: int) -> None:
    """Refuse a table of so many bytes that claims more rows than it can have."""
    if rows > _MAX_ROWS + size:
        raise SourceError(path, f"it claims {rows:,} rows of {format_size(size)}", hint=_WRITE_AGAIN)


def read_parts(path: Path, descriptor: int, size: int, columns: TableColumns) -> TableContent:
    """What is asked for of a table of Parquet or Arrow, which is open; nothing else of it is read."""
    require_pyarrow(path)
    import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import

    read = _read_parquet if path.suffix.lower() == ".parquet" else _read_arrow
    try:
        return read(path, descriptor, size, columns)
    except (TableFileError, EOFError, pyarrow.ArrowException) as error:
        raise broken(path, error) from error


def broken(path: Path, error: Exception) -> SourceError:
    """The error for a table whose bytes cannot be what they should be."""
    name = path.suffix.lower().removeprefix(".")
    return SourceError(path, f"broken {name}: {printable(error)}", hint=_WRITE_AGAIN)


def read_rows(path: Path, table: TableContent, columns: TableColumns) -> Iterator[Cells | RowProblem]:
    """The rows of a table with this content; its suffix tells the format."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet_rows(path, table, columns)
    if suffix == ".arrow":
        return _arrow_rows(table, columns)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, table.content, columns, delimiter="," if suffix == ".csv" else "\t")
    return _json_rows(path, table.content, columns)


def kind_name(value: object) -> str:
    """What a cell holds, in the words of somebody who writes a table."""
    return _KINDS.get(type(value), "something that is no text")


def quoted(name: str) -> str:
    """The name of a column as messages show it."""
    return f"'{printable(name[:_SHOWN_NAME])}'"


# JSON lines


def _json_rows(path: Path, content: bytes, columns: TableColumns) -> Iterator[Cells | RowProblem]:
    _refuse_utf16(path, content)
    seen: dict[str, None] = {}
    missing = set(columns.names)
    lines = io.BytesIO(content)
    lines.seek(len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0)
    objects = 0
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            if len(line) > _MAX_LINE:
                raise RowError(f"a line of more than {format_size(_MAX_LINE)}: write one flat object per line")  # noqa: TRY301
            fields = _json_object(line)
        except RowError as error:
            yield RowProblem(number, str(error))
            continue
        objects += 1
        if missing:
            missing -= fields.keys()
            seen.update(dict.fromkeys(fields))
        yield (
            number,
            fields.get(columns.image),
            None if columns.caption is None else fields.get(columns.caption),
            None if columns.mask is None else fields.get(columns.mask),
            [fields.get(name) for name in columns.further],
        )
    if objects:
        _require_columns(path, list(seen), columns)


def _json_object(line: bytes) -> dict[str, object]:
    try:
        value = JSON.decode(line.decode())
    except RowError:
        raise
    except UnicodeDecodeError as error:
        raise RowError(
            f"byte 0x{line[error.start]:02x} at offset {error.start} of the line is not UTF-8: save the table as UTF-8"
        ) from None
    except RecursionError:
        raise RowError("nested too deeply: write one flat object per line") from None
    except json.JSONDecodeError as error:
        raise RowError(f"broken JSON at character {error.pos + 1}, {error.msg}: write one object per line") from None
    except ValueError as error:
        raise RowError(f"unusable JSON, {error}") from None
    if not isinstance(value, dict):
        raise RowError(f"{kind_name(value)}, not an object: write one object per line")
    return value


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise RowError(f"field {quoted(name)} stands there twice: remove one")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise RowError(f"{name} is not JSON: write null, or leave the field out")


JSON = json.JSONDecoder(object_pairs_hook=_unique_fields, parse_constant=_refuse_constant)
"""Reads JSON strictly: a field that stands there twice and what no standard knows are refused."""


def _refuse_utf16(path: Path, content: bytes) -> None:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        raise SourceError(path, "the table is UTF-16 or UTF-32", hint="save it as UTF-8")


# Comma- and tab-separated values


def _csv_rows(path: Path, content: bytes, columns: TableColumns, *, delimiter: str) -> Iterator[Cells | RowProblem]:
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
    _require_columns(path, header, columns)
    image = header.index(columns.image)
    caption = None if columns.caption is None else header.index(columns.caption)
    mask = None if columns.mask is None else header.index(columns.mask)
    further = [header.index(name) for name in columns.further]
    for number, cells in enumerate(rows[1:], 1):
        if len(cells) != len(header):
            reason = f"{len(cells)} cells, and the header has {len(header)}: quote a cell with a separator in it"
            yield RowProblem(number, reason)
        elif not clean and (escaped := _ESCAPED.search("\n".join(cells))):
            byte = ord(escaped[0]) - 0xDC00
            yield RowProblem(number, f"byte 0x{byte:02x} is not UTF-8 text: save the table as UTF-8, without NUL")
        else:
            yield (
                number,
                cells[image],
                None if caption is None else cells[caption],
                None if mask is None else cells[mask],
                [cells[place] for place in further],
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


def _read_parquet(path: Path, descriptor: int, size: int, columns: TableColumns) -> TableContent:
    footer = read_footer(descriptor, size)
    _require_columns(path, footer.names, columns)
    paths: dict[str, Leaf | None] = {}
    for name in columns.names:
        if columns.embedded and name != columns.caption and (pictures := footer.pictures(name)) is not None:
            paths[name] = pictures[1]
    leaves = [leaf for name in columns.names if name not in paths for leaf in footer.leaves(name)]
    if leaves:
        _require_texts(path, footer.excerpt(descriptor, leaves, rows=False), leaves, columns)
    most = most_unfolded(size)
    values, unfolded = footer.claims([*leaves, *(leaf for leaf in paths.values() if leaf is not None)])
    if values > _MAX_ROWS + size or unfolded > most:
        claims = f"it claims {values:,} values of {format_size(unfolded)}"
        raise SourceError(path, f"{claims}, and the file has {format_size(size)}", hint=_WRITE_AGAIN)
    cells: dict[str, list[object]] = {
        name: list(map(text_or_bytes, ParquetCells(footer, leaf).read_all(descriptor, most)))
        for name, leaf in paths.items()
        if leaf is not None
    }
    dictionaries = []
    for leaf in leaves:
        # As dictionaries: a text that stands in a million rows is there once, until we know how much it would be.
        # pyarrow joins no dictionaries of several parts of a file in lists and objects: of those it is counted here.
        count = ParquetCells(footer, leaf).count_bytes(descriptor) if len(leaf.path) > 1 else None
        most -= count or 0
        dictionaries += [".".join(leaf.path)] if count is None else []
    if most < 0:
        raise SourceError(path, _TOO_MUCH, hint=_WRITE_AGAIN)
    content = footer.excerpt(descriptor, leaves) if leaves else b""
    return TableContent(content, footer.rows, most, tuple(dictionaries), cells, frozenset(paths))


def _require_texts(path: Path, empty: bytes, leaves: Sequence[Leaf], columns: TableColumns) -> None:
    """Refuse columns that hold anything but texts, by a file without rows: one may be of another kind, and large."""
    import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import
    import pyarrow.parquet  # noqa: PLC0415

    try:
        with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(empty)) as file:
            schema = file.schema_arrow
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise broken(path, error) from error
    for name in schema.names:
        _require_text(path, name, schema.field(name).type, columns)
    for leaf in leaves:
        if leaf.kind_name != "BYTE_ARRAY" and not leaf.is_null:
            message = f"column {quoted('.'.join(leaf.path))} holds {leaf.kind_name}, not text"
            raise SourceError(path, message, hint="leave it out, or write the table as .jsonl")


def _require_text(path: Path, name: str, kind: Any, columns: TableColumns) -> None:
    if not columns.nested and not _holds_text(kind, lists=name == columns.caption):
        raise SourceError(
            path,
            f"column {quoted(name)} holds {printable(kind)}, not text",
            hint="a picture or mask is a path, a caption a text or a list of texts",
        )


def _parquet_rows(path: Path, table: TableContent, columns: TableColumns) -> Iterator[Cells | RowProblem]:
    if not table.content:
        yield from _cells(columns, table.cells, 0, table.rows)
        return
    import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import
    import pyarrow.parquet  # noqa: PLC0415

    try:
        source = pyarrow.BufferReader(table.content)
        with pyarrow.parquet.ParquetFile(source, read_dictionary=list(table.dictionaries)) as file:
            row, left = 0, table.most
            for batch in file.iter_batches(use_threads=False):
                left -= sum(map(_text_bytes, batch.columns))
                if left < 0:
                    raise SourceError(path, _TOO_MUCH, hint=_WRITE_AGAIN)
                if row + len(batch) > table.rows:
                    break
                values = {name: some[row : row + len(batch)] for name, some in table.cells.items()}
                values |= {name: _values(batch.column(name)) for name in batch.schema.names}
                yield from _cells(columns, values, row, len(batch))
                row += len(batch)
        if row != table.rows:
            raise broken(path, TableFileError("its pages have other rows than its footer says"))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        raise broken(path, error) from error


def _cells(columns: TableColumns, values: Mapping[str, list[object]], before: int, count: int) -> Iterator[Cells]:
    """Rows of columns that were read apart from each other, after so many; what was not read is null in all of them."""
    nothing: list[object] = [None] * count

    def column(name: str | None) -> list[object]:
        return nothing if name is None else values.get(name, nothing)

    further = [column(name) for name in columns.further]
    yield from zip(
        range(before + 1, before + 1 + count),
        *(column(name) for name in (columns.image, columns.caption, columns.mask)),
        zip(*further, strict=True) if further else itertools.repeat((), count),
        strict=True,
    )


def _text_bytes(column: Any) -> int:
    """The bytes of all texts of a column of a batch, written out."""
    from pyarrow import compute, types  # noqa: PLC0415 - an extra, and slow to import

    if types.is_struct(column.type):
        return sum(map(_text_bytes, column.flatten()))
    if not types.is_dictionary(column.type) and hasattr(column, "flatten") and types.is_nested(column.type):
        return _text_bytes(column.flatten())
    if not types.is_dictionary(column.type):
        return 0
    lengths = compute.binary_length(column.dictionary).take(column.indices)
    return compute.sum(lengths).as_py() or 0


def _holds_text(kind: Any, *, lists: bool) -> bool:
    from pyarrow import types  # noqa: PLC0415 - an extra, and slow to import

    if types.is_dictionary(kind):
        return _holds_text(kind.value_type, lists=False)
    if lists and (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return _holds_text(kind.value_type, lists=False)
    return str(kind) in ("string", "large_string", "string_view", "null")


def _values(column: Any) -> list[object]:
    # Measured: 25 times as fast as looking up value by value.
    column = column.cast(_written_out(column.type))
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        # pyarrow hands out what the file says is UTF-8; one by one, the rows that are not can be told.
        values = [_cell_value(cell) for cell in column]
    return values


def _written_out(kind: Any) -> Any:
    """A type of texts, or of lists and objects of them, without dictionaries."""
    from pyarrow import large_list, list_, struct, types  # noqa: PLC0415 - an extra, and slow to import

    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_struct(kind):
        return struct([(field.name, _written_out(field.type)) for field in kind])
    if types.is_large_list(kind):
        return large_list(_written_out(kind.value_type))
    if types.is_fixed_size_list(kind):
        return list_(_written_out(kind.value_type), kind.list_size)
    return list_(_written_out(kind.value_type)) if types.is_list(kind) else kind


def _cell_value(cell: Any) -> object:
    """The value of a cell; bytes, which no cell is meant to hold, where its text is not UTF-8."""
    try:
        value: object = cell.as_py()
    except UnicodeDecodeError:
        return b""
    return value


# Arrow


def _read_arrow(path: Path, descriptor: int, size: int, columns: TableColumns) -> TableContent:
    file = ArrowFile(descriptor, size)
    _require_columns(path, file.names, columns)
    check_rows(path, file.rows, size)
    embedded: set[str] = set()
    cells: dict[str, list[object]] = {}
    for name in columns.names:
        kind = file.kind(name)
        if columns.embedded and name != columns.caption and file.pictures(name) is not None:
            embedded.add(name)
            if not file.has_paths(name):
                continue
        else:
            _require_text(path, name, kind, columns)
        cells[name] = list(itertools.chain.from_iterable(file.texts(descriptor, name, path=name in embedded)))
    return TableContent(b"", file.rows, cells=cells, embedded=frozenset(embedded))


def _arrow_rows(table: TableContent, columns: TableColumns) -> Iterator[Cells]:
    return _cells(columns, table.cells, 0, table.rows)


# All formats


def _require_columns(path: Path, names: Sequence[str], columns: TableColumns) -> None:
    """Refuse a table unless it has each column that is asked for, once."""
    for name in columns.names:
        if names.count(name) > 1:
            raise SourceError(path, f"column {quoted(name)} stands there twice", hint="rename one of them")
        if name not in names:
            raise _missing_column(path, name, names, columns)


def _missing_column(path: Path, name: str, names: Sequence[str], columns: TableColumns) -> SourceError:
    shown = ", ".join(quoted(other) for other in names[:_SHOWN_COLUMNS]) or "none"
    rest = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    # Compared without case: `Image` is the likeliest mistake of all.
    folded = {other[:_SHOWN_NAME].lower(): other for other in reversed(names[:_COMPARED_COLUMNS])}
    nearest = get_close_matches(name[:_SHOWN_NAME].lower(), folded, n=1)
    step = f"the nearest is {quoted(folded[nearest[0]])}: " if nearest else ""
    hint = f"{step}rename the column, or name it in the config"
    texts = usual_texts(names[:_COMPARED_COLUMNS])
    if name == columns.image and not columns.texts and texts is not None:
        form = texts.model_dump()
        if not nearest or folded[nearest[0]] in form.values():
            listed = ", ".join(f"{field}: {column}" for field, column in form.items())
            hint = (
                f"for texts without pictures write `texts: {{{listed}}}` in the concept; "
                "for pictures, rename their column, or name it in the config"
            )
    return SourceError(path, f"no column {quoted(name)} among its columns {shown}{rest}", hint=hint)
