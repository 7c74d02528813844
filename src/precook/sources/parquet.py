"""Parquet files: what their footer says, and a small file of some columns for pyarrow.

A footer comes from whoever made the file, and pyarrow ends the whole process over some that contradict themselves. So
it is read here first, strictly, and pyarrow gets a small file of the columns that are asked for, in memory and with a
footer of our own: without statistics, and with places and sizes that were looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from precook.fs.read import read_at
from precook.sources.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    ThriftError,
    ThriftList,
    items,
    read_struct,
    write_struct,
)
from precook.sources.thrift import field as value_of
from precook.units import format_size

_MAGIC = b"PAR1"
_TAIL = 8
MAX_FOOTER = 64 << 20
_DEEPEST = 32
_BYTE_ARRAY = 6
_REPEATED = 2
_TEXT_ANNOTATIONS = (0, 4, 19)
"""UTF8, ENUM and JSON, as older files say it."""
_LOGICAL_TEXTS = (1, 4, 12)
"""STRING, ENUM and JSON, as newer ones do."""
_LOGICAL_NULL = 11
_KINDS = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
UNFOLDING = 50
SMALL = 64 << 20


class TableFileError(ValueError):
    """What is wrong with the file of a table."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of values, which is a column of the table or a part of one."""

    path: tuple[str, ...]
    number: int
    kind: int
    """The physical type."""
    is_text: bool
    is_null: bool
    """Whether it has no values at all: what is written of nulls alone has no type."""
    definition: int
    """The level of a value that is there."""
    repetition: int
    """How many lists it stands in."""

    @property
    def kind_name(self) -> str:
        """The physical type as Parquet calls it."""
        return _KINDS[self.kind]

    @property
    def holds_bytes(self) -> bool:
        """Whether its values are plain bytes, one for each row."""
        return self.kind == _BYTE_ARRAY and not self.is_text and not self.repetition


@dataclass(frozen=True, slots=True)
class _Node:
    """An element of the schema."""

    element: Struct
    name: str
    children: tuple[_Node, ...]
    leaf: Leaf | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where the values of a column lie that belong to some rows."""

    start: int
    size: int
    meta: Struct


class ParquetFooter:
    """What a file says about itself, as far as it was looked at; `TableFileError` for what cannot be."""

    def __init__(self, content: bytes, end: int) -> None:
        """The footer of a file whose pages end at `end`."""
        try:
            root, _ = read_struct(content)
            elements = items(root, 2, STRUCT)
            self._version = value_of(root, 1, I32)
            self.rows: int = value_of(root, 3, I64)
            # One without rows says nothing, and its columns lie nowhere: so an empty table is written.
            self._groups = [group for group in map(_group, items(root, 4, STRUCT)) if group[0]]
            self._leaves: list[Leaf] = []
            self._root, used = self._node(elements, 0, (), 0, 0)
        except ThriftError as error:
            raise TableFileError(f"its footer cannot be read: {error}") from None
        except UnicodeDecodeError as error:
            raise TableFileError(f"'{error.encoding}' codec: a column whose name is not UTF-8") from None
        self._end = end
        counted = sum(rows for rows, _ in self._groups)
        if used != len(elements) or counted != self.rows or self._root.leaf is not None:
            raise TableFileError("its footer contradicts itself")
        if any(len(columns) != len(self._leaves) for _, columns in self._groups):
            raise TableFileError("its footer names other columns than its parts have")

    @property
    def names(self) -> list[str]:
        """The columns of the table."""
        return [node.name for node in self._root.children]

    def leaves(self, column: str) -> list[Leaf]:
        """The columns of values that a column of the table is made of."""
        return [leaf for leaf in self._leaves if leaf.path[0] == column]

    def pictures(self, column: str) -> tuple[Leaf, Leaf | None] | None:
        """Where a column has the bytes of pictures and, unless it is bytes alone, their paths; None where it has none.

        A picture is bytes, or a struct of `bytes` and `path`, as `datasets` writes it.
        """
        leaves = self.leaves(column)
        by_path = {leaf.path[1:]: leaf for leaf in leaves}
        if len(by_path) < len(leaves):
            return None
        content, path = by_path.pop(("bytes",), None), by_path.pop(("path",), None)
        if path is not None and path.is_null:
            path = None  # no row has one
        if content is None:
            content = by_path.pop((), None)
        if content is None or by_path or not content.holds_bytes or (path is not None and not path.is_text):
            return None
        return content, path

    def chunks(self, leaf: Leaf) -> Iterator[tuple[int, Chunk]]:
        """How many rows each part of the file has, and where the values of a column lie in it."""
        left = self._end
        for rows, columns in self._groups:
            try:
                chunk = self._chunk(leaf, rows, columns[leaf.number])
            except ThriftError as error:
                raise TableFileError(f"its footer cannot be read: {error}") from None
            left -= chunk.size
            if left < 0:
                # Whoever reads all of them would read a small file a thousand times.
                raise TableFileError("the parts of a column lie over each other")
            yield rows, chunk

    def claims(self, leaves: Sequence[Leaf]) -> tuple[int, int]:
        """The most values that a column of values has, and the bytes of all of them once they are unpacked."""
        counts, unfolded = [self.rows], 0
        for leaf in leaves:
            metas = [chunk.meta for _, chunk in self.chunks(leaf)]
            counts.append(sum(value_of(meta, 5, I64) for meta in metas))
            unfolded += sum(value_of(meta, 6, I64) for meta in metas)
        return max(counts), unfolded

    def excerpt(self, descriptor: int, leaves: Sequence[Leaf], *, rows: bool = True) -> bytes:
        """A file of some columns of values alone, with a footer of our own and nothing in it that was not looked at.

        Without `rows` it has none, and tells what the columns are.
        """
        out = bytearray(_MAGIC)
        groups = self._groups if rows else []
        columns: list[list[Struct]] = [[] for _ in groups]
        for leaf in sorted(leaves if rows else (), key=lambda leaf: leaf.number):
            for some, (_, chunk) in zip(columns, self.chunks(leaf), strict=True):
                moved = len(out) - chunk.start
                out += read_at(descriptor, chunk.start, chunk.size)
                meta = {number: chunk.meta[number] for number in range(1, 8)}
                meta |= {place: (I64, chunk.meta[place][1] + moved) for place in (9, 11) if place in chunk.meta}
                some.append({2: (I64, 0), 3: (STRUCT, meta)})
        parts: list[Struct] = [
            {
                1: (LIST, ThriftList(STRUCT, some)),
                2: (I64, sum(column[3][1][6][1] for column in some)),
                3: (I64, count),
            }
            for some, (count, _) in zip(columns, groups, strict=True)
        ]
        schema = list(_chosen(self._root, {leaf.number for leaf in leaves}))
        footer = write_struct(
            {
                1: (I32, self._version),
                2: (LIST, ThriftList(STRUCT, schema)),
                3: (I64, self.rows if rows else 0),
                4: (LIST, ThriftList(STRUCT, parts)),
            }
        )
        return bytes(out) + footer + len(footer).to_bytes(4, "little") + _MAGIC

    def _node(
        self, elements: list[Struct], place: int, path: tuple[str, ...], definition: int, repetition: int
    ) -> tuple[_Node, int]:
        """The element at a place with all below it, and where the next one is."""
        if place >= len(elements) or len(path) > _DEEPEST:
            raise ThriftError("the schema is broken")
        element = elements[place]
        name = value_of(element, 4, BINARY).decode()
        count = value_of(element, 5, I32, 0)
        if place:
            path = (*path, name)
            how_often = value_of(element, 3, I32)
            definition += how_often != 0
            repetition += how_often == _REPEATED
        place += 1
        if 1 in element:
            kind = value_of(element, 1, I32)
            if not 0 <= kind < len(_KINDS):
                raise ThriftError(f"{kind} is no type of values")
            logical: Struct = value_of(element, 10, STRUCT, {0: (0, 0)})
            is_text = value_of(element, 6, I32, -1) in _TEXT_ANNOTATIONS or not logical.keys().isdisjoint(
                _LOGICAL_TEXTS
            )
            leaf = Leaf(path, len(self._leaves), kind, is_text, _LOGICAL_NULL in logical, definition, repetition)
            self._leaves.append(leaf)
            return _Node(element, name, (), leaf), place
        children = []
        for _ in range(count):
            child, place = self._node(elements, place, path, definition, repetition)
            children.append(child)
        return _Node(element, name, tuple(children), None), place

    def _chunk(self, leaf: Leaf, rows: int, column: Struct) -> Chunk:
        if not {1, 8, 9}.isdisjoint(column):
            raise TableFileError("its columns lie in other files, or are encrypted")
        meta = value_of(column, 3, STRUCT)
        path = tuple(name.decode("utf-8", "replace") for name in items(meta, 3, BINARY))
        values, unfolded, size = (value_of(meta, number, I64) for number in (5, 6, 7))
        items(meta, 2, I32)
        value_of(meta, 4, I32)
        first = value_of(meta, 9, I64)
        start = min(first, value_of(meta, 11, I64, 0) or first)
        if value_of(meta, 1, I32) != leaf.kind or path != leaf.path:
            raise TableFileError("its footer names other columns than its parts have")
        if min(values, unfolded, size) < 0 or (not leaf.repetition and values != rows):
            raise TableFileError("its footer contradicts itself")
        if start < len(_MAGIC) or first > start + size or start + size > self._end:
            raise TableFileError("a column lies outside of the file")
        return Chunk(start, size, meta)


def read_footer(descriptor: int, size: int) -> ParquetFooter:
    """The footer of a file of so many bytes; `TableFileError` where it has none, or one that contradicts itself."""
    tail = read_at(descriptor, size - _TAIL, _TAIL) if size >= _TAIL + len(_MAGIC) else b""
    if tail[4:] != _MAGIC:
        raise TableFileError("it has no footer: it was cut short, or is something else")
    length = int.from_bytes(tail[:4], "little")
    end = size - _TAIL - length
    if end < len(_MAGIC) or length > MAX_FOOTER:
        raise TableFileError(f"its footer claims {format_size(length)}")
    return ParquetFooter(read_at(descriptor, end, length), end)


def most_unfolded(nbytes: int) -> int:
    """How many bytes so many may become once they are unpacked: what claims more is not believed."""
    return SMALL + UNFOLDING * nbytes


def text_or_bytes(value: bytes | None) -> str | bytes | None:
    """The text that some bytes are; themselves where they are not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _group(group: Struct) -> tuple[int, list[Struct]]:
    rows: int = value_of(group, 3, I64)
    if rows < 0:
        raise ThriftError("rows below none")
    return rows, items(group, 1, STRUCT)


def _chosen(node: _Node, numbers: set[int]) -> Iterator[Struct]:
    """The elements of a schema that lead to some columns of values."""
    if node.leaf is not None:
        if node.leaf.number in numbers:
            yield node.element
        return
    below = [list(_chosen(child, numbers)) for child in node.children]
    count = sum(map(bool, below))
    if count:
        yield dict(sorted({**node.element, 5: (I32, count)}.items()))
        for some in below:
            yield from some
