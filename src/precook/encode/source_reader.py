"""Reading sources: files are read, decoded and cut in several threads and bounded memory, and handed on in batches.

Encoders that take the same sources read them together: a picture is decoded once for all of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from precook.encode.batching import Bins, MemoryBudget, Shape
from precook.encode.prepare import Changed, Job, Prepared, Refused, Unit
from precook.encode.progress import EncoderProgress
from precook.encode.stages import StageTimes
from precook.plan.entries import EncoderPlan
from precook.plan.plan import Plan
from precook.sources.geometry import TARGET
from precook.threads import ThreadPool
from precook.values import Numbers

_FIRST_TEXTS = 512
"""Texts that are sorted by length together at first, so that the first batch comes soon, and so that reading ahead of
it does not keep the interpreter from the thread that gives a GPU its orders."""
_MOST_TEXTS = 8192
"""Texts that are sorted together later on: the more, the less is padded."""
_AHEAD = 4
"""Reads, for each thread, that are begun ahead of the encoders."""
_CAPTION_FILES = 32
"""Files of captions that one thread reads in a row: each is so quick that handing it over would take longer."""


class Reads(Protocol):
    """An encoder that reads sources, with others or alone."""

    progress: EncoderProgress

    def give(self, jobs: list[Job]) -> None:
        """Encode these, when there is room for them."""

    def count(self, shape: Shape) -> int:
        """How many items of a shape are encoded together."""

    def check(self) -> None:
        """Raise what ended its work, if something did."""


class TextLots:
    """How many texts are sorted by length together: few at first, so that the first batch comes soon, and then more.

    Not at once as many as ever: a fast device is done with the few before so many are sorted.
    """

    def __init__(self, texts: int, parts: int) -> None:
        most = -(-texts // parts)
        self._now = min(_FIRST_TEXTS, most)
        self._most = max(1, min(_MOST_TEXTS, most))

    def count(self, _: Shape) -> int:
        """The size to use."""
        return self._now

    def grow(self) -> None:
        """One more lot is on its way."""
        self._now = min(2 * self._now, self._most)


class SourceReader:
    """Reads, decodes and cuts in several threads and bounded memory, and hands batches to encoders by their names.

    A batch is full with as many items as the encoder wants or, of texts, as are sorted together, or with `nbytes`.
    A context manager: its end waits for the files that are being read.
    """

    def __init__(
        self,
        encoders: Mapping[str, Reads],
        budget: MemoryBudget,
        stop: threading.Event,
        *,
        threads: int,
        nbytes: int,
        texts: TextLots | None,
        times: StageTimes,
    ) -> None:
        self._encoders = encoders
        self._texts = texts
        self._bins = {
            name: Bins(encoder.count if texts is None else texts.count, nbytes) for name, encoder in encoders.items()
        }
        self._times = times
        self._budget = budget
        self._stop = stop
        self._ahead = _AHEAD * threads
        self._decoders = ThreadPool(threads, thread_name_prefix="precook-decode")
        self._reading: deque[tuple[int, Future[list[Prepared]]]] = deque()
        """Memory that each read takes, and what comes of it."""

    def __enter__(self) -> SourceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._decoders.shutdown(wait=True, cancel_futures=True)

    def add(self, units: Sequence[Unit]) -> bool:
        """Begin to read files when there is memory for them; False where it is time to stop."""
        step = 1 if self._texts is None else _CAPTION_FILES
        return all(self._begin(units[start : start + step]) for start in range(0, len(units), step))

    def finish(self) -> None:
        """Hand over all that is left."""
        while self._reading:
            self._pass_on()
        for name, bins in self._bins.items():
            for batch in bins.rest():
                self._encoders[name].give(batch)

    def _begin(self, units: Sequence[Unit]) -> bool:
        nbytes = sum(unit.nbytes for unit in units)
        while not self._budget.has(nbytes) and not self._stop.is_set():
            filled = [name for name, bins in self._bins.items() if bins]
            if self._reading:
                self._pass_on()
            elif filled:
                name = max(filled, key=lambda name: self._bins[name].nbytes)
                self._encoders[name].give(self._bins[name].largest())
            else:
                for encoder in self._encoders.values():
                    encoder.check()
                self._budget.wait()
        if self._stop.is_set():
            return False
        self._budget.take(nbytes)
        self._reading.append((nbytes, self._decoders.submit(self._prepare, units)))
        while self._reading and (len(self._reading) > self._ahead or self._reading[0][1].done()):
            self._pass_on()
        return True

    def _pass_on(self) -> None:
        """Wait for the read that was begun first, and hand over the batches that are full with it."""
        nbytes, future = self._reading.popleft()
        prepared = future.result()
        self._budget.give_back(nbytes)
        jobs = [item for item in prepared if isinstance(item, Job)]
        self._budget.take(sum(job.nbytes for job in jobs))
        for item in prepared:
            progress = self._encoders[item.entry.encoder].progress
            if isinstance(item, Refused):
                progress.failed(item.entry, item.reason, lasting=item.lasting)
            elif isinstance(item, Changed):
                progress.changed(item.entry)
        for job in jobs:
            name = job.entry.encoder
            for batch in self._bins[name].add(job):
                self._encoders[name].give(batch)
                if self._texts is not None:
                    self._texts.grow()

    def _prepare(self, units: Sequence[Unit]) -> list[Prepared]:
        return [prepared for unit in units for prepared in unit.prepare(self._times)]


def windows(plan: Plan, encoders: Sequence[EncoderPlan], rows: Sequence[Numbers], step: int) -> Iterator[list[Numbers]]:
    """The rows of several encoders in the order in which they are made, about so many of each at a time.

    Rows of one file come together, those of all encoders in one window, and files that are cut alike in a row.
    """
    ordered = [_in_order(plan, encoder, some) for encoder, some in zip(encoders, rows, strict=True)]
    if len(encoders) == 1:
        yield from ([ordered[0][start : start + step]] for start in range(0, len(ordered[0]), step))
        return
    # Files in the order of the first encoder, then those that only later ones want.
    samples = [encoder.wants.samples[some] for encoder, some in zip(encoders, ordered, strict=True)]
    _, firsts, files = np.unique(np.concatenate(samples), return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(firsts))[files]
    ranks = np.split(rank, np.cumsum([len(some) for some in samples])[:-1])
    counts = np.max([np.bincount(some, minlength=len(firsts)) for some in ranks], axis=0)
    window = (np.cumsum(counts) - 1) // step
    parts = []
    for some, rank in zip(ordered, ranks, strict=True):
        order = np.argsort(rank, kind="stable")
        parts.append(np.split(some[order], np.searchsorted(window[rank[order]], np.arange(1, window[-1] + 1))))
    yield from map(list, zip(*parts, strict=True))


def _in_order(plan: Plan, encoder: EncoderPlan, rows: Numbers) -> Numbers:
    """Rows in the order in which they are encoded: those of one file together, files that are cut alike in a row."""
    if encoder.wants.encoding.per == "line":
        return rows
    samples, parts = encoder.wants.samples[rows], encoder.wants.targets[rows]
    sizes = np.zeros((len(rows), 3), np.int64)
    for number, cuts in enumerate(plan.targets.cuts):
        chosen = parts == number
        sizes[chosen, :2] = cuts[samples[chosen]][:, TARGET]
        if plan.targets.choices:
            sizes[chosen, 2] = plan.targets.choices[number][samples[chosen], 1]
    order = np.lexsort((parts, samples))
    # A file stands where its first picture does.
    leads = np.append(True, samples[order][1:] != samples[order][:-1])
    lead = order[np.maximum.accumulate(np.where(leads, np.arange(len(order)), 0))]
    return rows[order[np.lexsort((np.arange(len(order)), *sizes[lead].T))]]
