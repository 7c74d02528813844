"""`precook init`: a config file for a folder of pictures."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from precook.cli import output
from precook.config.read import schema
from precook.config.template import Found, FoundConcept, write_config
from precook.errors import ConfigError, Problem
from precook.sources.survey import survey
from precook.units import format_count

_RESOLUTIONS = (1024, 768, 512, 256)


def print_schema() -> None:
    """The JSON schema of the config file."""
    json.dump(schema(), sys.stdout, indent=2)
    output.line()


def run(folder: Path, target: Path, *, dataset: str | None, vae: Path | None, text: Path | None, force: bool) -> None:
    """Look at a folder and write a config for it."""
    if target.exists() and not force:
        raise ConfigError(Problem("", None, f"{target} exists already", "--force replaces it, --output names another"))
    base = target.parent
    concepts = survey(folder, base)
    found = Found(
        dataset=dataset or _dataset_name(folder),
        concepts=tuple(concepts),
        store="cache",
        vae=_relative(vae, base),
        text=_relative(text, base),
        resolution=_resolution(concepts),
    )
    try:
        content = write_config(found)
    except ValueError as error:
        raise ConfigError(Problem("", None, f"cannot be written down: {error}", "rename the folder")) from error
    target.write_text(content, "utf-8")
    for concept in concepts:
        output.line(f"{concept.name}: {format_count(concept.images, 'picture')}, {_said(concept)}")
    output.line(f"wrote {target}")
    output.hint(
        f"`precook plan{'' if target == Path('precook.yaml') else f' --config {target}'}` shows what a build would do"
    )


def _said(concept: FoundConcept) -> str:
    captions = {"sidecar": "captions beside them", "filename": "file names as captions", "none": "no captions"}
    masks = f", masks named {concept.masks}" if concept.masks else ""
    sides = f"; sides about {concept.min_side} to {concept.max_side} px" if concept.max_side else ""
    return f"{captions[concept.captions]}{masks}{sides}"


def _resolution(concepts: list[FoundConcept]) -> int:
    side = max(concept.max_side for concept in concepts)
    return next((one for one in _RESOLUTIONS if one <= side), _RESOLUTIONS[-1])


def _dataset_name(folder: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._")[:64]
    return name or "dataset"


def _relative(path: Path | None, base: Path) -> str | None:
    return None if path is None else os.path.relpath(path, base).replace(os.sep, "/")
