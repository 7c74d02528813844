"""The long sweep: every scenario, every fault, every power cut, and the seeded bugs. Exit 1 on any violation.

python -m tests.crash [--jobs N] [--only TEXT] [--every N] [--randoms N] [--seed N] [--rounds N] [--seconds N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # started as `python tests/crash`
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = "faults"

from .driver import Driver, DriverError
from .library import FAULTS, UnavailableError
from .report import Report

SCENARIOS = (
    "create",
    "build",
    "lost-index",
    "old-index",
    "doubtful-index",
    "damage",
    "read",
    "freeze",
    "gc",
    "evict",
    "leased",
    "compact",
)
SCENARIOS += ("reindex", "import", "export", "repair")
SWEPT = tuple(fault for fault in FAULTS if fault not in ("kill-at-sync", "stop"))
# A fault, a second process, a power cut: what the first one left unsynced, or could not sync.
BEFORE_A_CUT = ("kill", "fsync-eio")


@dataclass(frozen=True)
class Job:
    """A task for a driver, and what is expected of it."""

    task: str
    arguments: dict[str, Any] = field(default_factory=dict)
    seeded: bool = False
    """Whether a bug is in it: then finding nothing is the failure."""

    def __str__(self) -> str:
        return " ".join([self.task, *(f"{name}={value}" for name, value in self.arguments.items())])


def all_jobs(options: argparse.Namespace) -> list[Job]:
    """Everything there is to do, the longest first, so that no driver is left alone with it at the end."""
    cuts = {"randoms": options.randoms, "seed": options.seed}
    jobs = [
        Job("overlap", {"blocks": 1, "seconds": options.seconds}),
        Job("kill_loop", {"rounds": options.rounds, "seed": options.seed}),
    ]
    for scenario in SCENARIOS:
        # Two processes per fault make many states: all of them for the shortest scenario, the harshest for the others.
        some = cuts if scenario == "create" else {**cuts, "brief": True, "randoms": 1}
        jobs += [Job("cut_after_fault", {"scenario": scenario, "fault": fault, **some}) for fault in BEFORE_A_CUT]
    for scenario in SCENARIOS:
        jobs += [Job("cut_everywhere", {"scenario": scenario, "lying": lying, **cuts}) for lying in (False, True)]
    beside = {"cut": True, "seed": options.seed}
    jobs += [Job("meanwhile", {"scenario": scenario, "fault": "fsync-eio", **beside}) for scenario in SCENARIOS]
    for scenario in SCENARIOS:
        # Each of these costs a second process or a disk that is filled: some of the calls of each scenario.
        jobs.append(Job("meanwhile", {"scenario": scenario, "fault": "stop", "stride": 5 * options.every}))
        jobs += [
            Job("fill_up", {"scenario": scenario, "system": system, "stride": stride * options.every})
            for system, stride in (("tmpfs", 3), ("ext4", 11))
        ]
        jobs.append(Job("sweep", {"scenario": f"two users, {scenario}", "fault": "kill", "stride": 3 * options.every}))
    for scenario in SCENARIOS:
        jobs += [Job("sweep", {"scenario": scenario, "fault": fault, "stride": options.every}) for fault in SWEPT]
    for scenario in ("create", "build"):
        for bug in ("no-file-sync", "no-directory-sync"):
            jobs.append(Job("cut_everywhere", {"scenario": scenario, "bug": bug, "randoms": 0}, seeded=True))
        bug = "ignored-short-write"
        jobs.append(Job("sweep", {"scenario": scenario, "fault": "short", "bug": bug}, seeded=True))
    lost = {"scenario": "leased", "fault": "read-short", "bug": "believed-short-read"}
    jobs.append(Job("sweep", lost, seeded=True))
    return [job for job in jobs if options.only in str(job)]


class Progress:
    """What is done and what is left, one line per job, from any thread."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self._total = total
        self.done: list[tuple[Job, Report, float]] = []
        self.broken: list[str] = []
        self.drivers: list[Driver] = []

    def finished(self, job: Job, report: Report, seconds: float) -> None:
        with self._lock:
            self.done.append((job, report, seconds))
            counts = f"{report.checked} checked, {report.violations} violations, {seconds:.1f} s"
            self._say(f"{report.title}: {f'SKIPPED: {report.skipped}' if report.skipped else counts}")

    def failed(self, job: Job, reason: str) -> None:
        with self._lock:
            self.broken.append(f"{job}: {reason}")
            self._say(f"{job}: the harness broke: {reason}")

    def _say(self, text: str) -> None:
        print(f"[{len(self.done) + len(self.broken)}/{self._total}] {text}", file=sys.stderr, flush=True)


def work(jobs: queue.SimpleQueue[Job], progress: Progress) -> None:
    """Do jobs until none is left, in a driver of our own; a driver that breaks is replaced."""
    while True:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return
        try:
            with Driver() as driver:
                progress.drivers.append(driver)
                while True:
                    started = time.monotonic()
                    progress.finished(job, driver.run(job.task, **job.arguments), time.monotonic() - started)
                    job = jobs.get_nowait()
        except queue.Empty:
            return
        except (DriverError, OSError) as error:
            progress.failed(job, str(error))


def is_good(job: Job, report: Report) -> bool:
    """No violation where there is no bug, some where there is one."""
    return bool(report.skipped) or bool(report.violations) == job.seeded


def show(progress: Progress) -> int:
    """Print the table and what was found; the exit code."""
    print(f"{'sweep':<64} {'calls':>8} {'points':>8} {'checked':>8} {'violations':>10} {'seconds':>8} {'CPU':>8}")
    for job, report, seconds in sorted(progress.done, key=lambda done: done[1].title):
        verdict = "" if is_good(job, report) else "  <== not caught" if job.seeded else "  <=="
        numbers = f"{report.points:>8} {report.checked:>8} {report.violations:>10} {seconds:>8.1f} {report.cpu:>8.1f}"
        counts = f"{report.calls or '':>8} {numbers}"
        counts = f"  SKIPPED: {report.skipped}" if report.skipped else counts
        print(f"{report.title:<64} {counts}{'  (seeded)' if job.seeded else ''}{verdict}")
    points, checked = (sum(getattr(done[1], name) for done in progress.done) for name in ("points", "checked"))
    took = sum(done[2] for done in progress.done), sum(done[1].cpu for done in progress.done)
    print(f"{'all':<64} {'':>8} {points:>8} {checked:>8} {'':>10} {took[0]:>8.1f} {took[1]:>8.1f}")
    bad = [(job, report) for job, report, _ in progress.done if not is_good(job, report)]
    for _, report in bad:
        print(report.summary())
    for line in progress.broken:
        print(line)
    return 1 if bad or progress.broken else 0


def main() -> int:
    """Run the long sweep."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=max(1, min(8, os.cpu_count() or 1)), help="drivers at a time")
    parser.add_argument("--only", default="", help="only jobs whose description contains this")
    parser.add_argument("--every", type=int, default=1, help="only every so-manieth call of a sweep is struck")
    parser.add_argument("--randoms", type=int, default=4, help="random states per moment of a power cut")
    parser.add_argument("--seed", type=int, default=0, help="for the random states and moments")
    parser.add_argument("--rounds", type=int, default=200, help="of kill -9")
    parser.add_argument("--seconds", type=float, default=60.0, help="of four writers at once")
    options = parser.parse_args()
    try:
        Driver().close()
    except UnavailableError as error:
        print(f"SKIPPED: {error}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    todo = all_jobs(options)
    for job in todo:
        jobs.put(job)
    progress = Progress(len(todo))
    threads = [threading.Thread(target=work, args=(jobs, progress)) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        # Nothing more to do, and an end to what is being done: then each driver's directories are removed.
        with contextlib.suppress(queue.Empty):
            while True:
                jobs.get_nowait()
        for driver in progress.drivers:
            driver.abort()
        for thread in threads:
            thread.join()
    return show(progress)


if __name__ == "__main__":
    sys.exit(main())
