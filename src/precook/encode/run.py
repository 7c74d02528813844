"""Runs: the way of encoders from planned entries to the store.

Rows of the plan are claimed, so that no two builders make the same; their files are read, decoded and cut by a
`SourceReader`, once for all encoders that take them; batches of equal shape go to each encoder's pool; and what comes
back is written.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from precook.encode.batching import MemoryBudget, Shape, count_pixels
from precook.encode.pool import DevicePool, NoRoomError
from precook.encode.prepare import Job, make_units
from precook.encode.progress import BuildProgress, EncoderProgress, FlushPolicy
from precook.encode.registry import EncoderSpec, MadeWith
from precook.encode.results import write_results
from precook.encode.source_reader import SourceReader, TextLots, windows
from precook.encode.stages import Stage, StageTimes
from precook.encode.tuning import read_tunings, record_tunings
from precook.plan.entries import EncoderPlan
from precook.plan.forecast import record_rate
from precook.plan.plan import Plan
from precook.plan.ready import read_failures
from precook.report import Reporter
from precook.store.claims import Claims
from precook.store.keysets import split
from precook.store.store import Store
from precook.store.tree import Parts
from precook.store.writer import COMMITS, Writer
from precook.values import Flags, Numbers

_log = logging.getLogger("precook")

MEMORY = 1 << 30
"""Bytes that sources may take, where nobody says."""
_WINDOW = 256
"""Entries of pictures that are claimed at a time."""
_TEXTS = 1024
"""Texts that are claimed at a time."""
_CAPTION_THREADS = 2
"""Threads that read captions, where nobody says: what they do is Python, and more of them would only wait in turn."""
_TURNS = 8
"""Times that each of several processes comes for more, so that one that begins later or is slower has its part."""
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


def run_together(
    plan: Plan,
    specs: Sequence[EncoderSpec],
    rows: Mapping[str, Numbers],
    build: BuildProgress,
    *,
    options: BuildOptions,
    stop: threading.Event,
    report: Reporter,
) -> None:
    """Make the entries of these rows, of encoders that take the same sources; these are read once for all of them.

    Those that another builder has claimed come last, if it has not made them. An encoder for which a device has no
    memory beside the others is run alone after them.
    """
    budget = MemoryBudget(options.memory)
    threads = _reading_threads(plan.encoders[specs[0].name], options)
    devices = len({device for spec in specs for device in spec.devices})
    width: dict[Stage, int] = {"reading": threads, "decoding": threads, "device": devices, "disk": COMMITS * len(specs)}
    times = StageTimes(width, build.times)
    postponed: list[EncoderRun] = []
    with plan.store.claims() as claims:
        try:
            with ExitStack() as ends:
                runs = [
                    ends.enter_context(EncoderRun(plan, spec, build, claims, budget, options, stop, report))
                    for spec in specs
                ]
                for run in runs:
                    run.begin(len(rows[run.name]), times, together=len(runs))
                left = [rows[run.name] for run in runs]
                while any(map(len, left)) and not stop.is_set():
                    _give(plan, runs, left, budget, times, options=options, stop=stop)
                    left = _wait_for_others(runs, stop)
            postponed = [run for run in runs if run.postponed]
        finally:
            times.end()
            # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
            with build.lock:
                plan.store.remember(build.memory)
    for run in postponed:
        if not stop.is_set():
            # What became of the others was told already.
            some = {run.name: run.left(rows[run.name])}
            run_together(plan, [run.spec], some, build, options=options, stop=stop, report=report)


def _wait_for_others(runs: Sequence[EncoderRun], stop: threading.Event) -> list[Numbers]:
    """Wait for other builders, for all encoders at once; rows that are still to be made when some were given up.

    They may wait for us as we do for them: so what failed here is given up at every look, whichever encoder it was for,
    and what ended the work of one ends the wait.
    """
    left = [run.claimed_by_others() for run in runs]
    while any(map(len, left)) and not stop.is_set():
        for run in runs:
            run.check()
            run.give_up_failed()
        looks = [run.look(rows) for run, rows in zip(runs, left, strict=True)]
        left = [rows for rows, _ in looks]
        if any(given_up for _, given_up in looks):
            break
        if any(map(len, left)):
            time.sleep(_POLL)
    return left


def _reading_threads(encoder: EncoderPlan, options: BuildOptions) -> int:
    """Threads that read, and decode pictures."""
    return options.threads or (_CAPTION_THREADS if encoder.wants.encoding.per == "line" else default_threads())


def _give(
    plan: Plan,
    runs: Sequence[EncoderRun],
    rows: Sequence[Numbers],
    budget: MemoryBudget,
    times: StageTimes,
    *,
    options: BuildOptions,
    stop: threading.Event,
) -> None:
    """Hand batches of these rows to the pools, but for those that somebody else has made or claimed meanwhile."""
    encoders = [run.encoder for run in runs]
    encoding = encoders[0].wants.encoding
    devices = sum(len(run.spec.devices) for run in runs)
    parts = devices if options.processes == 1 else devices * options.processes * _TURNS
    most = max(map(len, rows))
    step = _TEXTS if encoding.per == "line" else _WINDOW
    if options.processes > 1:
        step = min(step, -(-most // parts))
    with SourceReader(
        {run.name: run for run in runs},
        budget,
        stop,
        threads=_reading_threads(encoders[0], options),
        # So much at once leaves room for the batch that is encoded, the next and the one that is prepared.
        nbytes=max(1, options.memory // (2 * devices + 2)),
        texts=TextLots(most, parts) if encoding.per == "line" else None,
        times=times,
    ) as reader:
        for window in windows(plan, encoders, rows, step):
            if stop.is_set():
                return
            ours = [
                entry
                for run, some in zip(runs, window, strict=True)
                for entry in run.encoder.entries(run.take(some).tolist())
            ]
            if not reader.add(make_units(plan.samples, encoding, ours)):
                return
        reader.finish()


class EncoderRun:
    """The work of one encoder: claims its rows, encodes them in a pool, and writes what comes back.

    A context manager: its end waits for everything that was given, and makes it durable.
    """

    def __init__(
        self,
        plan: Plan,
        spec: EncoderSpec,
        build: BuildProgress,
        claims: Claims,
        budget: MemoryBudget,
        options: BuildOptions,
        stop: threading.Event,
        report: Reporter,
    ) -> None:
        self.name = spec.name
        self.spec = spec
        self.encoder = plan.encoders[spec.name]
        self.postponed = False
        """Whether its device had no memory for it beside other encoders."""
        self._plan = plan
        self._build = build
        self._claims = claims
        self._budget = budget
        self._written = 0.0
        """Seconds of commits that were told."""
        self._options = options
        self._stop = stop
        self._report = report
        self._alone = True
        self._flushes = FlushPolicy()
        self._ends = ExitStack()
        self._lock = threading.Lock()
        self._asked = _LONG_AGO
        """The writer's group that was last asked to be durable."""
        self._given = 0
        """Bytes of sources that the pool has and has not told of."""

    def __enter__(self) -> EncoderRun:
        return self

    def begin(self, count: int, times: StageTimes, *, together: int) -> None:
        """Get ready to make so many entries, as one of so many encoders."""
        self._times = times
        self._alone = together == 1
        recipe, build, store = self.encoder.wants.encoding.recipe, self._build, self._plan.store
        start, encoded, nbytes = time.monotonic(), build.encoded[self.name], build.nbytes_by[self.name]

        def record() -> None:
            entries, size = build.encoded[self.name] - encoded, build.nbytes_by[self.name] - nbytes
            # Its part of the time: a forecast adds up what encoders take.
            seconds = (time.monotonic() - start) / together
            with build.lock:
                build.truncated[self.name] += self._pool.truncated
                record_tunings(build.memory, recipe, self._pool.tunings())
                record_rate(build.memory, recipe, entries=entries, nbytes=size, seconds=seconds)

        with build.lock:
            tunings = read_tunings(build.memory, recipe)
        task = self._ends.enter_context(self._report.task(self.name, total=count, unit="entries"))
        self.progress = EncoderProgress(
            build, self.name, task, fail_fast=self._options.fail_fast, busy=self._times.shares
        )
        self._pool = DevicePool(self.spec, self, self._stop, plan=self._plan, tunings=tunings)
        self._pool.expected = -(-count // self._options.processes)
        self._ends.callback(record)
        self._writer = store.writer()
        # Registered before it is entered, and so called after its end: the last commit counts, too.
        self._ends.callback(self._count_commits)
        self._ends.enter_context(self._writer)
        self._claimed = ClaimedRows(store, self.encoder, self._claims, self._writer, self.progress, self._stop)
        self._ends.enter_context(self._pool)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._ends.__exit__(kind, error, trace)
        except NoRoomError as problem:
            self._postpone(problem)

    def take(self, rows: Numbers) -> Numbers:
        """Claim rows; those that are ours to make."""
        return rows[:0] if self.postponed else self._claimed.take(rows)

    def claimed_by_others(self) -> Numbers:
        """The rows that other builders had claimed, and have not made yet."""
        return self._claimed.of_others()

    def look(self, rows: Numbers) -> tuple[Numbers, bool]:
        """Of rows that others had claimed, those that are still to be made, and whether some were given up."""
        return (rows[:0], False) if self.postponed else self._claimed.look(rows)

    def give_up_failed(self) -> None:
        """Let other builders have what could not be made here."""
        self._claimed.give_up_failed()

    def left(self, rows: Numbers) -> Numbers:
        """Of these, the rows of which nothing was told."""
        rows = rows[~self._plan.store.present(self.encoder.wants.keys[rows])]
        return rows[[key not in self.progress.unmade for key in split(self.encoder.wants.keys[rows])]]

    def count(self, shape: Shape) -> int:
        """How many items of a shape are encoded together."""
        return self._pool.size.count(shape, count_pixels(shape))

    def give(self, jobs: list[Job]) -> None:
        """Encode these, when there is room for them."""
        nbytes = sum(job.nbytes for job in jobs)
        with self._lock:
            self._given += nbytes
        if self.postponed:
            self._told(nbytes)
            return
        try:
            self._pool.give(jobs)
        except NoRoomError as problem:
            self._postpone(problem)

    def check(self) -> None:
        """Raise what ended its work, if something did."""
        try:
            self._pool.check()
        except NoRoomError as problem:
            self._postpone(problem)

    def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
        """Keep the results of a batch, but for those that no pack could hold: they fail."""
        recipe = self.encoder.wants.encoding.recipe
        entries = [(job.entry.key.bytes, parts) for job, parts in results]
        written = write_results(self._writer, recipe, entries, made=self._made.form(compiled=compiled))
        if written.keys:
            self._claimed.stored(written.keys, written.group)
            self.progress.stored(written.keys, written.nbytes)
        self._told(sum(job.nbytes for job, _ in results))
        for number, error in written.refused:
            self.progress.failed(results[number][0].entry, error.message, lasting=True)

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made."""
        self._told(job.nbytes)
        self.progress.failed(job.entry, reason, lasting=lasting)

    def batch_done(self, seconds: float) -> None:
        """Have what was stored made durable if a kill would cost too much by now.

        What was to be durable at the last time is waited for, and it nearly always is: so the disk works while the next
        batch is encoded, and a kill still costs no more than a batch of those that were stored.
        """
        self._times.add("device", seconds)
        self._count_commits()
        if self._flushes.is_due(seconds):
            with self._lock:
                before, self._asked = self._asked, self._writer.flush_soon()
            self._writer.wait(before)

    @functools.cached_property
    def _made(self) -> MadeWith:
        """What its entries are made with; first asked for when everything is loaded."""
        return MadeWith(self.spec, self.encoder.wants.encoding.inputs)

    def _count_commits(self) -> None:
        with self._lock:
            before, self._written = self._written, self._writer.seconds
            self._times.add("disk", self._written - before)

    def _told(self, nbytes: int) -> None:
        with self._lock:
            # Less where it was postponed meanwhile, and everything told: another of its devices had no memory.
            nbytes = min(nbytes, self._given)
            self._given -= nbytes
        self._budget.give_back(nbytes)

    def _postpone(self, problem: NoRoomError) -> None:
        """Leave everything to a run of its own, if there were others beside it."""
        if self._alone:
            raise problem
        if not self.postponed:
            _log.info("%s: not beside the other encoders, but after them: %s", self.name, problem.message)
            self.postponed = True
            self._told(self._given)


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
        """Claim rows; those that are ours to make. What others have claimed is theirs until `of_others`."""
        claimed = self._claim(rows)
        # What others have made by now is told at once, not when all the rest is done.
        self._postponed = np.concatenate([self._absent(self._postponed), rows[~claimed]])
        ours = self._absent(rows[claimed])
        self.stored(self._keys(np.setdiff1d(rows[claimed], ours)), _LONG_AGO)
        return ours

    def stored(self, keys: Sequence[bytes], group: int) -> None:
        """These entries are durable when this group of the writer's is."""
        self._stored.append((group, keys))

    def of_others(self) -> Numbers:
        """The rows that other builders had claimed and have not made yet; from now on the caller's to ask for."""
        rows, self._postponed = self._absent(self._postponed), self._postponed[:0]
        if len(rows):
            name = self._encoder.wants.encoding.name
            _log.info("%s: another build has claimed %d entries; waiting for it", name, len(rows))
        return rows

    def look(self, rows: Numbers) -> tuple[Numbers, bool]:
        """Of rows that others had claimed, those that are still to be made, and whether some were given up."""
        first = rows[:0]
        while len(rows) and not len(first):
            first = self._absent(rows[:_LOOK])
            rows = np.concatenate([first, rows[_LOOK:]])
        given_up = bool(self._claim(first[:1]).any())
        if given_up:
            # What the other builder could not make either, since our plan was made, need not be tried again.
            failures = read_failures(self._store.memory())
            for row, key in zip(rows.tolist(), self._keys(rows), strict=True):
                if key in failures and row not in self._encoder.failures:
                    self._progress.reasons[key] = failures[key]
        return rows, given_up

    def give_up_failed(self) -> None:
        """Give up what we could not make: two builders that wait for each other's failures would wait for ever."""
        # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
        keys = self._progress.disclose(self._store)
        if keys:
            self._claims.take([], done=keys)

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

    def _keys(self, rows: Numbers) -> list[bytes]:
        return split(self._encoder.wants.keys[rows])
