"""A build as the command line runs it: in one process or in several, until it is done or stopped."""

from __future__ import annotations

import dataclasses
import threading
import time

from precook.cli import bars, output
from precook.cli.build import BESIDE, BuildArguments
from precook.cli.codes import INTERRUPTED
from precook.cli.outcome import Outcome, look_back, outcome_document, show_outcome
from precook.cli.plan import forecast_document, heading_document
from precook.cli.processes import Others, Stop, bound, shared_cores
from precook.cli.progress import build_reporter
from precook.cli.projects import open_project
from precook.cli.stopping import interrupted_by_sigterm, stopping
from precook.cli.summing import read, summed, written
from precook.encode.build import BuildReport
from precook.errors import EncodeError
from precook.plan.plan import Plan
from precook.project import Project
from precook.report import Reporter
from precook.units import format_count, format_duration, format_size


def run(asked: BuildArguments, *, as_json: bool) -> int:
    """Plan, build and tell; the exit code."""
    stop = Stop()
    with (
        shared_cores(asked.processes),
        open_project(asked.config, asked.store) as project,
        interrupted_by_sigterm(),
    ):
        plan = project.plan(encoders=list(asked.encoders) or None, report=bars.reporter())
        if as_json:
            output.event("plan", {**heading_document(plan), "forecast": forecast_document(plan)})
        else:
            output.tell(_intention(plan, asked))
        with stopping(stop):
            report, lost = _build(project, plan, asked, stop, build_reporter(events=as_json))
            outcome = look_back(project, plan, report, lost)
        if as_json:
            output.event("report", outcome_document(outcome))
        else:
            show_outcome(outcome)
            _tell_next(outcome, asked)
    return outcome.exit_code


def run_beside(asked: BuildArguments) -> int:
    """Build as one of several processes, and answer the first of them, which tells; the exit code."""
    stop = threading.Event()
    with (
        bound(stop) as answer,
        open_project(asked.config, asked.store) as project,
        interrupted_by_sigterm(),
    ):
        plan = project.plan(encoders=list(asked.encoders) or None)
        with stopping(stop):
            report = plan.build(stop=stop, record=False, **asked.options)
        answer.write(written(report))
    return INTERRUPTED if report.stopped else 0


def _build(
    project: Project, plan: Plan, asked: BuildArguments, stop: Stop, reporter: Reporter
) -> tuple[BuildReport, tuple[str, ...]]:
    """Build in as many processes as there is work for; what they did, and those that were lost."""
    started = int(time.time())
    processes = max(1, min(asked.processes, max(_wanted(plan, asked).values(), default=0)))
    share = asked.shared(processes)
    # The disk was found to be large enough, or not to matter, by the plan of all.
    arguments = [*dataclasses.replace(share, crowded=True).arguments, BESIDE]
    with Others(arguments, processes - 1, stop, fail_fast=asked.fail_fast) as others:
        own = plan.build(report=reporter, stop=stop, record=processes == 1, **share.options)
        if processes == 1:
            return own, ()
        others.wait()
        lost = others.lost
        if lost and asked.fail_fast:
            raise EncodeError(lost[0], hint="without --fail-fast the others go on")
        reports = [read(answer) for answer in others.answers]
        report = summed(plan, own, reports, retry_failed=asked.retry_failed)
        project.record(started, report, processes=processes)
        return report, lost


def _wanted(plan: Plan, asked: BuildArguments) -> dict[str, int]:
    """How many entries are to be made, by encoder."""
    again = {name: len(one.failures) if asked.retry_failed else 0 for name, one in plan.encoders.items()}
    return {name: len(one.missing) + again[name] for name, one in plan.encoders.items()}


def _intention(plan: Plan, asked: BuildArguments) -> str:
    """What is about to be done, in one line."""
    wanted = _wanted(plan, asked)
    name = plan.settings.dataset
    if not any(wanted.values()):
        return f"{name}: nothing to encode"
    each = ", ".join(f"{count:,} of {encoder}" for encoder, count in wanted.items() if count)
    # Nothing is foretold of what failed before.
    size, seconds = (plan.forecast.nbytes, plan.forecast.seconds) if len(plan.missing) else (None, None)
    told = [f"about {format_size(size)}"] if size is not None else []
    told += [f"about {format_duration(seconds)}"] if seconds is not None else []
    forecast = f"; {', '.join(told)}" if told else ""
    return f"{name}: encoding {format_count(sum(wanted.values()), 'entry')}: {each}{forecast}"


def _tell_next(outcome: Outcome, asked: BuildArguments) -> None:
    """What to do where not everything was done."""
    if outcome.report.stopped:
        output.hint(f"what is encoded is kept; `{asked.command}` goes on")
    elif any(failure.encoder for failure in outcome.failed):
        output.hint(
            "what failed is tried again when its file, its encoder or a setting changes, or with --retry-failed"
        )
