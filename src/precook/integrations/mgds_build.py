"""Building what a cache misses: in the pool that all modules share, item by item, until all is done or it must stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field

from precook.errors import EncodeError, PrecookError, StoppedError, StoreError, printable
from precook.report import Reporter

_LOOPS = 64
"""Most threads of the pool that work on one build; loops beyond the pool's size find nothing left to do."""
_PATIENCE = 0.1
"""Seconds after which the stop callback is asked again."""
_HOPELESS = 20
"""So many failures, and more than successes: the encoder is at fault, not the samples."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class BuildTask:
    """One sample in one variation."""

    index: int
    variation: int
    name: str
    """For messages: the path of its source."""


@dataclass(slots=True)
class _Work:
    jobs: Iterator[BuildTask]
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: bool = False
    done: int = 0
    failed: list[tuple[BuildTask, Exception]] = field(default_factory=list)


def build(
    jobs: Sequence[BuildTask],
    make: Callable[[BuildTask], None],
    executor: Executor,
    *,
    stop: Callable[[], bool] | None,
    report: Reporter,
) -> None:
    """Make every job; one that fails does not keep the others from being made, and is named at the end.

    The pool stays usable whatever happens: only our own loops are ended, each after the item in its hands.
    """
    work = _Work(iter(jobs))
    with report.task("caching", total=len(jobs), unit="samples") as task:

        def loop() -> None:
            while (job := _next(work)) is not None:
                try:
                    make(job)
                except StoreError:
                    work.over = True  # a full disk is no fault of a sample's
                    raise
                except Exception as error:  # noqa: BLE001 - reported with the sample's name at the end
                    _fail(work, job, error)
                with work.lock:
                    work.done += 1
                    task.advance()

        futures = [executor.submit(loop) for _ in range(min(_LOOPS, len(jobs)))]
        try:
            _wait(futures, work, stop)
        finally:
            work.over = True
            for future in futures:
                future.cancel()
            wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()
    if work.failed:
        raise _failure(work, len(jobs))


def _wait(futures: Sequence[Future[None]], work: _Work, stop: Callable[[], bool] | None) -> None:
    pending: set[Future[None]] = set(futures)
    while pending:
        _, pending = wait(pending, timeout=_PATIENCE)
        if pending and stop is not None and stop():
            raise StoppedError(f"stopped after {work.done} samples; what was made is kept")


def _next(work: _Work) -> BuildTask | None:
    with work.lock:
        hopeless = len(work.failed) >= _HOPELESS and 2 * len(work.failed) > work.done
        return None if work.over or hopeless else next(work.jobs, None)


def _fail(work: _Work, job: BuildTask, error: Exception) -> None:
    with work.lock:
        work.failed.append((job, error))


def _failure(work: _Work, total: int) -> EncodeError:
    first = work.failed[0][1]
    told = [f"{printable(job.name)}: {_told(error)}" for job, error in work.failed[:_SHOWN]]
    more = len(work.failed) - len(told)
    rest = f"; and {more} more" if more else ""
    kept = f"{work.done - len(work.failed)} of {total} are made and kept"
    hint = "mend or remove these samples, then start again"
    error = EncodeError(f"samples could not be cached: {'; '.join(told)}{rest} ({kept})", hint=hint)
    error.__cause__ = first
    return error


def _told(error: Exception) -> str:
    return error.message if isinstance(error, PrecookError) else f"{type(error).__name__}: {error}"
