"""A run: one encoder's way from planned entries to the store."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precook.encode.batching import Bins
from precook.encode.pool import DevicePool
from precook.encode.prepare import Changed, Job, MemoryBudget, Prepared, Refused, Unit, make_units
from precook.encode.progress import BuildProgress, EncoderProgress, FlushPolicy
from precook.encode.registry import EncoderSpec
from precook.encode.results import write_results
from precook.memo.memo import Memory
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
from precook.values import Numbers


def in_order(plan: Plan, one: EncoderPlan, rows: Numbers) -> Numbers:
    """Rows in the order in which they are encoded: those of one file together, files that are cut alike in a row."""
    if one.wants.encoding.input == "text":
        return rows
    samples, parts = one.wants.samples[rows], one.wants.parts[rows]
    sizes = np.zeros((len(rows), 2), np.int64)
    for number, cuts in enumerate(plan.targets.cuts):
        chosen = parts == number
        sizes[chosen] = cuts[samples[chosen]][:, TARGET]
    order = np.lexsort((parts, samples))
    # A file stands where its first picture does.
    leads = np.append(True, samples[order][1:] != samples[order][:-1])
    lead = order[np.maximum.accumulate(np.where(leads, np.arange(len(order)), 0))]
    return rows[order[np.lexsort((np.arange(len(order)), *sizes[lead].T))]]


_log = logging.getLogger("precook")

_LOOK = 256
"""Rows of others that are looked for at a time."""
_LONG_AGO = -1
"""A group before a writer's first."""
_POLL = 0.2
"""Seconds between two looks at what another builder does."""


class ClaimedRows:
    """Claims an encoder's rows, and gives up what is durable; `stored` may be called from several threads."""

    def __init__(
        self,
        store: Store,
        one: EncoderPlan,
        claims: Claims,
        writer: Writer,
        progress: EncoderProgress,
        stop: threading.Event,
    ) -> None:
        self._store = store
        self._one = one
        self._claims = claims
        self._writer = writer
        self._progress = progress
        self._stop = stop
        self._name = one.wants.encoding.name
        self._postponed = np.zeros(0, np.int64)
        """Rows that another builder has claimed."""
        self._stored: deque[tuple[int, Sequence[bytes]]] = deque()
        """Keys that are still claimed, and the writer's group that makes them durable."""

    def take(self, rows: Numbers) -> Numbers:
        """Claim rows; those that are ours to make. What others have claimed is theirs until `others_work`."""
        claimed = self._claim(rows)
        # What others have made by now is told at once, not when all the rest is done.
        self._postponed = np.concatenate([self._absent(self._postponed), rows[~claimed]])
        mine = self._absent(rows[claimed])
        self.stored(self._keys(np.setdiff1d(rows[claimed], mine)), _LONG_AGO)
        return mine

    def stored(self, keys: Sequence[bytes], group: int) -> None:
        """These entries are durable when this group of the writer's is."""
        self._stored.append((group, keys))

    def others_work(self) -> Numbers:
        """What others had claimed and have given up; waits for them."""
        rows, self._postponed = self._absent(self._postponed), self._postponed[:0]
        if len(rows):
            _log.info("%s: another build has claimed %d entries; waiting for it", self._name, len(rows))
        while len(rows) and not self._stop.is_set():
            self._give_up()
            first = self._absent(rows[:_LOOK])
            rows = np.concatenate([first, rows[_LOOK:]])
            if self._claim(first[:1]).any():
                self._read_failures(rows)
                break
            if len(first):
                time.sleep(_POLL)
        return rows

    def _claim(self, rows: Numbers) -> npt.NDArray[np.bool_]:
        """Claim rows, and give up what is durable by now; which of them are ours."""
        if not len(rows):
            return np.zeros(0, bool)
        keys = self._keys(rows)
        mine = self._claims.take(keys, done=self._done())
        return np.fromiter((key in mine for key in keys), bool, len(keys))

    def _done(self) -> list[bytes]:
        done: list[bytes] = []
        while self._stored and self._stored[0][0] <= self._writer.durable:
            done += self._stored.popleft()[1]
        return done

    def _absent(self, rows: Numbers) -> Numbers:
        """The rows that are still to be made; the others are told."""
        present = self._store.present(self._one.wants.keys[rows])
        if present.any():
            self._progress.reused(int(present.sum()))
            rows = rows[~present]
        if not self._progress.reasons:
            return rows
        reasons = [self._progress.reasons.get(key) for key in self._keys(rows)]
        for row, reason in zip(rows.tolist(), reasons, strict=True):
            if reason is not None:
                self._progress.failed(self._one.entry(row), reason, lasting=False)
        return rows[[reason is None for reason in reasons]]

    def _give_up(self) -> None:
        """Let others see what we could not make: two that wait for each other's would wait for ever."""
        # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
        keys = self._progress.disclose(self._store)
        if keys:
            self._claims.take([], done=keys)

    def _read_failures(self, rows: Numbers) -> None:
        """What another builder could not make either, since the plan was made, need not be tried again."""
        found = read_failures(self._store.memory())
        for row, key in zip(rows.tolist(), self._keys(rows), strict=True):
            if key in found and row not in self._one.failures:
                self._progress.reasons[key] = found[key]

    def _keys(self, rows: Numbers) -> list[bytes]:
        return split(self._one.wants.keys[rows])


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


MEMORY = 1 << 30
"""Bytes that sources may take, where nobody says."""


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

    @property
    def decoders(self) -> int:
        """How many threads read and decode."""
        return self.threads or default_threads()


def default_threads() -> int:
    """Threads that read and decode, where nobody says."""
    return max(2, min(16, os.cpu_count() or 1))


def run_encoder(
    plan: Plan,
    spec: EncoderSpec,
    rows: Numbers,
    progress: BuildProgress,
    memory: Memory,
    claims: Claims,
    *,
    options: BuildOptions,
    stop: threading.Event,
    report: Reporter,
) -> None:
    """Make the entries of these rows; those that another builder has claimed come last, if it has not made them."""
    name, one = spec.name, plan.encoders[spec.name]
    start, before, nbytes = time.monotonic(), progress.encoded[name], progress.nbytes
    try:
        with report.task(name, total=len(rows), unit="entries") as task, plan.store.writer() as writer:
            told = EncoderProgress(progress, name, memory, task, fail_fast=options.fail_fast)
            claimed = ClaimedRows(plan.store, one, claims, writer, told, stop)
            run = EncoderRun(plan, spec, writer, told, claimed, options=options, stop=stop)
            try:
                run.run(rows)
            finally:
                progress.truncated[name] += run.truncated
    finally:
        record_rate(
            memory,
            one.wants.encoding.recipe,
            entries=progress.encoded[name] - before,
            nbytes=progress.nbytes - nbytes,
            seconds=time.monotonic() - start,
        )
        # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
        plan.store.remember(memory)
        claims.release()


class EncoderRun:
    """Encodes what one encoder has to make; what its devices make comes back through the methods of a `Sink`."""

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
        self._one = plan.encoders[spec.name]
        self._writer = writer
        self._progress = progress
        self._claimed = claimed
        self._options = options
        self._stop = stop
        self._devices = len(spec.devices)
        self._budget = MemoryBudget(options.memory)
        self._pool = DevicePool(spec, self, stop, plan=plan)
        self._flushes = FlushPolicy()

    @property
    def truncated(self) -> int:
        """Texts that were cut to fit."""
        return self._pool.truncated

    def run(self, rows: Numbers) -> None:
        """Make the entries of these rows."""
        left = in_order(self._plan, self._one, rows)
        with self._pool:
            while len(left) and not self._stop.is_set():
                self._give(left)
                left = self._claimed.others_work()

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
        """Keep the results of a batch, but for those that no pack could hold: they fail."""
        recipe = self._one.wants.encoding.recipe
        written = write_results(self._writer, recipe, [(job.entry.key.bytes, parts) for job, parts in results])
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
        """Read, decode and cut in several threads and bounded memory, and hand batches to the pool."""
        is_text = self._one.wants.encoding.input == "text"
        processes, threads = self._options.processes, self._options.decoders
        parts = self._devices if processes == 1 else self._devices * processes * _TURNS
        most = -(-len(rows) // parts)
        texts = min(_TEXTS, most)
        # So much at once leaves room for the batch that is encoded, the next and the one that is prepared.
        share = max(1, self._options.memory // (2 * self._devices + 2))
        bins = Bins((lambda: texts) if is_text else (lambda: self._pool.size.now), share)
        waiting: deque[tuple[Unit, Future[list[Prepared]]]] = deque()

        def pass_on() -> None:
            nonlocal texts
            unit, future = waiting.popleft()
            prepared = future.result()
            self._budget.give_back(unit.nbytes)
            for job in self._usable(prepared):
                for batch in bins.add(job):
                    self._pool.give(batch)
                    texts = max(texts, min(2 * texts, _MOST_TEXTS, len(rows) // parts))

        decoders = ThreadPoolExecutor(threads, thread_name_prefix="precook-decode")
        try:
            window = _TEXTS if is_text else _WINDOW
            for unit in self._units(rows, window if processes == 1 else min(window, most)):
                while not self._budget.has(unit.nbytes) and not self._stop.is_set():
                    if waiting:
                        pass_on()
                    elif bins:
                        self._pool.give(bins.largest())
                    else:
                        self._pool.check()
                        self._budget.wait()
                if self._stop.is_set():
                    return
                self._budget.take(unit.nbytes)
                waiting.append((unit, decoders.submit(unit.prepare)))
                while waiting and (len(waiting) > _AHEAD * threads or waiting[0][1].done()):
                    pass_on()
            while waiting:
                pass_on()
            for batch in bins.rest():
                self._pool.give(batch)
        finally:
            decoders.shutdown(wait=True, cancel_futures=True)

    def _usable(self, prepared: Sequence[Prepared]) -> list[Job]:
        """What can be encoded; it takes its memory from now on, and what cannot is told."""
        jobs = [item for item in prepared if isinstance(item, Job)]
        self._budget.take(sum(job.nbytes for job in jobs))
        for item in prepared:
            if isinstance(item, Refused):
                self._progress.failed(item.entry, item.reason, lasting=item.lasting)
            elif isinstance(item, Changed):
                self._progress.changed(item.entry)
        return jobs

    def _units(self, rows: Numbers, step: int) -> Iterator[Unit]:
        """The files of rows that nobody else has made or claimed meanwhile, some rows at a time."""
        for start in range(0, len(rows), step):
            if self._stop.is_set():
                return
            entries = self._one.entries(self._claimed.take(rows[start : start + step]).tolist())
            yield from make_units(self._one, entries, self._plan.settings.image.rgb)
