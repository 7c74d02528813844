"""Arrow streams: the files of `Dataset.save_to_disk`, whose cells hold texts and pictures.

What is small about a stream is read here: where each batch of rows lies, and where its columns lie in it. So a picture
is read by its place in the file, and columns that are not asked for are not read at all. Arrays of texts are made by
pyarrow of the bytes that belong to them, and checked in full before a value is taken.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from precook.fs.read import read_at
from precook.sources.parquet import TableFileError, text_or_bytes
from precook.sources.parquet_values import Recall
from precook.values import Flags, Numbers

_CONTINUATION = b"\xff\xff\xff\xff"
_LARGEST_HEAD = 16 << 20
"""Bytes that describe one batch."""
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3
"""Kinds of messages."""
_PAIR = 16


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that lie together: the sizes of their arrays, and where the buffers of these lie in the file."""

    rows: int
    nodes: Numbers
    """Length and number of nulls of each array."""
    buffers: Numbers
    """Place in the file, and bytes."""
    packed: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a column stands among all arrays and buffers."""

    kind: Any
    node: int
    buffer: int


class ArrowFile:
    """A stream of batches, and where all of it lies in its file; `TableFileError` for what cannot be read."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._columns: dict[str, _Place] = {}
        self.names: list[str] = []
        self.batches: list[_Batch] = []
        self._size = size
        try:
            for kind, head, body, length in self._messages(descriptor):
                if kind == _SCHEMA and not self.names:
                    self._read_schema(head)
                elif kind == _RECORDS and self.names:
                    self.batches.append(self._batch(head, body, length))
                elif kind != _DICTIONARY:
                    raise TableFileError("a message that is out of place")
        except (struct.error, IndexError, OverflowError, ValueError) as error:
            if isinstance(error, TableFileError):
                raise
            raise TableFileError(f"a message cannot be read: {error}") from None
        if not self.names:
            raise TableFileError("it names no columns")

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(batch.rows for batch in self.batches)

    def pictures(self, column: str) -> ArrowPictures | None:
        """The pictures of a column that has some: bytes, or a struct of `bytes` and `path`; None where it has none."""
        from pyarrow import types  # noqa: PLC0415 - an extra, and slow to import

        place = self._columns[column]
        outer = None
        if types.is_struct(place.kind):
            names = [child.name for child in place.kind]
            if sorted(names) not in (["bytes"], ["bytes", "path"]):
                return None
            if len(names) > 1 and str(place.kind.field("path").type) not in ("string", "large_string", "null"):
                return None
            outer, place = place, self._child(place, "bytes")
        if not types.is_binary(place.kind) and not types.is_large_binary(place.kind):
            return None
        starts = np.cumsum([0, *(batch.rows for batch in self.batches)])[:-1].tolist()
        return ArrowPictures(self.batches, starts, place, outer, wide=bool(types.is_large_binary(place.kind)))

    def has_paths(self, column: str) -> bool:
        """Whether a column of pictures has their paths as well."""
        from pyarrow import types  # noqa: PLC0415 - an extra, and slow to import

        kind = self._columns[column].kind
        return bool(types.is_struct(kind)) and kind.num_fields > 1

    def kind(self, column: str) -> Any:
        """The type of a column."""
        return self._columns[column].kind

    def texts(self, descriptor: int, column: str, *, path: bool = False) -> Iterator[list[object]]:
        """The cells of a column of texts, or of lists of texts, batch by batch; with `path`, that part of each.

        A text that is not UTF-8 is given as bytes.
        """
        whole = place = self._columns[column]
        if path:
            place = self._child(place, "path")
        for batch in self.batches:
            if batch.packed:
                raise TableFileError("its batches are packed: write it again by `Dataset.save_to_disk`")
            if batch.nodes[place.node, 0] != batch.rows:
                raise TableFileError("a column has another length than its batch")
            texts = _decoded(_array(descriptor, batch, place).to_pylist())
            if path:
                # What stands under a cell that is null does not count.
                texts = [
                    text if is_there else None
                    for text, is_there in zip(texts, _present(descriptor, batch, whole), strict=True)
                ]
            yield texts

    def _messages(self, descriptor: int) -> Iterator[tuple[int, bytes, int, int]]:
        """Each message: its kind, the bytes that describe it, and where its body lies, with its length."""
        place = 0
        while place < self._size:
            start = read_at(descriptor, place, min(8, self._size - place))
            length = int.from_bytes(start[4:], "little")
            if start == _CONTINUATION + bytes(4):
                return
            if start[:4] != _CONTINUATION or length > min(_LARGEST_HEAD, self._size - place):
                raise TableFileError("no stream of batches, as `Dataset.save_to_disk` writes it")
            head = read_at(descriptor, place + 8, length)
            message = _Table(head, _u32(head, 0))
            body, nbytes = place + 8 + length, message.number(3, "<q")
            if not 0 <= nbytes <= self._size - body:
                raise TableFileError("a batch ends outside of the file: it was cut short")
            yield message.number(1, "<B"), head, body, nbytes
            place = body + nbytes

    def _read_schema(self, head: bytes) -> None:
        import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import

        try:
            framed = _CONTINUATION + len(head).to_bytes(4, "little") + head
            fields = list(pyarrow.ipc.read_schema(pyarrow.py_buffer(framed)))
            self.names = [one.name for one in fields]
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TableFileError(f"its columns cannot be read: {error}") from None
        node = buffer = 0
        for one in fields:
            self._columns[one.name] = _Place(one.type, node, buffer)
            nodes, buffers = _layout(one.type)
            node, buffer = node + nodes, buffer + buffers
        self._nodes, self._buffers = node, buffer

    def _batch(self, head: bytes, body: int, nbytes: int) -> _Batch:
        message = _Table(head, _u32(head, 0))
        records = message.table(2)
        nodes, buffers = records.pairs(1), records.pairs(2)
        rows = records.number(0, "<q")
        if len(nodes) != self._nodes or len(buffers) != self._buffers or rows < 0 or (nodes < 0).any():
            raise TableFileError("a batch has other columns than the stream")
        starts, sizes = buffers.T
        # Without adding: the sum of two forged numbers may have more than 64 bits.
        if len(buffers) and ((starts < 0) | (sizes < 0) | (starts > nbytes) | (sizes > nbytes - starts)).any():
            raise TableFileError("a column ends outside of its batch")
        return _Batch(rows, nodes, np.stack([starts + body, sizes], axis=1), records.has(3))

    def _child(self, place: _Place, name: str) -> _Place:
        """A part of a struct."""
        node, buffer = place.node + 1, place.buffer + 1
        for child in place.kind:
            if child.name == name:
                return _Place(child.type, node, buffer)
            nodes, buffers = _layout(child.type)
            node, buffer = node + nodes, buffer + buffers
        raise KeyError(name)


@dataclass(slots=True)
class ArrowPictures:
    """The pictures in a column of one file, each read by its place."""

    batches: list[_Batch]
    starts: list[int]
    """The first row of each batch."""
    place: _Place
    outer: _Place | None
    wide: bool
    """Whether places in the column are numbers of 64 bits."""

    def read(self, descriptor: int, row: int, recall: Recall) -> bytes | None:
        """The bytes of a picture; None where the cell is null."""
        number = bisect_right(self.starts, row) - 1
        batch = self.batches[number]
        row -= self.starts[number]
        offsets, present = recall(number, lambda: _Spans(*self._find(descriptor, batch)))
        if not present[row]:
            return None
        start, end = offsets[row : row + 2].tolist()
        place, size = batch.buffers[self.place.buffer + 2].tolist()
        if not 0 <= start <= end <= size:
            raise TableFileError("a cell ends outside of its column")
        return read_at(descriptor, place + start, end - start)

    def _find(self, descriptor: int, batch: _Batch) -> tuple[Numbers, Flags]:
        """Where each cell begins and ends in the column, and which are there."""
        if batch.packed:
            raise TableFileError("its batches are packed: write it again by `Dataset.save_to_disk`")
        if not batch.rows:
            return np.zeros(1, np.int64), np.zeros(0, bool)
        start, size = batch.buffers[self.place.buffer + 1].tolist()
        width = 8 if self.wide else 4
        # First: what comes then takes memory for as many rows as the batch claims.
        if size < width * (batch.rows + 1):
            raise TableFileError("a column has fewer cells than its batch")
        content = read_at(descriptor, start, width * (batch.rows + 1))
        present = _present(descriptor, batch, self.place)
        if self.outer is not None:
            present &= _present(descriptor, batch, self.outer)
        return np.frombuffer(content, f"<i{width}").astype(np.int64), present


def _present(descriptor: int, batch: _Batch, place: _Place) -> Flags:
    """Which cells of a column are not null; its length was looked at, or its rows take bytes of their own."""
    if batch.nodes[place.node, 0] != batch.rows:
        raise TableFileError("a column has another length than its batch")
    start, size = batch.buffers[place.buffer].tolist()
    if not size:
        return np.ones(batch.rows, bool)
    if 8 * size < batch.rows:
        raise TableFileError("a column has fewer cells than its batch")
    bits = np.frombuffer(read_at(descriptor, start, -(-batch.rows // 8)), np.uint8)
    return np.unpackbits(bits, bitorder="little", count=batch.rows).astype(bool)


class _Spans(tuple[Numbers, Flags]):
    """Where cells begin and end, and which are there; it has a size, as all that is kept for a while."""

    __slots__ = ()

    def __new__(cls, offsets: Numbers, present: Flags) -> _Spans:
        return super().__new__(cls, (offsets, present))

    @property
    def nbytes(self) -> int:
        return self[0].nbytes + self[1].nbytes


class _Table:
    """A table of flatbuffers: fields by number, each where the table says."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        distance: int = struct.unpack_from("<i", data, place)[0]
        self._fields = place - distance
        if not 0 <= self._fields < len(data):
            raise IndexError("a table without fields")
        self._size: int = struct.unpack_from("<H", data, self._fields)[0]

    def has(self, number: int) -> bool:
        """Whether a field is there."""
        return self._at(number) != 0

    def number(self, number: int, form: str) -> int:
        """A field that is a number; 0 where it is not there."""
        place = self._at(number)
        return int(struct.unpack_from(form, self._data, place)[0]) if place else 0

    def table(self, number: int) -> _Table:
        """A field that is a table itself."""
        place = self._at(number)
        return _Table(self._data, place + _u32(self._data, place))

    def pairs(self, number: int) -> Numbers:
        """A field that is a vector of pairs of numbers."""
        place = self._at(number)
        if not place:
            return np.zeros((0, 2), np.int64)
        place += _u32(self._data, place)
        count = _u32(self._data, place)
        if place + 4 + _PAIR * count > len(self._data):
            raise IndexError("a vector that is longer than its message")
        return np.frombuffer(self._data, "<i8", 2 * count, place + 4).reshape(-1, 2).astype(np.int64)

    def _at(self, number: int) -> int:
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return 0
        offset: int = struct.unpack_from("<H", self._data, self._fields + entry)[0]
        return self._place + offset if offset else 0


def _u32(data: bytes, place: int) -> int:
    value: int = struct.unpack_from("<I", data, place)[0]
    return value


def _layout(kind: Any) -> tuple[int, int]:
    """How many arrays and buffers a column of a type takes in a batch."""
    from pyarrow import types  # noqa: PLC0415 - an extra, and slow to import

    if hasattr(kind, "storage_type"):
        return _layout(kind.storage_type)
    if types.is_null(kind):
        return 1, 0
    nested = types.is_struct(kind) or types.is_fixed_size_list(kind)
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)
    if nested or lists:
        fields = [kind.field(number) for number in range(kind.num_fields)]
        _ = [one.name for one in fields]  # one that is not UTF-8 cannot be named, and is an error now
        children = [_layout(one.type) for one in fields]
        return 1 + sum(nodes for nodes, _ in children), 1 + lists + sum(buffers for _, buffers in children)
    if types.is_union(kind) or any(word in str(kind) for word in ("view", "run_end_encoded")):
        raise TableFileError(f"a column holds {kind}, which is not known here")
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return 1, 3 if any(is_one(kind) for is_one in texts) else 2


def _array(descriptor: int, batch: _Batch, place: _Place) -> Any:
    """A column of texts, or of lists of them, of one batch; its texts as bytes."""
    import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import
    from pyarrow import types  # noqa: PLC0415

    kind, length = place.kind, int(batch.nodes[place.node, 0])
    if types.is_null(kind):
        # Nothing in the file stands for these: of those in lists there may be no more than rows.
        return pyarrow.nulls(min(length, batch.rows))
    lists = types.is_list(kind) or types.is_large_list(kind)
    children = []
    if lists or types.is_fixed_size_list(kind):
        children = [_array(descriptor, batch, _Place(kind.value_type, place.node + 1, place.buffer + 1 + lists))]
        inner = children[0].type
        kind = (
            pyarrow.large_list(inner)
            if types.is_large_list(kind)
            else pyarrow.list_(inner, kind.list_size)
            if types.is_fixed_size_list(kind)
            else pyarrow.list_(inner)
        )
        count = 1 + lists
    elif types.is_string(kind) or types.is_large_string(kind):
        kind, count = pyarrow.large_binary() if types.is_large_string(kind) else pyarrow.binary(), 3
    else:
        raise TableFileError(f"a column holds {kind}, which is not known here")
    spans = batch.buffers[place.buffer : place.buffer + count].tolist()
    buffers = [pyarrow.py_buffer(read_at(descriptor, start, size)) for start, size in spans]
    if not len(buffers[0]):
        buffers[0] = None
    try:
        array = pyarrow.Array.from_buffers(kind, length, buffers, children=children)
        array.validate(full=True)
    except (pyarrow.ArrowException, ValueError) as error:
        raise TableFileError(f"a column is damaged: {error}") from None
    return array


def _decoded(values: list[Any]) -> list[object]:
    """Bytes as the texts that they are; those that are not UTF-8 stay as they are."""
    return [_decoded(value) if isinstance(value, list) else text_or_bytes(value) for value in values]
