"""The table: a plan as text, for `str(plan)` and the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precook.errors import printable
from precook.plan.reasons import Why
from precook.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from precook.plan.plan import Plan

_FEW = 10
_HEADINGS = ("encoder", "ready", "missing", "failed")


def show(plan: Plan) -> str:
    """A plan as a table, with reasons, problems and the forecast below."""
    return "\n".join(printable(line) for line in _lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    count = plan.samples.count - len(plan.framed.problems)
    concepts = format_count(len(plan.settings.concepts), "concept")
    yield f"{plan.settings.dataset}: {format_count(count, 'sample')} in {concepts}"
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
    if len(plan.missing):
        yield ""
        yield _forecast(plan)


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in found)


def _reasons(plan: Plan) -> Iterator[str]:
    for name, one in plan.encoders.items():
        for (reason, changes), count in Counter(_described(why) for why in one.why).most_common(_FEW):
            yield f"{name}: {count:,} {reason}{f' ({changes})' if changes else ''}"


def _described(why: Why) -> tuple[str, str]:
    """The reason, and what changed where that is the same for many."""
    recipe = [str(change).removeprefix("recipe.") for change in why.differences if change.field.startswith("recipe.")]
    return why.reason.value, ", ".join(recipe[:3]) + (f" and {len(recipe) - 3} more" if len(recipe) > 3 else "")  # noqa: PLR2004


def _failures(plan: Plan) -> Iterator[str]:
    for failure in plan.failed[:_FEW]:
        place = ": ".join(part for part in (failure.concept, failure.path, failure.encoder) if part)
        yield f"{place}: {failure.reason}"
    if len(plan.failed) > _FEW:
        yield f"… and {len(plan.failed) - _FEW:,} more; `precook plan --json` lists them all"


def _notes(plan: Plan) -> Iterator[str]:
    if plan.samples.uncaptioned:
        yield f"{format_count(plan.samples.uncaptioned, 'sample')} without a caption: the empty prompt is used"
    duplicates = int((plan.samples.repeats > 0).sum())
    if duplicates:
        yield f"{format_count(duplicates, 'sample')} with the same picture as another one of its concept"
    for resolution, count in plan.framed.partly.items():
        yield f"{format_count(count, 'sample')} left out at {resolution} only"
    for gathered in plan.samples.gathered:
        if not gathered.count:
            yield f"{gathered.concept.name}: no pictures in there"


def _forecast(plan: Plan) -> str:
    found = plan.forecast
    size = "size not known before the first build" if found.nbytes is None else f"about {format_size(found.nbytes)}"
    time = "" if found.seconds is None else f", about {format_duration(found.seconds)}"
    free = "" if found.free is None else f"; {format_size(found.free)} free"
    warning = "" if found.fits else ": the disk cannot hold it"
    return f"to build: {size}{time}{free}{warning}"
