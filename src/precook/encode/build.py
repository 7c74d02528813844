"""The build: runs encoders over exactly what is missing, and keeps what they make as it goes."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from precook.encode.progress import BuildProgress
from precook.encode.run import BuildOptions, EncoderSpec, run_line
from precook.interrupt import interruption
from precook.plan.entries import Failure, entry_of
from precook.plan.plan import EncoderPlan, Plan
from precook.report import Reporter
from precook.values import Numbers

__all__ = ["BuildOptions", "BuildReport", "EncoderSpec", "build", "default_threads", "joined"]


_TURN = 0.0001
"""Seconds that a thread may keep Python to itself while others wait."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did: what was planned is encoded, reused, failed, changed, or left where it was stopped."""

    encoded: dict[str, int]
    """New entries, by encoder."""
    reused: dict[str, int]
    """Entries that were there already or that another builder made meanwhile, by encoder."""
    failed: tuple[Failure, ...]
    """Sources that cannot be used, and entries that could not be made, now or before."""
    changed: int
    """Entries whose source changed meanwhile and is left to the next build."""
    left: int
    """Entries that were not tried, because the build was stopped."""
    truncated: dict[str, int]
    """Texts that were cut to the encoder's length, by encoder."""
    seconds: float
    bytes: int
    """Of the new entries."""
    peak_memory: int
    """Most memory the process has taken so far."""
    stopped: bool
    """Whether it was stopped before the end; the next build goes on."""


def build(
    plan: Plan, hands: dict[str, EncoderSpec], *, options: BuildOptions, stop: threading.Event, report: Reporter
) -> BuildReport:
    """Encode what a plan has as missing, one encoder after the other; `stop` ends it after the batches in flight."""
    start = time.monotonic()
    ledger = BuildProgress()
    work = {name: rows for name, one in plan.encoders.items() if len(rows := _rows(one, options))}
    if work and not stop.is_set():
        memory = plan.store.memory()
        with interruption(), plan.store.claims() as claims, _BRISK:
            for name, rows in work.items():
                if not stop.is_set():
                    one, hand = plan.encoders[name], hands[name]
                    run_line(plan, one, rows, hand, ledger, memory, claims, options=options, stop=stop, report=report)
    reused = {name: len(one.ready) + ledger.reused[name] for name, one in plan.encoders.items()}
    tried = sum(ledger.encoded.values()) + sum(ledger.reused.values()) + len(ledger.failed) + ledger.changed
    return BuildReport(
        encoded={name: ledger.encoded[name] for name in plan.encoders},
        reused=reused,
        failed=(*_failures(plan, options), *ledger.failed),
        changed=ledger.changed,
        left=sum(len(rows) for rows in work.values()) - tried,
        truncated=dict(ledger.truncated),
        seconds=time.monotonic() - start,
        bytes=ledger.nbytes,
        peak_memory=_peak_memory(),
        stopped=stop.is_set(),
    )


def joined(first: BuildReport, second: BuildReport, plan: Plan) -> BuildReport:
    """One report for two builds, one after the other, the second of which did this plan."""
    known = {(one.encoder, one.key) for one in (*second.failed, *plan.missing)}
    # A failure that the second build knows nothing of: its source is gone, and it is told here or nowhere.
    gone = [one for one in first.failed if one.encoder and (one.encoder, one.key) not in known]
    return BuildReport(
        encoded={name: first.encoded[name] + second.encoded[name] for name in second.encoded},
        reused={name: max(0, second.reused[name] - first.encoded[name]) for name in second.reused},
        failed=(*gone, *second.failed),
        changed=second.changed,
        left=second.left,
        truncated={name: first.truncated.get(name, 0) + second.truncated.get(name, 0) for name in second.encoded},
        seconds=first.seconds + second.seconds,
        bytes=first.bytes + second.bytes,
        peak_memory=second.peak_memory,
        stopped=second.stopped,
    )


class _Brisk:
    """Lets threads take turns often: one that feeds a GPU asks for Python hundreds of times for each batch.

    It holds for the whole process. Of several builds at once the last to end puts back what the first has found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._builds = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._builds:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(_TURN)
            self._builds += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._builds -= 1
            if not self._builds:
                sys.setswitchinterval(self._before)


_BRISK = _Brisk()
"""The one of this process."""


def default_threads() -> int:
    """Threads that read and decode, where nobody says."""
    return max(2, min(16, os.cpu_count() or 1))


def _rows(one: EncoderPlan, options: BuildOptions) -> Numbers:
    """What an encoder has to make."""
    again = list(one.failures) if options.retry_failed else []
    return np.concatenate([one.missing, np.array(again, np.int64)])


def _failures(plan: Plan, options: BuildOptions) -> Iterator[Failure]:
    """What failed before this build and is not tried again."""
    yield from (failure for failure in plan.failed if failure.encoder is None)
    for name, one in plan.encoders.items() if not options.retry_failed else ():
        for row, reason in one.failures.items():
            entry = entry_of(one, row)
            yield Failure(reason, entry.path, entry.concept, name, entry.key)


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
