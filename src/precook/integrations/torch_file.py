"""Files of `torch.save`: containers, plain values and tensors, read without running anything.

Such a file is a zip file with the bytes of each storage and a pickle that says how they hang together. A pickle is a
program. What is read here are the few instructions of protocol 2 that plain values and tensors need; a name in it is
looked up in a table of ours and never imported, and nothing that it names is called.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from precook.config.messages import quoted
from precook.errors import printable
from precook.identity.canonical import MAX_DEPTH
from precook.integrations.zip_file import ZipReader
from precook.store.dtypes import DTYPES, DType, from_torch_type, load_torch
from precook.units import format_size

MAX_PICKLE = 4 << 20
"""Bytes of the pickle: for 10,000 samples of three tensors, and an object takes up to 72 times its instruction."""
MAX_VALUES = 2_000_000
"""Values that all containers hold, those that are shared counted each time."""
MAX_SPREAD = 64 << 20
"""Bytes that a tensor may take which has fewer of its own: strides of zero repeat them at no cost to the file."""
_MAX_UNFOLDED = 1 << 30
_UNFOLDING = 100
"""So many times the bytes of a file may be those of its tensors, shared ones counted each time."""
_MAX_NAME = 100
_MAX_NUMBER = 1 << 63
_MAX_DEVICES = 1 << 7
"""Of one kind, to torch."""
_PROTOCOL = 2
_START = b"PK\x03\x04"
_PLAIN = (str, int, float, bool, bytes, type(None))
_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
}
_DTYPES = {f"torch.{dtype.torch}": dtype for dtype in DTYPES.values()}
_STORAGE_TYPES: dict[str, DType | None] = {
    "torch.storage.UntypedStorage": None,  # its tensors say it
    **{f"torch.{name}Storage": _DTYPES[f"torch.{dtype}"] for name, dtype in _STORAGES.items()},
}
_NUMPY_TYPES = {np.dtype(dtype.numpy).str[1:]: dtype for dtype in DTYPES.values() if not dtype.foreign}
_DEVICE_NAME = re.compile("cpu|cuda|mps|xpu|meta")
_ORDERED, _SIZE = "collections.OrderedDict", "torch.Size"
_REBUILD, _REBUILD_TYPED = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"
_SETS = {"__builtin__.set": set, "__builtin__.frozenset": frozenset}
_DEVICE, _NUMPY_DTYPE, _ENCODE, _BYTES = "torch.device", "numpy.dtype", "_codecs.encode", "__builtin__.bytes"
_SCALARS = {"numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar"}
_NAMES = {
    *(*_DTYPES, *_STORAGE_TYPES, _ORDERED, _SIZE, _REBUILD, _REBUILD_TYPED),
    *(*_SETS, _DEVICE, _NUMPY_DTYPE, _ENCODE, _BYTES, *_SCALARS),
}


class NotPlainError(ValueError):
    """Why a file is not read as plain values and tensors."""


@dataclass(frozen=True, slots=True)
class _Name:
    """What a pickle calls by its name."""

    text: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """Elements that tensors share, as the file has them."""

    data: bytearray
    dtype: DType | None
    """None where the tensors say it."""


def read_torch_file(path: Path, *, max_pickle: int = MAX_PICKLE) -> Any:
    """What `torch.save` wrote, if it is nothing but dicts, lists, tuples, sets, plain values and tensors.

    `ValueError` says why it is refused. Everything is in memory at once; shared parts stay shared.
    """
    with ZipReader(path) as archive:
        if not archive.starts_with(_START):
            raise NotPlainError("it was not written by torch.save in its zip format")
        for name in archive.names:
            if archive.is_compressed(name):
                raise NotPlainError(f"{quoted(name)} is compressed, which torch.save does not do")
        pickles = [name for name in archive.names if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise NotPlainError("it was not written by torch.save: it has no data.pkl, or several")
        if archive.member_size(pickles[0]) > max_pickle:
            raise NotPlainError(f"its pickle is larger than {format_size(max_pickle)}")
        folder = pickles[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.names and archive.read(order, limit=8) != b"little":
            raise NotPlainError("it was written on a machine of another byte order")
        value = _Interpreter(archive, folder).run(archive.read(pickles[0]))
        _check_size(value, max(_MAX_UNFOLDED, _UNFOLDING * archive.size))
        return value


class _Interpreter:
    """Follows the instructions of one pickle: each pushes a value, or makes one of those on top."""

    def __init__(self, archive: ZipReader, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, bytearray] = {}
        self._code = b""
        self._position = 0
        self._instructions: dict[int, Callable[[], None]] = {
            ord("("): lambda: self._marks.append(len(self._stack)),
            ord(")"): lambda: self._stack.append(()),
            ord("]"): lambda: self._stack.append([]),
            ord("}"): lambda: self._stack.append({}),
            ord("N"): lambda: self._stack.append(None),
            0x88: lambda: self._stack.append(True),
            0x89: lambda: self._stack.append(False),
            ord("J"): lambda: self._stack.append(self._number("<i")),
            ord("K"): lambda: self._stack.append(self._number("<B")),
            ord("M"): lambda: self._stack.append(self._number("<H")),
            ord("G"): lambda: self._stack.append(self._number(">d")),
            0x8A: lambda: self._stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True)),
            ord("X"): lambda: self._stack.append(self._take(self._number("<I")).decode()),
            ord("q"): lambda: self._remember(self._number("<B")),
            ord("r"): lambda: self._remember(self._number("<I")),
            ord("h"): lambda: self._stack.append(self._memo[self._number("<B")]),
            ord("j"): lambda: self._stack.append(self._memo[self._number("<I")]),
            ord("t"): lambda: self._stack.append(tuple(self._since_mark())),
            0x85: lambda: self._tuple(1),
            0x86: lambda: self._tuple(2),
            0x87: lambda: self._tuple(3),
            ord("a"): lambda: self._extend([self._stack.pop()]),
            ord("e"): lambda: self._extend(self._since_mark()),
            ord("s"): lambda: self._set_items(self._top(2)),
            ord("u"): lambda: self._set_items(self._since_mark()),
            ord("c"): self._name,
            ord("Q"): self._storage,
            ord("R"): self._reduce,
            ord("b"): self._build,
            0x80: self._protocol,
        }

    def run(self, code: bytes) -> Any:
        """The value that a pickle describes."""
        self._code = code
        instructions = self._instructions
        try:
            while True:
                instruction = code[self._position]
                self._position += 1
                if instruction == ord("."):
                    return self._stack.pop()
                if instruction not in instructions:
                    raise NotPlainError(f"the pickle has instruction 0x{instruction:02x}, which no plain value needs")
                instructions[instruction]()
        except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
            # Nothing on the stack, no such mark or number, or the end of the file.
            raise NotPlainError(f"the pickle is damaged at byte {self._position:,}") from error

    def _take(self, count: int) -> bytes:
        taken = self._code[self._position : self._position + count]
        self._position += count
        if len(taken) < count:
            raise IndexError
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _top(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _tuple(self, count: int) -> None:
        self._stack.append(tuple(self._top(count)))

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise NotPlainError("the pickle adds items to what is no list")
        self._stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise NotPlainError("the pickle sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str and not _is_small(key):
                raise NotPlainError("the pickle has a dict whose keys are neither text nor small numbers")
            target[key] = value

    def _name(self) -> None:
        name = f"{self._line()}.{self._line()}"
        if name not in _NAMES:
            raise NotPlainError(f"the pickle calls {printable(name)}, which no plain value needs")
        self._stack.append(_DTYPES[name].torch_type() if name in _DTYPES else _Name(name))

    def _line(self) -> str:
        end = self._code.find(b"\n", self._position, self._position + _MAX_NAME)
        if end < 0:
            raise IndexError
        return self._take(end + 1 - self._position)[:-1].decode()

    def _protocol(self) -> None:
        protocol = self._number("<B")
        if protocol != _PROTOCOL:
            raise NotPlainError(f"the pickle has protocol {protocol}, and torch.save writes {_PROTOCOL}")

    def _storage(self) -> None:
        match self._stack.pop():
            case ("storage", _Name(kind), str(key), _, int(elements)) if kind in _STORAGE_TYPES:
                dtype = _STORAGE_TYPES[kind]
            case _:
                raise NotPlainError("the pickle refers to something that is no storage")
        if key not in self._storages:
            self._storages[key] = bytearray(self._archive.read(f"{self._folder}data/{key}"))
        data = self._storages[key]
        if elements * (1 if dtype is None else dtype.size) != len(data):
            raise NotPlainError(f"the pickle says that storage {quoted(key)} has another size than it has")
        self._stack.append(_Storage(data, dtype))

    def _reduce(self) -> None:
        name, arguments = self._top(2)
        match name, arguments:
            case _Name(text), () if text == _ORDERED:
                made: Any = {}
            case _Name(text), (tuple(sides),) if text == _SIZE:
                made = sides
            case _Name(text), (_Storage(data, DType() as dtype), offset, size, stride, _, _) if text == _REBUILD:
                made = _tensor(data, dtype, offset, size, stride)
            case (
                _Name(text),
                (_Storage(data, None), offset, size, stride, _, _, kind),
            ) if text == _REBUILD_TYPED and (found := from_torch_type(kind)) is not None:
                made = _tensor(data, found, offset, size, stride)
            case _:
                made = _plain_object(name, arguments)
        self._stack.append(made)

    def _build(self) -> None:
        """The state of a numpy type: only what it has in any case is taken."""
        made, state = self._top(2)
        # Only of plain values is it certain that comparing them gives yes or no.
        plain = type(state) is tuple and all(type(part) in _PLAIN for part in state)
        known = plain and state in ((3, order, None, None, None, -1, -1, 0) for order in "<|")
        if not isinstance(made, DType) or not known:
            raise NotPlainError("the pickle sets the state of what is no plain value")
        self._stack.append(made)


def _plain_object(name: object, arguments: object) -> Any:
    """A value that a pickle makes by a call: a set, bytes, a device, a numpy type or scalar."""
    match name, arguments:
        case _Name(text), (list(members),) if text in _SETS:
            if not all(isinstance(member, (str, bytes)) or member is None or _is_small(member) for member in members):
                raise NotPlainError("the pickle has a set whose members are neither text nor small numbers")
            return _SETS[text](members)
        case _Name(text), (str(kind), *number) if text == _DEVICE and _DEVICE_NAME.fullmatch(kind):
            if number and not (len(number) == 1 and type(number[0]) is int and 0 <= number[0] < _MAX_DEVICES):
                raise NotPlainError("the pickle has a device without a number")
            return load_torch().device(kind, *number)
        case _Name(text), (str(kind), False, True) if text == _NUMPY_DTYPE and kind in _NUMPY_TYPES:
            return _NUMPY_TYPES[kind]
        case _Name(text), (DType() as dtype, bytes(data)) if text in _SCALARS and len(data) == dtype.size:
            return np.frombuffer(data, dtype.numpy_type())[0]
        case _Name(text), (str(content), "latin1") if text == _ENCODE:
            return content.encode("latin1")
        case _Name(text), () if text == _BYTES:
            return b""
    raise NotPlainError("the pickle makes something that is no plain value and no tensor")


def _is_small(number: object) -> bool:
    """Whether this is a number that may be a key: others can be chosen so that a dict takes for ever."""
    return type(number) is int and abs(number) < 1 << 31


def _tensor(data: bytearray, dtype: DType, offset: object, size: object, stride: object) -> Any:
    """A tensor over some elements; all of it lies inside them."""
    if not isinstance(size, tuple) or not isinstance(stride, tuple) or len(size) != len(stride):
        raise NotPlainError("the pickle has a tensor without shape or strides")
    if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in (offset, *size, *stride)):
        raise NotPlainError("the pickle has a tensor whose shape or strides are no numbers of one")
    assert isinstance(offset, int)
    if prod(size) * dtype.size > max(len(data), MAX_SPREAD):
        raise NotPlainError("the pickle has a tensor that is far larger than its bytes")
    used = 1 + sum((side - 1) * step for side, step in zip(size, stride, strict=True)) if prod(size) else 0
    if (offset + used) * dtype.size > len(data) or len(data) % dtype.size:
        raise NotPlainError("the pickle has a tensor that reaches beyond its bytes")
    torch = load_torch()
    # An empty buffer is none to torch.
    elements = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    try:
        return elements.view(dtype.torch_type()).as_strided(size, stride, offset)
    except RuntimeError as error:  # one without elements may have sides whose product is beyond torch's numbers
        raise NotPlainError("the pickle has a tensor of a shape that torch does not take") from error


def _check_size(value: Any, most_bytes: int) -> None:
    """Refuse what would unfold to very much, shared parts counted each time; and what is no plain value."""
    torch = load_torch()
    nbytes, values = 0, 1
    waiting = [(value, 0)]
    while waiting:
        node, depth = waiting.pop()
        kind = type(node)
        if kind in (dict, list, tuple, set, frozenset):
            values += len(node)
            if values > MAX_VALUES:
                raise NotPlainError(f"the pickle unfolds to more than {MAX_VALUES:,} values")
            if depth > MAX_DEPTH:
                raise NotPlainError(f"the pickle nests values more than {MAX_DEPTH} levels deep")
            waiting += [(item, depth + 1) for item in (node.values() if kind is dict else node)]
        elif kind is torch.Tensor:
            nbytes += node.numel() * node.itemsize
            if nbytes > most_bytes:
                raise NotPlainError(f"the pickle unfolds to more than {format_size(most_bytes)}")
        elif kind not in _PLAIN and not isinstance(node, (np.generic, torch.dtype, torch.device)):
            raise NotPlainError("the pickle holds a name, which is no plain value")
