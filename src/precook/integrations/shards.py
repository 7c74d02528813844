"""Old shards of pickled datasets, read as data: the pickle's instructions are interpreted here, never run.

`torch.save` wrote them: a zip file with the bytes of each tensor and a pickle that says how they hang together. Only
the instructions that plain containers, numbers, text and tensors need are known, and a name in the pickle is nothing
but a name: whatever else stands there ends the reading with an error.
"""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import tee
from math import prod
from pathlib import Path
from typing import Any

from precook.errors import SourceError
from precook.integrations.comfyui import NAME, save_dataset
from precook.store.dtypes import load_torch
from precook.store.tree import Tree

_NAMES = re.compile(r"shard_([0-9]{4,})\.pkl")
_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
}
_TYPES = (*_STORAGES.values(), "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")
_MAX_PICKLE = 256 << 20
_MAX_SPREAD = 1 << 30
"""Bytes that a tensor may take which has fewer of its own: strides of zero repeat them at no cost to the file."""
_DAMAGE = (zipfile.BadZipFile, OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError)
"""What reading a file can raise that is not what it claims to be."""


def convert_pickled(folder: str | Path, out: str | Path, *, name: str = NAME) -> int:
    """Make a dataset in `out` of the old `shard_NNNN.pkl` files in `folder`, which stay as they are; its samples.

    A shard is in memory while it is converted, as it was in its trainer. One that is missing or that says anything but
    tensors and plain values is refused, and then nothing is made.
    """
    shards = _list(Path(folder))
    # Both are asked for in turn, so no more than one sample waits for its other half.
    ones, others = tee(_samples(shards))
    return save_dataset((latent for latent, _ in ones), (one for _, one in others), out, name=name)


def read_shard(path: Path) -> dict[str, list[Tree]]:
    """The `latents` and `conditioning` of one shard."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = _Reader(archive).read()
    except _DAMAGE as error:
        reason = str(error) if isinstance(error, ValueError) else f"damaged: {error!r}"
        raise SourceError(path, f"not a shard that can be converted: {reason}") from error
    wanted = ("latents", "conditioning")
    if not isinstance(found, dict) or not all(isinstance(found.get(part), list) for part in wanted):
        raise SourceError(path, "not a shard: it has no lists of latents and conditioning")
    if len(found["latents"]) != len(found["conditioning"]):
        raise SourceError(path, "its latents and conditionings differ in number")
    return found


def _samples(shards: list[Path]) -> Iterator[tuple[Tree, Tree]]:
    for path in shards:
        shard = read_shard(path)
        yield from zip(shard["latents"], shard["conditioning"], strict=True)


def _list(folder: Path) -> list[Path]:
    """The shards in their order, none missing."""
    found = {int(match[1]): path for path in sorted(folder.iterdir()) if (match := _NAMES.fullmatch(path.name))}
    if not found:
        raise SourceError(folder, "no shard_NNNN.pkl here")
    wanted = len(found)
    metadata = folder / "metadata.json"
    if metadata.is_file():
        try:
            wanted = int(json.loads(metadata.read_bytes())["num_shards"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(metadata, f"not the metadata of a dataset: {error!r}") from error
    # The metadata may be older than a second, shorter save; a hole in the numbers is a lost shard either way.
    for number in range(max(wanted, max(found) + 1)):
        if number not in found:
            raise SourceError(folder / f"shard_{number:04d}.pkl", "this shard is missing")
    return [found[number] for number in sorted(found)]


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that the pickle mentions; nothing is looked up by it."""

    full: str


@dataclass(frozen=True, slots=True)
class _Storage:
    type: str | None
    """None where the tensor says it."""
    member: str


_MARK: Any = object()


class _Reader:
    """Interprets the pickle of one archive with a stack of plain values."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._storages: dict[str, bytearray] = {}
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError("it was not written by torch.save in its zip format")
        self._root = names[0].removesuffix("data.pkl")
        order = f"{self._root}byteorder"
        if order in archive.namelist() and self._member(order, limit=16) != b"little":
            raise ValueError("its tensors are in big-endian order")

    def read(self) -> Any:
        """The value that the pickle describes."""
        pickled = self._member(f"{self._root}data.pkl", limit=_MAX_PICKLE)
        for opcode, argument, _ in _instructions(bytes(pickled)):
            if opcode == "STOP":
                return self._stack.pop()
            step = _STEPS.get(opcode)
            if step is None:
                raise ValueError(f"the pickle has an instruction {opcode}, which no plain value needs")
            step(self, argument)
        raise ValueError("the pickle has no end")

    def _member(self, name: str, *, limit: int | None = None) -> bytearray:
        info = self._archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or (limit is not None and info.file_size > limit):
            raise ValueError(f"{name} is compressed or too large")
        with self._archive.open(info) as file:
            return bytearray(file.read())

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def recall(self, number: int) -> None:
        self._stack.append(self._memo[number])

    def take(self, count: int) -> tuple[Any, ...]:
        values = tuple(self._stack[len(self._stack) - count :])
        if len(values) != count or any(value is _MARK for value in values):
            raise ValueError("the pickle takes values that it never gave")
        del self._stack[len(self._stack) - count :]
        return values

    def take_to_mark(self) -> tuple[Any, ...]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("the pickle takes values that it never gave")
        values = tuple(self._stack[at + 1 :])
        del self._stack[at:]
        return values

    def extend(self, values: tuple[Any, ...]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise ValueError("the pickle appends to what is no list")
        target.extend(values)

    def update(self, values: tuple[Any, ...]) -> None:
        target = self._stack[-1]
        if type(target) is not dict:
            raise ValueError("the pickle sets items of what is no dict")
        target.update(zip(values[::2], values[1::2], strict=True))

    def name(self, argument: str) -> None:
        self._stack.append(_Name(argument.replace(" ", ".", 1)))

    def storage(self) -> None:
        (found,) = self.take(1)
        if type(found) is not tuple or len(found) != 5 or found[0] != "storage" or type(found[1]) is not _Name:  # noqa: PLR2004
            raise ValueError("the pickle refers to something outside that is no tensor")
        kind = found[1].full
        if kind in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
            type_ = None
        elif kind.startswith("torch.") and kind.removeprefix("torch.") in _STORAGES:
            type_ = _STORAGES[kind.removeprefix("torch.")]
        else:
            raise ValueError(f"tensors of {kind} are not known")
        if re.fullmatch(r"[0-9]+", str(found[2])) is None:
            raise ValueError("the pickle names a tensor by something else than a number")
        self._stack.append(_Storage(type_, f"{self._root}data/{found[2]}"))

    def call(self) -> None:
        """What stands for a call in a pickle: the few that plain data needs are done here, by name."""
        name, arguments = self.take(2)
        full = name.full if type(name) is _Name else type(name).__name__
        if type(arguments) is not tuple:
            raise ValueError(f"the pickle calls {full} without arguments")
        if full == "torch._utils._rebuild_tensor_v2":
            self._stack.append(self._tensor(*arguments[:4]))
        elif full == "torch._utils._rebuild_tensor_v3":
            self._stack.append(self._tensor(*arguments[:4], dtype=arguments[6]))
        elif full == "collections.OrderedDict" and not arguments:
            self._stack.append({})
        elif full == "torch.Size" and len(arguments) == 1:
            self._stack.append(tuple(arguments[0]))
        else:
            raise ValueError(f"the pickle calls {full}, which no plain value needs")

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *, dtype: Any = None) -> Any:
        torch = load_torch()
        if type(storage) is not _Storage:
            raise ValueError("the pickle makes a tensor of what is no storage")
        type_ = storage.type if dtype is None else str(getattr(dtype, "full", dtype)).removeprefix("torch.")
        if type_ not in _TYPES:
            raise ValueError(f"tensors of {type_} are not known")
        if not all(type(number) is int and number >= 0 for number in (offset, *shape, *strides)):
            raise ValueError("the pickle has a tensor of an impossible shape")
        kind = getattr(torch, type_)
        size = self._archive.getinfo(storage.member).file_size
        if prod(shape) * kind.itemsize > max(size, _MAX_SPREAD):
            raise ValueError("the pickle has a tensor that is far larger than its bytes")
        if storage.member not in self._storages:
            self._storages[storage.member] = self._member(storage.member)
        data = self._storages[storage.member]
        whole = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
        try:
            # Torch refuses what reaches past the end of the bytes.
            return whole.as_strided(tuple(shape), tuple(strides), offset)
        except RuntimeError as error:
            raise ValueError(f"the pickle has a tensor that does not fit its bytes: {error}") from error


def _instructions(pickled: bytes) -> Iterator[tuple[str, Any, int | None]]:
    for opcode, argument, position in pickletools.genops(pickled):
        yield opcode.name, argument, position


_Step = Callable[[_Reader, Any], None]
_STEPS: dict[str, _Step] = {
    "PROTO": lambda _reader, _: None,
    "FRAME": lambda _reader, _: None,
    "MARK": lambda reader, _: reader.push(_MARK),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),  # noqa: FBT003 - the value itself
    "NEWFALSE": lambda reader, _: reader.push(False),  # noqa: FBT003
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "TUPLE": lambda reader, _: reader.push(reader.take_to_mark()),
    "TUPLE1": lambda reader, _: reader.push(reader.take(1)),
    "TUPLE2": lambda reader, _: reader.push(reader.take(2)),
    "TUPLE3": lambda reader, _: reader.push(reader.take(3)),
    "APPEND": lambda reader, _: reader.extend(reader.take(1)),
    "APPENDS": lambda reader, _: reader.extend(reader.take_to_mark()),
    "SETITEM": lambda reader, _: reader.update(reader.take(2)),
    "SETITEMS": lambda reader, _: reader.update(reader.take_to_mark()),
    "BINPUT": lambda reader, number: reader.remember(number),
    "LONG_BINPUT": lambda reader, number: reader.remember(number),
    "BINGET": lambda reader, number: reader.recall(number),
    "LONG_BINGET": lambda reader, number: reader.recall(number),
    "GLOBAL": lambda reader, name: reader.name(name),
    "BINPERSID": lambda reader, _: reader.storage(),
    "REDUCE": lambda reader, _: reader.call(),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
        lambda reader, value: reader.push(value),
    ),
}
"""What each instruction does to the stack; there are no others."""
