"""Interruption: Ctrl-C comes out as what it is, at whatever moment it is pressed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruption() -> Iterator[None]:
    """Raise the KeyboardInterrupt that the complaint of a lock hides.

    Every wait of Python's for a condition, a future or a queue lets go of its lock one step before it is ready for an
    exception. Ctrl-C between the two leaves a block whose lock is not held any more, and what comes out of that is
    `RuntimeError: cannot release un-acquired lock`. On a busy machine that is seen.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
