"""Thrift's compact protocol, in which Parquet writes what a file holds: read strictly, and written again.

A value is read as what it is, with its type beside it, so that it can be written as it stood: a struct is a dict of
`(type, value)` by field number, a list a `ThriftList`. Nothing is taken for granted: whoever uses a field asks `field`
for it with the type it should have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Types of values."""
_DEEPEST = 24
"""Structs and lists in each other: those of Parquet go nine deep."""
_BITS = 64
_MORE = 0x80
_LONG = 15

Struct = dict[int, tuple[int, Any]]


class ThriftError(ValueError):
    """Bytes that are no value of this protocol, or not the one that was expected."""


class ThriftList(NamedTuple):
    """Values of one type."""

    kind: int
    values: list[Any]


def read_struct(data: bytes, start: int = 0) -> tuple[Struct, int]:
    """The struct that begins in some bytes, and where it ends."""
    reader = _Reader(data, start)
    try:
        return reader.struct(0), reader.place
    except IndexError:
        raise ThriftError("it ends in the middle") from None


def field(struct: Struct, number: int, kind: int, default: Any = None) -> Any:
    """The value of a field; `ThriftError` where it has another type, or is not there and has no default."""
    if number not in struct:
        if default is None:
            raise ThriftError(f"field {number} is missing")
        return default
    found, value = struct[number]
    if found != kind:
        raise ThriftError(f"field {number} is of another type")
    return value


def items(struct: Struct, number: int, kind: int) -> list[Any]:
    """The values of a list of values of one type; an empty one may be of any."""
    values: ThriftList = field(struct, number, LIST)
    if values.values and values.kind != kind:
        raise ThriftError(f"field {number} is a list of another type")
    return values.values


def write_struct(struct: Struct) -> bytes:
    """The bytes of a struct, as they are read."""
    out = bytearray()
    _write(out, STRUCT, struct)
    return bytes(out)


class _Reader:
    """Reads values one after the other; an `IndexError` where the bytes end before a value does."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self.place = place

    def struct(self, depth: int) -> Struct:
        struct: Struct = {}
        number = 0
        while head := self._data[self.place]:
            self.place += 1
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if number in struct:
                raise ThriftError(f"field {number} stands there twice")
            struct[number] = kind, (kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth))
        self.place += 1
        return struct

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in (STRUCT, LIST, SET, MAP):
            if depth == _DEEPEST:
                raise ThriftError("nested too deeply")
            return self.struct(depth + 1) if kind == STRUCT else self._many(kind, depth + 1)
        if kind in (BYTE, TRUE, FALSE):  # TRUE and FALSE: of a list
            return self._bytes(1)
        if kind == DOUBLE:
            return self._bytes(8)
        raise ThriftError(f"{kind} is no type of a value")

    def _many(self, kind: int, depth: int) -> ThriftList:
        if kind == MAP:
            # Parquet has none.
            raise ThriftError("a map")
        head = self._data[self.place]
        self.place += 1
        count = head >> 4 if head >> 4 < _LONG else self._varint()
        # Each takes a byte: a number that is larger is not believed, and no memory is taken for it.
        if count > len(self._data) - self.place:
            raise ThriftError("a list that is longer than the bytes")
        return ThriftList(head & 15, [self._value(head & 15, depth) for _ in range(count)])

    def _bytes(self, size: int) -> bytes:
        end = self.place + size
        if end > len(self._data):
            raise ThriftError("a text that is longer than the bytes")
        value = self._data[self.place : end]
        self.place = end
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.place]
            self.place += 1
            value |= (byte & ~_MORE) << shift
            if byte < _MORE:
                break
            shift += 7
            if shift >= _BITS:
                raise ThriftError("a number of more than 64 bits")
        if value >> _BITS:
            raise ThriftError("a number of more than 64 bits")
        return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _write_varint(out, (value << 1) ^ (value >> (_BITS - 1)))
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        last = 0
        for number, (inner, content) in value.items():
            if 0 < number - last < _LONG + 1:
                out.append((number - last) << 4 | inner)
            else:
                out.append(inner)
                _write(out, I16, number)
            if inner not in (TRUE, FALSE):
                _write(out, inner, content)
            last = number
        out.append(0)
    elif kind in (LIST, SET):
        count = len(value.values)
        out.append(min(count, _LONG) << 4 | value.kind)
        if count >= _LONG:
            _write_varint(out, count)
        for content in value.values:
            _write(out, value.kind, content)
    else:
        out += value


def _write_varint(out: bytearray, value: int) -> None:
    value &= (1 << _BITS) - 1
    while value >= _MORE:
        out.append(value & (_MORE - 1) | _MORE)
        value >>= 7
    out.append(value)
