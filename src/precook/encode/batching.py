"""Batches: items of equal shape together, how many of them at a time, and how much memory they may take until then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from precook.encode.prepare import Job
from precook.interrupt import Condition

FIRST = 8
"""Where the search for a good batch size begins."""
LARGEST = 4096
_GAIN = 1.03
"""A size must be so much faster than the one before for a still larger one to be tried."""
_WORTH = 1.01
"""And so much to be kept itself."""
_LONG = 0.25
"""Seconds: a batch that takes this long is large enough, whatever a larger one would gain."""
_TRIES = 2
"""Batches of each size that are timed: one that was held up by something else must not decide."""
_LOOK = 0.1
"""Seconds that a wait for memory takes at most, so that whoever waits can look at whether it is time to stop."""


class BatchSize:
    """How many items to encode at a time: a fixed number, or found by trying; safe to use from several threads.

    While it searches, the size is doubled as long as that makes the encoder faster and batches stay short. Running out
    of memory ends the search and halves the size, also a fixed one.
    """

    def __init__(self, wanted: int | None) -> None:
        self._lock = threading.Lock()
        self._size = wanted or FIRST
        self._searching = wanted is None
        self._best = 0.0
        self._rates: list[float] = []

    @property
    def now(self) -> int:
        """The size to use."""
        return self._size

    def begin(self, count: int) -> None:
        """Begin the search with so many items."""
        with self._lock:
            if self._searching and not self._best and not self._rates:
                self._size = max(self._size, count)

    def took(self, count: int, work: float, seconds: float) -> None:
        """Note that a batch of so many items, which were so much work, took so long."""
        with self._lock:
            if not self._searching or count != self._size or seconds <= 0:
                return
            self._rates.append(work / seconds)
            if len(self._rates) < _TRIES:
                return
            rate, self._rates = max(self._rates), []
            if rate < self._best * _GAIN:
                self._searching = False
                if rate < self._best * _WORTH:
                    self._size //= 2
            elif self._size >= LARGEST or work / rate > _LONG:
                self._searching = False
            else:
                self._best = rate
                self._size *= 2

    def too_large(self, count: int) -> None:
        """Note that so many items did not fit into the device's memory."""
        with self._lock:
            self._searching = False
            self._size = max(1, min(self._size, count // 2))


class Bins:
    """Gathers jobs by shape until there is a batch of them: so many, or so many bytes."""

    def __init__(self, size: Callable[[], int], nbytes: int) -> None:
        self._size = size
        self._nbytes = nbytes
        self._bins: dict[tuple[int, ...], list[Job]] = {}
        self._filled: dict[tuple[int, ...], int] = {}
        """Bytes in each bin."""

    def add(self, job: Job) -> list[list[Job]]:
        """Add a job; the batches that are full with it."""
        shape = job.shape
        jobs = self._bins.setdefault(shape, [])
        jobs.append(job)
        self._filled[shape] = self._filled.get(shape, 0) + job.nbytes
        full = []
        while jobs and (len(jobs) >= self._size() or self._filled[shape] >= self._nbytes):
            full.append(self._take(shape))
        return full

    def largest(self) -> list[Job]:
        """The batch that takes most memory, though it is not full."""
        return self._take(max(self._bins, key=lambda shape: self._filled[shape]))

    def rest(self) -> Iterator[list[Job]]:
        """Everything that is left."""
        while self:
            yield self.largest()

    def __bool__(self) -> bool:
        return bool(self._bins)

    def _take(self, shape: tuple[int, ...]) -> list[Job]:
        jobs, count = self._bins[shape], self._size()
        batch = jobs[:count]
        del jobs[:count]
        self._filled[shape] -= sum(job.nbytes for job in batch)
        if not jobs:
            del self._bins[shape], self._filled[shape]
        return batch


class MemoryBudget:
    """How much memory is left for sources that are on their way to the encoder; safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)

    def has(self, nbytes: int) -> bool:
        """Whether so much fits; where nothing is taken anything does: a picture larger than the budget goes alone."""
        return self._taken == 0 or self._taken + nbytes <= self._size

    def take(self, nbytes: int) -> None:
        """Count so much as taken."""
        with self._lock:
            self._taken += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count it as free."""
        with self._lock:
            self._taken -= nbytes
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait a moment for somebody to give something back."""
        with self._lock:
            self._changed.wait(_LOOK)
