"""Batches: items of equal shape together, how many of them at a time, and how much memory they may take until then."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from precook.encode.encoder import Cost
from precook.encode.prepare import Job
from precook.interrupt import Condition

Shape = tuple[int, ...]
"""What the items of a batch share: height and width, of each picture where there are several; nothing for texts."""

FIRST = 8
"""Items with which the search for a good batch size begins, where nobody knows better."""
LARGEST = 4096
_GAIN = 1.03
"""A size must be so much faster than the one before for a still larger one to be tried."""
_WORTH = 1.01
"""And so much to be kept itself."""
_LONG = 0.25
"""Seconds: a batch that takes this long is large enough, whatever a larger one would gain."""
_TRIES = 2
"""Batches of each size that are timed: one that was held up by something else must not decide."""
_ROOM = 2.5
"""Times the memory of a batch that must be free on its device for one of twice the size to be tried."""
_LOOK = 0.1
"""Seconds that a wait for memory takes at most, so that whoever waits can look at whether it is time to stop."""


def count_pixels(shape: Shape) -> int:
    """Pixels of an item of this shape: the sides of its pictures, two by two, and those of a clip."""
    # A clip comes first, with its frames.
    clip = 3 if len(shape) % 2 else 2
    if len(shape) <= clip:
        return math.prod(shape)
    return math.prod(shape[:clip]) + count_pixels(shape[clip:])


@dataclass(frozen=True, slots=True)
class JobBatch:
    """Jobs that are encoded together."""

    jobs: list[Job]
    each: int
    """What the costliest of them costs, in tokens or pixels; the others are padded to it."""

    @property
    def shape(self) -> Shape:
        """What its items share."""
        return self.jobs[0].shape


@dataclass(slots=True)
class _Search:
    """The search for a good size of batches of one shape."""

    work: int
    """Tokens or pixels at a time."""
    over: bool = False
    best: float = 0.0
    """Work in a second, at the size before."""
    rates: list[float] = field(default_factory=list)
    """Of the size at hand."""


class BatchSize:
    """How many items to encode at a time: a fixed number, or found by trying; safe to use from several threads.

    What is tried is an amount of work, in tokens or pixels, for each shape: it is doubled as long as that makes the
    encoder faster, batches stay short and the device has memory for it. Running out of memory ends the search and
    halves the amount, for all shapes, and also a fixed number.
    """

    def __init__(self, wanted: int | None) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted
        self._first = 0
        self._modest: int | None = None
        self._most: int | None = None
        """More work than this did not fit into memory."""
        self._bound: int | None = None
        """More work than this the encoder does not want."""
        self._searches: dict[Shape, _Search] = {}
        self._known: Mapping[Shape, int] = {}
        self.now = wanted or FIRST
        """Items of the batch that was asked for last."""

    def begin(
        self, work: int, known: Mapping[Shape, int], *, modest: int | None = None, bound: int | None = None
    ) -> None:
        """Begin the search with so much work at a time or, for shapes that are known, where it has ended before.

        Where a device wants `modest` batches, no more work than that, but for an item alone; where the encoder has a
        `bound`, never more than that.
        """
        with self._lock:
            self._first, self._known, self._modest, self._bound = work, known, modest, bound
            # Pictures are gathered, and so counted, before the encoder is loaded and anything is known.
            self._searches.clear()

    def found(self) -> dict[Shape, int]:
        """The amount of work that was found for each shape whose search is over."""
        with self._lock:
            return {shape: self._fitting(search) for shape, search in self._searches.items() if search.over}

    def count(self, shape: Shape, each: int) -> int:
        """How many items of a shape to encode at a time that cost so much each."""
        with self._lock:
            self.now = self._count(shape, max(1, each))
            return self.now

    def took(self, batch: JobBatch, seconds: float, cost: Cost | None = None) -> None:
        """Note that a batch took so long, and of its device this."""
        count, each = len(batch.jobs), max(1, batch.each)
        with self._lock:
            if self._wanted is not None or count != self._count(batch.shape, each):
                return
            search = self._searches[batch.shape]
            seconds = seconds if cost is None else cost.seconds
            if search.over or seconds <= 0:
                return
            search.rates.append(count * each / seconds)
            if len(search.rates) < _TRIES:
                return
            rate, search.rates = max(search.rates), []
            if rate < search.best * _GAIN:
                search.over = True
                if rate < search.best * _WORTH:
                    search.work //= 2
            else:
                room = cost is None or cost.free >= _ROOM * cost.memory
                bounded = self._bound is not None and 2 * search.work > self._bound
                if count >= LARGEST or count * each / rate > _LONG or bounded or not room:
                    search.over = True
                else:
                    search.best = rate
                    search.work *= 2

    def too_large(self, batch: JobBatch) -> None:
        """Note that a batch did not fit into the device's memory."""
        count, each = len(batch.jobs), max(1, batch.each)
        with self._lock:
            if self._wanted is not None:
                self._wanted = max(1, min(self._wanted, count // 2))
                return
            half = max(1, count // 2) * each
            self._most = half if self._most is None else min(self._most, half)
            for search in self._searches.values():
                search.over = True

    def _count(self, shape: Shape, each: int) -> int:
        if self._wanted is not None:
            return self._wanted
        search = self._searches.get(shape)
        if search is None:
            search = self._searches[shape] = self._begin(shape, each)
        return max(1, min(LARGEST, self._fitting(search) // each))

    def _fitting(self, search: _Search) -> int:
        """Its amount of work, as far as memory is known to hold that and the encoder wants it."""
        return min([search.work, *(limit for limit in (self._most, self._bound) if limit is not None)])

    def _begin(self, shape: Shape, each: int) -> _Search:
        if (known := self._known.get(shape)) is not None:
            return _Search(known, over=True)
        # What was good for other shapes is near what is good for this one.
        work = max([self._first, FIRST * each, *(search.work for search in self._searches.values() if search.over)])
        if self._modest is not None:
            work = max(each, min(work, self._modest))
        return _Search(work, over=self._most is not None)


class Bins:
    """Gathers jobs by shape until there is a batch of them: so many, or so many bytes."""

    def __init__(self, size: Callable[[Shape], int], nbytes: int) -> None:
        self._size = size
        self._nbytes = nbytes
        self._bins: dict[Shape, list[Job]] = {}
        self._filled: dict[Shape, int] = {}
        """Bytes in each bin."""

    def add(self, job: Job) -> list[list[Job]]:
        """Add a job; the batches that are full with it."""
        shape = job.shape
        jobs = self._bins.setdefault(shape, [])
        jobs.append(job)
        self._filled[shape] = self._filled.get(shape, 0) + job.nbytes
        full = []
        while jobs and (len(jobs) >= self._size(shape) or self._filled[shape] >= self._nbytes):
            full.append(self._take(shape))
        return full

    def largest(self) -> list[Job]:
        """The batch that takes most memory, though it is not full."""
        return self._take(max(self._bins, key=lambda shape: self._filled[shape]))

    def rest(self) -> Iterator[list[Job]]:
        """Everything that is left."""
        while self:
            yield self.largest()

    @property
    def nbytes(self) -> int:
        """Memory that all its jobs take."""
        return sum(self._filled.values())

    def __bool__(self) -> bool:
        return bool(self._bins)

    def _take(self, shape: Shape) -> list[Job]:
        jobs, count = self._bins[shape], self._size(shape)
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
