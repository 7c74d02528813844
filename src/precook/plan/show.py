"""The table: a plan as text, for `str(plan)` and the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from precook.errors import printable
from precook.plan.reasons import Reason, Why
from precook.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from precook.plan.entries import Failure
    from precook.plan.plan import Plan

_FEW = 10
_CHANGES = 3
_HEADINGS = ("encoder", "ready", "missing", "failed")


def show(plan: Plan) -> str:
    """A plan as a table, with reasons, problems and the forecast below."""
    return "\n".join(printable(line) for line in _lines(plan))


def full_path(plan: Plan, failure: Failure) -> str | None:
    """Where a failure's file lies, as a path that `precook explain` takes; None where no file is to blame."""
    for gathered in plan.samples.gathered:
        if failure.path is not None and gathered.concept.name == failure.concept:
            return str(PurePath(gathered.listing.root, failure.path))
    return failure.path


def _lines(plan: Plan) -> Iterator[str]:
    count = plan.samples.count - len(plan.framed.problems)
    lost = sum(failure.encoder is None for failure in plan.failed)
    left_out = f", {format_count(lost, 'file')} left out" if lost else ""
    concepts = format_count(len(plan.settings.concepts), "concept")
    yield f"{plan.settings.dataset}: {format_count(count, 'sample')} in {concepts}{left_out}"
    yield ""
    rows = [
        (name, f"{len(one.ready):,}", f"{len(one.missing):,}", f"{len(one.failures):,}")
        for name, one in plan.encoders.items()
    ]
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        yield f"{row[0]:<{widths[0]}}  " + "  ".join(
            f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)
        )
    yield from _section("missing", _reasons(plan))
    yield from _section("left out", _failures(plan))
    yield from _section("notes", _notes(plan))
    yield ""
    yield _forecast(plan)


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in found)


def _reasons(plan: Plan) -> Iterator[str]:
    old = False
    for name, one in plan.encoders.items():
        counted = Counter(_described(why) for why in one.why)
        for (reason, changes), count in counted.most_common(_FEW):
            yield f"{name}: {count:,} {reason}{f' ({changes})' if changes else ''}"
        if len(counted) > _FEW:
            rest = counted.total() - sum(count for _, count in counted.most_common(_FEW))
            yield f"{name}: {rest:,} for other reasons; `precook plan --json` lists them all"
        old = old or any(why.reason is not Reason.NEW for why in one.why)
    if old:
        yield "`precook explain FILE` shows what differs for one file"


def _described(why: Why) -> tuple[str, str]:
    """The reason, and what changed where that is the same for many."""
    recipe = [str(change).removeprefix("recipe.") for change in why.differences if change.field.startswith("recipe.")]
    more = f" and {len(recipe) - _CHANGES} more" if len(recipe) > _CHANGES else ""
    return why.reason.value, ", ".join(recipe[:_CHANGES]) + more


def _failures(plan: Plan) -> Iterator[str]:
    told = sorted(
        ": ".join(part for part in (full_path(plan, failure), failure.encoder, failure.reason) if part)
        for failure in plan.failed
    )
    yield from told[:_FEW]
    if len(told) > _FEW:
        yield f"… and {len(told) - _FEW:,} more; `precook plan --json` lists them all"


def _notes(plan: Plan) -> Iterator[str]:
    if plan.samples.uncaptioned:
        yield f"{format_count(plan.samples.uncaptioned, 'sample')} without a caption: the empty prompt is used"
    duplicates = int((plan.samples.repeats > 0).sum())
    if duplicates:
        yield f"{format_count(duplicates, 'sample')} with the same picture as another one of its concept"
    for resolution, count in plan.framed.partly.items():
        yield f"{format_count(count, 'sample')} left out at {resolution} only"
    for gathered in plan.samples.gathered:
        found = len(gathered.files.pictures)
        if not found:
            yield f"{gathered.concept.name}: no pictures in there"
        elif not gathered.count:
            yield f"{gathered.concept.name}: {format_count(found, 'picture')} in there, and none can be used"


def _forecast(plan: Plan) -> str:
    """The last line: what a build would do."""
    if not len(plan.missing):
        return "to build: nothing" if plan.samples.count else "to build: nothing, because there are no samples"
    found = plan.forecast
    size = "size not known before the first build" if found.nbytes is None else f"about {format_size(found.nbytes)}"
    time = "" if found.seconds is None else f", about {format_duration(found.seconds)}"
    free = "" if found.free is None else f"; {format_size(found.free)} free"
    warning = "" if found.fits else ": the disk cannot hold it"
    return f"to build: {format_count(len(plan.missing), 'entry')}, {size}{time}{free}{warning}"
