"""Risk: how much of what was encoded a kill may cost."""

from __future__ import annotations

import threading
from collections import deque

_AT_RISK = 20
"""One batch in so many may be encoded and not yet durable."""
_CHEAP = 0.00005
"""Seconds: no encoder that computes anything is done with a batch so soon."""
_RECENT = 8
"""Batches of which the quickest says what an encoder costs: other threads hold up some of them, but not all."""


class Risk:
    """Says when what was encoded is to be made durable; safe to use from several threads.

    The first batches one by one, then a small part of all there were: few packs, and little to do again. What costs
    next to nothing is sooner made again than waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = self._durable = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def too_high(self, seconds: float) -> bool:
        """One more batch is encoded, which took so long; whether all of them are to be made durable now."""
        with self._lock:
            self._batches += 1
            self._recent.append(seconds)
            due = min(self._recent) >= _CHEAP and self._batches - self._durable > self._batches // _AT_RISK
            if due:
                self._durable = self._batches
            return due
