"""The pipeline: a GPU gets its next batch before the last is back, and nobody who stores results keeps it waiting.

Four threads for each device: one orders what comes next, one launches batches, two land them. What a flight needs
beforehand (tokens, pixels in memory that the device can read) is made by the thread that launches, while the device
works on the batch before.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from precook.encode.encoder import StagedBatch
from precook.encode.prepare import Job
from precook.encode.worker import Worker

_IN_FLIGHT = 3
"""Batches that are launched and not yet told: one that the device works on, one that waits for it, one that is told."""
_LANDING = 2
"""Threads that tell: while one waits for the disk, the other takes results apart."""
_FIRST_TEXTS = 64
"""Texts of the first batch: with fewer, a GPU that is worth its name waits for its orders."""
_LOOK = 0.1
"""Seconds between two looks at whether it is time to stop."""


@dataclass(frozen=True, slots=True)
class _Launched:
    batch: list[Job]
    flight: StagedBatch
    start: float


class StagedPipeline:
    """Runs a worker's batches; `run` ends when there is no more to do and everything launched was told."""

    def __init__(
        self, worker: Worker, following: Callable[[], list[Job] | None], fail: Callable[[BaseException], None]
    ) -> None:
        self._worker = worker
        self._following = following
        """The next jobs, when there are some; None at the end."""
        self._fail = fail
        """Takes what ends the work for good."""
        self._ordered: queue.Queue[list[Job] | None] = queue.Queue(maxsize=1)
        self._launched: queue.SimpleQueue[_Launched | None] = queue.SimpleQueue()
        self._slots = threading.Semaphore(_IN_FLIGHT)
        self._lock = threading.Lock()
        self._last = 0.0
        """When the device was done with a batch last."""

    def run(self, name: str) -> None:
        """Launch batch after batch, in the calling thread; what ends it early goes to `fail`."""
        helpers = [threading.Thread(target=self._order, name=f"{name}-order", daemon=True)]
        helpers += [
            threading.Thread(target=self._land_all, name=f"{name}-land-{number}", daemon=True)
            for number in range(_LANDING)
        ]
        for helper in helpers:
            helper.start()
        try:
            while (jobs := self._ordered.get()) is not None:
                if jobs[0].item.text is not None:
                    self._worker.size.begin(_FIRST_TEXTS)
                for batch in self._worker.batches(jobs):
                    self._launch(batch)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)
        finally:
            for _ in range(_LANDING):
                self._launched.put(None)
            for helper in helpers:
                while helper.is_alive():
                    self._drop()
                    helper.join(_LOOK)

    def _order(self) -> None:
        """Order one lot of jobs ahead."""
        try:
            while (jobs := self._following()) is not None:
                self._ordered.put(self._worker.ordered(jobs))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)
        finally:
            self._ordered.put(None)

    def _drop(self) -> None:
        """Take what was ordered and will not be launched, so that whoever orders does not wait for ever."""
        with suppress(queue.Empty):
            self._ordered.get_nowait()

    def _launch(self, batch: list[Job]) -> None:
        while not self._slots.acquire(timeout=_LOOK):
            if self._worker.over():
                return
        start = time.perf_counter()
        flights: list[StagedBatch] = []

        def launch() -> list[Any]:
            flight = self._worker.encoder.stage([job.item for job in batch])
            flight.launch()
            flights.append(flight)
            return [None] * len(batch)

        failure = self._worker.attempt(batch, launch)
        if isinstance(failure, Exception):
            try:
                self._worker.failed(batch, failure)
            finally:
                self._slots.release()
        else:
            self._launched.put(_Launched(batch, flights[0], start))

    def _land_all(self) -> None:
        try:
            while (launched := self._launched.get()) is not None:
                try:
                    self._land(launched)
                finally:
                    self._slots.release()
                    del launched
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)

    def _land(self, launched: _Launched) -> None:
        batch = launched.batch
        trees = self._worker.attempt(batch, launched.flight.land)
        if isinstance(trees, Exception):
            self._worker.failed(batch, trees)
            return
        now = time.perf_counter()
        with self._lock:
            # What it waited for the batch before it is not its own time.
            seconds = now - max(launched.start, self._last)
            self._last = max(self._last, now)
        self._worker.landed(batch, trees, seconds)
