"""What `precook init --for` proposes for a model: encoders, resolution and step, each with its reason.

A fact comes from the model's own files where they tell it, else from the table of families. Nothing is loaded.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precook.config.sections import ImageSettings, VideoSettings
from precook.config.template import Proposal, ProposedSetting
from precook.encode.families import Family
from precook.encode.model_files import saved_dtype
from precook.encode.pipeline_folder import INDEX, PipelineFolder
from precook.encode.prompt_folder import find_pipeline, text_parts
from precook.encode.torch_tools import read_config
from precook.encode.vae_model import frames_per_latent, pixels_per_latent
from precook.errors import EncodeError, printable

_STEP = 64
"""What trainers sort sizes by: few sizes make full batches."""
_SMALL = 256
"""Below this side a step of 64 would leave hardly any shapes."""
_FRAMES = (25, 49, 81)
"""Numbers of frames that models of videos are trained with, about: one and a half, three and five seconds of 16."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the files of a model say about it; nothing where they are not here yet."""

    pipeline: str | None = None
    """The class of its pipeline."""
    text_encoders: tuple[str, ...] = ()
    no_prompt: str = ""
    """Why its prompts cannot be encoded, where they cannot."""
    sees_pictures: int = 0
    """How many control pictures its prompts see: none, one, or 2 for any number."""
    vae: bool = True
    """Whether it has one."""
    factor: int | None = None
    """Pixels along a side of one latent."""
    frame_step: int | None = None
    """Frames that one latent of its VAE stands for; None where it encodes pictures alone."""
    sample_size: int | tuple[int, int] | None = None
    """Latents along a side, or width and height in latents, that the model was trained with."""
    vae_dtype: str | None = None
    """What the weights of its VAE are saved in."""
    scales_apart: bool = False
    """Whether its pipelines scale a picture that they are given otherwise than one that they learn."""
    not_float16: bool = False
    """Whether the VAE's config forbids that it runs in float16."""
    text_dtypes: frozenset[str] = frozenset()
    """What the weights of its text encoders are saved in."""


def read_facts(pipeline: PipelineFolder, family: Family | None, *, other_vae: Path | None = None) -> ModelFacts:
    """What a pipeline's folder says, with another VAE in the place of its own if one is named.

    `EncodeError` names a VAE or a text encoder that it needs and has not got.
    """
    parts = pipeline.parts
    needed = [] if family is None else [name for name in family.text_encoders if name not in family.optional]
    needed += [name for name in text_parts(pipeline) if name not in needed]
    if other_vae is None and (family is not None or "vae" in parts):
        needed.insert(0, "vae")
    for name in needed:
        _require(pipeline, name)
    vae = other_vae or (parts["vae"].folder if "vae" in parts else None)
    encoders, no_prompt = tuple(sorted(name for name in needed if name.startswith("text_encoder"))), ""
    max_length = None if family is None else family.max_length
    seen = 0
    try:
        find_pipeline(pipeline.path, max_length, {})
    except EncodeError as error:
        if vae is None:
            raise
        seen = _sees_pictures(pipeline, max_length)
        no_prompt = error.message
        encoders = encoders if seen else ()
    config = {} if vae is None else read_config(vae)
    trained = None if family is None or family.sample_size is None else parts.get(family.sample_size)
    return ModelFacts(
        pipeline=pipeline.kind,
        text_encoders=encoders,
        no_prompt=no_prompt,
        sees_pictures=seen,
        vae=vae is not None,
        factor=pixels_per_latent(config),
        frame_step=frames_per_latent(config),
        sample_size=None if trained is None else _sample_size(trained.folder),
        vae_dtype=None if vae is None else _saved(vae, "diffusion_pytorch_model"),
        scales_apart=config.get("invert_scale_latents") is True,
        not_float16=config.get("force_upcast") is True,
        text_dtypes=frozenset(filter(None, (_saved(parts[name].folder, "model") for name in encoders))),
    )


def takes_clips(family: Family | None, facts: ModelFacts) -> bool:
    """Whether a model learns videos: one of a known family by that, another one by its VAE."""
    if facts.pipeline is None:
        return family is not None and family.frame_step > 0
    return facts.frame_step is not None and (family is None or family.frame_step > 0)


def propose_frames(step: int, lengths: Sequence[int]) -> ProposedSetting:
    """How many frames to keep of clips, some of which have these lengths, for a VAE with so many frames to a latent."""
    rate = VideoSettings().fps
    counts = {(count - 1) // step * step + 1 for count in _FRAMES}
    reason = f"one frame and multiples of {step} more, as the VAE takes them"
    if lengths:
        counts = {count for count in counts if count <= max(lengths)}
        # Where none has so many, most of the clips shall have what is asked for.
        counts = counts or {(int(statistics.median_low(lengths)) - 1) // step * step + 1}
        least, most = min(lengths), max(lengths)
        found = f"{least}" if least == most else f"{least} to {most}"
        reason += f"; the clips that were looked at have {found} at {rate} per second"
    return ProposedSetting("video.frames", sorted({1, *counts}), f"{reason}; of what has fewer, 1 keeps the first")


def propose(
    family: Family | None,
    facts: ModelFacts,
    model: str,
    *,
    vae: str | None = None,
    resolution: int = 512,
    lengths: Sequence[int] | None = None,
    controls: Sequence[str] = (),
) -> Proposal:
    """What a config shall say for a model, which it calls `model`, and for its VAE `vae` where that lies elsewhere.

    `resolution` is for a model of no family that is known; `lengths` are those of clips, where there are some, and
    `controls` the names of the pictures that targets were made from.
    """
    factor = facts.factor or (8 if family is None else family.factor)
    size = _resolution(family, facts, factor, resolution)
    step = _step(family, factor, *size.value)
    encoders: dict[str, dict[str, Any]] = {}
    settings = [size, step, *_scaling(family)]
    image = {setting.name: setting.value for setting in settings}
    video: dict[str, Any] = {}
    if lengths is not None:
        step_of = facts.frame_step or (1 if family is None else family.frame_step)
        settings.append(propose_frames(step_of, lengths))
        video = {"frames": settings[-1].value, "fps": VideoSettings().fps}
    remarks: dict[str, tuple[str, ...]] = {}
    left_out = "" if facts.sees_pictures and controls else facts.no_prompt
    if facts.vae:
        place = {"model": model, "subfolder": "vae"} if vae is None else {"model": vae}
        chosen = [_vae_dtype(family, facts), _posterior(family), _scaled(family, facts)]
        encoders["latent"] = {
            "uses": "diffusers-video-vae" if video else "diffusers-vae",
            **place,
            **_values(chosen),
        }
        settings += chosen
        remarks["latent"] = (*_latent_remarks(family, clips=bool(video)), *filter(None, [left_out]))
        if not video:
            encoders |= {name: {**encoders["latent"], "of": name} for name in controls}
    if facts.text_encoders and not left_out:
        chosen = [_text_dtype(facts), *_max_length(family)]
        encoders["prompt"] = {"uses": "diffusers-prompt", "model": model, **_values(chosen)}
        if facts.sees_pictures:
            # Where its prompts have a place for one alone, that is the first.
            one = len(controls) == 1 or facts.sees_pictures == 1
            encoders["prompt"]["of"] = controls[0] if one else list(controls)
        settings += chosen
        remarks["prompt"] = tuple(_prompt_remarks(family, facts))
    return Proposal(
        model=model,
        pipeline=facts.pipeline,
        family=None if family is None else family.name,
        title=None if family is None else family.title,
        left_out=left_out,
        image=image,
        factor=factor if family is None else factor * family.patched,
        encoders=encoders,
        settings=tuple(settings),
        video=video,
        remarks=remarks,
    )


def _sees_pictures(pipeline: PipelineFolder, max_length: int | None) -> int:
    """How many pictures the prompts of a pipeline see: none, one, or 2 for any number."""
    for count in (1, 2):
        try:
            find_pipeline(pipeline.path, max_length, {}, pictures=count)
        except EncodeError:
            return count - 1
    return 2


def _saved(folder: Path, stem: str) -> str | None:
    """What a model's weights are saved in; None where they do not tell, which `plan` says more about."""
    try:
        return saved_dtype(folder, stem)
    except EncodeError:
        return None


def _require(pipeline: PipelineFolder, name: str) -> None:
    """Refuse a pipeline without one of its parts, which people leave out or delete."""
    part = pipeline.parts.get(name)
    place = printable(pipeline.path)
    instead = "; --vae names another VAE" if name == "vae" else ""
    if part is None:
        hint = f"download the model again, whole{instead}"
        raise EncodeError(f"{place} has no {name}: its {INDEX} names none", hint=hint)
    if not part.folder.is_dir() or not any(part.folder.iterdir()):
        hint = f"download that folder again{instead}"
        raise EncodeError(
            f"{printable(part.folder)} is not there: {INDEX} of {place} names a {printable(part.kind)}", hint=hint
        )


def _sample_size(folder: Path) -> int | tuple[int, int] | None:
    """Latents along a side, or width and height, in the config of a UNet or transformer; None where it is gone."""
    try:
        config = read_config(folder)
    except EncodeError:
        return None  # only what encodes is needed, and people delete the rest
    side, *sides = (config.get(name) for name in ("sample_size", "sample_width", "sample_height"))
    if type(side) is int and side > 0:
        return side
    width, height = sides
    return (width, height) if type(width) is int and type(height) is int and min(width, height) > 0 else None


def _resolution(family: Family | None, facts: ModelFacts, factor: int, measured: int) -> ProposedSetting:
    if family is None:
        reason = "the usual size of your pictures; what the model was trained with is not known"
        return ProposedSetting("resolutions", [measured], reason)
    size = facts.sample_size
    if isinstance(size, int):
        reason = f"{family.sample_size}/config.json says {size} latents a side, each of {factor} pixels"
        return ProposedSetting("resolutions", [max(size * factor, factor * family.patch)], reason)
    value = family.resolution
    reason = "what its pipeline makes by itself"
    if size is not None:
        width, height = (max(1, latents // family.patch) * family.patch * factor for latents in size)
        value = f"{width}x{height}"
        reason = f"{family.sample_size}/config.json says {size[0]} x {size[1]} latents, each of {factor} pixels"
    if isinstance(value, str):
        width, height = map(int, value.split("x"))
        side = round((width * height) ** 0.5 / _STEP) * _STEP
        reason += f"; {side} would be any shape of that area"
    return ProposedSetting("resolutions", [value], reason)


def _step(family: Family | None, factor: int, resolution: int | str) -> ProposedSetting:
    if family is None:
        return ProposedSetting("step", _STEP, "suits most models; what this one needs is not known")
    multiple = factor * family.patch
    reason = f"the model takes multiples of {multiple}"
    if isinstance(resolution, str) or resolution < _SMALL or _STEP % multiple:
        return ProposedSetting("step", multiple, reason)
    return ProposedSetting("step", _STEP, reason if multiple == _STEP else f"{reason}, and few sizes make full batches")


def _scaling(family: Family | None) -> Iterator[ProposedSetting]:
    """How pictures are scaled, where the loop does it otherwise than the settings do by themselves."""
    if family is None:
        return
    for name, value in (("resampling", family.resampling), ("rounding", family.rounding)):
        if value != ImageSettings.model_fields[name].default:
            yield ProposedSetting(name, value, f"as {family.loop} has it")


def _vae_dtype(family: Family | None, facts: ModelFacts) -> ProposedSetting:
    name = "latent.dtype"
    if family is not None and family.float32:
        return ProposedSetting(name, "float32", family.float32)
    if facts.vae_dtype is None:
        reason = "its weights do not tell another" if facts.pipeline else "its weights are not here to tell another"
        return ProposedSetting(name, "float32", reason)
    if facts.vae_dtype == "float16" and facts.not_float16:
        return ProposedSetting(name, "float32", "saved in float16, but its config asks for more (force_upcast)")
    return ProposedSetting(name, facts.vae_dtype, "as its weights are saved")


def _posterior(family: Family | None) -> ProposedSetting:
    reasons = {
        "moments": "the loop draws a latent anew in each step, and so does a feed; mean takes half the space",
        "mean": "the loop takes the mean",
        "sample": "the loop takes what was drawn once",
    }
    if family is None:
        return ProposedSetting("latent.posterior", "mean", "what its training takes is not known; moments keeps both")
    return ProposedSetting("latent.posterior", family.posterior, reasons[family.posterior])


def _scaled(family: Family | None, facts: ModelFacts) -> ProposedSetting:
    if facts.scales_apart:
        reason = (
            "its pipelines scale what they are given and what they learn apart: scaling stays in your training loop"
        )
        return ProposedSetting("latent.scaled", value=False, reason=reason)
    if family is None:
        return ProposedSetting("latent.scaled", value=False, reason="scaling stays in your training loop")
    return ProposedSetting(
        "latent.scaled", value=True, reason="shift and scale of the VAE are applied, as the loop does"
    )


def _text_dtype(facts: ModelFacts) -> ProposedSetting:
    if len(facts.text_dtypes) == 1:
        return ProposedSetting("prompt.dtype", next(iter(facts.text_dtypes)), "as the weights are saved")
    reason = "the weights do not tell another"
    if facts.text_dtypes:
        reason = f"the weights are saved in {' and '.join(sorted(facts.text_dtypes))}"
    elif facts.pipeline is None:
        reason = "the weights are not here to tell another; large text encoders are made for bfloat16"
    return ProposedSetting("prompt.dtype", "float32", reason)


def _max_length(family: Family | None) -> Iterator[ProposedSetting]:
    if family is not None and family.max_length is not None:
        reason = f"as {family.loop} has it; encode_prompt by itself takes another"
        yield ProposedSetting("prompt.max_length", family.max_length, reason)


def _latent_remarks(family: Family | None, *, clips: bool) -> Iterator[str]:
    if family is None:
        return
    yield f'batch["latent"] stands for this, in {family.loop}:'
    yield f"  {family.latent}"
    if family.frames and not clips:
        yield 'a batch has no dimension of frames: batch["latent"].unsqueeze(2) has one'
    yield from family.notes


def _prompt_remarks(family: Family | None, facts: ModelFacts) -> Iterator[str]:
    names = " and ".join(filter(None, [", ".join(facts.text_encoders[:-1]), facts.text_encoders[-1]]))
    yield f"{names}, run by encode_prompt of {facts.pipeline or 'the pipeline'}"
    if family is not None:
        yield f'batch["prompt"] stands for this, in {family.loop}:'
        yield f"  {family.prompt}"


def _values(chosen: list[ProposedSetting]) -> dict[str, Any]:
    return {setting.name.partition(".")[2]: setting.value for setting in chosen}
