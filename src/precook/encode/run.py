"""A run: one encoder's way from planned entries to the store.

Rows of the plan are claimed, so that no two builders make the same; their files are read, decoded and cut in several
threads and bounded memory; batches of equal shape go to the pool; and what comes back is written.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from precook.encode.batching import Bins, MemoryBudget
from precook.encode.pool import DevicePool
from precook.encode.prepare import Changed, Job, Prepared, Refused, Unit, make_units
from precook.encode.progress import BuildProgress, EncoderProgress, FlushPolicy
from precook.encode.registry import EncoderSpec
from precook.encode.results import write_results
from precook.plan.entries import EncoderPlan
from precook.plan.forecast import record_rate
from precook.plan.plan import Plan
from precook.plan.ready import read_failures
from precook.report import Reporter
from precook.sources.geometry import TARGET
from precook.store.claims import Claims
from precook.store.keysets import split
from precook.store.store import Store
from precook.store.tree import Parts
from precook.store.writer import Writer
from precook.threads import ThreadPool
from precook.values import Flags, Numbers

_log = logging.getLogger("precook")

MEMORY = 1 << 30
"""Bytes that sources may take, where nobody says."""
_WINDOW = 256
"""Entries that are claimed at a time."""
_TEXTS = 1024
"""Texts that are claimed at a time, and at first sorted by length together: so that the first batch comes soon."""
_MOST_TEXTS = 8192
"""Texts that are sorted together later on: the more, the less is padded."""
_TURNS = 8
"""Times that each of several processes comes for more, so that one that begins later or is slower has its part."""
_AHEAD = 4
"""Files, for each thread, that are read ahead of the encoder."""
_LOOK = 256
"""Rows of others that are looked for at a time."""
_POLL = 0.2
"""Seconds between two looks at what another builder does."""
_LONG_AGO = -1
"""A group before a writer's first: durable already."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How a build is run."""

    memory: int = MEMORY
    """Bytes that sources may take from when they are read until they are encoded."""
    threads: int | None = None
    """Threads that read and decode; None for as many as there are cores."""
    devices: Sequence[str] = ()
    """Where encoders run whose device is auto."""
    retry_failed: bool = False
    """Whether to try again what failed before."""
    fail_fast: bool = False
    """Whether to stop at the first failure."""
    crowded: bool = False
    """Whether to start although the disk cannot hold the forecast."""
    processes: int = 1
    """Processes that build the same at the same time, this one among them."""


def default_threads() -> int:
    """Threads that read and decode, where nobody says."""
    return max(2, min(16, os.cpu_count() or 1))


def run_encoder(
    plan: Plan,
    spec: EncoderSpec,
    rows: Numbers,
    build: BuildProgress,
    claims: Claims,
    *,
    options: BuildOptions,
    stop: threading.Event,
    report: Reporter,
) -> None:
    """Make the entries of these rows; those that another builder has claimed come last, if it has not made them."""
    name, encoder = spec.name, plan.encoders[spec.name]
    start, encoded, nbytes = time.monotonic(), build.encoded[name], build.nbytes
    try:
        with report.task(name, total=len(rows), unit="entries") as task, plan.store.writer() as writer:
            progress = EncoderProgress(build, name, task, fail_fast=options.fail_fast)
            claimed = ClaimedRows(plan.store, encoder, claims, writer, progress, stop)
            run = EncoderRun(plan, spec, writer, progress, claimed, options=options, stop=stop)
            try:
                run.run(rows)
            finally:
                build.truncated[name] += run.truncated
    finally:
        record_rate(
            build.memory,
            encoder.wants.encoding.recipe,
            entries=build.encoded[name] - encoded,
            nbytes=build.nbytes - nbytes,
            seconds=time.monotonic() - start,
        )
        # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
        plan.store.remember(build.memory)
        claims.release()


class EncoderRun:
    """Encodes what one encoder has to make; what its pool makes comes back through the methods of a `Sink`."""

    def __init__(
        self,
        plan: Plan,
        spec: EncoderSpec,
        writer: Writer,
        progress: EncoderProgress,
        claimed: ClaimedRows,
        *,
        options: BuildOptions,
        stop: threading.Event,
    ) -> None:
        self._plan = plan
        self._encoder = plan.encoders[spec.name]
        self._writer = writer
        self._progress = progress
        self._claimed = claimed
        self._options = options
        self._stop = stop
        self._devices = len(spec.devices)
        self._budget = MemoryBudget(options.memory)
        self._pool = DevicePool(spec, self, stop, plan=plan)
        self._flushes = FlushPolicy()
        self._spec = spec

    @functools.cached_property
    def _made(self) -> bytes:
        """What its entries are made with; first asked for when there are some, and so with everything loaded."""
        return self._spec.made(self._encoder.wants.encoding.input)

    @property
    def truncated(self) -> int:
        """Texts that were cut to fit."""
        return self._pool.truncated

    def run(self, rows: Numbers) -> None:
        """Make the entries of these rows."""
        left = in_order(self._plan, self._encoder, rows)
        with self._pool:
            while len(left) and not self._stop.is_set():
                self._give(left)
                left = self._claimed.wait_for_others()

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
        """Keep the results of a batch, but for those that no pack could hold: they fail."""
        recipe = self._encoder.wants.encoding.recipe
        entries = [(job.entry.key.bytes, parts) for job, parts in results]
        written = write_results(self._writer, recipe, entries, made=self._made)
        if written.keys:
            self._claimed.stored(written.keys, written.group)
            self._progress.stored(written.keys, written.nbytes)
        self._budget.give_back(sum(job.nbytes for job, _ in results))
        for number, error in written.refused:
            self._progress.failed(results[number][0].entry, error.message, lasting=True)

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made."""
        self._budget.give_back(job.nbytes)
        self._progress.failed(job.entry, reason, lasting=lasting)

    def batch_done(self, seconds: float) -> None:
        """Make what was stored durable if a kill would cost too much by now."""
        if self._flushes.is_due(seconds):
            self._writer.flush()

    def _give(self, rows: Numbers) -> None:
        """Hand batches of these rows to the pool, but for those that somebody else has made or claimed meanwhile."""
        is_text = self._encoder.wants.encoding.input == "text"
        processes = self._options.processes
        parts = self._devices if processes == 1 else self._devices * processes * _TURNS
        window = _TEXTS if is_text else _WINDOW
        step = window if processes == 1 else min(window, -(-len(rows) // parts))
        # So much at once leaves room for the batch that is encoded, the next and the one that is prepared.
        nbytes = max(1, self._options.memory // (2 * self._devices + 2))
        texts = TextLots(len(rows), parts) if is_text else None
        threads = self._options.threads or default_threads()
        with SourceReader(
            self._pool, self._budget, self._progress, self._stop, threads=threads, nbytes=nbytes, texts=texts
        ) as reader:
            for unit in self._units(rows, step):
                if not reader.add(unit):
                    return
            reader.finish()

    def _units(self, rows: Numbers, step: int) -> Iterator[Unit]:
        """The files of rows that are ours to make, some rows at a time."""
        for start in range(0, len(rows), step):
            if self._stop.is_set():
                return
            entries = self._encoder.entries(self._claimed.take(rows[start : start + step]).tolist())
            yield from make_units(self._encoder, entries, self._plan.settings.image.rgb)


class TextLots:
    """How many texts are sorted by length together: few at first, so that the first batch comes soon, and then more."""

    def __init__(self, texts: int, parts: int) -> None:
        self.now = min(_TEXTS, -(-texts // parts))
        """The size to use."""
        self._most = min(_MOST_TEXTS, texts // parts)

    def grow(self) -> None:
        """Double it, as far as each part of the work still has a lot of its own."""
        self.now = max(self.now, min(2 * self.now, self._most))


class SourceReader:
    """Reads, decodes and cuts in several threads and bounded memory, and hands batches to a pool.

    A batch is full with as many items as the pool wants or, of texts, as are sorted together, or with `nbytes`.
    A context manager: its end waits for the files that are being read.
    """

    def __init__(
        self,
        pool: DevicePool,
        budget: MemoryBudget,
        progress: EncoderProgress,
        stop: threading.Event,
        *,
        threads: int,
        nbytes: int,
        texts: TextLots | None,
    ) -> None:
        self._pool = pool
        self._texts = texts
        self._bins = Bins((lambda: pool.size.now) if texts is None else (lambda: texts.now), nbytes)
        self._budget = budget
        self._progress = progress
        self._stop = stop
        self._ahead = _AHEAD * threads
        self._decoders = ThreadPool(threads, thread_name_prefix="precook-decode")
        self._reading: deque[tuple[Unit, Future[list[Prepared]]]] = deque()

    def __enter__(self) -> SourceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._decoders.shutdown(wait=True, cancel_futures=True)

    def add(self, unit: Unit) -> bool:
        """Begin to read a file when there is memory for it; False where it is time to stop."""
        while not self._budget.has(unit.nbytes) and not self._stop.is_set():
            if self._reading:
                self._pass_on()
            elif self._bins:
                self._pool.give(self._bins.largest())
            else:
                self._pool.check()
                self._budget.wait()
        if self._stop.is_set():
            return False
        self._budget.take(unit.nbytes)
        self._reading.append((unit, self._decoders.submit(unit.prepare)))
        while self._reading and (len(self._reading) > self._ahead or self._reading[0][1].done()):
            self._pass_on()
        return True

    def finish(self) -> None:
        """Hand over all that is left."""
        while self._reading:
            self._pass_on()
        for batch in self._bins.rest():
            self._pool.give(batch)

    def _pass_on(self) -> None:
        """Wait for the file that was begun first, and hand over the batches that are full with it."""
        unit, future = self._reading.popleft()
        prepared = future.result()
        self._budget.give_back(unit.nbytes)
        jobs = [item for item in prepared if isinstance(item, Job)]
        self._budget.take(sum(job.nbytes for job in jobs))
        for item in prepared:
            if isinstance(item, Refused):
                self._progress.failed(item.entry, item.reason, lasting=item.lasting)
            elif isinstance(item, Changed):
                self._progress.changed(item.entry)
        for job in jobs:
            for batch in self._bins.add(job):
                self._pool.give(batch)
                if self._texts is not None:
                    self._texts.grow()


def in_order(plan: Plan, encoder: EncoderPlan, rows: Numbers) -> Numbers:
    """Rows in the order in which they are encoded: those of one file together, files that are cut alike in a row."""
    if encoder.wants.encoding.input == "text":
        return rows
    samples, parts = encoder.wants.samples[rows], encoder.wants.parts[rows]
    sizes = np.zeros((len(rows), 2), np.int64)
    for number, cuts in enumerate(plan.targets.cuts):
        chosen = parts == number
        sizes[chosen] = cuts[samples[chosen]][:, TARGET]
    order = np.lexsort((parts, samples))
    # A file stands where its first picture does.
    leads = np.append(True, samples[order][1:] != samples[order][:-1])
    lead = order[np.maximum.accumulate(np.where(leads, np.arange(len(order)), 0))]
    return rows[order[np.lexsort((np.arange(len(order)), *sizes[lead].T))]]


class ClaimedRows:
    """Claims an encoder's rows, and gives up claims on what is durable; `stored` may be called from several threads."""

    def __init__(
        self,
        store: Store,
        encoder: EncoderPlan,
        claims: Claims,
        writer: Writer,
        progress: EncoderProgress,
        stop: threading.Event,
    ) -> None:
        self._store = store
        self._encoder = encoder
        self._claims = claims
        self._writer = writer
        self._progress = progress
        self._stop = stop
        self._postponed = np.zeros(0, np.int64)
        """Rows that another builder has claimed."""
        self._stored: deque[tuple[int, Sequence[bytes]]] = deque()
        """Keys that are still claimed, and the writer's group that makes them durable."""

    def take(self, rows: Numbers) -> Numbers:
        """Claim rows; those that are ours to make. What others have claimed is theirs until `wait_for_others`."""
        claimed = self._claim(rows)
        # What others have made by now is told at once, not when all the rest is done.
        self._postponed = np.concatenate([self._absent(self._postponed), rows[~claimed]])
        ours = self._absent(rows[claimed])
        self.stored(self._keys(np.setdiff1d(rows[claimed], ours)), _LONG_AGO)
        return ours

    def stored(self, keys: Sequence[bytes], group: int) -> None:
        """These entries are durable when this group of the writer's is."""
        self._stored.append((group, keys))

    def wait_for_others(self) -> Numbers:
        """Wait for other builders; the rows that they had claimed and have given up without making them."""
        rows, self._postponed = self._absent(self._postponed), self._postponed[:0]
        if len(rows):
            name = self._encoder.wants.encoding.name
            _log.info("%s: another build has claimed %d entries; waiting for it", name, len(rows))
        while len(rows) and not self._stop.is_set():
            self._give_up_failed()
            first = self._absent(rows[:_LOOK])
            rows = np.concatenate([first, rows[_LOOK:]])
            if self._claim(first[:1]).any():
                # What the other builder could not make either, since our plan was made, need not be tried again.
                failures = read_failures(self._store.memory())
                for row, key in zip(rows.tolist(), self._keys(rows), strict=True):
                    if key in failures and row not in self._encoder.failures:
                        self._progress.reasons[key] = failures[key]
                break
            if len(first):
                time.sleep(_POLL)
        return rows

    def _claim(self, rows: Numbers) -> Flags:
        """Claim rows, and give up what is durable by now; which of them are ours."""
        if not len(rows):
            return np.zeros(0, bool)
        durable: list[bytes] = []
        while self._stored and self._stored[0][0] <= self._writer.durable:
            durable += self._stored.popleft()[1]
        keys = self._keys(rows)
        ours = self._claims.take(keys, done=durable)
        return np.fromiter((key in ours for key in keys), bool, len(keys))

    def _absent(self, rows: Numbers) -> Numbers:
        """The rows that are still to be made; what became of the others is told."""
        present = self._store.present(self._encoder.wants.keys[rows])
        if present.any():
            self._progress.reused(int(present.sum()))
            rows = rows[~present]
        if not self._progress.reasons:
            return rows
        reasons = [self._progress.reasons.get(key) for key in self._keys(rows)]
        for row, reason in zip(rows.tolist(), reasons, strict=True):
            if reason is not None:
                self._progress.failed(self._encoder.entry(row), reason, lasting=False)
        return rows[[reason is None for reason in reasons]]

    def _give_up_failed(self) -> None:
        """Give up what we could not make: two builders that wait for each other's failures would wait for ever."""
        # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
        keys = self._progress.disclose(self._store)
        if keys:
            self._claims.take([], done=keys)

    def _keys(self, rows: Numbers) -> list[bytes]:
        return split(self._encoder.wants.keys[rows])
