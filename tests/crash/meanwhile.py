"""While one process stands still at a call, another does the same work; then the first goes on, or fails.

What two processes do to each other depends on where the one is when the other comes. Here it is at the first call, then
at the second, and so on; nothing is left to chance but which of two comes first once both have to wait for a lock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from typing import TYPE_CHECKING

from .aftermath import Scenario, check_aftermath, perform
from .children import Child, Journal, Outcome
from .disk import Disk
from .library import Action, Fault, Library
from .power import Cutter, started
from .report import Report
from .users import copy_owned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _GaveUpError(BaseException):
    """The first error was the last thing it did."""


class _Impatient(Journal):
    """A journal of somebody who gives up: what failed is not tried again, which could make good what it has broken."""

    def error(self, error: Exception) -> None:
        """Report it, and do no more."""
        super().error(error)
        raise _GaveUpError


class Halting:
    """A child that runs a scenario and stands still at the `at`-th call, where the fault strikes.

    An error ends it, unless it is patient and tries again.
    """

    def __init__(
        self,
        scenario: Scenario,
        fault: Fault,
        library: Library,
        area: Path,
        at: int,
        before: Callable[[], object] = lambda: None,
        *,
        patient: bool = False,
    ) -> None:
        resume, self._go_on = os.pipe()

        def work(journal: Journal) -> None:
            before()
            library.stand_still(resume)
            library.arm(area, fault, at, journal.fd)
            with contextlib.suppress(_GaveUpError):
                kind = Journal if patient else _Impatient
                perform(scenario, area, kind(journal.fd, scenario.tolerated, library), part="stands still")

        self._child = Child(work, scenario.tolerated, library)
        os.close(resume)

    def stands_still(self) -> bool:
        """Wait for it; False when it ended before."""
        return self._child.says("fired")

    def finish(self) -> Outcome:
        """Let it go on, and wait for the end."""
        # It may have ended without ever standing still.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go_on, b"!")
        os.close(self._go_on)
        return self._child.finish()


def meanwhile(  # noqa: PLR0913 - what a power cut is made of
    scenario: Scenario,
    fault: Fault,
    library: Library,
    workspace: Path,
    *,
    stride: int = 1,
    first: int = 1,
    cut: bool = False,
    randoms: int = 0,
    seed: int = 0,
) -> Report:
    """Let one process stand still at every `stride`-th call while another runs the same scenario, and check.

    With `cut`, the power is cut at each acknowledgement since then, and at the end.
    """
    some = f"every {stride}. call" if stride > 1 else ""
    title = (scenario.name, f"{fault.name} beside another process", "then power cut" * cut, some)
    report = Report(" / ".join(filter(None, title)))
    trace, area = workspace / "trace", workspace / "area"
    with started(scenario, workspace) as start:
        for at in itertools.count(first, stride):
            shutil.rmtree(area, ignore_errors=True)
            trace.unlink(missing_ok=True)
            copy_owned(start, area)
            outcomes = _run_two(scenario, fault, library, area, trace, at)
            if outcomes is None:
                break
            report.points += 1
            where = f"call {outcomes[0].fired}"
            for problem in _misbehaviour(scenario, fault, outcomes):
                report.violation(where, problem)
            for name in (name for outcome in outcomes for name, _ in outcome.errors):
                report.error(name)
            if cut:
                cutter = Cutter(scenario, workspace, report, Disk(start), seed, lying=False, brief=True)
                cutter.play_fault(trace, area, where, randoms)
                cutter.cut(f"{where}, cut at the end", randoms, combine=False)
            # Last: the check runs the scenario again, in this very place.
            report.checked += 1
            acked = frozenset(outcomes[0].acked | outcomes[1].acked)
            for problem in check_aftermath(scenario, area, acked):
                report.violation(where, problem)
    return report


def _run_two(
    scenario: Scenario, fault: Fault, library: Library, area: Path, trace: Path, at: int
) -> tuple[Outcome, Outcome] | None:
    """Both runs, or None when the first ended before the fault could strike."""

    def work(journal: Journal) -> None:
        library.record(area, trace)
        library.tell_waiting(journal.fd)
        perform(scenario, area, journal)

    one = Halting(scenario, fault, library, area, at, before=lambda: library.record(area, trace))
    if not one.stands_still():
        one.finish()
        return None
    other = Child(work, scenario.tolerated, library)
    # To its end, or until it has to wait for a lock that the first one holds.
    other.says("waits")
    return one.finish(), other.finish()


def _misbehaviour(scenario: Scenario, fault: Fault, outcomes: tuple[Outcome, Outcome]) -> list[str]:
    problems = []
    vague = {kind.__name__ for kind in scenario.too_vague}
    for who, outcome in zip(("the one that stood still", "the other"), outcomes, strict=True):
        if outcome.crash:
            problems.append(f"{who}: an error that is none of the store's own, or no end at all: {outcome.crash}")
        for name, text in outcome.errors:
            if name in vague:
                problems.append(f"{who}: the error has no name: {name}: {text}")
            elif name != "LockedError" and (fault.action is Action.STOP or outcome is outcomes[1]):
                problems.append(f"{who}: nothing failed for it, yet it complained: {name}: {text}")
    return problems
