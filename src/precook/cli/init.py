"""`precook init`: a config file for a folder of pictures, or for texts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output, progress
from precook.cli.options import DEFAULT_CONFIG, JsonOption, usage_error
from precook.config.messages import did_you_mean
from precook.errors import EncodeError, PrecookError, printable
from precook.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from precook.config.template import FoundConcept, TemplateFacts
    from precook.encode.families import Family
    from precook.encode.propose import ModelFacts
    from precook.sources.survey import SurveyedConcept

_RESOLUTIONS = (1024, 768, 512, 256)
_ENLARGED = 0.8
"""Pictures whose side is a smaller part of the resolution's are worth a word."""
_USUAL = 512
"""Where no picture tells its size."""
_SEVERAL = 2
"""Pictures that prompts of edit models see, where no pipeline says that it is one."""
_USUAL_FACTOR = 8
"""Pixels along a side of a latent, where no VAE tells it."""
_USUAL_STEP = 4
"""Frames of a latent, where no VAE tells it: most for videos take multiples of it, and one."""


def command(  # noqa: PLR0913 - each parameter is an option of the command
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="Where the pictures or texts lie; or a table of texts.", show_default=False
        ),
    ] = None,
    *,
    target: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the config.")
    ] = DEFAULT_CONFIG,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dataset's name; without it, the folder's.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the store shall be; without it, cache beside the config.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="MODEL",
            help="Folder of a diffusers pipeline, or a family such as flux: encoders and sizes that fit it.",
        ),
    ] = None,
    vae: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder of a VAE of diffusers.")] = None,
    text: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder of a text encoder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a config that is there.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the config, for editors.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at pictures or texts, and write a config for them.

    Texts without pictures may be a table, too. With --for the config keeps what training that model needs, and says why
    each setting is what it is.
    """
    if schema:
        from precook.config.check import json_schema

        json.dump(json_schema(), sys.stdout, indent=2)
        output.line()
        return
    if folder is None:
        raise typer.BadParameter("name the folder of pictures, or of texts", param_hint="FOLDER")
    _check_target(target, force=force)
    for option, single in (("--vae", vae), ("--text", text)):
        if single is not None and not single.is_dir():
            hint = "download the model first, and name its folder"
            if single.is_file():
                hint = (
                    "a VAE in one file goes into the config by hand: its `config` names the folder of its config.json"
                )
            raise usage_error(f"{option} {printable(single)}: no such folder", hint)
    if model is not None and text is not None:
        hint = "leave out --text: a prompt is what the model's own text encoders make; --vae may name another VAE"
        raise usage_error("--for and --text do not go together", hint)
    facts, surveyed = _look_at(folder, target.parent, dataset=dataset, store=store, model=model, vae=vae, text=text)
    encoders = _write(target, facts)
    if as_json:
        output.document(_document(target, facts, surveyed, encoders))
    else:
        _show(target, facts, surveyed, encoders)


def _check_target(target: Path, *, force: bool) -> None:
    place = printable(target)
    if target.is_dir():
        raise usage_error(f"{place} is a directory", f"--output {place}/{DEFAULT_CONFIG} names a file in it")
    if target.exists() and not target.is_file():
        raise usage_error(f"{place} is not a file", "--output names another")
    if os.path.lexists(target) and not force:
        raise usage_error(f"{place} exists already", "--force replaces it, --output names another")
    if not target.parent.is_dir():
        raise usage_error(f"{printable(target.parent)}: no such directory", "create it first")


def _look_at(
    folder: Path,
    base: Path,
    *,
    dataset: str | None,
    store: Path | None,
    model: str | None,
    vae: Path | None,
    text: Path | None,
) -> tuple[TemplateFacts, list[SurveyedConcept]]:
    """What the config is to say; its paths begin at `base`."""
    from precook.config.template import TemplateFacts, control_names
    from precook.encode.propose import propose, propose_frames, takes_clips
    from precook.encode.vae_model import frames_per_latent, pixels_per_latent
    from precook.sources.survey import folder_name, relative_path, survey

    named = None if model is None else _named_model(model, vae)
    vae_facts = {} if vae is None else _vae_config(vae)
    clips = None
    if named is not None:
        clips = takes_clips(named.family, named.facts)
    elif vae is not None:
        clips = frames_per_latent(vae_facts) is not None
    surveyed = survey(folder, base, clips=clips, report=progress.reporter())
    if model is not None and any(each.concept.texts is not None for each in surveyed):
        raise usage_error("--for names a model of pictures, and there are texts alone", "--text names a tokenizer")
    tokens_alone = text is not None and _check_text(text, tokens=surveyed[0].concept.texts is not None)
    resolution = _resolution(surveyed)
    lengths = None
    if any(each.concept.clips for each in surveyed):
        lengths = [length for each in surveyed for length in each.lengths]
    proposal = None
    if named is not None:
        place = relative_path(Path(named.place), base) if named.facts.pipeline is not None else named.place
        other = None if vae is None else relative_path(vae, base)
        proposal = propose(
            named.family,
            named.facts,
            place,
            vae=other,
            resolution=resolution,
            lengths=lengths,
            controls=control_names(each.concept for each in surveyed),
        )
    if dataset is None:
        name = folder.stem if folder.is_file() else folder_name(folder)
        dataset = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] or "dataset"
    facts = TemplateFacts(
        dataset=dataset,
        concepts=tuple(each.concept for each in surveyed),
        store=relative_path(base / "cache" if store is None else store, base),
        vae=None if vae is None or proposal is not None else relative_path(vae, base),
        text=None if text is None else relative_path(text, base),
        resolution=resolution,
        tokens_alone=tokens_alone,
        factor=pixels_per_latent(vae_facts) or _USUAL_FACTOR,
        frames=None if lengths is None else propose_frames(frames_per_latent(vae_facts) or _USUAL_STEP, lengths),
        proposal=proposal,
    )
    return facts, surveyed


def _check_text(text: Path, *, tokens: bool) -> bool:
    """Whether a folder has a tokenizer and no model; refused where it lacks what is to be kept: `tokens` or prompts."""
    from precook.encode.model_folder import find_part, find_tokenizer, has_tokenizer

    try:
        model = find_part(text, "transformers-tokens" if tokens else "transformers-text")
    except EncodeError as error:
        raise usage_error(f"--text {error.message}", "--text names the folder of one part") from error
    if not has_tokenizer(find_tokenizer(model)):
        hint = "name the folder that has a tokenizer.json or a vocabulary, or one with such a folder beside it"
        raise usage_error(f"--text {printable(text)}: no tokenizer in there", hint)
    return not any(model.glob("*.safetensors")) and not any(model.glob("*.bin"))


def _vae_config(vae: Path) -> dict[str, Any]:
    """The config of a VAE, which may lie in the folder of its pipeline."""
    from precook.encode.model_folder import find_part
    from precook.encode.torch_tools import read_config

    try:
        return read_config(find_part(vae, "diffusers-vae"))
    except EncodeError as error:
        raise usage_error(f"--vae {error.message}", error.hint or "download the model again") from error


@dataclass(frozen=True, slots=True)
class _NamedModel:
    """What `--for` names."""

    family: Family | None
    facts: ModelFacts
    place: str
    """Its folder or, where it is not here yet, where the config looks for it."""


def _named_model(model: str, vae: Path | None) -> _NamedModel:
    """A pipeline's folder, or a family whose folders are to be filled in."""
    from precook.encode.families import FAMILIES, family_named, family_of
    from precook.encode.pipeline_folder import INDEX, is_pipeline, read_pipeline
    from precook.encode.propose import ModelFacts, read_facts

    folder = Path(model)
    if is_pipeline(folder):
        try:
            pipeline = read_pipeline(folder)
            family = family_of(pipeline.kind)
            return _NamedModel(family, read_facts(pipeline, family, other_vae=vae), model)
        except EncodeError as error:
            raise usage_error(error.message, error.hint or "download the model again") from error
    if os.path.lexists(folder):
        above = " above it" if is_pipeline(folder.parent) else ""
        hint = f"name the folder{above} that has a {INDEX}; --vae and --text name a VAE and a text encoder alone"
        reason = f"there is no {INDEX} in it" if folder.is_dir() else "it is no folder"
        raise usage_error(f"--for {printable(model)}: no pipeline of diffusers: {reason}", hint)
    family = family_named(model)
    if family is None:
        names = [each.name for each in FAMILIES]
        hint = f"name the folder of a pipeline of diffusers, or a family: {', '.join(names)}"
        if re.fullmatch(r"[\w.-]+/[\w.-]+", model):
            hint += "; a model of the hub is named in the config, as model beside revision"
        meant = did_you_mean(model, names)
        raise usage_error(f"--for {printable(model)}: no such folder, and no family of that name{meant}", hint)
    facts = ModelFacts(
        text_encoders=family.text_encoders,
        no_prompt=family.no_prompt,
        sees_pictures=_SEVERAL if family.sees_pictures else 0,
    )
    return _NamedModel(family, facts, f"models/{family.name}")


def _write(target: Path, facts: TemplateFacts) -> list[str]:
    """Write the config; the names of its encoders."""
    from precook.config.check import read_config
    from precook.config.template import write_config

    try:
        content = write_config(facts)
    except ValueError as error:
        raise usage_error(str(error), "a config file is UTF-8 and cannot name it") from error
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


def _show(target: Path, facts: TemplateFacts, surveyed: list[SurveyedConcept], encoders: list[str]) -> None:
    from precook.config.template import yaml_text

    for survey in surveyed:
        output.text("\n".join(map(printable, [_sentence(survey), *(f"  {note}" for note in survey.concept.remarks)])))
    if facts.proposal is not None:
        reasons = [
            f"  {setting.name} {yaml_text(setting.value)}: {setting.reason}" for setting in facts.proposal.settings
        ]
        output.text("\n".join(map(printable, [facts.proposal.sentence, *reasons])))
    elif facts.frames is not None:
        output.text(printable(f"video.frames {yaml_text(facts.frames.value)}: {facts.frames.reason}"))
    side = _size(facts)
    size = "" if facts.texts_alone else f", {side}" if isinstance(side, str) else f", {side} pixels a side"
    output.text(printable(f"wrote {target}: dataset {facts.dataset}{size}; encoders: {', '.join(encoders)}"))
    for hint in _hints(facts, surveyed, encoders):
        output.hint(hint)
    named = "" if target == DEFAULT_CONFIG else f" --config {shlex.quote(str(target))}"
    output.hint(f"`precook plan{named}` shows what a build would do")


def _hints(facts: TemplateFacts, surveyed: list[SurveyedConcept], encoders: list[str]) -> Iterator[str]:
    """What the config lacks, and what its owner should know."""
    if facts.texts_alone:
        if facts.text is None:
            yield "the file names models/text: put a tokenizer there, or write where it lies; --text DIR names it"
        return
    if facts.tokens_alone:
        yield f"{facts.text} has a tokenizer and no model, so token ids of captions are kept, and no embeddings"
    if facts.proposal is None:
        if facts.video and facts.vae is None:
            yield "the file names models/video-vae: put one there, or write where it lies; --vae DIR names it"
        if "pixels" in encoders:
            aside = any(survey.concept.captions != "none" or survey.captioned for survey in surveyed)
            without = " and leaves captions aside" if aside else ""
            yield (
                f"no model was named, so it keeps the pictures themselves{without};"
                " --for MODEL names a pipeline of diffusers, --vae DIR and --text DIR a VAE and a text encoder alone,"
                " and the file shows every other encoder"
            )
        return
    size, usual = _size(facts), _usual_side(surveyed)
    side = math.prod(map(int, size.split("x"))) ** 0.5 if isinstance(size, str) else size
    if usual is not None and usual < _ENLARGED * side:
        yield (
            f"the usual picture is smaller, about {usual} pixels a side, and would be enlarged;"
            " `upscale: refuse` leaves such out, and a lower resolution enlarges less"
        )
    if facts.proposal.left_out:
        yield f"captions are left aside: {facts.proposal.left_out}"
    if facts.proposal.pipeline is None:
        yield f"the file names {facts.proposal.model}: put the model there, or write where it lies"


def _sentence(survey: SurveyedConcept) -> str:
    """What was found of a concept, in a sentence."""
    from precook.config.template import told_count, yaml_text

    concept = survey.concept
    if concept.texts is not None:
        return f"{concept.name}: {format_count(concept.images, 'text')} ({_source(concept.texts)})"
    captions = {"filename": "file names for captions", "none": "no captions"}.get(concept.captions, "")
    given = concept.settings.get("captions")
    if survey.captioned:
        place = concept.settings.get("caption_extension", ".txt") if given is None else yaml_text(given)
        captions = f"{_part(survey.captioned, concept)} with captions ({place})"
    elif given is not None:
        captions = f"captions {yaml_text(given)}"
    parts = [told_count(concept), captions]
    if concept.masks:
        parts.append(f"{_part(survey.masked, concept)} with masks ({concept.masks})")
    if concept.max_side:
        least, most = concept.min_side, concept.max_side
        parts.append(f"about {least} pixels a side" if least == most else f"about {least} to {most} pixels a side")
    return f"{concept.name}: {', '.join(parts)}"


def _source(texts: Mapping[str, Any]) -> str:
    """Where texts were found, in a few words."""
    source = texts["texts"]
    if source == "files":
        return f"files that end in {texts.get('caption_extension', '.txt')}"
    columns = [column for name, column in source.items() if name != "tools"]
    kind = "conversations in column" if "messages" in source else "column" if len(columns) == 1 else "columns"
    tools = f", tools in column {source['tools']}" if "tools" in source else ""
    return f"{kind} {' and '.join(columns)}{tools}"


def _part(number: int, concept: FoundConcept) -> str:
    return "all" if number == concept.images else f"{number:,}"


def _document(
    target: Path, facts: TemplateFacts, surveyed: list[SurveyedConcept], encoders: list[str]
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "config": str(target),
        "dataset": facts.dataset,
        "store": facts.store,
        "resolution": None if facts.texts_alone else _size(facts),
        "encoders": encoders,
        "concepts": [
            {"name": survey.concept.name, "path": survey.concept.path, "count": survey.concept.images}
            | dict(survey.concept.texts)
            if survey.concept.texts is not None
            else {
                "name": survey.concept.name,
                "path": survey.concept.path,
                "pictures": survey.concept.images - survey.concept.clips,
                **({"clips": survey.concept.clips} if survey.concept.clips else {}),
                "captions": survey.concept.captions,
                "captioned": survey.captioned,
                "settings": dict(survey.concept.settings),
                "remarks": list(survey.concept.remarks),
                "masks": survey.concept.masks,
                "masked": survey.masked,
            }
            for survey in surveyed
        ],
    }
    if facts.video:
        document["video"] = dict(facts.video)
    if facts.proposal is not None:
        document["for"] = {
            "model": facts.proposal.model,
            "pipeline": facts.proposal.pipeline,
            "family": facts.proposal.family,
            "left_out": facts.proposal.left_out or None,
            "settings": [
                {"setting": setting.name, "value": setting.value, "reason": setting.reason}
                for setting in facts.proposal.settings
            ],
        }
    return document


def _size(facts: TemplateFacts) -> int | str:
    """The one resolution of the config."""
    size: int | str = facts.resolution if facts.proposal is None else facts.proposal.image["resolutions"][0]
    return size


def _usual_side(surveyed: list[SurveyedConcept]) -> int | None:
    """The side of a square as large as the usual picture; None where no picture tells its size."""
    import statistics

    sides = [survey.usual_side for survey in surveyed if survey.usual_side]
    return round(statistics.median(sides)) if sides else None


def _resolution(surveyed: list[SurveyedConcept]) -> int:
    side = _usual_side(surveyed) or _USUAL
    # A little enlarging does no harm; 500 pixels are for 512, not for 256.
    return next((resolution for resolution in _RESOLUTIONS if resolution <= 1.1 * side), _RESOLUTIONS[-1])
