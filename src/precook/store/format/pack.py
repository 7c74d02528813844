"""Packs as bytes: what the head of a pack says, and how to read it without believing it.

Pure functions that follow docs/reference/format.md word for word.
A pack is a head (header and directory: keys, checksums, recipe numbers, shapes, plain values) followed by the leaf
columns. Its id is the digest of its head, so a pack that was renamed, swapped or changed in its head is never mistaken
for another; each row's checksum guards the rest.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from precook.identity.canonical import JsonValue, dump_json
from precook.identity.digest import derived_digest
from precook.identity.recipe import recipe_digest
from precook.identity.versions import check_versions, dump_versions
from precook.store.dtypes import DTYPES, DType
from precook.store.format.header import ALIGNMENT, MAX_HEADER, Column, HeaderError, load_json, parse_header
from precook.store.leaves import MAX_BYTES, MAX_DIM, MAX_RANK, Library
from precook.store.tree import Build, builder, read_values
from precook.values import Array, Bytes, Numbers

FORMAT = 1
MAX_HEAD = 1 << 30
"""Most bytes a head may claim, before any of it is read."""
MAX_SKELETON = MAX_HEADER // 4
"""Most bytes of the skeleton of one entry."""
MAX_RECIPES = 0xFFFF
"""Most recipes of a pack: rows name them by two bytes."""
MAX_CREATED = 1 << 37
"""The latest time of creation, in the year 6325: whatever shows a time can show this one."""
DIRECTORY_TYPES = {"|u1": "U8", "<u2": "U16", "<u4": "U32"}
"""What directory columns are made of: numpy's names and safetensors'."""
_PACK_CONTEXT = "precook pack 1"
METADATA = "precook"
NO_RECIPE = bytes(32)
"""Stands where an entry without a recipe would have its digest."""


def pair(offsets: Array | None, row: int) -> tuple[int, int]:
    """Where a row begins and ends."""
    assert offsets is not None
    return offsets.item(row), offsets.item(row + 1)


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """One leaf of every row of a table: where its bytes lie in the file."""

    name: str
    dtype: DType
    library: Library
    start: int
    """First byte of row 0 in the file."""
    shape: tuple[int, ...] | None
    """The shape all rows share, or None where it varies from row to row."""
    shapes: npt.NDArray[np.uint32] | None
    """Each row's shape, where it varies."""
    offsets: Numbers | None
    """Each row's first byte and the last one's end, relative to `start`, where shapes vary."""

    def span(self, row: int) -> tuple[int, int]:
        """First byte and length of a row in the file."""
        offsets = self.offsets
        if offsets is not None:
            begin = offsets.item(row)
            return self.start + begin, offsets.item(row + 1) - begin
        size = self.row_bytes
        return self.start + row * size, size

    @property
    def row_bytes(self) -> int:
        """Bytes of a row where all have the same shape."""
        assert self.shape is not None
        return math.prod(self.shape) * self.dtype.size

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape) if self.shape is not None else self.shapes.shape[1]  # type: ignore[union-attr]

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest row."""
        if self.offsets is None:
            return self.row_bytes
        return int((self.offsets[1:] - self.offsets[:-1]).max())

    def row_shape(self, row: int) -> tuple[int, ...]:
        """A row's shape."""
        if self.shape is not None:
            return self.shape
        assert self.shapes is not None
        return tuple(self.shapes[row].tolist())


@dataclass(frozen=True, slots=True)
class TextColumn:
    """JSON of every row of a table: one text for all, or each row's own."""

    text: bytes
    offsets: npt.NDArray[np.uint32] | None

    def row(self, row: int) -> bytes:
        """A row's JSON."""
        if self.offsets is None:
            return self.text
        begin, end = pair(self.offsets, row)
        return self.text[begin:end]


@dataclass(frozen=True, slots=True)
class Table:
    """The entries of a pack that share a skeleton, as its directory describes them."""

    rows: int
    skeleton: bytes
    build: Build
    keys: Bytes
    checksums: Bytes
    recipes: npt.NDArray[np.uint16]
    leaves: tuple[LeafColumn, ...]
    values: TextColumn
    parts: int
    """How many plain parts each row has."""
    labels: TextColumn

    def check_values(self, row: int) -> None:
        """`ValueError` where a row's plain values cannot be put into its tree."""
        # What all rows share was read with the head.
        if self.values.offsets is not None and len(read_values(self.values.row(row), named=True)) != self.parts:
            raise HeaderError("it has another number of plain values than its skeleton")

    def row_bytes(self) -> Numbers:
        """Bytes of tensors and plain values of each row."""
        total = np.zeros(self.rows, np.int64)
        for leaf in self.leaves:
            total += leaf.row_bytes if leaf.offsets is None else leaf.offsets[1:] - leaf.offsets[:-1]
        for text in (self.values, self.labels):
            if text.offsets is not None:
                total += text.offsets[1:] - text.offsets[:-1]
        return total


@dataclass(frozen=True, slots=True)
class Head:
    """All that a pack says before its leaf columns."""

    id: str
    created: int
    """Seconds since 1970, by the writer's clock: to be shown, never to be relied on."""
    tables: tuple[Table, ...]
    recipes: tuple[bytes, ...]
    """Canonical forms; row value 0 means no recipe, n means `recipes[n - 1]`."""
    recipe_digests: tuple[bytes, ...]
    """Digests by row value, for checksums."""
    made: tuple[bytes, ...]
    """The versions that entries were made with, by row value, as JSON; empty where nothing was recorded."""
    nbytes: int
    """Bytes of the head itself."""
    file_bytes: int
    """Bytes the whole file must have."""

    @property
    def rows(self) -> int:
        """Number of entries."""
        return sum(table.rows for table in self.tables)


def checksum(
    *,
    key: bytes,
    recipe: bytes,
    skeleton: bytes,
    values: bytes,
    labels: bytes,
    leaves: Iterable[tuple[Any, Iterable[Any]]],
) -> bytes:
    """XXH3-128 of everything an entry is; `recipe` is the recipe's digest, `leaves` are (shape, bytes in pieces)."""
    leaves = tuple(leaves)
    state = xxhash.xxh3_128(key + recipe + _tail(skeleton, values, labels, [shape for shape, _ in leaves]))
    for _, pieces in leaves:
        for piece in pieces:
            state.update(piece)
    return state.digest()


def shared_tail(table: Table) -> bytes | None:
    """What the checksums of all rows of a table have between recipe and leaves; None where it differs."""
    varies = any(leaf.shape is None for leaf in table.leaves)
    if varies or table.values.offsets is not None or table.labels.offsets is not None:
        return None
    return row_tail(table, 0)


def row_tail(table: Table, row: int) -> bytes:
    """What the checksum of a row has there."""
    shapes = [leaf.row_shape(row) for leaf in table.leaves]
    return _tail(table.skeleton, table.values.row(row), table.labels.row(row), shapes)


def _tail(skeleton: bytes, values: bytes, labels: bytes, shapes: Iterable[tuple[int, ...]]) -> bytes:
    dims: tuple[int, ...] = ()
    for shape in shapes:
        dims += shape
    sizes = struct.pack(f"<{3 + len(dims)}Q", len(skeleton), len(values), len(labels), *dims)
    return b"".join((sizes, skeleton, values, labels))


def row_checksums(table: Table, recipes: Sequence[bytes], rows: slice, leaves: Sequence[memoryview]) -> Bytes:
    """The same for consecutive rows of a table at a time; `leaves` has the bytes that each leaf has in all of them.

    `recipes` are the digests by row value. What comes before the leaves is laid out for all rows at once: a call for
    each part of each row would take longer than its hash.
    """
    count = rows.stop - rows.start
    sizes = np.empty((count, 3 + sum(leaf.rank for leaf in table.leaves)), "<u8")
    sizes[:, 0] = len(table.skeleton)
    columns: list[Iterable[Any]] = []
    for number, text in enumerate((table.values, table.labels)):
        if text.offsets is None:
            sizes[:, 1 + number] = len(text.text)
            columns.append(itertools.repeat(text.text))
        else:
            sizes[:, 1 + number] = np.diff(text.offsets[rows.start : rows.stop + 1])
            columns.append([text.row(row) for row in range(rows.start, rows.stop)])
    at = 3
    for leaf, data in zip(table.leaves, leaves, strict=True):
        sizes[:, at : at + leaf.rank] = leaf.shape if leaf.shapes is None else leaf.shapes[rows]
        at += leaf.rank
        edges = (
            [row * leaf.row_bytes for row in range(count + 1)]
            if leaf.offsets is None
            else (leaf.offsets[rows.start : rows.stop + 1] - leaf.offsets[rows.start]).tolist()
        )
        columns.append([data[begin:end] for begin, end in itertools.pairwise(edges)])
    digests = np.frombuffer(b"".join(recipes), np.uint8).reshape(-1, 32)[table.recipes[rows]]
    skeleton = np.broadcast_to(np.frombuffer(table.skeleton, np.uint8), (count, len(table.skeleton)))
    heads = np.concatenate([table.keys[rows], digests, sizes.view(np.uint8), skeleton], axis=1)
    digest = xxhash.xxh3_128_digest
    found = b"".join([digest(b"".join(parts)) for parts in zip(heads, *columns, strict=False)])
    return np.frombuffer(found, np.uint8).reshape(count, 16)


def pack_id(head: bytes) -> str:
    """The name of the pack with this head: 64 hexadecimal digits."""
    return derived_digest(_PACK_CONTEXT, head).hex()


def lanes_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as safetensors counts it: packed elements are counted one by one."""
    if dtype.lanes == 1:
        return shape
    return (*shape[:-1], shape[-1] * dtype.lanes) if shape else (dtype.lanes,)


@dataclass(frozen=True, slots=True)
class PackHeader:
    """A pack's header, read but not yet believed: the head it begins has to match the pack's id first."""

    length: int
    columns: tuple[Column, ...]
    form: JsonValue
    """The metadata, parsed."""
    directory: int
    """Bytes of directory columns that follow."""


def parse_pack_header(header: bytes) -> PackHeader:
    """What a complete header says about its pack; `HeaderError` (a ValueError) for anything that is not one."""
    columns, metadata = parse_header(header)
    try:
        form = load_json(metadata[METADATA])
        version, directory = form["format"], form["directory"]
    except (KeyError, TypeError, HeaderError) as error:
        raise HeaderError("no precook metadata") from error
    if type(version) is not int or version != FORMAT:
        raise HeaderError(f"format {version!a:.40}, not {FORMAT}")
    if type(directory) is not int or directory not in {0, *(column.end for column in columns)}:
        raise HeaderError("the directory does not end where a column does")
    return PackHeader(len(header), tuple(columns), form, directory)


def parse_head(header: PackHeader, head: bytes) -> Head:
    """The tables of a pack from its whole head; `HeaderError` for anything that is not one."""
    if len(head) != header.length + header.directory:
        raise HeaderError("cut short")
    try:
        return _parse_form(header, head)
    except HeaderError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise HeaderError(f"metadata is not what precook writes: {error!r}"[:200]) from error


def _parse_form(header: PackHeader, head: bytes) -> Head:
    form = header.form
    created = form["created"]
    if type(created) is not int or not 0 <= created <= MAX_CREATED:
        raise HeaderError("no time of creation")
    recipes = _parse_recipes(form["recipes"])
    reader = _ColumnReader(head, header)
    if not isinstance(form["tables"], list):
        raise HeaderError("no tables")
    tables = tuple(_parse_table(reader, f"t{number}", item) for number, item in enumerate(form["tables"]))
    reader.end()
    if any(int(table.recipes.max()) > len(recipes) for table in tables):
        raise HeaderError("a row has an unknown recipe")
    file_bytes = header.length + max((column.end for column in header.columns), default=0)
    return Head(
        id=pack_id(head),
        created=created,
        tables=tables,
        recipes=recipes,
        recipe_digests=(NO_RECIPE, *(recipe_digest(recipe).bytes for recipe in recipes)),
        made=(b"", *_parse_made(form.get("made"), len(recipes))),
        nbytes=len(head),
        file_bytes=file_bytes,
    )


def _parse_recipes(forms: JsonValue) -> tuple[bytes, ...]:
    """The canonical forms of recipes, each a kind and its data."""
    # Counted before anything is made of them: millions fit into a header.
    if not isinstance(forms, list) or len(forms) > MAX_RECIPES:
        raise HeaderError(f"no list of recipes, or of more than {MAX_RECIPES}")
    for form in forms:
        if not (isinstance(form, list) and len(form) == 2 and isinstance(form[0], str) and form[0]):  # noqa: PLR2004
            raise HeaderError("a recipe is not a kind and its data")
    return tuple(dump_json(form) for form in forms)


def _parse_made(forms: JsonValue, recipes: int) -> tuple[bytes, ...]:
    """What the entries of each recipe were made with; packs of older writers do not say it."""
    if forms is None:
        return (b"",) * recipes
    if not isinstance(forms, list) or len(forms) != recipes:
        raise HeaderError("what its entries were made with is not one item for each recipe")
    return tuple(b"" if form is None else dump_versions(check_versions(form)) for form in forms)


class _ColumnReader:
    """Takes columns out of a head, each once, only where it is what the table needs."""

    def __init__(self, head: bytes, header: PackHeader) -> None:
        self._head = head
        self._length = header.length
        self._directory = header.directory
        self._columns = {column.name: column for column in header.columns}

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """A directory column of exactly this type and shape (-1: any length)."""
        column = self._columns.pop(name)
        known = len(column.shape) == len(shape) and all(b in (-1, a) for a, b in zip(column.shape, shape, strict=True))
        if DIRECTORY_TYPES[dtype] != column.dtype or not known or column.end > self._directory:
            raise HeaderError(f"column {name} is not what its table needs")
        count = column.nbytes // np.dtype(dtype).itemsize
        return np.frombuffer(self._head, dtype, count, self._length + column.start).reshape(column.shape)

    def body(self, name: str, dtype: DType, shape: tuple[int, ...]) -> int:
        """Where the body column of exactly this type and shape begins in the file."""
        column = self._columns.pop(name)
        if column.dtype != dtype.name or column.shape != shape or column.start < self._directory:
            raise HeaderError(f"column {name} is not what its table needs")
        return self._length + column.start

    def end(self) -> None:
        """Refuse columns that no table needs, apart from what fills up the directory."""
        padding = self._columns.pop("padding", None)
        if padding is not None and (padding.dtype != "U8" or padding.nbytes >= ALIGNMENT):
            raise HeaderError("its padding is no padding")
        if self._columns:
            raise HeaderError(f"unknown columns {sorted(self._columns)[:5]}")


def _parse_table(reader: _ColumnReader, name: str, form: JsonValue) -> Table:
    if form["name"] != name:
        raise HeaderError(f"table {name} is not called so")
    rows = form["rows"]
    if type(rows) is not int or rows < 1:
        raise HeaderError(f"table {name} has no rows")
    skeleton = dump_json({"tree": form["tree"], "leaves": form["leaves"]})
    if len(skeleton) > MAX_SKELETON:
        raise HeaderError(f"table {name} has a skeleton of {len(skeleton)} bytes; at most {MAX_SKELETON} are accepted")
    if len(form["leaves"]) != len(form["columns"]):
        raise HeaderError(f"table {name} lacks columns")
    leaves = tuple(
        _parse_leaf(reader, name, rows, leaf, column)
        for leaf, column in zip(form["leaves"], form["columns"], strict=True)
    )
    values = _parse_text(reader, f"{name}/values", rows, form["values"])
    count = len(read_values(values.row(0), named=True))
    return Table(
        rows=rows,
        skeleton=skeleton,
        build=builder(form["tree"], leaves=len(leaves), values=count),
        keys=reader.array(f"{name}/keys", "|u1", (rows, 32)),
        checksums=reader.array(f"{name}/checksums", "|u1", (rows, 16)),
        recipes=reader.array(f"{name}/recipes", "<u2", (rows,)),
        leaves=leaves,
        values=values,
        parts=count,
        labels=_parse_text(reader, f"{name}/labels", rows, form["labels"]),
    )


def _parse_text(reader: _ColumnReader, name: str, rows: int, form: JsonValue) -> TextColumn:
    if form is not None:
        return TextColumn(dump_json(form["all"]), None)
    text = reader.array(name, "|u1", (-1,))
    offsets = reader.array(f"{name}.offsets", "<u4", (rows + 1,))
    if offsets[0] != 0 or offsets[-1] != len(text) or bool((offsets[1:] < offsets[:-1]).any()):
        raise HeaderError(f"the offsets of {name} are not in order")
    return TextColumn(text.tobytes(), offsets)


def _parse_leaf(reader: _ColumnReader, table: str, rows: int, leaf: JsonValue, form: JsonValue) -> LeafColumn:
    (dtype_name, rank, library), name, shape = leaf, form["name"], form["shape"]
    if not isinstance(name, str) or not name.startswith(f"{table}/leaf."):
        raise HeaderError(f"column {name!a:.80} is not called as a leaf of {table}")
    if dtype_name not in DTYPES or library not in ("numpy", "torch"):
        raise HeaderError(f"column {name} has an unknown type")
    if type(rank) is not int or not 0 <= rank <= MAX_RANK:
        raise HeaderError(f"column {name} has too many dimensions")
    dtype = DTYPES[dtype_name]
    if shape is not None:
        if len(shape) != rank or not all(type(dim) is int and 0 <= dim <= MAX_DIM for dim in shape):
            raise HeaderError(f"column {name} has an absurd shape")
        start = reader.body(name, dtype, (rows, *lanes_shape(dtype, tuple(shape))))
        return LeafColumn(name, dtype, library, start, tuple(shape), None, None)
    shapes = reader.array(f"{table}/shapes.{name.removeprefix(table + '/')}", "<u4", (rows, rank))
    # In floats, which do not overflow. Zeros count as one, as they do where a leaf is stored.
    total, largest = (array.prod(axis=1, dtype=np.float64) for array in (shapes, np.maximum(shapes, 1)))
    if max(float(total.sum()), float(largest.max())) * dtype.size > MAX_BYTES:
        raise HeaderError(f"column {name} has an absurd shape")
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(shapes.astype(np.int64).prod(axis=1) * dtype.size, out=offsets[1:])
    start = reader.body(name, dtype, (int(offsets[-1]) // dtype.size * dtype.lanes,))
    return LeafColumn(name, dtype, library, start, None, shapes, offsets)
