"""`precook init`: a config file for a folder of pictures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import bars, output
from precook.cli.options import JsonOption
from precook.cli.projects import DEFAULT
from precook.errors import ConfigError, ConfigProblem, PrecookError, printable
from precook.units import format_count

if TYPE_CHECKING:
    from precook.config.template import FoundConcept, TemplateFacts
    from precook.sources.survey import Surveyed

_RESOLUTIONS = (1024, 768, 512, 256)
_USUAL = 512
"""Where no picture tells its size."""


def command(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Where the pictures lie.", show_default=False)
    ] = None,
    *,
    target: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the config.")
    ] = DEFAULT,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dataset's name; without it, the folder's.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the store shall be; without it, cache beside the config.")
    ] = None,
    vae: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder of a VAE of diffusers.")] = None,
    text: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder of a text encoder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a config that is there.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the config, for editors.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a folder of pictures and write a config for it."""
    if schema:
        _print_schema()
        return
    if folder is None:
        raise typer.BadParameter("name the folder of pictures", param_hint="FOLDER")
    _check_target(target, force=force)
    _check_models({"--vae": vae, "--text": text})
    found, surveyed = _find(folder, target.parent, dataset=dataset, store=store, vae=vae, text=text)
    encoders = _write(target, found)
    if as_json:
        output.document(_document(target, found, surveyed, encoders))
    else:
        _show(target, found, surveyed, encoders)


def _print_schema() -> None:
    """The JSON schema of the config file."""
    from precook.config.yaml import schema

    json.dump(schema(), sys.stdout, indent=2)
    output.line()


def _check_target(target: Path, *, force: bool) -> None:
    place = printable(target)
    if target.is_dir():
        raise ConfigError(
            ConfigProblem("", None, f"{place} is a directory", f"--output {place}/{DEFAULT} names a file in it")
        )
    if target.exists() and not target.is_file():
        raise ConfigError(ConfigProblem("", None, f"{place} is not a file", "--output names another"))
    if os.path.lexists(target) and not force:
        raise ConfigError(
            ConfigProblem("", None, f"{place} exists already", "--force replaces it, --output names another")
        )
    if not target.parent.is_dir():
        raise ConfigError(ConfigProblem("", None, f"{printable(target.parent)}: no such directory", "create it first"))


def _check_models(models: dict[str, Path | None]) -> None:
    for option, model in models.items():
        if model is not None and not model.is_dir():
            hint = "download the model first, and name its folder"
            raise ConfigError(ConfigProblem("", None, f"{option} {printable(model)}: no such folder", hint))


def _find(
    folder: Path, base: Path, *, dataset: str | None, store: Path | None, vae: Path | None, text: Path | None
) -> tuple[TemplateFacts, list[Surveyed]]:
    """What the config is to say; its paths begin at `base`."""
    from precook.config.template import TemplateFacts
    from precook.sources.survey import folder_name, relative_path, survey

    surveyed = survey(folder, base, report=bars.reporter())
    found = TemplateFacts(
        dataset=_dataset_name(folder_name(folder)) if dataset is None else dataset,
        concepts=tuple(one.concept for one in surveyed),
        store=relative_path(base / "cache" if store is None else store, base),
        vae=None if vae is None else relative_path(vae, base),
        text=None if text is None else relative_path(text, base),
        resolution=_resolution(surveyed),
    )
    return found, surveyed


def _write(target: Path, found: TemplateFacts) -> list[str]:
    """Write the config; the names of its encoders."""
    from precook.config.template import write_config
    from precook.config.yaml import read_config

    try:
        content = write_config(found)
    except ValueError as error:
        raise ConfigError(ConfigProblem("", None, str(error), "a config file is UTF-8 and cannot name it")) from error
    _replace(target, content)
    return list(read_config(target)[0].encoders)


def _replace(target: Path, content: str) -> None:
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


def _show(target: Path, found: TemplateFacts, surveyed: list[Surveyed], encoders: list[str]) -> None:
    output.text("\n".join(printable(_told(one)) for one in surveyed))
    said = f"dataset {found.dataset}, {found.resolution} pixels a side; encoders: {', '.join(encoders)}"
    output.text(printable(f"wrote {target}: {said}"))
    if found.vae is None and found.text is None:
        aside = any(one.concept.captions != "none" for one in surveyed)
        output.hint(
            f"no model was named, so it keeps the pictures themselves{' and leaves captions aside' if aside else ''};"
            " --vae DIR and --text DIR name a VAE and a text encoder, and the file shows every other encoder"
        )
    named = "" if target == DEFAULT else f" --config {shlex.quote(str(target))}"
    output.hint(f"`precook plan{named}` shows what a build would do")


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


def _document(target: Path, found: TemplateFacts, surveyed: list[Surveyed], encoders: list[str]) -> dict[str, Any]:
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
    import statistics

    sides = [one.usual_side for one in surveyed if one.usual_side]
    side = statistics.median(sides) if sides else _USUAL
    # A little enlarging does no harm; 500 pixels are for 512, not for 256.
    return next((one for one in _RESOLUTIONS if one <= 1.1 * side), _RESOLUTIONS[-1])


def _dataset_name(folder: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder).strip("-._")[:64]
    return name or "dataset"
