"""One epoch: batches made ahead by threads, handed out in order."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

from precook.errors import FeedError
from precook.feed.batch import BatchMaker
from precook.feed.device import is_cuda, on_device
from precook.feed.options import FeedOptions
from precook.feed.sampler import Schedule
from precook.interrupt import interruption
from precook.threads import ThreadPool

Batch = dict[str, Any]

Handed = list[Batch]
"""A batch on its way out, or none. Whoever takes it empties the list: what a trainer lets go of, nothing here keeps."""


class Epoch:
    """The batches of one epoch; every iteration begins with the first of them."""

    def __init__(
        self,
        batches: BatchMaker,
        schedule: Schedule,
        number: int,
        options: FeedOptions,
        *,
        rank: int,
        start: int,
        device: str | None,
        on_batch: Callable[[int, int], None],
    ) -> None:
        self._batches = batches
        self._schedule = schedule
        self._number = number
        self._options = options
        self._rank = rank
        self._start = start
        self._device = device
        self._pinned = device is not None and is_cuda(device)
        self._on_batch = on_batch
        """Called with the epoch and the number of batches of it that were handed out."""
        self._unread = batches.unread
        self._small = batches.small
        # Threads that make small batches beside each other pass Python to and fro: one alone is quicker.
        self._threads = min(options.threads, 1) if self._small else options.threads

    def __len__(self) -> int:
        return self._schedule.steps - self._start

    def __iter__(self) -> Iterator[Batch]:
        made = self._make_all()
        try:
            coming: Iterator[tuple[int, Handed]] = made
            if self._device is not None:
                # Emptied on the way: on a CPU a batch that was moved is the same memory.
                coming = on_device(((step, [handed.pop()]) for step, handed in made), self._device)
            for step, handed in coming:
                self._on_batch(self._number, step + 1)
                yield handed.pop()
            self._on_batch(self._number + 1, 0)
        finally:
            made.close()

    def _make_all(self) -> Generator[tuple[int, Handed], None, None]:
        """Every batch and its number, at most `prefetch` of them ahead of whoever takes them."""
        steps = range(self._start, self._schedule.steps)
        if not self._threads:
            for step in steps:
                if handed := self._make(step, self._prepare(step)):
                    yield step, handed
            return
        waiting: deque[tuple[int, Future[Handed]]] = deque()
        coming = iter(steps)
        pool = ThreadPool(self._threads, thread_name_prefix="precook-feed")
        # Also at the end of the process, for an iterator that nobody took to its end: later, modules are gone.
        end = weakref.finalize(waiting, pool.shutdown, wait=True, cancel_futures=True)
        try:
            while True:
                for coming_step in islice(coming, self._options.prefetch - len(waiting)):
                    # Not in a variable: nothing here keeps a batch that a trainer has let go of.
                    made = pool.submit(self._make, coming_step, self._prepare(coming_step))
                    waiting.append((coming_step, made))
                if not waiting:
                    return
                step, future = waiting.popleft()
                with interruption():
                    handed = future.result()
                if handed:
                    yield step, handed
        finally:
            end()

    def _prepare(self, step: int) -> Callable[[], Batch | None]:
        """Begin a batch; what is returned makes the rest of it, in any thread."""
        given = self._schedule.items, self._schedule.batch(step, self._rank)
        if self._small:
            # Next to nothing would be left for the thread: it may as well do all.
            return partial(self._batches.make, *given, pinned=self._pinned)
        return self._batches.prepare(*given, pinned=self._pinned)

    def _make(self, step: int, finish: Callable[[], Batch | None]) -> Handed:
        ahead = step + self._options.prefetch
        if self._unread and ahead < self._schedule.steps:
            self._batches.announce(self._schedule.items, self._schedule.batch(ahead, self._rank))
        batch = finish()
        if batch is None:
            check_lost(self._schedule.ranks)
            return []
        return [batch]


def check_lost(ranks: int) -> None:
    """Refuse to go on without a batch that cannot be had where others train on theirs: they would wait for ever."""
    if ranks > 1:
        hint = "build, so that nothing is missing, or feed the project, which leaves such samples out on every rank"
        raise FeedError(f"no sample of a batch can be had, and the other {ranks - 1} ranks have theirs", hint=hint)
