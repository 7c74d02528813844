"""Batches: items of equal shape together, and how many of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from precook.encode.prepare import Job

FIRST = 8
"""Where the search for a good batch size begins."""
_GAIN = 1.05
"""A larger size must be so much faster to be worth its memory."""
_LARGEST = 4096


class BatchSize:
    """How many items to encode at a time: a fixed number, or found by trying; safe to use from several threads.

    While it searches, the size is doubled as long as that makes the encoder faster. Running out of memory ends the
    search and halves the size, also a fixed one.
    """

    def __init__(self, wanted: int | None) -> None:
        self._lock = threading.Lock()
        self._size = wanted or FIRST
        self._searching = wanted is None
        self._best = 0.0

    @property
    def now(self) -> int:
        """The size to use."""
        return self._size

    def took(self, count: int, seconds: float) -> None:
        """A batch of so many items took so long."""
        with self._lock:
            if not self._searching or count != self._size or seconds <= 0:
                return
            rate = count / seconds
            if rate < self._best * _GAIN:
                self._size //= 2
                self._searching = False
            elif self._size >= _LARGEST:
                self._searching = False
            else:
                self._best = rate
                self._size *= 2

    def too_large(self, count: int) -> None:
        """So many items did not fit into the device's memory."""
        with self._lock:
            self._searching = False
            self._size = max(1, min(self._size, count // 2))


class Bins:
    """Gathers jobs by shape until there is a batch of them."""

    def __init__(self, size: BatchSize) -> None:
        self._size = size
        self._bins: dict[tuple[int, ...], list[Job]] = {}
        self.nbytes = 0
        """Memory of the jobs that are waiting here."""

    def add(self, job: Job) -> Iterator[list[Job]]:
        """Add a job; the batches that are full with it."""
        jobs = self._bins.setdefault(job.shape, [])
        jobs.append(job)
        self.nbytes += job.nbytes
        while len(jobs) >= self._size.now:
            yield self._take(job.shape, self._size.now)

    def fullest(self) -> list[Job]:
        """The largest batch there is, though it is not full."""
        shape = max(self._bins, key=lambda shape: len(self._bins[shape]))
        return self._take(shape, self._size.now)

    def rest(self) -> Iterator[list[Job]]:
        """Everything that is left."""
        for shape in list(self._bins):
            while self._bins[shape]:
                yield self._take(shape, self._size.now)

    def __bool__(self) -> bool:
        return any(self._bins.values())

    def _take(self, shape: tuple[int, ...], count: int) -> list[Job]:
        jobs = self._bins[shape]
        batch = jobs[:count]
        del jobs[:count]
        self.nbytes -= sum(job.nbytes for job in batch)
        return batch
