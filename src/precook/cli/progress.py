"""Progress while a command works: bars on a terminal, and of a build also plain lines off it or events for programs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from precook.cli import output
from precook.encode.stages import find_limit
from precook.report import SILENT, Reporter, Task
from precook.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.progress import Task as RichTask
    from rich.text import Text

LINES_EVERY = 5.0
EVENTS_EVERY = 1.0
"""Seconds between two lines or two events of an encoder, at the least."""
_ENTRIES = "entries"
"""The unit of an encoder's task; tasks of the plan count files and bytes."""
_THE: dict[str | None, str] = {"device": "the device", "disk": "the disk"}


def reporter() -> Reporter:
    """Shows progress as bars while a person is looking, and nothing otherwise."""
    return ProgressBars() if sys.stderr.isatty() else SILENT


def build_reporter(*, events: bool) -> Reporter:
    """Shows a build's progress: as events, as bars that stay for encoders, or as lines where there is no terminal."""
    if events:
        return PacedReporter(_print_event, every=EVENTS_EVERY)
    if sys.stderr.isatty():
        return ProgressBars(stays=lambda unit: unit == _ENTRIES)
    return PacedReporter(lambda count: output.tell(str(count)), every=LINES_EVERY)


def restore_terminal() -> None:
    """Undo what a bar has done to the terminal, before the process ends without cleaning up."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")  # the cursor, below the bar


def format_rate(rate: float) -> str:
    """Three digits, or all before the point."""
    return f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}"  # noqa: PLR2004 - else 1.2e+03


def format_busy(shares: Mapping[str, float]) -> str:
    """What limits a build, and how busy each stage is, the busiest first."""
    limit = find_limit(shares)
    each = sorted(shares.items(), key=lambda item: -item[1])
    busy = ", ".join(f"{stage} {share:.0%}" for stage, share in each)
    return f"limited by {_THE.get(limit, limit)}: busy {busy}" if limit is not None else f"busy {busy}"


def rounded(shares: Mapping[str, float]) -> dict[str, float]:
    """As programs read it."""
    return {stage: round(share, 3) for stage, share in shares.items()}


class ProgressBars:
    """Progress bars on stderr, with the rate and the time left; a bar goes at its end unless its unit `stays`.

    Tasks may overlap, and be begun and ended by different threads: a terminal has room for one display, in which each
    has its line.
    """

    def __init__(self, *, stays: Callable[[str], bool] = lambda unit: False) -> None:  # noqa: ARG005
        self._stays = stays
        self._lock = threading.Lock()
        self._display: Progress | None = None
        self._open = 0
        """Tasks that have not ended."""

    @contextlib.contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Task]:
        """A bar for as long as the task lasts."""
        stays = self._stays(unit)
        with self._lock:
            if self._display is None:
                self._display = _rich_progress()
                self._display.start()
            display = self._display
            self._open += 1
            # One that stays is enough for the display to stay: the lines of the others are taken out of it.
            display.live.transient = display.live.transient and not stays
            number = display.add_task(name, total=total, unit=unit, nbytes=0, failed=0, limit="")
        try:
            yield _ProgressBar(display, number)
        finally:
            with self._lock:
                if not stays and not display.live.transient:
                    display.remove_task(number)
                self._open -= 1
                if not self._open:
                    self._display = None
                    display.stop()


class _ProgressBar:
    def __init__(self, progress: Progress, number: Any) -> None:
        self._progress = progress
        self._number = number
        self._lock = threading.Lock()
        self._nbytes = self._failed = 0

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        with self._lock:
            self._nbytes += nbytes
            self._failed += failed
            self._progress.update(self._number, advance=amount, nbytes=self._nbytes, failed=self._failed)

    def busy(self, shares: dict[str, float]) -> None:
        limit = find_limit(shares)
        # The line of a terminal is short: what limits it, and nothing else.
        self._progress.update(self._number, limit="" if limit is None else f", {limit} {shares[limit]:.0%} busy")


def _rich_progress() -> Progress:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    def amount(unit: str, number: float) -> str:
        return format_size(int(number)) if unit == "bytes" else f"{number:,.0f}"

    class DoneColumn(ProgressColumn):
        """How much of the whole is done, and how fast it goes."""

        def render(self, task: RichTask) -> Text:
            unit = task.fields["unit"]
            whole = f" of {amount(unit, task.total)}" if task.total is not None else ""
            speed = f", {amount(unit, task.speed)}/s" if task.speed else ""
            size = f", {format_size(task.fields['nbytes'])}" if task.fields["nbytes"] else ""
            failed = f", {task.fields['failed']:,} failed" if task.fields["failed"] else ""
            done = f"{amount(unit, task.completed)}{whole}{'' if unit == 'bytes' else ' ' + unit}{speed}{size}"
            return Text.assemble(done, (failed, "red"), "" if task.finished else task.fields["limit"])

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DoneColumn(),
        TimeRemainingColumn(compact=True),
        console=output.console(sys.stderr),
        transient=True,
    )


class EncoderCount:
    """How far an encoder is: a task that says so at most every so many seconds, from any thread."""

    def __init__(self, encoder: str, total: int | None, pace: PacedReporter) -> None:
        self.encoder = encoder
        self.total = total
        self.done = self.failed = self.nbytes = 0
        self.shares: dict[str, float] = {}
        """How busy each stage is, as far as that was told."""
        self._pace = pace
        self._start = self._said = pace.clock()
        self._lock = threading.Lock()

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        """So much more is done."""
        with self._lock:
            self.done += amount
            self.nbytes += nbytes
            self.failed += failed
            now = self._pace.clock()
            # Nothing is said when all is done: the end of the task says it.
            if now - self._said >= self._pace.every and self.done != self.total:
                self._said = now
                self._pace.say(self)

    def busy(self, shares: dict[str, float]) -> None:
        """How busy each stage is."""
        with self._lock:
            self.shares = shares

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._pace.clock() - self._start

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
        line = ", ".join(parts)
        # Of less than a moment there is nothing to tell.
        return f"{line}; {format_busy(self.shares)}" if self.shares and seconds >= EVENTS_EVERY else line


class PacedReporter:
    """Says how far each encoder is, at most every so many seconds, and once at its end."""

    def __init__(
        self, say: Callable[[EncoderCount], None], *, every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.say = say
        self.every = every
        self.clock = clock

    @contextlib.contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Task]:
        """What an encoder does is said; what else a build does is shown as by any command."""
        if unit != _ENTRIES:
            with reporter().task(name, total=total, unit=unit) as task:
                yield task
            return
        count = EncoderCount(name, total, self)
        try:
            yield count
        finally:
            self.say(count)


def _print_event(count: EncoderCount) -> None:
    output.event(
        "progress",
        {
            "encoder": count.encoder,
            "done": count.done,
            "total": count.total,
            "failed": count.failed,
            "bytes": count.nbytes,
            "seconds": round(count.seconds, 3),
            "busy": rounded(count.shares),
            "limit": find_limit(count.shares),
        },
    )
