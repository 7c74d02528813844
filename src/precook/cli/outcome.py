"""The outcome of a build: what there is to tell about it, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from precook.cli import bars, output
from precook.cli.codes import INTERRUPTED, SOME_FAILED
from precook.cli.output import TableColumn
from precook.cli.progress import format_rate
from precook.encode.build import BuildReport
from precook.errors import printable
from precook.plan.entries import Failure
from precook.plan.plan import Plan
from precook.plan.show import full_path
from precook.project import Project
from precook.store.snapshot import SnapshotFile
from precook.units import format_count, format_duration, format_size

_FEW = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """What there is to tell about a build."""

    plan: Plan
    report: BuildReport
    failed: tuple[Failure, ...]
    """What failed now or before and was left out, with paths as `precook explain` takes them."""
    missing: int
    """Entries that a build would make now, although this one came to its end: their files came or changed meanwhile."""
    snapshot: SnapshotFile | None
    """The dataset as it is now; None where it is not complete."""
    lost: tuple[str, ...]
    """Processes that failed or died, and why; their part was left to the others."""

    @property
    def exit_code(self) -> int:
        """A dataset that lacks samples is never a plain success."""
        if self.report.stopped:
            return INTERRUPTED
        return SOME_FAILED if self.failed or self.report.changed or self.missing else 0


def look_back(project: Project, plan: Plan, report: BuildReport, lost: tuple[str, ...]) -> Outcome:
    """What there is to tell, by the sources as they are now."""
    failed = _failures(plan, report)
    if report.stopped:
        return Outcome(plan, report, failed, 0, None, lost)
    # Whether everything is there the sources decide, and they may have changed: the plan of now tells.
    now = project.plan(encoders=list(plan.encoders), report=bars.reporter())
    missing = now.missing
    told = {(failure.encoder, failure.key) for failure in failed}
    unmade = sum((entry.encoder, entry.key) not in told for entry in missing)
    snapshot = None
    if not len(missing) and now.complete and set(plan.encoders) == set(project.settings.encoders):
        snapshot = [one for one in project.store.snapshots() if one.dataset == project.settings.dataset][-1]
    return Outcome(plan, report, failed, unmade, snapshot, lost)


def _failures(plan: Plan, report: BuildReport) -> tuple[Failure, ...]:
    """Everything that is left out; an entry's path is whole already, a file's is that in its concept."""
    return tuple(
        failure if failure.encoder is not None else dataclasses.replace(failure, path=full_path(plan, failure))
        for failure in report.failed
    )


def show_outcome(outcome: Outcome) -> None:
    """For people."""
    report = outcome.report
    lost = Counter(failure.encoder for failure in outcome.failed)
    columns = [TableColumn("encoder"), *(TableColumn(name, right=True) for name in ("encoded", "reused", "failed"))]
    output.table(
        columns,
        [
            (name, f"{report.encoded.get(name, 0):,}", f"{report.reused.get(name, 0):,}", f"{lost[name]:,}")
            for name in outcome.plan.encoders
        ],
    )
    _show_section("left out", _left_out(outcome))
    _show_section("notes", list(_notes(outcome)))
    output.line()
    output.line(_summary(report))
    if outcome.snapshot is not None:
        less = ", without what is left out" if outcome.failed else ""
        output.line(f"complete{less}: snapshot {outcome.snapshot.number} of {outcome.snapshot.dataset}")


def _show_section(title: str, lines: list[str]) -> None:
    if lines:
        output.text("\n".join(["", f"{title}:", *(f"  {line}" for line in lines)]))


def _left_out(outcome: Outcome) -> list[str]:
    told = [
        ": ".join(part for part in (failure.path, failure.encoder, failure.reason) if part)
        for failure in outcome.failed
    ]
    more = [f"… and {len(told) - _FEW:,} more; `precook plan --json` lists them all"] if len(told) > _FEW else []
    return [printable(line) for line in told[:_FEW]] + more


def _notes(outcome: Outcome) -> Iterator[str]:
    for lost in outcome.lost:
        yield printable(f"{lost}; its part was left to the others")
    for name, count in outcome.report.truncated.items():
        if count:
            yield f"{name}: {format_count(count, 'text')} longer than the encoder takes, cut to its length"
    if outcome.report.changed:
        yield f"{format_count(outcome.report.changed, 'entry')} not made, because the files changed meanwhile"
    if outcome.missing:
        yield f"{format_count(outcome.missing, 'entry')} missing of files that came or changed meanwhile; build again"


def _summary(report: BuildReport) -> str:
    count = sum(report.encoded.values())
    if not count:
        return f"stopped before anything was encoded; {report.left:,} left" if report.stopped else "encoded nothing"
    rate = count / report.seconds if report.seconds > 0 else 0.0
    took = f"{format_size(report.bytes)} in {format_duration(report.seconds)} ({format_rate(rate)} entries/s)"
    told = f"{format_count(count, 'entry')}, {took}, at most {format_size(report.peak_memory)} of memory"
    return f"stopped after {told}; {report.left:,} left" if report.stopped else f"encoded {told}"


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """For programs."""
    report, snapshot = outcome.report, outcome.snapshot
    failed = [{**dataclasses.asdict(one), "key": one.key.hex if one.key else None} for one in outcome.failed]
    return {
        "dataset": outcome.plan.settings.dataset,
        "stopped": report.stopped,
        "encoded": {name: report.encoded.get(name, 0) for name in outcome.plan.encoders},
        "reused": {name: report.reused.get(name, 0) for name in outcome.plan.encoders},
        "failed": failed,
        "changed": report.changed,
        "left": report.left,
        "missing": outcome.missing,
        "truncated": {name: report.truncated.get(name, 0) for name in outcome.plan.encoders},
        "seconds": round(report.seconds, 3),
        "bytes": report.bytes,
        "peak_memory": report.peak_memory,
        "lost": list(outcome.lost),
        "snapshot": None if snapshot is None else {"number": snapshot.number, "id": snapshot.id},
        "exit_code": outcome.exit_code,
    }
