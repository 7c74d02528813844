"""One fault at the first call, then at the second, and so on until a run gets through without meeting it."""

from __future__ import annotations

import errno
import itertools
import shutil
from typing import TYPE_CHECKING

from .aftermath import Scenario, check_aftermath, has_passed, perform, prepare, state_of
from .children import Journal, Outcome, in_child
from .library import Action, Fault, Library
from .repeatable import fingerprint
from .report import Report
from .users import copy_owned

if TYPE_CHECKING:
    from pathlib import Path


def sweep(
    scenario: Scenario,
    fault: Fault,
    library: Library,
    workspace: Path,
    *,
    bug: str = "",
    stride: int = 1,
    first: int = 1,
) -> Report:
    """Inject `fault` at every `stride`-th call of `scenario`, from the `first`, and check what is left each time."""
    some = f"every {stride}. call" if stride > 1 else ""
    report = Report(" / ".join(filter(None, (scenario.name, fault.name, bug, some))))
    start = workspace / "start"
    try:
        prepare(scenario, start)
        for at in itertools.count(first, stride):
            area = workspace / "area"
            copy_owned(start, area)
            try:
                if not _point(scenario, fault, library, area, at, bug, report):
                    return report
            finally:
                shutil.rmtree(area)
    finally:
        shutil.rmtree(start, ignore_errors=True)
    raise AssertionError  # the loop ends by itself


def _point(scenario: Scenario, fault: Fault, library: Library, area: Path, at: int, bug: str, report: Report) -> bool:
    """One point of the sweep; False when the scenario ended before the fault could strike."""

    def work(journal: Journal) -> None:
        library.arm(area, fault, at, journal.fd)
        perform(scenario, area, journal, bug)
        journal.say("count", library.count)

    outcome = in_child(work, scenario.tolerated)
    if not outcome.fired:
        # Nothing struck: this was an undisturbed run, and has to look like one.
        report.calls = outcome.said.get("count", 0)
        for problem in _undisturbed(outcome):
            report.violation(f"undisturbed, {report.calls} calls", problem)
        return False
    report.points += 1
    where = f"call {outcome.fired}"
    for name, _ in outcome.errors:
        report.error(name)
    problems = _misbehaviour(scenario, fault, outcome)
    acked = frozenset(outcome.acked)
    state = state_of(scenario, fingerprint(area), acked)
    if not has_passed(state):
        report.checked += 1
        problems += check_aftermath(scenario, area, acked, state=state)
    for problem in problems:
        report.violation(where, problem)
    return True


def _undisturbed(outcome: Outcome) -> list[str]:
    return [outcome.crash] * bool(outcome.crash) + [f"{name}: {text}" for name, text in outcome.errors]


def _misbehaviour(scenario: Scenario, fault: Fault, outcome: Outcome) -> list[str]:
    """What the process that met the fault did wrong, while it lived."""
    problems = []
    if outcome.crash:
        problems.append(f"an error that is none of the store's own, or no end at all: {outcome.crash}")
    if fault.kills and not outcome.killed:
        problems.append("it was to be killed, and was not: the harness is broken")
    if fault.reads and not fault.forever and len(outcome.errors) > 1:
        problems.append(f"one read failed, once, and {len(outcome.errors)} steps did: {outcome.errors[-1]}")
    if fault.reads and not fault.forever and any(name == "MissingEntryError" for name, _ in outcome.errors):
        # For as long as nothing of a pack can be read, its entries are missing; not for one read that failed.
        problems.append("one read failed, once, and an entry that is there was missing")
    vague = {kind.__name__ for kind in scenario.too_vague}
    for name, text in outcome.errors:
        if fault.action is not Action.ERROR:
            problems.append(f"nothing failed, yet it complained: {name}: {text}")
        elif fault.errno == errno.EINTR:
            problems.append(f"an interrupted call is to be tried again, yet it complained: {name}: {text}")
        elif name in vague:
            problems.append(f"the error has no name: {name}: {text}")
        elif not fault.reads and scenario.names and name not in scenario.names[fault.errno]:
            problems.append(f"{errno.errorcode[fault.errno]} became {name}: {text}")
    return problems
