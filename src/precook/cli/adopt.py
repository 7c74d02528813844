"""`precook adopt`: what other tools cached of a folder's pictures, as a dataset of the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.projects import named_config, open_project, place_of_store
from precook.errors import printable
from precook.integrations.adopt import AdoptionPlan, plan_adopt
from precook.integrations.adopted import names_adopted, plan_filling
from precook.integrations.old_search import LeftOut
from precook.project import Project
from precook.store.store import open_store
from precook.units import format_count, format_size

SOME_LEFT_OUT = 3
"""Exit code when something was adopted and something else could not be."""
_DEFAULT = Path("cache")
_FEW = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for on the command line."""

    folder: Path
    config: Path | None
    store: Path | None
    dataset: str
    caches: Path | None
    only: str | None
    ignore_times: bool
    yes: bool


def run(asked: Asked, *, as_json: bool) -> int:
    """Plan, adopt where that was agreed to, and tell; the exit code."""
    plan = plan_adopt(
        asked.folder,
        caches=asked.caches,
        only=asked.only,
        ignore_times=asked.ignore_times,
        report=output.reporter(),
    )
    if not as_json:
        _show(plan)
    config = named_config(asked.config)
    if config is not None:
        with open_project(config, asked.store) as project:
            if names_adopted(project):
                return _fill(asked, plan, project, as_json=as_json)
    return _adopt(asked, plan, as_json=as_json)


def _adopt(asked: Asked, plan: AdoptionPlan, *, as_json: bool) -> int:
    """A dataset of its own."""
    place = place_of_store(asked.config, asked.store) or _DEFAULT
    adoption = None
    if asked.yes and plan.samples:
        with open_store(place) as store:
            adoption = plan.execute(store, asked.dataset, report=output.reporter())
    left_out = (*plan.left_out, *(adoption.failed if adoption is not None else ()))
    if as_json:
        file = adoption.snapshot.file if adoption is not None else None
        output.document(
            {
                **_document(plan, left_out),
                "store": str(place),
                "dataset": asked.dataset,
                "samples": len(plan.samples) if adoption is None else adoption.samples,
                "adopted": adoption is not None,
                "snapshot": None if file is None else {"number": file.number, "id": file.id},
            }
        )
    elif adoption is not None:
        _show_left_out(adoption.failed)
        told = f"adopted {format_count(adoption.samples, 'sample')} as snapshot {adoption.snapshot.file.number}"
        output.line(f"{told} of {asked.dataset} in {place}")
    elif plan.samples:
        output.hint(f"nothing is stored yet; --yes adopts them as the dataset {asked.dataset} in {place}")
    return SOME_LEFT_OUT if left_out else 0


def _fill(asked: Asked, plan: AdoptionPlan, project: Project, *, as_json: bool) -> int:
    """The entries that the encoders of a config name."""
    filling = plan_filling(project, plan, report=output.reporter())
    wanted, stored = len(filling.fillings), None
    failed: tuple[LeftOut, ...] = ()
    if asked.yes:
        stored, failed = filling.execute(project, report=output.reporter())
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
        return SOME_LEFT_OUT if left_out else 0
    _show_left_out((*filling.left_out, *failed))
    if stored is not None:
        output.line(f"adopted {format_count(stored, 'entry')} for {project.settings.dataset}, {filling.ready:,} before")
    else:
        told = f"--yes adopts {format_count(wanted, 'entry')} for {project.settings.dataset}"
        output.hint(f"nothing is stored yet; {told}, where {filling.ready:,} are ready")
    return SOME_LEFT_OUT if left_out else 0


def _show(plan: AdoptionPlan) -> None:
    latents = sum(len(sample.latents) for sample in plan.samples)
    parts = [format_count(len(plan.samples), "picture"), format_count(latents, "latent")]
    if plan.has_prompts:
        parts.append(format_count(len(plan.samples), "prompt"))
    output.line(f"{plan.family}: {', '.join(parts)}, {format_size(plan.nbytes)}; which encoder made them is not known")
    _show_left_out(plan.left_out)
    if plan.strangers:
        output.line(f"{format_count(plan.strangers, 'cache file')} without a picture")


def _show_left_out(left_out: tuple[LeftOut, ...]) -> None:
    if not left_out:
        return
    output.line("left out:")
    for one in left_out[:_FEW]:
        output.line(f"  {printable(one.path)}: {printable(one.reason)}")
    if len(left_out) > _FEW:
        output.line(f"  … and {len(left_out) - _FEW:,} more; --json lists them all")


def _document(plan: AdoptionPlan, left_out: tuple[LeftOut, ...]) -> dict[str, Any]:
    return {
        "tool": plan.tool,
        "architecture": plan.architecture,
        "latents": sum(len(sample.latents) for sample in plan.samples),
        "prompts": len(plan.samples) if plan.has_prompts else 0,
        "bytes": plan.nbytes,
        "left_out": [{"path": str(one.path), "reason": one.reason} for one in left_out],
        "without_picture": plan.strangers,
    }
