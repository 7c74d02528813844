"""What must hold after a fault: the promises, checked in a fresh process that knows of no fault.

1. The store opens without help.
2. Every acknowledged entry is there, bit for bit; every other entry is whole or absent. Never wrong bytes.
3. What was interrupted can be run again, to its end, on the same store.
4. Then everything is there and `verify` finds nothing.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from .bugs import seed_bug
from .children import Journal, in_child
from .repeatable import be_repeatable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import ModuleType

    from .trace import Operation


class Scenario(ABC):
    """Something a store does, with entries known by number so that their content can be compared.

    A scenario works in an area of its own, in which the store is a subdirectory: creating that one is part of what can
    go wrong.
    """

    name: str
    numbers: Collection[int]
    """The entries that may ever be in the store."""
    kept: frozenset[int] = frozenset()
    """Entries that `prepare` made durable, and nothing may harm."""
    tolerated: tuple[type[Exception], ...]
    """The store's own errors."""
    too_vague: tuple[type[Exception], ...] = ()
    """Those of them that, when raised as such, only say that something was not foreseen."""
    names: ClassVar[Mapping[int, frozenset[str]]] = {}
    """For each errno, which of them it may become; empty when that does not matter."""

    def prepare(self, area: Path) -> None:  # noqa: B027 - most scenarios start from nothing
        """Make the state from which the scenario starts; no fault strikes here."""

    @abstractmethod
    def run(self, area: Path, journal: Journal) -> None:
        """Do it, or do it again: it may find any part already done."""

    @abstractmethod
    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """What is wrong with the store in `area`, in words.

        Lenient, when the disk lied about what it keeps: an acknowledged entry may then be missing, and may be known to
        be damaged, yet never come out wrong. With `verify`, all work is done: the store's own verification has a say
        too, and nothing may be left behind.
        """

    def forbids(self, operation: Operation) -> str:
        """Why the store should never do this, whatever comes of it; empty when it may."""
        return ""

    @abstractmethod
    def files(self) -> ModuleType:
        """The store's module of small file operations, where bugs are seeded."""


def prepare(scenario: Scenario, start: Path) -> None:
    """Make the scenario's starting state in `start`, in a process of its own: the driver must never open a store."""
    start.mkdir()

    def work(journal: Journal) -> None:
        be_repeatable(f"prepares {scenario.name}")
        scenario.prepare(start)

    outcome = in_child(work)
    if outcome.crash:
        message = f"{scenario.name} cannot be prepared: {outcome.crash}"
        raise RuntimeError(message)


def perform(scenario: Scenario, area: Path, journal: Journal, bug: str = "", *, part: str = "runs") -> None:
    """Run the scenario, with a bug seeded if one is named; an error of the store's own that ends it is reported."""
    be_repeatable(part)
    if bug:
        seed_bug(bug, scenario.files())
    try:
        scenario.run(area, journal)
    except scenario.tolerated as error:
        journal.error(error)


# What a process that checks says after each stage; in one that crashed, the first word missing tells where.
_STAGES = {
    "problems": "",
    "rerun": "running again",
    "settled": "after running again",
}


_PASSED: set[bytes] = set()
"""States that broke no promise: those of this process, which is one driver, in all that it was asked to do."""


def state_of(scenario: Scenario, content: bytes, acked: frozenset[int], *, lenient: bool = False) -> bytes:
    """What decides the outcome of a check: the fingerprint of what is there, and what is expected of it."""
    expected = (scenario.name, content, sorted(acked), lenient)
    return hashlib.blake2b(repr(expected).encode(), digest_size=16).digest()


def has_passed(state: bytes) -> bool:
    """Whether a state was checked before, and broke no promise."""
    return state in _PASSED


def check_aftermath(
    scenario: Scenario, area: Path, acked: frozenset[int], *, lenient: bool = False, state: bytes | None = None
) -> list[str]:
    """Everything in `area` that breaks a promise, in words; a `state` that breaks none is remembered."""

    def work(journal: Journal) -> None:
        try:
            journal.say("problems", scenario.check(area, scenario.kept | acked, lenient=lenient))
            rerun = Rerun(journal.fd, scenario.tolerated)
            scenario.run(area, rerun)
            journal.say("rerun", [] if lenient else rerun.problems)
            everything = frozenset(scenario.numbers)
            journal.say("settled", scenario.check(area, everything, lenient=lenient, verify=not lenient))
        except scenario.tolerated as error:
            # To refuse a store that a lying disk has ruined is fair, as long as it is refused in so many words.
            if not lenient or type(error) in scenario.too_vague:
                raise

    outcome = in_child(work)
    problems: list[str] = []
    for word, stage in _STAGES.items():
        if word in outcome.said:
            problems += [f"{stage}: {problem}" if stage else problem for problem in outcome.said[word]]
        elif outcome.crash:
            problems.append(f"{stage or 'opening and checking'}: {outcome.crash}")
            break
    if state is not None and not problems:
        _PASSED.add(state)
    return problems


class Rerun(Journal):
    """A journal for running without faults: here every error is a problem."""

    def __init__(self, fd: int, tolerated: tuple[type[Exception], ...]) -> None:
        super().__init__(fd, tolerated)
        self.problems: list[str] = []

    def acknowledge(self, *numbers: int) -> None:
        """Say nothing: these come from no run under test."""

    def error(self, error: Exception) -> None:
        """Keep it."""
        self.problems.append(f"{type(error).__name__}: {error}")
