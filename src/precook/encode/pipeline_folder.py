"""Folders of diffusers' pipelines: which pipeline one holds, and which of its models lies where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precook.encode.torch_tools import read_config
from precook.errors import EncodeError, printable

INDEX = "model_index.json"
"""The file that makes a folder a pipeline's."""


@dataclass(frozen=True, slots=True)
class PipelinePart:
    """One model, tokenizer, processor or scheduler of a pipeline."""

    folder: Path
    library: str
    """The package that has its class: transformers, diffusers, or a module of diffusers' pipelines."""
    kind: str
    """The name of its class."""


@dataclass(frozen=True, slots=True)
class PipelineFolder:
    """What a pipeline's folder says about itself; nothing of it was loaded."""

    path: Path
    kind: str
    """The name of the pipeline's class, such as FluxPipeline."""
    parts: Mapping[str, PipelinePart]
    """What the pipeline has, by the name of its folder; what it can do without and has not got is left out."""
    settings: Mapping[str, Any]
    """What else the pipeline's class is made with."""


def is_pipeline(folder: Path) -> bool:
    """Whether a folder is the root of a pipeline."""
    return (folder / INDEX).is_file()


def read_pipeline(folder: Path) -> PipelineFolder:
    """A pipeline's folder, as its own file describes it; `EncodeError` where that cannot be understood."""
    form = read_config(folder, INDEX)
    kind = form.get("_class_name")
    if not isinstance(kind, str):
        hint = "name the folder of a pipeline that diffusers' save_pretrained wrote"
        raise EncodeError(f"{printable(folder / INDEX)} names no class of pipelines", hint=hint)
    parts, settings = {}, {}
    for name, value in form.items():
        if name.startswith("_"):
            continue  # what saving writes about itself
        if not isinstance(value, list) or any(isinstance(item, int | float) for item in value):
            settings[name] = value
            continue
        if len(value) != 2 or not all(item is None or isinstance(item, str) for item in value):  # noqa: PLR2004 - library, class
            raise EncodeError(f"{printable(folder / INDEX)}: {printable(name)} is not a library and a class")
        library, part = value
        if library is not None and part is not None:
            parts[name] = PipelinePart(folder / name, library, part)
    return PipelineFolder(folder, kind, MappingProxyType(parts), MappingProxyType(settings))
