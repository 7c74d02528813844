"""Progress: library code reports what it does, without knowing how that is shown."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Task(Protocol):
    """A piece of work under way."""

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        """`amount` more units are done: `failed` of them failed, and the others made `nbytes` bytes in all."""


class BusyTask(Task, Protocol):
    """A task that is also told what keeps the work from being faster; a task need not be one."""

    def busy(self, shares: dict[str, float]) -> None:
        """How busy `reading`, `decoding`, the `device` and the `disk` were so far, each from 0 to 1."""


class Reporter(Protocol):
    """Receives progress; the command line shows bars, a library caller usually nothing.

    A build may have several tasks at a time, begun and ended by different threads.
    """

    def task(self, name: str, *, total: int | None, unit: str) -> AbstractContextManager[Task]:
        """Begin a task of `total` units ("bytes", "entries", …), if that is known."""


class _Silence:
    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        pass

    def task(self, name: str, *, total: int | None, unit: str) -> AbstractContextManager[Task]:  # noqa: ARG002
        return nullcontext(self)


SILENT: Reporter = _Silence()
"""A reporter that shows nothing."""
