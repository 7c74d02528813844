"""Cuts the power at every moment of a recorded run, and checks every state the disk may then be in."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import shutil
from typing import TYPE_CHECKING

from .aftermath import Scenario, check_aftermath, has_passed, perform, prepare, state_of
from .children import Journal, Outcome, in_child
from .disk import Alias, Disk, Link, Names, Survivors, Tree, lay_out
from .library import Fault, Library
from .repeatable import same_for_all
from .report import Report
from .trace import Kind, Operation, read_trace
from .users import copy_owned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Two to the power of this many combinations at most; most of them come to the same and are checked once.
_ENUMERATED = 6
_FIXED = (Survivors.NOTHING, Survivors.DATA, Survivors.NAMES, Survivors.SIZES, Survivors.EVERYTHING)
_HARSHEST = _FIXED[:2]


def cut_everywhere(  # noqa: PLR0913 - what a power cut is made of
    scenario: Scenario,
    library: Library,
    workspace: Path,
    *,
    bug: str = "",
    randoms: int = 2,
    seed: int = 0,
    lying: bool = False,
    every: int = 1,
    brief: bool = False,
) -> Report:
    """Record `scenario` once, cut the power after each operation, and check the five plain states and `randoms` others.

    With `lying`, the disk ignores every sync: entries may then be lost, yet never come out wrong. With `every` larger
    than one, only every so-manieth operation is followed by a cut, apart from acknowledgements and renames. `brief`
    leaves out the milder of the plain states.
    """
    report = Report(" / ".join(filter(None, (scenario.name, "power cut", "lying disk" * lying, bug))))
    with started(scenario, workspace) as start:
        trace = workspace / "trace"
        outcome = _record(scenario, library, workspace, bug=bug)
        for problem in (outcome.crash, *(f"{name}: {text}" for name, text in outcome.errors)):
            if problem:
                report.violation("while recording", problem)
        cutter = Cutter(scenario, workspace, report, Disk(start), seed, lying=lying, brief=brief)
        cutter.cut("before anything", randoms)
        for moment, (operation, following) in enumerate(_with_next(read_trace(trace, workspace / "area")), 1):
            cutter.apply(operation)
            if reason := scenario.forbids(operation):
                report.violation(f"operation {moment} ({operation})", reason)
            if following is not Kind.MARK and (moment % every == 0 or operation.kind in (Kind.MARK, Kind.RENAME)):
                cutter.cut(f"after operation {moment} ({operation})", randoms)
    return report


def cut_after_fault(  # noqa: PLR0913 - what a power cut is made of
    scenario: Scenario,
    fault: Fault,
    library: Library,
    workspace: Path,
    *,
    bug: str = "",
    randoms: int = 2,
    seed: int = 0,
    stride: int = 1,
    brief: bool = False,
) -> Report:
    """A fault, then the scenario run again by a new process, then a power cut: what nobody synced is still unsynced.

    The second process finds what the first one left in the page cache (a pack renamed, its directory never synced) and
    must not take it for durable. The power is cut at each acknowledgement and at the end, for every `stride`-th fault.
    """
    report = Report(" / ".join(filter(None, (scenario.name, f"{fault.name}, then power cut", bug))))
    trace, area = workspace / "trace", workspace / "area"
    with started(scenario, workspace) as start:
        for at in itertools.count(1, stride):
            shutil.rmtree(area, ignore_errors=True)
            trace.unlink(missing_ok=True)
            outcome = _record(scenario, library, workspace, bug=bug, fault=fault, at=at, again=True)
            if not outcome.fired:
                break
            if outcome.crash:
                report.violation(f"call {outcome.fired}", outcome.crash)
            cutter = Cutter(scenario, workspace, report, Disk(start), seed, lying=False, brief=brief)
            cutter.play_fault(trace, area, f"fault at {outcome.fired}", randoms)
            cutter.cut(f"fault at {outcome.fired}, cut at the end", randoms)
    return report


class Cutter:
    """A disk on which a trace is played, and the checks of what it may hold."""

    def __init__(
        self, scenario: Scenario, workspace: Path, report: Report, disk: Disk, seed: int, *, lying: bool, brief: bool
    ) -> None:
        self._scenario = scenario
        self._area = workspace / "state"
        self._report = report
        self._disk = disk
        self._seed = seed
        self._lying = lying
        self._plain = _HARSHEST if brief else _FIXED
        self._moment = 0
        self._acked: frozenset[int] = frozenset()

    def apply(self, operation: Operation) -> None:
        self._moment += 1
        if operation.kind is Kind.MARK:
            self._acked |= {operation.a}
        self._disk.apply(operation, lying=self._lying)

    def play_fault(self, trace: Path, area: Path, where: str, randoms: int) -> None:
        """Play a trace in which a fault has struck, and cut the power at each acknowledgement since then."""
        struck = False
        for operation, following in _with_next(read_trace(trace, area)):
            self.apply(operation)
            struck = struck or operation.kind is Kind.FIRED
            # Before the fault this is any run, and `cut_everywhere` has been there.
            if struck and operation.kind is Kind.MARK and following is not Kind.MARK:
                self.cut(f"{where}, cut at commit {operation.a}", randoms, combine=False)

    def cut(self, where: str, randoms: int, *, combine: bool = True) -> None:
        for survivors in self._plain:
            self._check(self._disk.crash(survivors), f"{where}, {survivors.value}")
        for lost in self._combinations() if combine else ():
            tree = self._disk.crash(Survivors.CHOSEN, lost=lost)
            names = "; ".join(" and ".join(name if node else f"-{name}" for name, node in change) for change in lost)
            self._check(tree, f"{where}, everything survives except {names}")
        for number in range(randoms):
            choice = f"{self._seed}/{self._moment}/{number}"
            self._check(self._disk.crash(Survivors.RANDOM, choice), f"{where}, {Survivors.RANDOM.value} ({choice})")

    def _combinations(self) -> Iterator[tuple[Names, ...]]:
        """Every way to lose some of the names that are not durable yet, as long as these are few."""
        unsynced = self._disk.unsynced
        if len(unsynced) <= _ENUMERATED:
            for count in range(1, len(unsynced)):
                yield from itertools.combinations(unsynced, count)

    def _check(self, tree: Tree, where: str) -> None:
        self._report.points += 1
        state = state_of(self._scenario, _fingerprint(tree), self._acked, lenient=self._lying)
        if has_passed(state):
            return
        self._report.checked += 1
        lay_out(tree, self._area)
        try:
            for problem in check_aftermath(self._scenario, self._area, self._acked, lenient=self._lying, state=state):
                self._report.violation(where, problem)
        finally:
            shutil.rmtree(self._area)


def _with_next(operations: Iterable[Operation]) -> Iterator[tuple[Operation, Kind | None]]:
    """Each operation, and the kind of the next.

    Before an acknowledgement there is no need to cut: the disk is the same right after it, and more is expected of it.
    """
    one, other = itertools.tee(operations)
    next(other, None)
    for operation, following in itertools.zip_longest(one, other):
        yield operation, following.kind if following else None


@contextlib.contextmanager
def started(scenario: Scenario, workspace: Path) -> Iterator[Path]:
    """The state from which the scenario starts, and beside it what recording leaves: gone at the end."""
    start = workspace / "start"
    try:
        prepare(scenario, start)
        yield start
    finally:
        shutil.rmtree(start, ignore_errors=True)
        shutil.rmtree(workspace / "area", ignore_errors=True)
        (workspace / "trace").unlink(missing_ok=True)


def _record(
    scenario: Scenario,
    library: Library,
    workspace: Path,
    *,
    bug: str = "",
    fault: Fault | None = None,
    at: int = 0,
    again: bool = False,
) -> Outcome:
    """Run the scenario in a copy of its start, tracing it; with `again`, once more in a new process, undisturbed."""
    area, trace = workspace / "area", workspace / "trace"
    copy_owned(workspace / "start", area)

    def work(journal: Journal, fault: Fault | None, part: str) -> None:
        library.record(area, trace)
        if fault is not None:
            library.arm(area, fault, at, journal.fd)
        perform(scenario, area, journal, bug, part=part)

    outcome = in_child(functools.partial(work, fault=fault, part="runs"), scenario.tolerated, library)
    if again and outcome.fired:
        second = in_child(functools.partial(work, fault=None, part="runs again"), scenario.tolerated, library)
        outcome.crash = outcome.crash or second.crash
        if second.errors:
            outcome.crash = outcome.crash or f"running again: {second.errors[0]}"
    return outcome


def _fingerprint(tree: Tree) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path, content in tree.items():
        digest.update(path.encode() + b"\0")
        if isinstance(content, bytes):
            said = same_for_all(content)
            digest.update(b"file" + len(said).to_bytes(8, "little") + said)
        elif isinstance(content, (Link, Alias)):
            digest.update(repr(content).encode())
        else:
            digest.update(b"directory")
    return digest.digest()
