"""Progress: what library code tells whoever asked, without knowing how it is shown."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Task(Protocol):
    """A piece of work under way."""

    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        """So much more is done; `failed` of it in vain, and the rest made so many bytes where it makes any."""


class Reporter(Protocol):
    """Receives progress; the command line shows bars, a library caller usually nothing."""

    def task(self, name: str, *, total: int | None, unit: str) -> AbstractContextManager[Task]:
        """Begin a task of `total` units ("bytes", "entries", …), if that is known."""


class _Silence:
    def advance(self, amount: int = 1, *, nbytes: int = 0, failed: int = 0) -> None:
        pass

    def task(self, name: str, *, total: int | None, unit: str) -> AbstractContextManager[Task]:  # noqa: ARG002
        return nullcontext(self)


SILENT: Reporter = _Silence()
"""A reporter that tells nobody."""
