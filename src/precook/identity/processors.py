"""Processors and tokenizers: the class that really ran, its backend, its vocabulary and its settings.

The class is never read from a config file: without torchvision, transformers runs the PIL twin of an image processor
under the same saved config, and the pixels differ by up to 0.26.
"""

from __future__ import annotations

import enum
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest, digest_files
from precook.identity.functions import class_identity
from precook.identity.patches import without_random_names
from precook.identity.plain import condensed, descends_from, plain
from precook.values import Digest

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


_SET_BY_CALLS = ("truncation", "padding")
"""What every call of a transformers tokenizer sets anew in the tokenizer behind it."""

_LEFT_OUT_OF_TOKENIZERS = frozenset(
    # Where it was loaded from and how.
    {"name_or_path", "is_local", "local_files_only", "files_loaded", "init_inputs", "init_kwargs", "device_map"}
    | {"token", "revision", "subfolder", "cache_dir", "force_download", "trust_remote_code", "use_fast"}
    # What it says along the way.
    | {"verbose", "deprecation_warnings"}
    # Counted when first asked for.
    | {"total_vocab_size"}
    # The class's name again, as some config may spell it.
    | {"tokenizer_class", "slow_tokenizer_class", "processor_class", "auto_map"}
    # Shown under other names, or as the vocabulary.
    | {"vocab", "merges", "chat_template", "added_tokens_decoder", "special_tokens_map", "extra_special_tokens"}
    | {"additional_special_tokens", "model_specific_special_tokens", "SPECIAL_TOKENS_ATTRIBUTES"}
)

_TOKEN_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


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


# Tokenizers


def is_tokenizer(obj: object) -> bool:
    """Whether `obj` is a tokenizer of transformers or of tokenizers."""
    return descends_from(obj, "transformers", "PreTrainedTokenizerBase") or _is_raw(obj)


def identify_tokenizer(tokenizer: Any, *, where: str = "") -> dict[str, object]:
    """A tokenizer as its class, its vocabulary and its settings: the same before and after use, saving and pickling."""
    if _is_raw(tokenizer):
        # Here padding and truncation are settings: only `enable_padding` and the like change them.
        backend = {**_backend(tokenizer, ()), "encode_special_tokens": tokenizer.encode_special_tokens}
        return {"kind": "tokenizer", "class": class_identity(tokenizer), "backend": backend}
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return {
        "kind": "tokenizer",
        "class": class_identity(tokenizer),
        **({"backend": _backend(fast, _SET_BY_CALLS)} if fast is not None else _vocabulary(tokenizer, where)),
        "special_tokens": plain(tokenizer.special_tokens_map, f"{where}.special_tokens_map"),
        "extra_special_tokens": sorted(map(str, getattr(tokenizer, "extra_special_tokens", None) or [])),
        "chat_template": condensed(plain(getattr(tokenizer, "chat_template", None), f"{where}.chat_template")),
        "settings": _settings(tokenizer, where, arguments=tokenizer.init_kwargs if fast is None else {}),
    }


def _is_raw(obj: object) -> bool:
    return descends_from(obj, "tokenizers", "Tokenizer") and callable(getattr(obj, "to_str", None))


def _backend(tokenizer: Any, left_out: tuple[str, ...]) -> dict[str, object]:
    """The tokenizer's own JSON, section by section; of its model, the vocabulary and the merges as digests."""
    sections: dict[str, Any] = json.loads(tokenizer.to_str())
    model: dict[str, Any] = sections.pop("model")
    # Tokens that a program has made up for embeddings of its own are others in each process, under the same ids.
    for token in sections.get("added_tokens", ()):
        token["content"] = without_random_names(token["content"])
    return {
        **{name: condensed(section) for name, section in sections.items() if name not in left_out},
        "model": {
            name: _table_digest(value) if isinstance(value, (dict, list)) else value for name, value in model.items()
        },
    }


def _table_digest(table: object) -> Digest:
    # Not `canonical`: for 150,000 tokens it takes 0.3 s, and the json module 0.05 s.
    return digest(json.dumps(table, sort_keys=True, separators=(",", ":")))


def _vocabulary(tokenizer: Any, where: str) -> dict[str, object]:
    """What a tokenizer without a backend knows: its tokens and ids, and what it would save of them."""
    added = {
        index: {flag: getattr(token, flag) for flag in _TOKEN_FLAGS}
        for index, token in tokenizer.added_tokens_decoder.items()
    }
    for token in added.values():
        token["content"] = without_random_names(token["content"])
    try:
        known = tokenizer.get_vocab()
        made_up = {name: f"{without_random_names(name)} {known[name]}" for name in tokenizer.get_added_vocab()}
        named = {made_up[name] if without_random_names(name) != name else name: known[name] for name in known}
        return {
            "vocabulary": digest(canonical(plain(named, f"{where}.get_vocab()"))),
            "files": _saved_files(tokenizer),
            "added_tokens": condensed(added),
        }
    except (NotImplementedError, AttributeError, TypeError, OSError) as error:
        message = f"{type(tokenizer).__name__} cannot show its vocabulary: {error!r}"
        raise IdentityError(where, message, hint="identify the folder it was loaded from, as a Path") from error


def _saved_files(tokenizer: Any) -> dict[str, Digest]:
    model: Any = getattr(tokenizer, "sp_model", None)
    if callable(getattr(model, "serialized_model_proto", None)):
        # From memory: `save_vocabulary` would copy the file it was loaded from, whatever that holds by now.
        return {"sentencepiece": digest(bytes(model.serialized_model_proto()))}
    with tempfile.TemporaryDirectory(prefix="precook-") as folder:
        tokenizer.save_vocabulary(folder, filename_prefix=None)
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in paths]
        return dict(zip(names, digest_files(paths), strict=True))


def _settings(tokenizer: Any, where: str, *, arguments: dict[str, Any]) -> dict[str, object]:
    """The simple values among its public attributes; where they are hidden in objects, the arguments that set them."""
    attributes = {name: value for name, value in vars(tokenizer).items() if _is_simple(value) or name in arguments}
    left_out = _LEFT_OUT_OF_TOKENIZERS.union(
        tokenizer.special_tokens_map, getattr(tokenizer, "SPECIAL_TOKENS_ATTRIBUTES", ())
    )
    return {
        name: condensed(plain(value, f"{where}.{name}"))
        for name, value in {**arguments, **attributes}.items()
        if name not in left_out and not name.startswith("_") and not name.endswith("_file")
    }


def _is_simple(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_simple(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, enum.Enum))
