"""Trees: any nesting of plain values and tensors, taken apart for a pack and put together again.

A tree becomes a skeleton (its nesting, with a numbered place for each tensor and for each largest part without
tensors), the tensors, and the plain parts as JSON. Entries with the same skeleton share a table in a pack.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Any

import numpy as np

from precook.errors import PrecookError, TreeError
from precook.identity.canonical import MAX_DEPTH, JsonValue, dict_form, dump_json, scalar_form
from precook.store.dtypes import DTYPES, DType, from_numpy_type, load_torch, loaded_torch
from precook.store.lazy import LazyTensor
from precook.store.leaves import Leaf, LeafReader, Library, is_tensor

Tree = Any
"""Nested dict, list, tuple, plain values and torch or numpy tensors.

Plain values are None, bool, int, float, str, bytes, sets of plain values, numpy's scalars, and torch's types, devices
and sizes.
"""

Build = Callable[[Sequence[Any], Sequence[Any]], Tree]
"""Puts a tree together from its tensors and its plain parts."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A tree taken apart."""

    skeleton: bytes
    """JSON: the nesting, and each leaf's dtype, rank and library."""
    leaves: tuple[Leaf, ...]
    paths: tuple[str, ...]
    """Where each leaf hangs in the tree, e.g. `prompt.hidden`: for the names of columns, never for finding them."""
    values: bytes
    """JSON: the plain parts, in order."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        total = 0
        for leaf in self.leaves:  # a third of the time of `sum` over one or two
            total += leaf.data.nbytes
        return total


@dataclass(frozen=True, slots=True)
class _Plain:
    """A part without tensors, as JSON."""

    form: JsonValue


_Nesting = tuple[Any, ...]
"""A part of the skeleton as a value that can be looked up: a tag and a number, or a type, its keys and its items."""


@dataclass(frozen=True, slots=True)
class _Mixed:
    """A part of the skeleton: something below it holds a tensor."""

    nesting: _Nesting


class _Taker:
    """Takes one tree apart."""

    def __init__(self, reader: LeafReader) -> None:
        self._reader = reader
        self.leaves: list[Leaf] = []
        self.paths: list[str] = []
        self.places: list[str] = []
        """Where each leaf hangs, in the words of an error."""
        self.values: list[JsonValue] = []

    def take(self, node: Tree, path: tuple[object, ...]) -> _Plain | _Mixed:
        if len(path) > MAX_DEPTH:
            raise TreeError(_where(path), f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, LazyTensor):
            node = node.load()
        kind = type(node)
        if kind is dict:
            return self._dict(node, path)
        if kind is list or kind is tuple:
            parts = [self.take(item, (*path, i)) for i, item in enumerate(node)]
            return self._join(kind, (), parts)
        if is_tensor(node):
            self.places.append(_where(path))
            self.leaves.append(self._reader.read(node, self.places[-1]))
            self.paths.append(".".join(map(str, path)))
            return _Mixed(("$tensor", len(self.leaves) - 1))
        if kind in (type(None), bool, int, float, str, bytes):
            return _Plain(_value_form(node))
        if kind is set or kind is frozenset:
            return _Plain({f"${kind.__name__}": self._members(node, path)})
        if (form := _library_form(node)) is not None:
            return _Plain(form)
        hint = "store plain values and tensors; give .item() of a numpy scalar" if hasattr(node, "item") else None
        raise TreeError(_where(path), f"a {kind.__module__}.{kind.__qualname__} cannot be stored", hint=hint)

    def _dict(self, node: dict[object, Tree], path: tuple[object, ...]) -> _Plain | _Mixed:
        for key in node:
            if type(key) is not str and type(key) is not int:
                raise TreeError(_where((*path, key)), "a dict key must be a str or an int")
        parts = [self.take(item, (*path, key)) for key, item in node.items()]
        return self._join(dict, tuple(node), parts)

    def _members(self, node: Iterable[Tree], path: tuple[object, ...]) -> list[JsonValue]:
        """The members of a set in an order of their own: equal sets have equal forms."""
        forms = []
        for member in node:
            part = self.take(member, (*path, member))
            if isinstance(part, _Mixed):
                raise TreeError(_where(path), "a set with a tensor in it cannot be stored", hint="give a list")
            forms.append(part.form)
        return sorted(forms, key=dump_json)

    def _join(self, kind: type, keys: tuple[object, ...], parts: list[_Plain | _Mixed]) -> _Plain | _Mixed:
        if all(isinstance(part, _Plain) for part in parts):
            return _Plain(_form(kind, keys, [part.form for part in parts if isinstance(part, _Plain)]))
        return _Mixed((kind, keys, tuple(self.place(part) for part in parts)))

    def place(self, part: _Plain | _Mixed) -> _Nesting:
        """The part in the skeleton: of a plain one only its number stands there."""
        if isinstance(part, _Mixed):
            return part.nesting
        self.values.append(part.form)
        return ("$plain", len(self.values) - 1)


def _form(kind: type, keys: tuple[object, ...], forms: list[JsonValue]) -> JsonValue:
    """A dict with these keys, a tuple or a list, as JSON."""
    if kind is dict:
        return dict_form(list(zip(keys, forms, strict=True)))
    return {"$tuple": forms} if kind is tuple else forms


# An encoder's trees are all alike: to write their skeleton anew takes as long as everything else together.
@lru_cache(maxsize=64)
def _skeleton(nesting: _Nesting, leaves: tuple[tuple[str, int, str], ...]) -> bytes:
    return dump_json({"tree": _nesting_form(nesting), "leaves": leaves})


def _nesting_form(nesting: _Nesting) -> JsonValue:
    if len(nesting) == 2:  # noqa: PLR2004 - a tag and a number
        return dict([nesting])
    kind, keys, items = nesting
    return _form(kind, keys, [_nesting_form(item) for item in items])


@dataclass(frozen=True, slots=True)
class _Pattern:
    """How a tree of nothing but tensors was nested: one that is nested likewise is taken apart without a walk."""

    nesting: _Nesting
    kinds: tuple[tuple[DType, int, Library], ...]
    """The type, rank and library of each leaf."""
    skeleton: bytes
    paths: tuple[str, ...]
    places: tuple[str, ...]
    """Where each leaf hangs, in the words of an error."""

    def take(self, tree: Tree, reader: LeafReader) -> Parts | None:
        """The tree taken apart, if it is nested likewise; a tensor that cannot be stored is named in a `TreeError`."""
        tensors: list[Any] = []
        if not _gather(self.nesting, tree, tensors):
            return None
        leaves = tuple(map(reader.read, tensors, self.places))
        skeleton = self.skeleton
        for leaf, (dtype, rank, library) in zip(leaves, self.kinds, strict=True):
            if leaf.dtype is not dtype or len(leaf.shape) != rank or leaf.library != library:
                skeleton = _skeleton(self.nesting, _leaf_forms(leaves))
        return Parts(skeleton, leaves, self.paths, b"[]")


def _gather(nesting: _Nesting, tree: Tree, tensors: list[Any]) -> bool:
    """Whether a tree is nested like this, with tensors where they are expected, which are added to the list."""
    if len(nesting) == 2:  # noqa: PLR2004 - a tag and a number
        tensors.append(tree)
        return is_tensor(tree) and not isinstance(tree, LazyTensor)
    kind, keys, items = nesting
    if type(tree) is not kind or len(tree) != len(items):
        return False
    # The very same keys, as names that stand in code are: equal ones of another type are none that can be stored.
    if kind is dict and not all(map(is_, tree, keys)):
        return False
    for item, part in zip(items, tree.values() if kind is dict else tree, strict=True):
        if not _gather(item, part, tensors):
            return False
    return True


def take_apart(tree: Tree, *, copy: bool = True) -> Parts:
    """Take a tree apart, copying its tensors; a part that cannot be stored is named in a `TreeError`.

    Without `copy`, tensors that lie in one piece keep their memory, and nobody may write to it any more.
    """
    return _walk(tree, LeafReader(copy=copy))[0]


def take_each_apart(trees: Iterable[Tree], *, copy: bool = True) -> Iterator[Parts | TreeError]:
    """Take many trees apart, those of a batch say, each as `take_apart` does or with the error that it raises.

    One that is nested like the one before it, as nearly all are, costs a few microseconds.
    """
    reader = LeafReader(copy=copy)
    pattern: _Pattern | None = None
    for tree in trees:
        try:
            parts = pattern.take(tree, reader) if pattern is not None else None
            if parts is None:
                parts, pattern = _walk(tree, reader)
        except TreeError as error:
            yield error
        else:
            yield parts


def _walk(tree: Tree, reader: LeafReader) -> tuple[Parts, _Pattern | None]:
    """A tree taken apart and, where it has no plain parts, the pattern for others like it."""
    taker = _Taker(reader)
    nesting = taker.place(taker.take(tree, ()))
    leaves, paths = tuple(taker.leaves), tuple(taker.paths)
    skeleton = _skeleton(nesting, _leaf_forms(leaves))
    if taker.values:
        return Parts(skeleton, leaves, paths, dump_json(taker.values)), None
    kinds = tuple((leaf.dtype, len(leaf.shape), leaf.library) for leaf in leaves)
    return Parts(skeleton, leaves, paths, b"[]"), _Pattern(nesting, kinds, skeleton, paths, tuple(taker.places))


def _leaf_forms(leaves: Sequence[Leaf]) -> tuple[tuple[str, int, str], ...]:
    return tuple((leaf.dtype.name, len(leaf.shape), leaf.library) for leaf in leaves)


def read_values(values: bytes, *, named: bool = False) -> list[Any]:
    """The plain parts of a tree, from their JSON; `ValueError` if it is not what `take_apart` wrote.

    A value of numpy's or torch's own, such as a type or a device, needs its library; where it is to be `named` only, it
    is a text.
    """
    if values == b"[]":
        return []
    try:
        # The scanner itself: the decoder's methods around it look for spaces that are never there.
        parts, end = (_SCAN_NAMED if named else _SCAN)(values.decode("ascii"), 0)
    except StopIteration:
        parts, end = None, -1
    except (TypeError, RecursionError) as error:
        message = f"plain values are not what precook writes: {error}"
        raise ValueError(message) from error
    if type(parts) is not list or end != len(values):
        message = "plain values are not a list"
        raise ValueError(message)
    return parts


def builder(nesting: JsonValue, *, leaves: int, values: int) -> Build:
    """The function that puts trees of this nesting together; `ValueError` if it is no nesting of so many parts."""
    used: list[tuple[str, int]] = []
    build = _builder(nesting, used, 0)
    expected = [("$tensor", i) for i in range(leaves)] + [("$plain", i) for i in range(values)]
    if sorted(used) != sorted(expected):
        message = f"a skeleton of {leaves} tensors and {values} plain parts does not use each of them once"
        raise ValueError(message)
    if used == expected and _is_flat(nesting):
        # Most trees are so, and are then put together in one step: a call for each part is an eighth of a small read.
        names = list(nesting)
        if not values:
            return lambda leaves, _: dict(zip(names, leaves, strict=True))
        return lambda leaves, values: dict(zip(names, [*leaves, *values], strict=True))
    return build


def _is_flat(nesting: JsonValue) -> bool:
    """Whether a nesting is one dict with a tensor or a plain value under each name."""
    return isinstance(nesting, dict) and all(
        isinstance(part, dict) and list(part) in (["$tensor"], ["$plain"]) for part in nesting.values()
    )


def _builder(form: JsonValue, used: list[tuple[str, int]], depth: int) -> Build:
    if depth > MAX_DEPTH:
        message = f"a skeleton of more than {MAX_DEPTH} levels"
        raise ValueError(message)
    if isinstance(form, list):
        items = [_builder(item, used, depth + 1) for item in form]
        return lambda leaves, values: [build(leaves, values) for build in items]
    tag, content = _untag(form)
    if tag is None:
        return _dict_builder([(key, _builder(item, used, depth + 1)) for key, item in content.items()])
    if tag == "$dict":
        return _dict_builder(
            [
                (_check_key(_read_object(key) if isinstance(key, dict) else key), _builder(item, used, depth + 1))
                for key, item in content
            ]
        )
    if tag == "$tuple":
        items = [_builder(item, used, depth + 1) for item in content]
        return lambda leaves, values: tuple(build(leaves, values) for build in items)
    if tag in ("$tensor", "$plain") and type(content) is int:
        used.append((tag, content))
        return (lambda leaves, _: leaves[content]) if tag == "$tensor" else (lambda _, values: values[content])
    message = f"unknown part {tag} in a skeleton"
    raise ValueError(message)


def _dict_builder(items: list[tuple[Any, Build]]) -> Build:
    return lambda leaves, values: {key: build(leaves, values) for key, build in items}


def _value_form(value: object) -> JsonValue:
    if isinstance(value, float) and not math.isfinite(value):
        # All 64 bits: a NaN's sign and payload come back as they went in.
        return {"$bits": struct.pack(">d", value).hex()}
    return scalar_form(value)


def _library_form(value: Any) -> JsonValue | None:
    """The form of a value that numpy or torch has beside its tensors; None where it is none of those."""
    if isinstance(value, np.generic):
        dtype = from_numpy_type(value.dtype)
        return dtype and {"$scalar": [dtype.name, value.tobytes().hex()]}
    torch = loaded_torch()
    if torch is None:
        return None
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$device": str(value)}
    return {"$size": list(value)} if isinstance(value, torch.Size) else None


def _read_object(form: dict[str, Any]) -> Any:
    """A JSON object, its items read already, as the value it stands for."""
    if len(form) == 1:
        # Nearly always: not by `_untag`, which would take as long again.
        ((name, given),) = form.items()
        if name in _TAGGED:
            return _TAGGED[name](given)
    tag, content = _untag(form)
    if tag is None:
        return form
    if tag not in _FOREIGN:
        message = f"unknown plain value {tag}"
        raise ValueError(message)
    return _FOREIGN[tag](_read_foreign(tag, content))


def _read_named(form: dict[str, Any]) -> Any:
    """The same, but a value of numpy's or torch's own is a text that says which."""
    tag, content = _untag(form)
    return f"{tag} {_read_foreign(tag, content)}" if tag in _FOREIGN else _read_object(form)


def _read_foreign(tag: str | None, content: JsonValue) -> Any:
    """What the form of a value of numpy's or torch's own says, if it can be one."""
    match tag, content:
        case "$size", list(sides) if all(type(side) is int and 0 <= side < _MAX_SIDE for side in sides):
            return content
        case "$scalar", [str(name), str(bits)] if name in DTYPES and len(bytes.fromhex(bits)) == DTYPES[name].size:
            return content
        case (("$dtype" | "$device"), str(name)) if _NAME.fullmatch(name):
            return content
    message = f"a {tag} that is none"
    raise ValueError(message)


def _torch_dtype(name: str) -> Any:
    torch = load_torch()
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        # Not damage: another torch may have it.
        message = f"the torch that is installed has no type {name}"
        raise PrecookError(message, hint="install the torch that the entry was made with")
    return dtype


def _torch_device(name: str) -> Any:
    try:
        return load_torch().device(name)
    except RuntimeError as error:
        message = f"the torch that is installed knows no device {name}"
        raise PrecookError(message, hint="install the torch that the entry was made with") from error


def _read_bits(text: str) -> float:
    bits = bytes.fromhex(text)
    if len(bits) != 8:  # noqa: PLR2004 - of a double
        message = "a float of other than eight bytes"
        raise ValueError(message)
    return float(struct.unpack(">d", bits)[0])


_TAGGED: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$dict": lambda items: {_check_key(key): item for key, item in items},
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$str": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    "$bits": _read_bits,
    "$int": lambda text: int(text, 16),
    "$set": set,
    "$frozenset": frozenset,
}
"""How a tagged object is read; `_value_form` and `scalar_form` write them."""
_FOREIGN: dict[str | None, Callable[[Any], Any]] = {
    "$dtype": _torch_dtype,
    "$device": _torch_device,
    "$size": lambda sides: load_torch().Size(sides),
    "$scalar": lambda form: np.frombuffer(bytes.fromhex(form[1]), DTYPES[form[0]].numpy_type())[0],
}
"""Likewise what `_library_form` writes, which needs the library."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}(:[0-9]{1,3})?")
_MAX_SIDE = 1 << 63


# The decoder calls back for each object from the inside out, which makes reading a value one pass in C.
_VALUES = json.JSONDecoder(object_hook=_read_object)
_Scan = Callable[[str, int], tuple[Any, int]]
_SCAN: _Scan = json.scanner.make_scanner(_VALUES)  # type: ignore[attr-defined]
_SCAN_NAMED: _Scan = json.scanner.make_scanner(json.JSONDecoder(object_hook=_read_named))  # type: ignore[attr-defined]


def _check_key(key: object) -> str | int:
    if type(key) is not str and type(key) is not int:
        message = "a dict key is neither str nor int"
        raise ValueError(message)
    return key


def _untag(form: JsonValue) -> tuple[str | None, JsonValue]:
    """A tagged object's tag and content; an object without a tag is a dict with text keys."""
    if not isinstance(form, dict):
        message = f"unexpected {form!r} in a skeleton"
        raise ValueError(message)  # noqa: TRY004 - damaged bytes, not a caller's mistake
    if len(form) == 1:
        ((tag, content),) = form.items()
        if tag.startswith("$"):
            return tag, content
    return None, form


def _where(path: tuple[object, ...]) -> str:
    return "tree" + "".join(f"[{part!r}]" for part in path)
