"""`precook build`: encode what is missing, in one process or in several, until it is done or stopped."""

from __future__ import annotations

import dataclasses
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output, progress
from precook.cli.options import ConfigOption, EncoderOption, NoCodeOption, StoreOption, open_project, size_option
from precook.cli.output import TableColumn
from precook.errors import INTERRUPTED, SOME_FAILED, EncodeError, printable
from precook.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from precook.cli.processes import StopAll
    from precook.encode.build import BuildPlan, BuildReport
    from precook.plan.entries import Failure
    from precook.plan.plan import Plan
    from precook.project import Project
    from precook.report import Reporter

_BESIDE = "--beside"
"""The option that makes a process one of several; not for people."""
_WORTH_A_LOOK = 60.0
"""Seconds of a build after which people want to know what it waited for."""
_MOST_LEFT_OUT = 10


@dataclass(frozen=True, slots=True)
class BuildArguments:
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
    code: bool = True
    processes: int = 1

    @property
    def command(self) -> str:
        """The command that asks for the same."""
        return shlex.join(["precook", *self.words])

    @property
    def words(self) -> list[str]:
        """The words of that command."""
        named: list[tuple[str, object]] = [("config", self.config), ("store", self.store)]
        named += [("encoder", name) for name in self.encoders] + [("device", name) for name in self.devices]
        named += [("memory", None if self.memory is None else f"{self.memory}B"), ("threads", self.threads)]
        named += [("processes", None if self.processes == 1 else self.processes)]
        words = ["build"]
        for option, value in named:
            words += [] if value is None else [f"--{option}", str(value)]
        for option in ("retry_failed", "fail_fast", "crowded"):
            words += [f"--{option.replace('_', '-')}"] if getattr(self, option) else []
        return words if self.code else [*words, "--no-code"]

    @property
    def options(self) -> dict[str, Any]:
        """For `Plan.build`."""
        options: dict[str, Any] = {} if self.memory is None else {"memory": self.memory}
        names = ("devices", "threads", "retry_failed", "fail_fast", "crowded", "processes")
        return {**options, **{name: getattr(self, name) for name in names}}

    def divided(self, processes: int) -> BuildArguments:
        """What each of so many processes is asked, so that together they take no more than one would."""
        if processes == 1:
            return dataclasses.replace(self, processes=1)
        from precook.encode.run import MEMORY, default_threads

        memory = max(1, (self.memory or MEMORY) // processes)
        threads = max(1, (self.threads or default_threads()) // processes)
        return dataclasses.replace(self, memory=memory, threads=threads, processes=processes)


def command(  # noqa: PLR0913 - each parameter is an option of the command
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    encoder: EncoderOption = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="DEV", help="Where encoders run whose device is auto, such as cuda:0; may be repeated."
        ),
    ] = None,
    memory: Annotated[
        int | None, size_option("What pictures may take until they are encoded; without it, 1GiB.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads that read and decode.")] = None,
    processes: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Processes that share the work, and the cores; for encoders on the CPU."),
    ] = 1,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
    crowded: Annotated[
        bool, typer.Option("--crowded", help="Start although the disk cannot hold the forecast.")
    ] = False,
    no_code: NoCodeOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document per line: what happens.")] = False,
    beside: Annotated[bool, typer.Option(_BESIDE, hidden=True)] = False,
) -> int:
    """Encode what is missing.

    Ctrl-C or SIGTERM finishes the batch in flight and keeps all that is encoded; a second one stops at once. The next
    build goes on where the last one stopped.
    """
    arguments = BuildArguments(
        config=config,
        store=store,
        encoders=tuple(encoder or ()),
        devices=tuple(device or ()),
        memory=memory,
        threads=threads,
        retry_failed=retry_failed,
        fail_fast=fail_fast,
        crowded=crowded,
        code=not no_code,
        processes=processes,
    )
    return _run_beside(arguments) if beside else _run(arguments, as_json=as_json)


def _run(arguments: BuildArguments, *, as_json: bool) -> int:
    """Plan, build and tell; the exit code."""
    from precook.cli.plan import forecast_document, heading_document
    from precook.cli.processes import StopAll, shared_cores
    from precook.cli.signals import sigterm_as_ctrl_c, stop_on_signal

    stop = StopAll()
    with (
        shared_cores(arguments.processes),
        open_project(arguments.config, arguments.store, code=arguments.code) as project,
        # A plan has no batch to finish: a signal ends it at once. Only the build listens to `stop`.
        sigterm_as_ctrl_c(),
    ):
        project.check_loaded(arguments.encoders or None)
        plan = project.plan(encoders=list(arguments.encoders) or None, report=progress.reporter())
        if as_json:
            output.event("plan", {**heading_document(plan), "forecast": forecast_document(plan)})
        else:
            output.tell(_intention(plan, arguments))
        with stop_on_signal(stop):
            outcome = _build(project, plan, arguments, stop, progress.build_reporter(events=as_json))
        if as_json:
            output.event("report", _document(outcome))
        else:
            _show(outcome)
            if outcome.report.stopped:
                output.hint(f"what is encoded is kept; `{arguments.command}` goes on")
            elif any(failure.encoder for failure in outcome.report.failed):
                output.hint(
                    "what failed is tried again when its file, its encoder or a setting changes, or with --retry-failed"
                )
    return outcome.exit_code


def _run_beside(arguments: BuildArguments) -> int:
    """Build as one of several processes, and report to the first of them, which tells people; the exit code."""
    from precook.cli.processes import tied_to_first_process, write_report
    from precook.cli.signals import sigterm_as_ctrl_c, stop_on_signal

    stop = threading.Event()
    with (
        tied_to_first_process(stop) as file,
        open_project(arguments.config, arguments.store, code=arguments.code) as project,
        sigterm_as_ctrl_c(),
    ):
        plan = project.plan(encoders=list(arguments.encoders) or None)
        with stop_on_signal(stop):
            report = plan.build(stop=stop, fresh=True, record=False, **arguments.options)
        file.write(write_report(report))
    return INTERRUPTED if report.stopped else 0


def _build(project: Project, plan: BuildPlan, arguments: BuildArguments, stop: StopAll, reporter: Reporter) -> Outcome:
    """Build in as many processes as there is work for."""
    from precook.cli.processes import OtherProcesses, add_up

    started = int(time.time())
    processes = max(1, min(arguments.processes, max(_wanted(plan, arguments).values(), default=0)))
    own = arguments.divided(processes)
    # The plan of all has looked whether the disk is large enough: the others need not ask again.
    words = [*dataclasses.replace(own, crowded=True).words, _BESIDE]
    with OtherProcesses(words, processes - 1, stop, fail_fast=arguments.fail_fast) as others:
        report = plan.build(report=reporter, stop=stop, fresh=True, record=processes == 1, **own.options)
        if processes == 1:
            return Outcome(plan, report)
        others.wait()
        lost = others.lost
        if lost and arguments.fail_fast:
            raise EncodeError(lost[0], hint="without --fail-fast the others go on")
        reports = [report, *others.reports()]
        report = add_up(plan, reports, retry_failed=arguments.retry_failed)
        project.record(started, report, processes=processes)
        return Outcome(plan, report if report.stopped else _look_back(project, plan, report, reports), lost)


def _look_back(project: Project, plan: Plan, report: BuildReport, reports: Sequence[BuildReport]) -> BuildReport:
    """The report of several processes with what all of them have left missing, and the snapshot that one has frozen.

    Each looked once more at its end. Where one has frozen the dataset and none has seen anything missing, that is how
    it is; else one may have ended before the others, and what it saw is not what there is now.
    """
    frozen = [one.snapshot for one in reports if one.snapshot is not None]
    if frozen and not any(one.missing for one in reports):
        return dataclasses.replace(report, missing=0, snapshot=max(frozen, key=lambda file: file.number))
    now = project.plan(encoders=list(plan.encoders))
    failed = {(failure.encoder, failure.key) for failure in report.failed}
    unmade = sum((entry.encoder, entry.key) not in failed for entry in now.missing)
    complete = not len(now.missing) and now.complete and set(plan.encoders) == set(project.settings.encoders)
    snapshots = [file for file in project.store.snapshots() if complete and file.dataset == project.settings.dataset]
    return dataclasses.replace(report, missing=unmade, snapshot=snapshots[-1] if snapshots else None)


def _wanted(plan: Plan, arguments: BuildArguments) -> dict[str, int]:
    """How many entries are to be made, by encoder."""
    return {
        name: len(encoder.missing) + (len(encoder.failures) if arguments.retry_failed else 0)
        for name, encoder in plan.encoders.items()
    }


def _intention(plan: Plan, arguments: BuildArguments) -> str:
    """What is about to be done, in one line."""
    wanted = _wanted(plan, arguments)
    name = plan.settings.dataset
    if not any(wanted.values()):
        return f"{name}: nothing to encode"
    each = ", ".join(f"{count:,} of {encoder}" for encoder, count in wanted.items() if count)
    # The forecast counts what is missing, and nothing of what failed before.
    size, seconds = (plan.forecast.nbytes, plan.forecast.seconds) if len(plan.missing) else (None, None)
    parts = [f"about {format_size(size)}"] if size is not None else []
    parts += [f"about {format_duration(seconds)}"] if seconds is not None else []
    forecast = f"; {', '.join(parts)}" if parts else ""
    return f"{name}: encoding {format_count(sum(wanted.values()), 'entry')}: {each}{forecast}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What there is to tell about a build."""

    plan: Plan
    """What was to be built."""
    report: BuildReport
    lost: tuple[str, ...] = ()
    """Processes that failed or died, and why; their part was left to the others."""

    @property
    def exit_code(self) -> int:
        """A dataset that lacks samples is never a plain success."""
        if self.report.stopped:
            return INTERRUPTED
        return SOME_FAILED if self.report.failed or self.report.changed or self.report.missing else 0

    def path_of(self, failure: Failure) -> str | None:
        """The path of what is left out, as `precook explain` takes it."""
        # The path of an entry is whole already, that of a file begins at its concept.
        return failure.path if failure.encoder is not None else self.plan.full_path(failure)


def _document(outcome: Outcome) -> dict[str, Any]:
    report, encoders = outcome.report, outcome.plan.encoders
    failed = [
        {
            **dataclasses.asdict(failure),
            "path": outcome.path_of(failure),
            "key": failure.key.hex if failure.key else None,
        }
        for failure in report.failed
    ]
    snapshot = report.snapshot
    return {
        "dataset": outcome.plan.settings.dataset,
        "stopped": report.stopped,
        "encoded": {name: report.encoded.get(name, 0) for name in encoders},
        "reused": {name: report.reused.get(name, 0) for name in encoders},
        "failed": failed,
        "changed": report.changed,
        "left": report.left,
        "missing": report.missing,
        "truncated": {name: report.truncated.get(name, 0) for name in encoders},
        "seconds": round(report.seconds, 3),
        "bytes": report.bytes,
        "busy": progress.rounded(report.busy),
        "limit": report.limit,
        "peak_memory": report.peak_memory,
        "lost": list(outcome.lost),
        "snapshot": None if snapshot is None else {"number": snapshot.number, "id": snapshot.id},
        "exit_code": outcome.exit_code,
    }


def _show(outcome: Outcome) -> None:
    report, snapshot = outcome.report, outcome.report.snapshot
    failed = Counter(failure.encoder for failure in report.failed)
    columns = [TableColumn("encoder"), *(TableColumn(name, right=True) for name in ("encoded", "reused", "failed"))]
    output.table(
        columns,
        [
            (name, f"{report.encoded.get(name, 0):,}", f"{report.reused.get(name, 0):,}", f"{failed[name]:,}")
            for name in outcome.plan.encoders
        ],
    )
    for title, lines in (("left out", _left_out(outcome)), ("notes", list(_notes(outcome)))):
        if lines:
            output.text("\n".join(["", f"{title}:", *(f"  {line}" for line in lines)]))
    output.line()
    output.line(_summary(report))
    # Where something was waited for, and for so long that it is worth a look.
    if report.limit is not None and report.seconds >= _WORTH_A_LOOK:
        output.line(progress.format_busy(report.busy))
    if snapshot is not None:
        less = ", without what is left out" if report.failed else ""
        output.line(f"complete{less}: snapshot {snapshot.number} of {snapshot.dataset}")


def _left_out(outcome: Outcome) -> list[str]:
    failed = outcome.report.failed
    lines = [
        printable(": ".join(part for part in (outcome.path_of(failure), failure.encoder, failure.reason) if part))
        for failure in failed[:_MOST_LEFT_OUT]
    ]
    if len(failed) > _MOST_LEFT_OUT:
        lines.append(f"… and {len(failed) - _MOST_LEFT_OUT:,} more; `precook plan --json` lists them all")
    return lines


def _notes(outcome: Outcome) -> Iterator[str]:
    report = outcome.report
    for lost in outcome.lost:
        yield printable(f"{lost}; its part was left to the others")
    for name, count in report.truncated.items():
        if count:
            yield f"{name}: {format_count(count, 'text')} longer than the encoder takes, cut to its length"
    if report.changed:
        yield f"{format_count(report.changed, 'entry')} not made, because the files changed meanwhile"
    if report.missing:
        yield f"{format_count(report.missing, 'entry')} missing of files that came or changed meanwhile; build again"
    for difference in outcome.plan.version_differences:
        yield printable(difference)


def _summary(report: BuildReport) -> str:
    count = sum(report.encoded.values())
    if not count:
        return f"stopped before anything was encoded; {report.left:,} left" if report.stopped else "encoded nothing"
    rate = progress.format_rate(count / report.seconds if report.seconds > 0 else 0.0)
    took = f"{format_size(report.bytes)} in {format_duration(report.seconds)} ({rate} entries/s)"
    made = f"{format_count(count, 'entry')}, {took}, at most {format_size(report.peak_memory)} of memory"
    return f"stopped after {made}; {report.left:,} left" if report.stopped else f"encoded {made}"
