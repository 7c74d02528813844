"""Progress bars on stderr, for as long as a person is looking."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from precook.cli.output import console
from precook.report import SILENT, Reporter, Task
from precook.units import format_size

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.progress import Task as RichTask
    from rich.text import Text


def reporter() -> Reporter:
    """Shows progress as bars while a person is looking, and nothing otherwise."""
    return ProgressBars() if sys.stderr.isatty() else SILENT


def restore_terminal() -> None:
    """Undo what a bar has done to the terminal, where it gets no chance to."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")  # the cursor, below the bar


class ProgressBars:
    """Progress bars on stderr, with the rate and the time left."""

    def __init__(self, *, stay: bool = False) -> None:
        self._stay = stay

    @contextlib.contextmanager
    def task(self, name: str, *, total: int | None, unit: str) -> Iterator[Task]:
        """A bar for as long as the task lasts, or one that stays."""
        with _progress(unit, stay=self._stay) as progress:
            yield _ProgressBar(progress, progress.add_task(name, total=total, nbytes=0, failed=0))


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


def _progress(unit: str, *, stay: bool) -> Progress:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    def amount(number: float) -> str:
        return format_size(int(number)) if unit == "bytes" else f"{number:,.0f}"

    class Done(ProgressColumn):
        """How much of the whole is done, and how fast it goes."""

        def render(self, task: RichTask) -> Text:
            whole = f" of {amount(task.total)}" if task.total is not None else ""
            speed = f", {amount(task.speed)}/s" if task.speed else ""
            size = f", {format_size(task.fields['nbytes'])}" if task.fields["nbytes"] else ""
            failed = f", {task.fields['failed']:,} failed" if task.fields["failed"] else ""
            told = f"{amount(task.completed)}{whole}{'' if unit == 'bytes' else ' ' + unit}{speed}{size}"
            return Text.assemble(told, (failed, "red"))

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        Done(),
        TimeRemainingColumn(compact=True),
        console=console(sys.stderr),
        transient=not stay,
    )
