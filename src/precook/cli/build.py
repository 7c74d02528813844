"""`precook build`: encodes what is missing, and tells what it did."""

from __future__ import annotations

import dataclasses
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.output import Column
from precook.cli.plan import counts_document
from precook.cli.processes import Others, Stop, bound, shared_cores
from precook.cli.progress import build_reporter
from precook.cli.projects import open_project
from precook.cli.stopping import INTERRUPTED, interrupted_by_sigterm, stopping
from precook.cli.summing import read, summed, written
from precook.encode.build import BuildReport, default_threads
from precook.errors import EncodeError, printable
from precook.plan.entries import Failure
from precook.plan.plan import Plan
from precook.plan.table import full_path
from precook.project import MEMORY, Project
from precook.report import Reporter
from precook.store.snapshots import SnapshotFile
from precook.units import format_count, format_duration, format_size

SOME_FAILED = 3
"""Exit code when everything was tried and some of it could not be made."""
BESIDE = "--beside"
"""The option that makes a process one of several; not for people."""
_FEW = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for on the command line."""

    config: Path | None
    store: Path | None
    encoders: tuple[str, ...]
    devices: tuple[str, ...]
    memory: int | None
    threads: int | None
    retry_failed: bool
    fail_fast: bool
    crowded: bool
    processes: int = 1

    @property
    def command(self) -> str:
        """The command that asks for the same."""
        return shlex.join(["precook", *self.arguments])

    @property
    def arguments(self) -> list[str]:
        """What the command line takes to ask for the same."""
        named: list[tuple[str, object]] = [("config", self.config), ("store", self.store)]
        named += [("encoder", name) for name in self.encoders] + [("device", name) for name in self.devices]
        named += [("memory", None if self.memory is None else f"{self.memory}B"), ("threads", self.threads)]
        named += [("processes", None if self.processes == 1 else self.processes)]
        words = ["build"]
        for option, value in named:
            words += [] if value is None else [f"--{option}", str(value)]
        for option in ("retry_failed", "fail_fast", "crowded"):
            words += [f"--{option.replace('_', '-')}"] if getattr(self, option) else []
        return words

    @property
    def options(self) -> dict[str, Any]:
        """For the build."""
        options: dict[str, Any] = {} if self.memory is None else {"memory": self.memory}
        names = ("devices", "threads", "retry_failed", "fail_fast", "crowded", "processes")
        return {**options, **{name: getattr(self, name) for name in names}}

    def shared(self, processes: int) -> Asked:
        """What each of so many processes is asked, so that together they take no more than one would."""
        if processes == 1:
            return dataclasses.replace(self, processes=1)
        memory = max(1, (self.memory or MEMORY) // processes)
        threads = max(1, (self.threads or default_threads()) // processes)
        return dataclasses.replace(self, memory=memory, threads=threads, processes=processes)


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
    lost: tuple[str, ...] = ()
    """Processes that failed or died, and why; their part was left to the others."""

    @property
    def exit_code(self) -> int:
        """A dataset that lacks samples is never a plain success."""
        if self.report.stopped:
            return INTERRUPTED
        return SOME_FAILED if self.failed or self.report.changed or self.missing else 0


def run(asked: Asked, *, as_json: bool) -> int:
    """Plan, build and tell; the exit code."""
    stop = Stop()
    with (
        shared_cores(asked.processes),
        open_project(asked.config, asked.store) as project,
        interrupted_by_sigterm(),
    ):
        plan = project.plan(encoders=list(asked.encoders) or None, report=output.reporter())
        if as_json:
            output.event("plan", _plan_document(plan))
        else:
            output.tell(_intention(plan, asked))
        with stopping(stop):
            report, lost = _build(plan, asked, stop, build_reporter(events=as_json))
            outcome = dataclasses.replace(_outcome(project, plan, report), lost=lost)
        if as_json:
            output.event("report", _document(outcome))
        else:
            _show(outcome)
            _tell_next(outcome, asked)
    return outcome.exit_code


def run_beside(asked: Asked) -> int:
    """Build as one of several processes, and answer the first of them, which tells; the exit code."""
    stop = threading.Event()
    with (
        bound(stop) as answer,
        open_project(asked.config, asked.store) as project,
        interrupted_by_sigterm(),
    ):
        plan = project.plan(encoders=list(asked.encoders) or None)
        with stopping(stop):
            report = plan.build(stop=stop, **asked.options)
        answer.write(written(report))
    return INTERRUPTED if report.stopped else 0


def _build(plan: Plan, asked: Asked, stop: Stop, reporter: Reporter) -> tuple[BuildReport, tuple[str, ...]]:
    """Build in as many processes as there is work for; what they did, and those that were lost."""
    processes = max(1, min(asked.processes, max(_wanted(plan, asked).values(), default=0)))
    share = asked.shared(processes)
    # The disk was found to be large enough, or not to matter, by the plan of all.
    arguments = [*dataclasses.replace(share, crowded=True).arguments, BESIDE]
    with Others(arguments, processes - 1, stop, fail_fast=asked.fail_fast) as others:
        own = plan.build(report=reporter, stop=stop, **share.options)
        if processes == 1:
            return own, ()
        others.wait()
        lost = others.lost
        if lost and asked.fail_fast:
            raise EncodeError(lost[0], hint="without --fail-fast the others go on")
        reports = [read(answer) for answer in others.answers]
        return summed(plan, own, reports, retry_failed=asked.retry_failed), lost


def _wanted(plan: Plan, asked: Asked) -> dict[str, int]:
    """How many entries are to be made, by encoder."""
    again = {name: len(one.failures) if asked.retry_failed else 0 for name, one in plan.encoders.items()}
    return {name: len(one.missing) + again[name] for name, one in plan.encoders.items()}


def _intention(plan: Plan, asked: Asked) -> str:
    """What is about to be done, in one line."""
    wanted = _wanted(plan, asked)
    name = plan.settings.dataset
    if not any(wanted.values()):
        return f"{name}: nothing to encode"
    each = ", ".join(f"{count:,} of {encoder}" for encoder, count in wanted.items() if count)
    # Nothing is foretold of what failed before.
    size, time = (plan.forecast.nbytes, plan.forecast.seconds) if len(plan.missing) else (None, None)
    told = [f"about {format_size(size)}"] if size is not None else []
    told += [f"about {format_duration(time)}"] if time is not None else []
    forecast = f"; {', '.join(told)}" if told else ""
    return f"{name}: encoding {format_count(sum(wanted.values()), 'entry')}: {each}{forecast}"


def _failures(plan: Plan, report: BuildReport) -> tuple[Failure, ...]:
    """Everything that is left out; an entry's path is whole already, a file's is that in its concept."""
    return tuple(
        failure if failure.encoder is not None else dataclasses.replace(failure, path=full_path(plan, failure))
        for failure in report.failed
    )


def _outcome(project: Project, plan: Plan, report: BuildReport) -> Outcome:
    failed = _failures(plan, report)
    if report.stopped:
        return Outcome(plan, report, failed, 0, None)
    # Whether everything is there the sources decide, and they may have changed: the plan of now tells.
    missing = project.plan(encoders=list(plan.encoders), report=output.reporter()).missing
    told = {(failure.encoder, failure.key) for failure in failed}
    unmade = sum((entry.encoder, entry.key) not in told for entry in missing)
    snapshot = None
    if not len(missing) and set(plan.encoders) == set(project.settings.encoders):
        snapshot = [one for one in project.store.snapshots() if one.dataset == project.settings.dataset][-1]
    return Outcome(plan, report, failed, unmade, snapshot)


def _show(outcome: Outcome) -> None:
    report = outcome.report
    lost = Counter(failure.encoder for failure in outcome.failed)
    columns = [Column("encoder"), *(Column(name, right=True) for name in ("encoded", "reused", "failed"))]
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
    speed = f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}"  # noqa: PLR2004 - else 1.2e+03
    took = f"{format_size(report.bytes)} in {format_duration(report.seconds)} ({speed} entries/s)"
    told = f"{format_count(count, 'entry')}, {took}, at most {format_size(report.peak_memory)} of memory"
    return f"stopped after {told}; {report.left:,} left" if report.stopped else f"encoded {told}"


def _tell_next(outcome: Outcome, asked: Asked) -> None:
    """What to do where not everything was done."""
    if outcome.report.stopped:
        output.hint(f"what is encoded is kept; `{asked.command}` goes on")
    elif any(failure.encoder for failure in outcome.failed):
        output.hint(
            "what failed is tried again when its file, its encoder or a setting changes, or with --retry-failed"
        )


def _plan_document(plan: Plan) -> dict[str, Any]:
    counts = counts_document(plan)
    forecast = plan.forecast
    return {
        "dataset": counts.pop("name"),
        "store": str(plan.store.path),
        **counts,
        "forecast": {"bytes": forecast.nbytes, "seconds": forecast.seconds, "free_bytes": forecast.free},
    }


def _document(outcome: Outcome) -> dict[str, Any]:
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
