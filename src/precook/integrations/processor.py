"""Processors and tokenizers of one's own: known by their code and their settings, where both can be read.

`precook.identify` knows those of transformers and diffusers by their settings, because their classes are known by
name. A class of the user's own is known by the digests of its source files as well: an edit makes another processor.
What hides its state, or has no source, is refused.
"""

from __future__ import annotations

import abc
import argparse
import dataclasses
import sys
import types
import typing
import weakref
from collections import OrderedDict
from typing import Any

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.functions import class_identity, identify_function, is_function
from precook.identity.identify import identify
from precook.identity.models import is_module
from precook.identity.plain import plain
from precook.identity.processors import identify_processor, is_tokenizer, processor_kind
from precook.identity.versions import code_versions

_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_LIBRARIES = frozenset({"torch", "torchvision", "transformers", "diffusers"})
"""Their classes are known by their names, here as in every identity."""
_SIMPLE = (bool, int, float, str, type(None))
_tokenizers: weakref.WeakKeyDictionary[Any, tuple[str, object]] = weakref.WeakKeyDictionary()
"""What tokenizers of processors are, with what could be seen of each at little cost when that was worked out."""
_WITHOUT_STATE = frozenset({object, abc.ABC, typing.Generic, typing.Protocol})
"""Ancestors that decide nothing."""
_HINT = (
    "use a processor of transformers, or a class with its source in a file and settings that are numbers, text, lists "
    "or dicts; or put a digest of your own into the key"
)


def processor_digest(processor: object) -> str:
    """A digest of everything that decides what a processor or tokenizer returns; `IdentityError` if nobody can tell."""
    return digest(canonical(_identify(processor, ""))).hex


def _identify(part: Any, where: str) -> object:  # noqa: PLR0911 - one for each kind of thing
    if processor_kind(part) == "processor":
        return identify_processor(part, identify_part=_identify_part, where=where)
    if is_module(part) and getattr(part, "config", None) is None:
        return _identify_module(part, where)
    # Before `identify` looks into them: it takes a module without a config for what it shows of itself.
    if type(part) in (list, tuple):
        return [_identify(item, f"{where}[{number}]") for number, item in enumerate(part)]
    if type(part) in (dict, OrderedDict):
        return {key: _identify(item, f"{where}[{key!r}]") for key, item in part.items()}
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
        return {"kind": "dataclass", "class": class_identity(part), "fields": _settings(fields, where)}
    try:
        return identify(part)
    except IdentityError:
        if isinstance(part, type):
            raise
        return _identify_unknown(part, where)


def _identify_unknown(part: Any, where: str) -> object:
    """What `identify` refuses, as far as its code and its settings can be read."""
    if is_function(part):
        return _identify_function(part, where)
    if isinstance(part, _NAMESPACES):
        return {"kind": "settings", "settings": _settings(vars(part), where)}
    if callable(getattr(part, "to_dict", None)):
        return {"kind": "config", "class": class_identity(part), "settings": plain(part, where)}
    return _identify_own(part, where)


def _identify_part(part: Any, where: str) -> object:
    """A part of a processor; a tokenizer's vocabulary is read once, because a trainer asks for each picture."""
    if not is_tokenizer(part) or not callable(getattr(part, "__len__", None)):
        return _identify(part, where)
    fast = getattr(part, "backend_tokenizer", None)
    steps = [repr(getattr(fast, step, None)) for step in ("normalizer", "pre_tokenizer", "post_processor")]
    simple = {name: value for name, value in vars(part).items() if type(value) in _SIMPLE}
    state = repr((len(part), part.special_tokens_map, getattr(part, "chat_template", None), simple, steps))
    seen, identity = _tokenizers.get(part, ("", None))
    if seen != state:
        identity = _identify(part, where)
        _tokenizers[part] = state, identity
    # A copy, because a processor takes the template out of it.
    return dict(identity) if isinstance(identity, dict) else identity


def _identify_module(module: Any, where: str) -> object:
    """A module without a config: what it shows of itself, and every attribute that is not torch's own."""
    torch: Any = sys.modules["torch"]
    common = vars(torch.nn.Module()).keys()
    settings = {}
    for name, part in module.named_modules():
        own = {key: value for key, value in vars(part).items() if key not in common and not is_module(value)}
        settings[name] = _settings(own, f"{where}.{name}".strip("."))
    code = {key: value for part in module.modules() for key, value in _code(type(part)).items()}
    return {"kind": "own-module", "module": identify(module), "settings": settings, "code": code}


def _code(kind: type) -> dict[str, str]:
    """The digests of the source of a class; none for one of a library, whose name says enough."""
    return {} if kind.__module__.partition(".")[0] in _LIBRARIES else code_versions(kind)[0]


def _identify_function(function: Any, where: str) -> object:
    """A function by its name, with what its source holds for a version."""
    source: Any = getattr(function, "__func__", function)
    has_source = isinstance(source, types.FunctionType)
    code = code_versions(source)[0] if has_source else {}
    version = digest(canonical(code)).hex if code else None
    return identify_function(function, version=version, identify_owner=_identify, where=where)


def _identify_own(obj: Any, where: str) -> object:
    kinds = [kind for kind in type(obj).__mro__ if kind not in _WITHOUT_STATE]
    name = f"{type(obj).__module__}.{type(obj).__qualname__}"
    code: dict[str, str] = {}
    for kind in kinds or [object]:
        of_library = kind.__module__.partition(".")[0] in _LIBRARIES
        found = _code(kind)
        if not (found or of_library) or "__slots__" in vars(kind):
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
    return not callable(value) and not hasattr(value, "__get__")


def _closes_over(value: object) -> bool:
    """Whether a method remembers values of a function around its class."""
    function = getattr(value, "__func__", value)
    return isinstance(function, types.FunctionType) and bool(set(function.__code__.co_freevars) - {"__class__"})
