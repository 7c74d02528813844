"""What an image-edit trainer's config says about its cache: its YAML as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from precook.errors import PrecookError, SourceError, printable
from precook.fs.read import NotAFileError, TooLargeError, read_small

_LIMIT = 1 << 20
_FOLDER = "./cache"
"""Where the trainer caches if its config names no folder."""
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_ENVIRONMENT = "oc.env:"
_DEPTH = 20
"""References that lead to further ones."""
_DEVICES = {"vae_encoder_device": "vae", "text_encoder_device": "text_encoder"}
"""How older configs name where encoders run."""


@dataclass(frozen=True, slots=True)
class CacheSection:
    """A cache that a config wants."""

    cache_dir: str
    devices: Mapping[str, str]
    """Where each encoder runs while the cache is made."""


def read_cache_section(config: Mapping[str, Any] | str | os.PathLike[str]) -> CacheSection | None:
    """What a config wants cached, and where; None where it wants no cache or says nothing about one.

    `cache` decides; what it leaves out stands under `data.init_args`, or is what the trainer takes by itself.
    """
    root = _plain(config)
    sections = [_section(_section(root, "data"), "init_args"), _section(root, "cache")]
    said = {name: section[name] for section in sections for name in ("use_cache", "cache_dir") if name in section}
    if not said and not sections[1]:
        return None
    if not _resolved(said.get("use_cache", True), root):
        return None
    folder = str(_resolved(said.get("cache_dir") or _FOLDER, root))
    folder = re.sub("/+", "/", os.path.expanduser(os.path.expandvars(folder)))  # noqa: PTH111 - text, as the trainer does
    devices = {device: sections[1].get(name) for name, device in _DEVICES.items()}
    devices |= _section(sections[1], "devices")
    named = {name: str(_resolved(value, root)) for name, value in devices.items() if value is not None}
    return CacheSection(folder.rstrip("/") or "/", named)


def _plain(config: Any) -> dict[str, Any]:
    """A config as nested dicts, from its file or from the trainer's object."""
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        try:
            config = yaml.safe_load(read_small(path, _LIMIT))
        except (NotAFileError, TooLargeError) as error:
            raise SourceError(path, getattr(error, "reason", str(error))) from error
        except OSError as error:
            raise SourceError(path, error.strerror or str(error)) from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise SourceError(path, f"not YAML: {printable(error)}") from error
    if hasattr(config, "model_dump"):
        config = config.model_dump(mode="json")
    if config is not None and not isinstance(config, Mapping):
        raise PrecookError(f"a config is a file or a mapping, not a {type(config).__name__}")
    return dict(config or {})


def _section(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = parent.get(name) or {}
    if not isinstance(section, Mapping):
        raise PrecookError(f"{name} in the config is {section!r}, not a section")
    return section


def _resolved(value: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """A value whose references to others, such as `${logging.output_dir}`, are followed."""
    if not isinstance(value, str):
        return value
    if depth > _DEPTH:
        raise PrecookError(f"{value!r} in the config refers to itself")

    def look_up(match: re.Match[str]) -> str:
        return str(_referred(match[1], root, depth))

    whole = _REFERENCE.fullmatch(value)
    # A value that is nothing but a reference keeps its type: true is not the text "True".
    return _referred(whole[1], root, depth) if whole else _REFERENCE.sub(look_up, value)


def _referred(name: str, root: Mapping[str, Any], depth: int) -> Any:
    if name.startswith(_ENVIRONMENT):
        variable, _, default = name.removeprefix(_ENVIRONMENT).partition(",")
        found: Any = os.environ.get(variable, default.strip() or None)
    else:
        found = root
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        hint = "give the folder to EmbeddingCacheManager itself, or the trainer's own config object"
        raise PrecookError(f"${{{name}}} in the config refers to nothing", hint=hint)
    return _resolved(found, root, depth + 1)
