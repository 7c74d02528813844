"""Processors: the class that really ran, its backend and its settings.

The class is never read from a config file: without torchvision, transformers runs the PIL twin of an image processor
under the same saved config, and the pixels differ by up to 0.26.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digests import digest
from precook.identity.functions import class_identity

INLINE_BYTES = 8192
"""Data whose canonical form is longer than this is shown as its digest: recipes are stored with the entries."""

_KINDS = {
    "ProcessorMixin": "processor",
    "BaseVideoProcessor": "video-processor",
    "ImageProcessingMixin": "image-processor",
    "FeatureExtractionMixin": "feature-extractor",
}
_LEFT_OUT = frozenset(
    # The class's name again, as some config may spell it; `class` says what ran.
    {"image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "auto_map"}
    # Where it ran.
    | {"device"}
)


def descends_from(obj: object, package: str, name: str) -> bool:
    """Whether a class called `name` of `package` is among the ancestors of `obj`; nothing is imported to know it."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(obj).__mro__)


def processor_kind(obj: object) -> str | None:
    """What kind of processor `obj` is; None when it is none."""
    for name, kind in _KINDS.items():
        if descends_from(obj, "transformers", name):
            return kind
    if descends_from(obj, "diffusers", "ConfigMixin") and hasattr(obj, "preprocess"):
        return "image-processor"
    return None


def identify_processor(
    processor: Any, *, identify_part: Callable[[object, str], object], where: str = ""
) -> dict[str, object]:
    """A processor as its class, its backend where it has one, and its settings; of several parts, each of them."""
    kind = processor_kind(processor)
    if kind == "processor":
        return _composite(processor, identify_part, where)
    settings = processor.to_dict() if hasattr(processor, "to_dict") else dict(processor.config)
    settings = {name: value for name, value in settings.items() if name not in _LEFT_OUT and not name.startswith("_")}
    backend = getattr(processor, "backend", None)
    return {
        "kind": kind,
        "class": class_identity(processor),
        **({"backend": backend} if isinstance(backend, str) else {}),
        "settings": plain(settings, f"{where}.settings"),
    }


def _composite(processor: Any, identify_part: Callable[[object, str], object], where: str) -> dict[str, object]:
    parts: dict[str, Any] = {}
    settings: dict[str, object] = {}
    asked_for = inspect.signature(type(processor).__init__).parameters
    for name, value in vars(processor).items():
        if name.startswith("_") or name in _LEFT_OUT or name == "chat_template":
            continue
        if _is_part(value):
            parts[name] = identify_part(value, f"{where}.{name}")
            continue
        try:
            settings[name] = plain(value, f"{where}.{name}")
        except IdentityError:
            # What no argument of the constructor names was made from those that are named.
            if name in asked_for:
                raise
    # Saving writes one template, and loading gives it to the processor and to its tokenizer: they have one together.
    templates = [condensed(plain(getattr(processor, "chat_template", None), f"{where}.chat_template"))]
    templates += [part.pop("chat_template", None) for part in parts.values()]
    return {
        "kind": "processor",
        "class": class_identity(processor),
        "parts": parts,
        "settings": settings,
        "chat_template": next((template for template in templates if template is not None), None),
    }


def _is_part(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return (
        processor_kind(value) is not None
        or descends_from(value, "transformers", "PreTrainedTokenizerBase")
        or (torch is not None and isinstance(value, torch.nn.Module))
    )


def condensed(value: object) -> object:
    """`value` itself where it is short enough to be read, else the digest of its canonical form."""
    form = canonical(value)
    return value if len(form) <= INLINE_BYTES else digest(form)


def plain(value: Any, where: str) -> object:
    """A library's settings as plain data, in the form they have after saving and loading.

    So an enum is its value, a tuple a list, a set a sorted list, a dtype its name, and a numpy scalar a number.
    """
    kind = type(value)
    if isinstance(value, enum.Enum):
        return plain(value.value, where)
    if value is None or kind in (bool, int, float, str, bytes):
        return value
    if isinstance(value, (int, float, str)):
        return next(base(value) for base in (int, float, str) if isinstance(value, base))
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, where) for item in value), key=canonical)
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
