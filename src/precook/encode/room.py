"""Room: how much memory what is on its way may take."""

from __future__ import annotations

import threading

_LOOK = 0.1
"""Seconds between two looks at whether it is time to stop."""


class Room:
    """How much memory is left for what is on its way; safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._changed = threading.Condition()

    def has(self, nbytes: int) -> bool:
        """Whether so much fits; anything does where nothing else is."""
        return self._taken == 0 or self._taken + nbytes <= self._size

    def take(self, nbytes: int) -> None:
        """Count so much as taken."""
        with self._changed:
            self._taken += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count it as free."""
        with self._changed:
            self._taken -= nbytes
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait a moment for somebody to give something back."""
        with self._changed:
            self._changed.wait(_LOOK)
