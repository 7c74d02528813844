"""The staged pipeline: a GPU gets its next batch before the last is back, and storing results never keeps it waiting.

Four threads for each device: one sorts the jobs that come next, one stages and launches batches, two land them. What a
batch needs beforehand (tokens, pixels in memory that the device can read) is made by the thread that launches, while
the device works on the batch before.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from precook import threads
from precook.encode.batching import JobBatch
from precook.encode.encoder import StagedBatch
from precook.encode.prepare import Job
from precook.encode.worker import Launched, Lot, Worker

_IN_FLIGHT = 3
"""Batches that are launched and not yet stored: the device works on one, one waits for it, one is being stored."""
_LANDING = 2
"""Threads that land batches: while one waits for the disk, the other takes results apart."""
_LOOK = 0.1
"""Seconds between two looks at whether it is time to stop."""


class StagedPipeline:
    """Runs a worker's batches; `run` ends when there is no more to do and everything launched has landed."""

    def __init__(
        self, worker: Worker, following: Callable[[], list[Job] | None], fail: Callable[[BaseException], None]
    ) -> None:
        self._worker = worker
        self._following = following
        """The next jobs, when there are some; None at the end."""
        self._fail = fail
        """Takes what ends the work for good."""
        self._sorted: queue.Queue[Lot | None] = queue.Queue(maxsize=1)
        self._launched: queue.SimpleQueue[Launched | None] = queue.SimpleQueue()
        self._slots = threading.Semaphore(_IN_FLIGHT)
        self._ordering = threading.RLock()
        """Held by the thread that gives the device its orders: compiled code is for one thread at a time, and a batch
        that failed is encoded again by one that lands batches."""
        self._lock = threading.Lock()
        self._last_landed = 0.0
        """When the device was last done with a batch."""

    def run(self, name: str) -> None:
        """Launch batch after batch, in the calling thread; what ends it early goes to `fail`."""
        helpers = [threading.Thread(target=self._sort, name=f"{name}-sort", daemon=True)]
        helpers += [
            threading.Thread(target=self._land_all, name=f"{name}-land-{number}", daemon=True)
            for number in range(_LANDING)
        ]
        try:
            for helper in helpers:
                threads.start(helper)
            while (lot := self._sorted.get()) is not None:
                for batch in self._worker.batches(lot):
                    self._launch(batch)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)
        finally:
            for _ in range(_LANDING):
                self._launched.put(None)
            for helper in helpers:
                while helper.is_alive():
                    # What was sorted and will not be launched goes, or the thread that sorts would wait for ever.
                    with suppress(queue.Empty):
                        self._sorted.get_nowait()
                    helper.join(_LOOK)

    def _sort(self) -> None:
        """Sort the jobs that come next, one lot ahead."""
        try:
            while (jobs := self._following()) is not None:
                self._sorted.put(self._worker.ordered(jobs))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)
        finally:
            self._sorted.put(None)

    def _launch(self, batch: JobBatch) -> None:
        while not self._slots.acquire(timeout=_LOOK):
            if self._worker.over():
                return
        with self._ordering:
            self._worker.compile_if_due(batch)
        start = time.perf_counter()
        launched: list[StagedBatch] = []

        def launch() -> list[Any]:
            staged = self._worker.encoder.stage([job.item for job in batch.jobs])
            staged.launch()
            launched.append(staged)
            return [None] * len(batch.jobs)

        with self._ordering:
            failure = self._worker.attempt(batch.jobs, launch)
        if isinstance(failure, Exception):
            try:
                with self._ordering:
                    self._worker.failed(batch, failure)
            finally:
                self._slots.release()
        else:
            now = time.perf_counter()
            # Asked now: compiled code that fails with a batch is given up for it and all others.
            compiled = self._worker.encoder.compiled
            self._launched.put(Launched(batch, launched[0], compiled, start, now - start))

    def _land_all(self) -> None:
        try:
            while (launched := self._launched.get()) is not None:
                try:
                    self._land(launched)
                finally:
                    self._slots.release()
                    # Or its results would stay in memory until the next batch has landed.
                    del launched
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)

    def _land(self, launched: Launched) -> None:
        batch = launched.batch
        trees = self._worker.attempt(batch.jobs, launched.staged.land)
        if isinstance(trees, Exception):
            with self._ordering:
                self._worker.failed(batch, trees)
            return
        now = time.perf_counter()
        with self._lock:
            # What it waited for the batch before it is not its own time.
            seconds = now - max(launched.start, self._last_landed)
            self._last_landed = max(self._last_landed, now)
        self._worker.landed(launched, trees, seconds)
