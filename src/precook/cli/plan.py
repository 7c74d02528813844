"""`precook plan`: what a build would do, and why."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.projects import find_config
from precook.plan.entries import Failure
from precook.plan.plan import EncoderPlan, Plan
from precook.plan.reasons import ABSENT, Difference, Why
from precook.project import load


def run(config: Path | None, *, encoders: list[str], write: bool, as_json: bool) -> None:
    """Plan and show."""
    with load(find_config(config)) as project:
        plan = project.plan(encoders=encoders or None, write=write, report=output.reporter())
        if as_json:
            output.document(document(plan))
        else:
            output.lines(str(plan).splitlines())


def document(plan: Plan) -> dict[str, Any]:
    """A plan for programs."""
    forecast = plan.forecast
    return {
        "dataset": plan.settings.dataset,
        "store": str(plan.store.path),
        "samples": plan.samples.count - len(plan.framed.problems),
        "without_caption": plan.samples.uncaptioned,
        "duplicates": int((plan.samples.repeats > 0).sum()),
        "encoders": [_encoder(name, one) for name, one in plan.encoders.items()],
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
        "failed": [failure_document(failure) for failure in plan.failed],
        "forecast": {"bytes": forecast.nbytes, "seconds": forecast.seconds, "free_bytes": forecast.free},
    }


def why_document(why: Why) -> dict[str, Any]:
    """A reason for programs."""
    return {
        "reason": why.reason.value,
        "nearest": why.nearest.hex() if why.nearest else None,
        "differences": [difference_document(one) for one in why.differences],
    }


def difference_document(difference: Difference) -> dict[str, Any]:
    """A difference for programs; a part that one side does not have is null."""
    old, new = (None if value is ABSENT else value for value in (difference.old, difference.new))
    return {"field": difference.field, "old": old, "new": new}


def failure_document(failure: Failure) -> dict[str, Any]:
    """A failure for programs."""
    return {**dataclasses.asdict(failure), "key": failure.key.hex if failure.key else None}


def _encoder(name: str, one: EncoderPlan) -> dict[str, Any]:
    encoding = one.wants.encoding
    reasons = Counter(why.reason.value for why in one.why)
    return {
        "name": name,
        "input": encoding.input,
        "uses": encoding.recipe.kind,
        "recipe": encoding.recipe.hex,
        "ready": len(one.ready),
        "missing": len(one.missing),
        "failed": len(one.failures),
        "reasons": dict(reasons),
    }
