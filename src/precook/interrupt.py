"""Interruption: Ctrl-C comes out as what it is, at whatever moment it is pressed.

Every wait of Python's for a condition, and so for an event, a future, a queue or the start of a thread, lets go of its
lock one step before it is ready for an exception. Ctrl-C between the two leaves a block whose lock is not held any
more, and what comes out of that is `RuntimeError: cannot release un-acquired lock`. On a busy machine that is seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class Condition(threading.Condition):
    """A condition whose block Ctrl-C leaves as itself; for waits of our own."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        except RuntimeError:
            if not isinstance(error, KeyboardInterrupt):
                raise


@contextmanager
def interruption() -> Iterator[None]:
    """Raise the KeyboardInterrupt that the complaint of a lock hides; for waits inside of Python's own classes."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
