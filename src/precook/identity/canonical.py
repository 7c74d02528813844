"""One byte form for plain data: equal meaning, equal bytes, on every machine.

The form is ASCII JSON without spaces, so that an identity can be read, compared and explained later.
docs/concepts/identity.md states every rule with test vectors; in short:

- `1`, `1.0` and `True` differ, `0.0` and `-0.0` differ, every NaN is the same NaN;
- text is taken as it is (no Unicode normalisation) and differs from bytes;
- a tuple and a list of the same items are the same sequence; the order of a dict does not matter;
- an enum member is its class, name and value; a dataclass its class name and fields;
- paths, sets and every other object are refused: they do not say what they are.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import math
from pathlib import PurePath
from typing import Any

from precook.errors import IdentityError
from precook.values import Digest, Key, has_surrogates

MAX_DEPTH = 64
TAG = "$"
_INT64 = 1 << 63

JsonValue = Any
"""What `json` reads and writes: None, bool, int, float, str, list and dict of these."""


def canonical(value: object) -> bytes:
    """The canonical bytes of `value`; `IdentityError` names the part that has none.

    >>> canonical({"b": (1, 2.0), "a": None})
    b'{"a":null,"b":[1,2.0]}'
    """
    return dump_json(_form(value, "", 0))


def dump_json(form: JsonValue) -> bytes:
    """Compact ASCII JSON, in the order given."""
    return json.dumps(form, separators=(",", ":"), allow_nan=False).encode("ascii")


def _form(value: object, where: str, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        raise IdentityError(where, f"nested more than {MAX_DEPTH} levels deep")
    kind = type(value)
    if kind in (list, tuple):
        items: Any = value
        return [_form(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(items)]
    if kind is dict:
        return _dict_form(value, where, depth)
    if isinstance(value, enum.Enum):
        return {"$enum": [f"{kind.__qualname__}.{value.name}", _form(value.value, where, depth + 1)]}
    if kind in (type(None), bool, int, float, str, bytes):
        return scalar_form(value)
    if isinstance(value, (Digest, Key)):
        return {"$digest" if isinstance(value, Digest) else "$key": value.hex}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[Any, Any] = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"$dataclass": [kind.__qualname__, _dict_form(fields, where, depth)]}
    raise IdentityError(where, f"a {kind.__module__}.{kind.__qualname__} cannot be identified", hint=_hint(value))


def _dict_form(value: Any, where: str, depth: int) -> JsonValue:
    for key in value:
        if type(key) not in (str, int):
            raise IdentityError(f"{where}[{key!r}]", "a dict key must be a str or an int")
    items = sorted(value.items(), key=lambda item: (type(item[0]) is str, item[0]))
    pairs = [(key, _form(item, f"{where}[{key!r}]", depth + 1)) for key, item in items]
    return dict_form(pairs)


def dict_form(pairs: list[tuple[Any, JsonValue]]) -> JsonValue:
    """A JSON object where the keys allow it, else a tagged list of pairs; the order given is kept."""
    if all(type(key) is str and not key.startswith(TAG) and not has_surrogates(key) for key, _ in pairs):
        return dict(pairs)
    return {"$dict": [[scalar_form(key), item] for key, item in pairs]}


def scalar_form(value: object) -> JsonValue:
    """The JSON form of a plain value: itself where JSON has it, else an object with one `$` tag."""
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, str) and has_surrogates(value):
        # JSON would merge a pair of lone surrogates into the one character they spell.
        return {"$str": value.encode("utf-8", "surrogatepass").hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        # Hexadecimal: reading decimal digits takes quadratic time and Python stops at 4300 of them.
        return {"$int": hex(value)}
    return value


def _hint(value: object) -> str:
    if isinstance(value, PurePath):
        return "a path says where, not what: give precook.digest(path) or precook.identify(path)"
    if isinstance(value, (set, frozenset)):
        return "a set has no order: give a sorted list"
    if callable(value):
        return "give precook.identify(function, version=...)"
    return "give plain data, or precook.identify(value)"
