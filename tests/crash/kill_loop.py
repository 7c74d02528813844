"""Kill -9 at random moments, over and over, on one store that keeps growing."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from typing import TYPE_CHECKING

import precook

from .children import Child, Journal, in_child
from .report import Report
from .samples import check_entries, key_of, tree_of
from .scenarios import findings

if TYPE_CHECKING:
    from pathlib import Path

# Every so often all entries are read again; in between those of the last round, and some others.
_FULL_CHECK = 25


def kill_loop(workspace: Path, *, rounds: int, seed: int = 0) -> Report:
    """Start a process that puts and puts, kill it, check; `rounds` times."""
    report = Report(f"kill -9, {rounds} times")
    cache = workspace / "killed"
    rng = random.Random(seed)
    acked: frozenset[int] = frozenset()
    first = 0
    try:
        for number in range(rounds):
            child = Child(lambda journal, first=first: _put_forever(cache, first, journal))  # type: ignore[misc]
            child.listen(rng.randrange(12))
            # A moment like any other: nobody waits for this, it decides where in a commit the signal lands.
            time.sleep(rng.random() * 0.01)
            child.kill()
            outcome = child.finish()
            if outcome.crash:
                report.violation(f"round {number}", f"it died before it was killed: {outcome.crash}")
            last = frozenset(outcome.acked)
            acked |= last
            # Past everything that may have been begun: a number belongs to one round.
            following = max(last, default=first) + 10
            everything = number % _FULL_CHECK == 0 or number == rounds - 1
            look_at = range(following) if everything else range(first, following)
            for problem in _check(cache, look_at, acked):
                report.violation(f"round {number}", problem)
            first = following
            report.points += 1
            report.checked += 1
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return report


def _put_forever(cache: Path, first: int, journal: Journal) -> None:
    """Single puts and groups of three, in turn."""
    store = precook.open(cache)
    numbers = itertools.count(first)
    while True:
        number = next(numbers)
        store.put(key_of(number), tree_of(number))
        journal.acknowledge(number)
        with store.writer() as writer:
            group = [next(numbers) for _ in range(3)]
            for number in group:
                writer.put(key_of(number), tree_of(number))
        journal.acknowledge(*group)


def _check(cache: Path, numbers: range, acked: frozenset[int]) -> list[str]:
    def work(journal: Journal) -> None:
        with precook.open(cache) as store:
            problems = check_entries(store, numbers, acked)
            lost = store.missing(map(key_of, sorted(acked)))
            problems += [f"{len(lost)} acknowledged entries are listed as missing"] * bool(lost)
            # The very first kill may come before there is a store.
            problems += findings(store) if acked else []
        journal.say("problems", problems)

    outcome = in_child(work)
    return [*outcome.said.get("problems", ()), *([outcome.crash] if outcome.crash else [])]
