"""Settings of other libraries as plain data: what can be read, compared and hashed.

Settings are taken in the form that they have after saving and loading, so that an object made in Python and the same
object read from a file are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import re
import types
from collections.abc import Mapping
from typing import Any, cast

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest

INLINE_BYTES = 8192
"""Data whose canonical form is longer than this is shown as its digest: recipes are stored with the entries."""


def plain(value: Any, where: str) -> object:
    """Settings as plain data: an enum is its value, a tuple a list, a set a sorted list, a dtype its name."""
    if isinstance(value, enum.Enum):
        return plain(value.value, where)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, (int, float, str)):
        return next(base(value) for base in (int, float, str) if isinstance(value, base))
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, where) for item in value), key=canonical)
    return _plain_object(value, where)


def _plain_object(value: Any, where: str) -> object:
    kind = type(value)
    if isinstance(value, re.Pattern):
        return {"pattern": value.pattern, "flags": int(value.flags)}
    if (kind.__module__, kind.__qualname__) == ("torch", "dtype"):
        return str(value).removeprefix("torch.")
    if callable(getattr(value, "tolist", None)):
        # numpy scalars, numpy arrays and tensors, as a config file would hold them.
        return plain(value.tolist(), where)
    if (fields := named_values(value)) is not None:
        return {key: plain(item, f"{where}[{key!r}]") for key, item in fields.items()}
    hint = "only numbers, text, lists, dicts and what is made of them says what it is"
    raise IdentityError(where, f"a {kind.__module__}.{kind.__qualname__} cannot be identified", hint=hint)


def named_values(value: Any) -> Mapping[Any, object] | None:
    """The named values that make up a mapping, a config object, a namespace or a dataclass; None for another object."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return vars(value)
    if isinstance(value, type):
        return None
    if callable(getattr(value, "to_dict", None)):
        return cast("Mapping[Any, object]", value.to_dict())
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def condensed(value: object) -> object:
    """`value` itself where it is short enough to be read, else the digest of its canonical form."""
    form = canonical(value)
    return value if len(form) <= INLINE_BYTES else digest(form)


def descends_from(obj: object, package: str, name: str) -> bool:
    """Whether a class called `name` of `package` is among the ancestors of `obj`; nothing is imported to know it."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(obj).__mro__)
