"""`precook init`: a config file for a folder of pictures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.projects import DEFAULT
from precook.config.read import read_config, schema
from precook.config.template import Found, FoundConcept, write_config
from precook.errors import ConfigError, PrecookError, Problem, printable
from precook.sources.survey import Surveyed, folder_name, relative_path, survey
from precook.units import format_count

_RESOLUTIONS = (1024, 768, 512, 256)
_USUAL = 512
"""Where no picture tells its size."""


def print_schema() -> None:
    """The JSON schema of the config file."""
    json.dump(schema(), sys.stdout, indent=2)
    output.line()


def run(
    folder: Path,
    target: Path,
    *,
    dataset: str | None,
    store: Path | None,
    vae: Path | None,
    text: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Look at a folder and write a config for it."""
    _check_target(target, force=force)
    for option, model in (("--vae", vae), ("--text", text)):
        if model is not None and not model.is_dir():
            hint = "download the model first, and name its folder"
            raise ConfigError(Problem("", None, f"{option} {printable(model)}: no such folder", hint))
    base = target.parent
    surveyed = survey(folder, base, report=output.reporter())
    found = Found(
        dataset=_dataset_name(folder) if dataset is None else dataset,
        concepts=tuple(one.concept for one in surveyed),
        store=relative_path(base / "cache" if store is None else store, base),
        vae=None if vae is None else relative_path(vae, base),
        text=None if text is None else relative_path(text, base),
        resolution=_resolution(surveyed),
    )
    try:
        content = write_config(found)
    except ValueError as error:
        raise ConfigError(Problem("", None, str(error), "a config file is UTF-8 and cannot name it")) from error
    _write(target, content)
    encoders = list(read_config(target)[0].encoders)
    if as_json:
        output.document(_document(target, found, surveyed, encoders))
        return
    output.text("\n".join(printable(_told(one)) for one in surveyed))
    said = f"dataset {found.dataset}, {found.resolution} pixels a side; encoders: {', '.join(encoders)}"
    output.text(printable(f"wrote {target}: {said}"))
    if vae is None and text is None:
        aside = any(one.concept.captions != "none" for one in surveyed)
        output.hint(
            f"no model was named, so it keeps the pictures themselves{' and leaves captions aside' if aside else ''};"
            " --vae DIR and --text DIR name a VAE and a text encoder, and the file shows every other encoder"
        )
    named = "" if target == DEFAULT else f" --config {shlex.quote(str(target))}"
    output.hint(f"`precook plan{named}` shows what a build would do")


def _check_target(target: Path, *, force: bool) -> None:
    place = printable(target)
    if target.is_dir():
        raise ConfigError(
            Problem("", None, f"{place} is a directory", f"--output {place}/{DEFAULT} names a file in it")
        )
    if target.exists() and not target.is_file():
        raise ConfigError(Problem("", None, f"{place} is not a file", "--output names another"))
    if os.path.lexists(target) and not force:
        raise ConfigError(Problem("", None, f"{place} exists already", "--force replaces it, --output names another"))
    if not target.parent.is_dir():
        raise ConfigError(Problem("", None, f"{printable(target.parent)}: no such directory", "create it first"))


def _write(target: Path, content: str) -> None:
    """Write the file whole or not at all: a config that somebody worked on must not be lost to a full disk."""
    real = target.resolve()
    partial = real.with_name(f".{real.name[:64]}.{os.getpid()}.partial")
    try:
        partial.write_text(content, "utf-8")
        partial.replace(real)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        message = f"{printable(target)}: cannot be written: {error.strerror}"
        raise PrecookError(message, hint="--output names another place") from error


def _told(one: Surveyed) -> str:
    """What was found of a concept, in a sentence."""
    concept = one.concept
    captions = {"filename": "file names for captions", "none": "no captions"}
    parts = [
        format_count(concept.images, "picture"),
        captions.get(concept.captions) or f"{_part(one.captioned, concept)} with captions (.txt)",
    ]
    if concept.masks:
        parts.append(f"{_part(one.masked, concept)} with masks ({concept.masks})")
    if concept.max_side:
        least, most = concept.min_side, concept.max_side
        parts.append(f"about {least} pixels a side" if least == most else f"about {least} to {most} pixels a side")
    return f"{concept.name}: {', '.join(parts)}"


def _part(number: int, concept: FoundConcept) -> str:
    return "all" if number == concept.images else f"{number:,}"


def _document(target: Path, found: Found, surveyed: list[Surveyed], encoders: list[str]) -> dict[str, Any]:
    return {
        "config": str(target),
        "dataset": found.dataset,
        "store": found.store,
        "resolution": found.resolution,
        "encoders": encoders,
        "concepts": [
            {
                "name": one.concept.name,
                "path": one.concept.path,
                "pictures": one.concept.images,
                "captions": one.concept.captions,
                "captioned": one.captioned,
                "masks": one.concept.masks,
                "masked": one.masked,
            }
            for one in surveyed
        ],
    }


def _resolution(surveyed: list[Surveyed]) -> int:
    sides = [one.usual_side for one in surveyed if one.usual_side]
    side = statistics.median(sides) if sides else _USUAL
    # A little enlarging does no harm; 500 pixels are for 512, not for 256.
    return next((one for one in _RESOLUTIONS if one <= 1.1 * side), _RESOLUTIONS[-1])


def _dataset_name(folder: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder_name(folder)).strip("-._")[:64]
    return name or "dataset"
