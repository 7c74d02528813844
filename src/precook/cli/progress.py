"""A build's progress: a bar for each encoder on a terminal, plain lines off it, events for programs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from precook.cli import bars, output
from precook.report import Reporter, Task
from precook.units import format_count, format_duration, format_size

LINES_EVERY = 5.0
EVENTS_EVERY = 1.0
"""Seconds between two, at the least."""
_ENTRIES = "entries"
"""The unit of an encoder's task; tasks of the plan count files and bytes."""


def format_rate(rate: float) -> str:
    """Three digits, or all before the point."""
    return f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}"  # noqa: PLR2004 - else 1.2e+03


class Count:
    """How far an encoder is."""

    def __init__(self, encoder: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.encoder = encoder
        self.total = total
        self.done = self.failed = self.nbytes = 0
        self._clock = clock
        self._start = clock()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._start

    def __str__(self) -> str:
        seconds = self.seconds
        rate = self.done / seconds if seconds > 0 else 0
        whole = "" if self.total is None else f"{self.done:,} of "
        parts = [f"{self.encoder}: {whole}{format_count(self.done if self.total is None else self.total, 'entry')}"]
        if rate:
            parts.append(f"{format_rate(rate)}/s")
        if self.nbytes:
            parts.append(format_size(self.nbytes))
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if rate and self.total is not None and self.done < self.total:
            parts.append(f"about {format_duration((self.total - self.done) / rate)} left")
        return ", ".join(parts)


class Paced:
    """Says how far each encoder is, at most every so many seconds, and once at its end; from any thread."""

    def __init__(
        self, say: Callable[[Count], None], *, every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._every = every
        self._clock = clock

    @contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Task]:
        """What an encoder does is said; what else a build does is shown as by any command."""
        if unit != _ENTRIES:
            with bars.reporter().task(name, total=total, unit=unit) as task:
                yield task
            return
        count = Count(name, total, self._clock)
        try:
            yield _PacedTask(count, self._say, self._every, self._clock)
        finally:
            self._say(count)


class _PacedTask:
    def __init__(self, count: Count, say: Callable[[Count], None], every: float, clock: Callable[[], float]) -> None:
        self._count = count
        self._say = say
        self._every = every
        self._clock = clock
        self._said = clock()
        self._lock = threading.Lock()

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        with self._lock:
            self._count.done += amount
            self._count.nbytes += nbytes
            self._count.failed += failed
            now = self._clock()
            # The last one is said at the end.
            if now - self._said >= self._every and self._count.done != self._count.total:
                self._said = now
                self._say(self._count)


class _EncoderBars:
    """Bars that stay for encoders, bars that go for the rest."""

    def task(self, name: str, *, total: int | None, unit: str) -> AbstractContextManager[Task]:
        return bars.ProgressBars(stay=unit == _ENTRIES).task(name, total=total, unit=unit)


def build_reporter(*, events: bool) -> Reporter:
    """Shows a build's progress in the way that suits whoever looks."""
    if events:
        return Paced(_tell_event, every=EVENTS_EVERY)
    return _EncoderBars() if sys.stderr.isatty() else Paced(_tell_line, every=LINES_EVERY)


def _tell_line(count: Count) -> None:
    output.tell(str(count))


def _tell_event(count: Count) -> None:
    output.event(
        "progress",
        {
            "encoder": count.encoder,
            "done": count.done,
            "total": count.total,
            "failed": count.failed,
            "bytes": count.nbytes,
            "seconds": round(count.seconds, 3),
        },
    )
