"""Several processes write overlapping keys into one store at the same time, and read each other's."""

from __future__ import annotations

import random
import shutil
import time
from typing import TYPE_CHECKING

import precook

from .children import Child, Journal, in_child
from .report import Report
from .samples import check_entries, key_of, same, tree_of
from .scenarios import findings

if TYPE_CHECKING:
    from pathlib import Path

_WRITERS = 4
_BLOCK = 24


def overlap(workspace: Path, *, blocks: int, seconds: float = 0.0) -> Report:
    """Four processes write the same blocks of keys, each in an order of its own: `blocks` of them, for `seconds`."""
    report = Report(f"{_WRITERS} writers, the same keys")
    cache = workspace / "shared"
    until = time.monotonic() + seconds
    try:
        children = [
            Child(lambda journal, who=who: _write(cache, who, blocks, until, journal))  # type: ignore[misc]
            for who in range(_WRITERS)
        ]
        outcomes = [child.finish() for child in children]
        written = [outcome.said.get("written", 0) for outcome in outcomes]
        for who, outcome in enumerate(outcomes):
            for problem in (*outcome.said.get("problems", ()), *([outcome.crash] if outcome.crash else [])):
                report.violation(f"writer {who}", problem)
        for problem in _check(cache, max(written)):
            report.violation("at the end", problem)
        report.points = report.checked = sum(written)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return report


def _write(cache: Path, who: int, blocks: int, until: float, journal: Journal) -> None:
    rng = random.Random(who)
    problems = []
    block = 0
    with precook.open(cache) as store:
        while block < blocks or time.monotonic() < until:
            numbers = list(range(block * _BLOCK, (block + 1) * _BLOCK))
            rng.shuffle(numbers)
            alone, together = numbers[: _BLOCK // 4], numbers[_BLOCK // 4 :]
            for number in alone:
                store.put(key_of(number), tree_of(number))
            with store.writer() as writer:
                for number in together:
                    writer.put(key_of(number), tree_of(number))
            wrong = [number for number in numbers if not same(store.get(key_of(number)), tree_of(number))]
            problems += [f"entry {number} has wrong bytes" for number in wrong]
            block += 1
    journal.say("problems", problems)
    journal.say("written", block * _BLOCK)


def _check(cache: Path, written: int) -> list[str]:
    def work(journal: Journal) -> None:
        with precook.open(cache) as store:
            problems = check_entries(store, range(written), frozenset(range(written)))
            if len(store) != written:
                problems.append(f"{len(store)} entries where {written} were written")
            problems += findings(store)
        journal.say("problems", problems)

    outcome = in_child(work)
    return [*outcome.said.get("problems", ()), *([outcome.crash] if outcome.crash else [])]
