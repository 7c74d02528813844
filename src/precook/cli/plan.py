"""`precook plan`: what a build would do, and why."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precook.cli import output, progress
from precook.cli.options import (
    ConfigOption,
    EncoderOption,
    JsonOption,
    NoCodeOption,
    NoWriteOption,
    StoreOption,
    open_project,
)
from precook.errors import NoSpaceError, ReadOnlyError

if TYPE_CHECKING:
    from precook.identity.versions import VersionChange
    from precook.plan.plan import Plan
    from precook.plan.reasons import Why
    from precook.project import Project
    from precook.sources.samples import ConceptSamples


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    encoder: EncoderOption = None,
    no_write: NoWriteOption = False,
    no_code: NoCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a build would do, and why; nothing is encoded."""
    with open_project(config, store, code=not no_code) as project:
        plan = make_plan(project, encoders=encoder or (), write=not no_write)
        if as_json:
            output.document(_document(plan))
        else:
            output.text(str(plan))


def make_plan(project: Project, *, encoders: Sequence[str] = (), write: bool) -> Plan:
    """A plan for all encoders or for some; where it cannot be remembered, the error says how to do without."""
    try:
        return project.plan(encoders=list(encoders) or None, write=write, report=progress.reporter())
    except (ReadOnlyError, NoSpaceError) as error:
        error.hint = "--no-write plans without remembering anything; --store DIR names another store"
        raise


def counts_document(plan: Plan) -> dict[str, Any]:
    """What a plan counts, for programs."""
    return {
        "name": plan.settings.dataset,
        "samples": plan.samples.count - len(plan.targets.problems),
        "without_caption": plan.samples.uncaptioned,
        "captions": [_captions_document(concept) for concept in plan.samples.by_concept],
        "ignored": [
            {"concept": concept.concept.name, "ending": ending, "files": count}
            for concept in plan.samples.by_concept
            for ending, count in concept.listing.ignored.most_common()
        ],
        "with_sound": sum(concept.with_sound for concept in plan.samples.by_concept),
        "duplicates": int((plan.samples.repeats > 0).sum()),
        "left_out": sum(failure.encoder is None for failure in plan.failed),
        "encoders": [_encoder_document(plan, name) for name in plan.encoders],
        "not_loaded": not_loaded_document(plan.not_loaded),
    }


def _captions_document(concept: ConceptSamples) -> dict[str, Any]:
    """How the captions of a concept were taken, for programs."""
    return {
        "concept": concept.concept.name,
        "captions": concept.concept.captions.model_dump(),
        "files_of_several_lines": concept.several_lines,
        "samples_with_empty_tags": len(concept.empty_tags),
    }


def not_loaded_document(not_loaded: Mapping[str, str]) -> list[dict[str, str]]:
    """Own classes that were not loaded, for programs."""
    return [{"name": name, "uses": uses} for name, uses in not_loaded.items()]


def heading_document(plan: Plan) -> dict[str, Any]:
    """What a plan is of and what it counts, for programs."""
    counts = counts_document(plan)
    return {"dataset": counts.pop("name"), "store": str(plan.store.location), **counts}


def forecast_document(plan: Plan) -> dict[str, Any]:
    """What a build would take, for programs."""
    forecast = plan.forecast
    return {"bytes": forecast.nbytes, "seconds": forecast.seconds, "free_bytes": forecast.free}


def why_document(why: Why) -> dict[str, Any]:
    """Why an entry is missing, for programs."""
    from precook.plan.reasons import ABSENT

    return {
        "reason": why.reason.value,
        "nearest": why.nearest.hex() if why.nearest else None,
        "differences": [
            # A part that one side does not have is null.
            {
                "field": difference.field,
                "old": None if difference.old is ABSENT else difference.old,
                "new": None if difference.new is ABSENT else difference.new,
            }
            for difference in why.differences
        ],
    }


def _document(plan: Plan) -> dict[str, Any]:
    return {
        **heading_document(plan),
        "missing": [
            {
                "encoder": entry.encoder,
                "key": entry.key.hex,
                "concept": entry.concept,
                "path": entry.path,
                **why_document(why),
            }
            for entry, why in zip(plan.missing, plan.missing.reasons(), strict=True)
        ],
        "failed": [
            {
                **dataclasses.asdict(failure),
                "path": plan.full_path(failure),
                "key": failure.key.hex if failure.key else None,
            }
            for failure in plan.failed
        ],
        "forecast": forecast_document(plan),
    }


def changes_document(changes: Sequence[VersionChange]) -> list[dict[str, Any]]:
    """Versions that are others today, for programs."""
    return [{"name": change.name, "made": list(change.made), "today": change.today} for change in changes]


def _encoder_document(plan: Plan, name: str) -> dict[str, Any]:
    encoder = plan.encoders[name]
    encoding = encoder.wants.encoding
    different = {difference.encoder: difference for difference in plan.version_differences}.get(name)
    return {
        "name": name,
        "input": encoding.input,
        "uses": encoding.recipe.kind,
        "recipe": encoding.recipe.hex,
        "ready": len(encoder.ready),
        "missing": len(encoder.missing),
        "failed": len(encoder.failures),
        "reasons": dict(Counter(why.reason.value for why in encoder.why)),
        "made_with": {
            "today": dict(encoding.versions),
            "different_entries": different.entries if different else 0,
            "changes": changes_document(different.changes) if different else [],
        },
    }
