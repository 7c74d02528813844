"""One epoch: batches made ahead by threads, handed out in order."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from typing import Any

from precook.feed.batch import Assembly
from precook.feed.device import is_cuda, on_device
from precook.feed.sampler import Schedule

Batch = dict[str, Any]

Handed = list[Batch]
"""A batch on its way out, or none. Whoever takes it empties the list: what a trainer lets go of, nothing here keeps."""


class Epoch:
    """The batches of one epoch; every iteration begins with the first of them."""

    def __init__(
        self,
        assembly: Assembly,
        plan: Schedule,
        number: int,
        *,
        rank: int,
        start: int,
        prefetch: int,
        threads: int,
        device: str | None,
        stands_at: Callable[[int, int], None],
    ) -> None:
        self._assembly = assembly
        self._plan = plan
        self._number = number
        self._rank = rank
        self._start = start
        self._prefetch = prefetch
        self._threads = threads
        self._device = device
        self._stands_at = stands_at
        self._unread = assembly.unread
        # Threads that make small batches at once pass Python to and fro for every entry.
        self._turn = threading.Lock() if assembly.small else nullcontext()

    def __len__(self) -> int:
        return self._plan.steps - self._start

    def __iter__(self) -> Iterator[Batch]:
        made = self._made()
        try:
            for step, handed in made if self._device is None else on_device(made, self._device):
                self._stands_at(self._number, step + 1)
                yield handed.pop()
            self._stands_at(self._number + 1, 0)
        finally:
            made.close()

    def _made(self) -> Generator[tuple[int, Handed], None, None]:
        """Every batch and its number, at most `prefetch` of them ahead of whoever takes them."""
        steps = range(self._start, self._plan.steps)
        if not self._threads:
            for step in steps:
                if handed := self._make(step):
                    yield step, handed
            return
        waiting: deque[tuple[int, Future[Handed]]] = deque()
        coming = iter(steps)
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="precook-feed")
        # Also at the end of the process, for an iterator that nobody took to its end: later, modules are gone.
        end = weakref.finalize(waiting, pool.shutdown, wait=True, cancel_futures=True)
        try:
            while True:
                for coming_step in islice(coming, self._prefetch - len(waiting)):
                    waiting.append((coming_step, pool.submit(self._make, coming_step)))
                if not waiting:
                    return
                step, future = waiting.popleft()
                if handed := future.result():
                    yield step, handed
        finally:
            end()

    def _make(self, step: int) -> Handed:
        plan = self._plan
        ahead = step + self._prefetch
        if self._unread and ahead < plan.steps:
            self._assembly.announce(plan.items, plan.batch(ahead, self._rank))
        with self._turn:
            batch = self._assembly.make(plan.items, plan.batch(step, self._rank), pinned=is_cuda(self._device))
        return [] if batch is None else [batch]
