"""`precook adopt`: what other tools cached of a folder's pictures, as a dataset of the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output, progress
from precook.cli.options import ConfigOption, JsonOption, StoreOption, find_folder, named_config, open_project
from precook.errors import SOME_FAILED, printable
from precook.units import format_count, format_size

if TYPE_CHECKING:
    from precook.integrations.adopt import AdoptionPlan, LeftOut
    from precook.integrations.adopt.search import FrontAdoptionPlan
    from precook.project import Project

_MOST_LEFT_OUT = 10


def command(  # noqa: PLR0913 - each parameter is an option of the command
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of pictures with their old caches.")],
    *,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="The dataset they become.")] = "adopted",
    caches: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the caches lie, if not beside the pictures.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="TOOL", help="Only this tool's, or TOOL/ARCHITECTURE, where there are several."),
    ] = None,
    ignore_times: Annotated[
        bool, typer.Option("--ignore-times", help="Also caches that look older than their picture or caption.")
    ] = False,
    digest: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD[=NEW]", help="Of dlm's: the digest in old names, and the one your keys have, if another."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Store them; without it, only show what would be adopted.")
    ] = False,
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take over what another tool has cached of your pictures.

    The tools are sd-scripts, musubi-tuner, ai-toolkit, and mgds (OneTrainer) with its two disk caches; of
    qwen-image-finetune, FOLDER is its cache_dir, of dlm its tokenized-cache folder or that of its processed pictures.

    What becomes a dataset is marked: adopted, encoder not verified. No file of the folder is changed.
    """
    from precook.fs.old_caches import DLM_PICTURES, DLM_SECTIONS, EMBEDDINGS, name_old_cache
    from precook.integrations.adopt import plan_adopt
    from precook.integrations.adopt.dlm import plan_adopt_dlm
    from precook.integrations.adopt.embeddings import plan_adopt_embeddings
    from precook.integrations.adopt.fill import names_adopted

    old = name_old_cache(folder) if caches is None else None
    if old is not None and old.what in (EMBEDDINGS, DLM_SECTIONS, DLM_PICTURES):
        for_front: FrontAdoptionPlan
        if old.what == EMBEDDINGS:
            for_front = plan_adopt_embeddings(folder)
        else:
            pairs = ((first, new or first) for first, _, new in (text.partition("=") for text in digest or []))
            for_front = plan_adopt_dlm(folder, digests=dict(pairs))
        return _adopt_for_front(for_front, find_folder(config, store, "adopt"), yes=yes, as_json=as_json)
    plan = plan_adopt(folder, caches=caches, only=only, ignore_times=ignore_times, report=progress.reporter())
    if not as_json:
        _show(plan)
    path = named_config(config)
    if path is not None:
        with open_project(path, store) as project:
            if names_adopted(project):
                return _fill(plan, project, yes=yes, as_json=as_json)
    place = find_folder(config, store, "adopt")
    return _adopt(plan, place, dataset, yes=yes, as_json=as_json)


def _adopt(plan: AdoptionPlan, place: Path, dataset: str, *, yes: bool, as_json: bool) -> int:
    """Adopt the caches as a dataset of its own; the exit code."""
    from precook.open_store import open_store

    adoption = None
    if yes and plan.samples:
        with open_store(place) as store:
            adoption = plan.execute(store, dataset, report=progress.reporter())
    left_out = (*plan.left_out, *(adoption.failed if adoption is not None else ()))
    if as_json:
        file = adoption.snapshot.file if adoption is not None else None
        output.document(
            {
                **_document(plan, left_out),
                "store": str(place),
                "dataset": dataset,
                "samples": len(plan.samples) if adoption is None else adoption.samples,
                "adopted": adoption is not None,
                "snapshot": None if file is None else {"number": file.number, "id": file.id},
            }
        )
    elif adoption is not None:
        _show_left_out(adoption.failed)
        samples = format_count(adoption.samples, "sample")
        output.line(f"adopted {samples} as snapshot {adoption.snapshot.file.number} of {dataset} in {place}")
    elif plan.samples:
        output.hint(f"nothing is stored yet; --yes adopts them as the dataset {dataset} in {place}")
    return SOME_FAILED if left_out else 0


def _fill(plan: AdoptionPlan, project: Project, *, yes: bool, as_json: bool) -> int:
    """Adopt the caches as entries of a config's encoders; the exit code."""
    from precook.integrations.adopt.fill import plan_filling

    filling = plan_filling(project, plan, report=progress.reporter())
    wanted, stored = len(filling.fillings), None
    failed: tuple[LeftOut, ...] = ()
    if yes:
        stored, failed = filling.execute(project, report=progress.reporter())
    left_out = (*plan.left_out, *filling.left_out, *failed)
    if as_json:
        output.document(
            {
                **_document(plan, left_out),
                "store": str(project.store_path),
                "dataset": project.settings.dataset,
                "entries": wanted if stored is None else stored,
                "ready": filling.ready,
                "adopted": stored is not None,
            }
        )
        return SOME_FAILED if left_out else 0
    _show_left_out((*filling.left_out, *failed))
    if stored is not None:
        output.line(f"adopted {format_count(stored, 'entry')} for {project.settings.dataset}, {filling.ready:,} before")
    else:
        adopts = f"--yes adopts {format_count(wanted, 'entry')} for {project.settings.dataset}"
        output.hint(f"nothing is stored yet; {adopts}, where {filling.ready:,} are ready")
    return SOME_FAILED if left_out else 0


def _adopt_for_front(plan: FrontAdoptionPlan, place: Path, *, yes: bool, as_json: bool) -> int:
    """Adopt a folder for the front that takes the place of its tool's cache; the exit code."""
    from precook.open_store import open_store

    if not as_json:
        count = format_count(len(plan.entries), plan.part)
        output.line(f"{plan.tool}: {count}, {format_size(plan.nbytes)}{plan.doubt}")
        _show_left_out(plan.left_out)
    adoption = None
    if yes and plan.entries:
        with open_store(place) as store:
            adoption = plan.execute(store, report=progress.reporter())
    left_out = (*plan.left_out, *(adoption.failed if adoption is not None else ()))
    if as_json:
        output.document(
            {
                "tool": plan.tool,
                "bytes": plan.nbytes,
                "left_out": [{"path": str(file.path), "reason": file.reason} for file in left_out],
                "store": str(place),
                f"{plan.part}s": len(plan.entries) if adoption is None else adoption.entries,
                "adopted": adoption is not None,
            }
        )
    elif adoption is not None:
        _show_left_out(adoption.failed)
        output.line(f"adopted {format_count(adoption.entries, plan.part)} in {place}{plan.next_step}")
    elif plan.entries:
        output.hint(f"nothing is stored yet; --yes adopts them in {place}")
    return SOME_FAILED if left_out else 0


def _show(plan: AdoptionPlan) -> None:
    latents = sum(len(sample.latents) for sample in plan.samples)
    parts = [format_count(len(plan.samples), "picture"), format_count(latents, "latent")]
    if plan.has_prompts:
        parts.append(format_count(len(plan.samples), "prompt"))
    output.line(f"{plan.family}: {', '.join(parts)}, {format_size(plan.nbytes)}; which encoder made them is not known")
    _show_left_out(plan.left_out)
    if plan.without_picture:
        output.line(f"{format_count(plan.without_picture, 'cache file')} without a picture")


def _show_left_out(left_out: tuple[LeftOut, ...]) -> None:
    if not left_out:
        return
    output.line("left out:")
    for file in left_out[:_MOST_LEFT_OUT]:
        output.line(f"  {printable(file.path)}: {printable(file.reason)}")
    if len(left_out) > _MOST_LEFT_OUT:
        output.line(f"  … and {len(left_out) - _MOST_LEFT_OUT:,} more; --json lists them all")


def _document(plan: AdoptionPlan, left_out: tuple[LeftOut, ...]) -> dict[str, Any]:
    return {
        "tool": plan.tool,
        "architecture": plan.architecture,
        "latents": sum(len(sample.latents) for sample in plan.samples),
        "prompts": len(plan.samples) if plan.has_prompts else 0,
        "bytes": plan.nbytes,
        "left_out": [{"path": str(file.path), "reason": file.reason} for file in left_out],
        "without_picture": plan.without_picture,
    }
