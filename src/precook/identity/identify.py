"""What an object is, as plain data: the part of a recipe that nobody should have to write by hand."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precook.errors import IdentityError
from precook.identity.canonical import MAX_DEPTH, canonical
from precook.identity.digest import digest
from precook.identity.functions import class_identity, identify_function, is_function
from precook.identity.models import identify_module, identify_path, identify_tensor, is_module, is_tensor
from precook.identity.processors import identify_processor, identify_tokenizer, is_tokenizer, processor_kind
from precook.identity.recipe import Recipe
from precook.values import Digest, Key

_NEXT_STEP = "give plain data, a dataclass, a Path, a torch module, a tokenizer or a processor"


def identify(obj: object, *, version: str | int | None = None) -> object:
    """Plain data that says what `obj` is, for a `Recipe`: readable, and the same in every process.

    Takes torch modules and tensors, tokenizers, processors, numpy arrays, recipes, dataclasses and plain data, a `Path`
    to a file or a model folder, and, with `version=`, a function; also dicts, lists and dataclasses of these. A `str`
    is text, never a path. What cannot be identified raises `IdentityError`; nothing is guessed.

    >>> identify({"dtype": "float16", "layers": (1, 2)})
    {'dtype': 'float16', 'layers': [1, 2]}
    """
    if version is not None and not is_function(obj):
        hint = "for anything else, write it beside: {'object': identify(...), 'version': 2}"
        raise IdentityError("", "a version is for a function", hint=hint)
    if version is None:
        data = _identify(obj, "", 0)
    else:
        data = identify_function(obj, version=version, identify_owner=lambda owner, place: _identify(owner, place, 1))
    canonical(data)  # a promise: whatever is returned can stand in a recipe
    return data


def _identify(obj: Any, where: str, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise IdentityError(where, f"nested more than {MAX_DEPTH} levels deep")
    kind = type(obj)
    if obj is None or kind in (bool, int, float, str, bytes, Digest, Key) or isinstance(obj, enum.Enum):
        return obj
    if kind in (list, tuple):
        return [_identify(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(obj)]
    if kind in (dict, OrderedDict):
        return {key: _identify(item, f"{where}[{key!r}]", depth + 1) for key, item in obj.items()}
    for recognised, identified in _KINDS:
        if recognised(obj):
            return identified(obj, where=where)
    return _identify_whole(obj, where, depth)


def _identify_whole(obj: Any, where: str, depth: int) -> object:
    """An object as its own parts, which are identified in their turn."""

    def identify_part(part: object, place: str) -> object:
        return _identify(part, place, depth + 1)

    if isinstance(obj, Recipe):
        return {"kind": "recipe", "name": obj.kind, "data": obj.data, "digest": obj.digest}
    if is_function(obj):
        return identify_function(obj, version=None, identify_owner=identify_part, where=where)
    if processor_kind(obj) is not None:
        return identify_processor(obj, identify_part=identify_part, where=where)
    if _is_numpy(obj, "generic"):
        return identify_part(obj.item(), where)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        fields = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
        return {"kind": "dataclass", "class": class_identity(obj), "fields": identify_part(fields, where)}
    raise _refusal(obj, where)


def _is_numpy(obj: object, name: str) -> bool:
    """Whether `obj` is of this class of numpy; where numpy was never imported nothing is."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, getattr(numpy, name))


def _identify_array(array: Any, *, where: str) -> dict[str, object]:
    if array.dtype.hasobject or array.dtype.names is not None:
        raise IdentityError(where, f"an array of {array.dtype} cannot be identified", hint="give arrays of numbers")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {
        "kind": "array",
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "content": digest(little.tobytes()),
    }


def _refusal(obj: object, where: str) -> IdentityError:
    kind = obj if isinstance(obj, type) else type(obj)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(obj, type):
        return IdentityError(where, f"the class {name} cannot be identified", hint="give an object of it, or its name")
    hint = "a set has no order: give a sorted list" if isinstance(obj, (set, frozenset)) else _NEXT_STEP
    return IdentityError(where, f"a {name} cannot be identified", hint=hint)


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[..., object]], ...] = (
    (lambda obj: isinstance(obj, Path), identify_path),
    (is_module, identify_module),
    (is_tensor, identify_tensor),
    (is_tokenizer, identify_tokenizer),
    (lambda obj: _is_numpy(obj, "ndarray"), _identify_array),
)
"""How each kind of object is recognised, and identified without a look at its parts."""
