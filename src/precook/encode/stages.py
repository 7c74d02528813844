"""Stages of a build: how busy reading, decoding, devices and the disk are, and which of them the others wait for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

Stage = Literal["reading", "decoding", "device", "disk"]
_MOST = 0.5
"""A stage that is busy less than this is not what the others wait for."""


def find_limit(shares: Mapping[str, float]) -> str | None:
    """The stage that the others wait for, by how busy each is; None where none is busy most of the time."""
    reading, decoding = shares.get("reading", 0.0), shares.get("decoding", 0.0)
    # The same threads read and decode.
    together = {"decoding" if decoding >= reading else "reading": reading + decoding}
    busiest = {**together, "device": shares.get("device", 0.0), "disk": shares.get("disk", 0.0)}
    limit = max(busiest, key=lambda stage: busiest[stage])
    return limit if busiest[limit] >= _MOST else None


class StageTimes:
    """Seconds that each stage was busy, and that it could have been; safe to use from several threads.

    `width` is how many threads or devices a stage has. What is counted here is also counted by `whole`, which adds up
    several of these, one after the other or at the same time.
    """

    def __init__(
        self,
        width: Mapping[Stage, int],
        whole: StageTimes | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._width = width
        self._whole = whole
        self._clock = clock
        self._lock = threading.Lock()
        self._busy: Counter[Stage] = Counter()
        self._possible: Counter[Stage] = Counter()
        """Of those that have ended."""
        self._start = clock()

    def add(self, stage: Stage, seconds: float) -> None:
        """A thread or device of a stage was busy for so long."""
        with self._lock:
            self._busy[stage] += seconds  # type: ignore[assignment]
        if self._whole is not None:
            self._whole.add(stage, seconds)

    @contextmanager
    def measured(self, stage: Stage) -> Iterator[None]:
        """A thread of a stage is busy in here."""
        start = self._clock()
        try:
            yield
        finally:
            self.add(stage, self._clock() - start)

    def end(self) -> None:
        """Nothing more is done: from now on time does not count."""
        possible = {stage: width * (self._clock() - self._start) for stage, width in self._width.items()}
        self._width = {}
        self._ended(possible)
        if self._whole is not None:
            self._whole._ended(possible)  # noqa: SLF001 - of the same kind

    def _ended(self, possible: dict[Stage, float]) -> None:
        with self._lock:
            self._possible.update(possible)

    def shares(self) -> dict[str, float]:
        """How busy each stage was, from 0 to 1; of two that share threads, the sum is at most 1."""
        elapsed = self._clock() - self._start
        with self._lock:
            possible = {
                stage: self._possible[stage] + self._width.get(stage, 0) * elapsed
                for stage in {*self._width, *self._possible}
            }
            return {
                stage: min(1.0, self._busy[stage] / possible[stage])
                for stage in ("reading", "decoding", "device", "disk")
                if possible.get(stage, 0) > 0
            }
