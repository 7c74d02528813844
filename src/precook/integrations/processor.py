"""Processors and tokenizers of one's own: known by their code and their settings, where both can be read.

`precook.identify` knows those of transformers and diffusers by their settings, because their classes are known by
name. A class of the user's own is known by the digests of its source files as well: an edit makes another processor.
What hides its state, or has no source, is refused.
"""

from __future__ import annotations

import abc
import argparse
import types
import typing
from typing import Any

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.functions import class_identity, is_function
from precook.identity.identify import identify
from precook.identity.versions import code_versions

_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_WITHOUT_STATE = frozenset({object, abc.ABC, typing.Generic, typing.Protocol})
"""Ancestors that decide nothing."""
_HINT = (
    "use a processor of transformers, or a class with its source in a file and settings that are numbers, text, lists "
    "or dicts; or put a digest of your own into the key"
)


def processor_digest(processor: object) -> str:
    """A digest of everything that decides what a processor or tokenizer returns; `IdentityError` if nobody can tell."""
    return digest(canonical(_identify(processor, ""))).hex


def _identify(part: Any, where: str) -> object:
    try:
        return identify(part)
    except IdentityError:
        if isinstance(part, type) or is_function(part):
            raise
        if isinstance(part, _NAMESPACES):
            return {"kind": "settings", "settings": _settings(vars(part), where)}
        return _identify_own(part, where)


def _identify_own(obj: Any, where: str) -> object:
    kinds = [kind for kind in type(obj).__mro__ if kind not in _WITHOUT_STATE]
    name = f"{type(obj).__module__}.{type(obj).__qualname__}"
    code: dict[str, str] = {}
    for kind in kinds or [object]:
        found = code_versions(kind)[0]
        if not found or "__slots__" in vars(kind):
            reason = f"{kind.__name__} keeps its code or its state where nobody can read it"
            raise IdentityError(where, f"a {name} cannot be identified: {reason}", hint=_HINT)
        if any(_closes_over(value) for value in vars(kind).values()):
            reason = f"{kind.__name__} remembers values of the function that made it"
            raise IdentityError(where, f"a {name} cannot be identified: {reason}", hint=_HINT)
        code.update(found)
    shared = {key: value for kind in reversed(kinds) for key, value in vars(kind).items() if _is_setting(key, value)}
    return {
        "kind": "own-processor",
        "class": class_identity(obj),
        "code": code,
        "settings": _settings({**shared, **vars(obj)}, where),
    }


def _settings(values: dict[str, Any], where: str) -> dict[str, object]:
    return {name: _identify(value, f"{where}.{name}".lstrip(".")) for name, value in values.items()}


def _is_setting(name: str, value: object) -> bool:
    """Whether what a class holds under a name is a value, and not a part of its code."""
    if name.startswith("__") or name == "_abc_impl":
        return False
    return not (
        callable(value) or isinstance(value, (property, classmethod, staticmethod)) or hasattr(value, "__get__")
    )


def _closes_over(value: object) -> bool:
    """Whether a method remembers values of a function around its class."""
    function = getattr(value, "__func__", value)
    return isinstance(function, types.FunctionType) and bool(set(function.__code__.co_freevars) - {"__class__"})
