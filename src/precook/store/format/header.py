"""The safetensors header: columns to bytes and back, under limits of our own.

Pure functions. The limits hold before any other library sees a file: safetensors itself accepts a name given twice,
absurd shapes and headers that take gigabytes to parse.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from precook.identity.canonical import dump_json
from precook.store.dtypes import DTYPES
from precook.store.leaves import MAX_BYTES, MAX_DIM, MAX_RANK

MAX_HEADER = 16 << 20
MAX_COLUMNS = 1 << 16
ALIGNMENT = 64
_NAME = re.compile(r"[A-Za-z0-9_./~-]{1,128}")
_METADATA = "__metadata__"


class HeaderError(ValueError):
    """Bytes that are no header we accept; the message says why."""


@dataclass(frozen=True, slots=True)
class Column:
    """One tensor of a safetensors file: `shape` and offsets as its header states them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the end of the header."""

    @property
    def nbytes(self) -> int:
        """Bytes the column takes."""
        return column_bytes(self.dtype, self.shape)

    @property
    def end(self) -> int:
        """First byte after the column."""
        return self.start + self.nbytes


def column_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor of this safetensors type and shape takes."""
    known = DTYPES[dtype]
    return math.prod(shape) * known.size // known.lanes


def dump_header(columns: Iterable[Column], metadata: dict[str, str]) -> bytes:
    """The first bytes of a safetensors file: length, JSON, spaces up to the alignment."""
    form: dict[str, Any] = {_METADATA: metadata}
    for column in columns:
        form[column.name] = {
            "dtype": column.dtype,
            "shape": list(column.shape),
            "data_offsets": [column.start, column.end],
        }
    text = dump_json(form)
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def header_length(prefix: bytes) -> int:
    """How long the header is that begins with these eight bytes, the eight included."""
    if len(prefix) < 8:  # noqa: PLR2004 - a u64
        _refuse("shorter than a header's length")
    (length,) = struct.unpack("<Q", prefix[:8])
    if length > MAX_HEADER:
        _refuse(f"a header of {length} bytes; at most {MAX_HEADER} are accepted")
    return 8 + int(length)


def load_json(text: bytes | str) -> Any:
    """What JSON from anybody says; `HeaderError` where it gives a name twice, has NaN in it, or is none."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except HeaderError:
        raise
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"not JSON: {error}"[:200]) from error


def parse_header(data: bytes) -> tuple[list[Column], dict[str, str]]:
    """Columns in file order and the metadata of a complete header; `HeaderError` for anything doubtful."""
    if len(data) != header_length(data):
        _refuse("cut short")
    form = load_json(data[8:])
    if not isinstance(form, dict):
        _refuse("not an object")
    metadata = form.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse("metadata is not a map of texts")
    if len(form) > MAX_COLUMNS:
        _refuse(f"{len(form)} columns; at most {MAX_COLUMNS} are accepted")
    columns = sorted((_column(name, item) for name, item in form.items()), key=lambda c: (c.start, c.end))
    end = 0
    for column in columns:
        if column.start != end:
            _refuse(f"column {column.name} does not begin where the one before it ends")
        end = column.end
    return columns, metadata


def _column(name: str, form: object) -> Column:
    if not _NAME.fullmatch(name):
        _refuse(f"the column name {name[:80]!a}")
    if not isinstance(form, dict) or sorted(form) != ["data_offsets", "dtype", "shape"]:
        _refuse(f"column {name} lacks a field or has one too many")
    dtype, shape, offsets = form["dtype"], form["shape"], form["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        _refuse(f"column {name} has an unknown type")
    if not isinstance(shape, list) or len(shape) > MAX_RANK + 1:
        _refuse(f"column {name} has too many dimensions")
    size = DTYPES[dtype].size
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= MAX_BYTES:
            _refuse(f"column {name} has an absurd shape")
        size *= max(dim, 1)
        if size > MAX_BYTES * MAX_DIM:
            _refuse(f"column {name} has an absurd shape")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(item) is int for item in offsets)):  # noqa: PLR2004
        _refuse(f"column {name} has no offsets")
    column = Column(name, dtype, tuple(shape), offsets[0])
    if offsets[0] < 0 or offsets[1] != column.end or column.nbytes > MAX_BYTES:
        _refuse(f"the offsets of column {name} do not fit its shape")
    return column


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    form = dict(pairs)
    if len(form) != len(pairs):
        _refuse("a name is given twice")
    return form


def _refuse(reason: str) -> NoReturn:
    raise HeaderError(reason)
