"""Interruption: Ctrl-C comes out as what it is, at whatever moment it is pressed.

Every wait of Python's for a condition, and so for an event, a future, a queue or the start of a thread, lets go of its
lock one step before it is ready for an exception. Ctrl-C between the two leaves a block whose lock is not held any
more, and what comes out of that is `RuntimeError: cannot release un-acquired lock`. On a busy machine that is seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Condition(threading.Condition):
    """A condition of ours: whatever ends a wait, the lock is held after it.

    Taken by its lock, `with lock:`, not by itself: entering and leaving a condition is Python code, and Ctrl-C inside
    of that leaves the lock held for ever; a lock is taken and let go in one step.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until somebody notifies; whether somebody did."""
        try:
            return super().wait(timeout)
        except BaseException:
            try:
                self.notify(0)
            except RuntimeError:  # the lock is not held
                self.acquire()
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
