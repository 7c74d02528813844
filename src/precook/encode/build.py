"""The build: runs encoders over exactly what is missing, and keeps what they make as it goes."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from precook.encode.batches import BatchSize, Bins
from precook.encode.crew import Crew, Worker, described
from precook.encode.prepare import Job, Unit, UnusableError, picture_units, text_jobs
from precook.encode.results import Acceptance
from precook.errors import EncodeError, SourceChangedError
from precook.plan.entries import Failure, PlannedEntry, entry_of
from precook.plan.forecast import record_rate
from precook.plan.plan import FAILURES, EncoderPlan, Plan
from precook.report import Reporter, Task
from precook.sources.memory import Memory
from precook.store.claims import Claims
from precook.store.tree import Parts
from precook.store.writer import Writer

_WINDOW = 256
"""Entries that are claimed at a time."""
_TEXTS = 1024
"""Texts that are sorted by length together."""
_POLL = 0.2
"""Seconds between two looks at what another builder has claimed."""


@dataclass(frozen=True, slots=True)
class Hand:
    """How one encoder is run."""

    make: Callable[[], Worker]
    devices: tuple[str, ...]
    batch_size: int | None
    """None: found by trying."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a build is run."""

    memory: int
    """Bytes that prepared pictures may take while they wait."""
    threads: int
    """Threads that read and decode."""
    retry_failed: bool
    fail_fast: bool


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did."""

    encoded: dict[str, int]
    """New entries, by encoder."""
    reused: dict[str, int]
    """Entries that were there already, by encoder."""
    failed: tuple[Failure, ...]
    changed: int
    """Entries whose source changed meanwhile: planned again, not stored."""
    truncated: dict[str, int]
    """Texts that were cut to the encoder's length, by encoder."""
    seconds: float
    bytes: int
    """Of the new entries."""
    peak_memory: int
    """Most memory the process has taken so far."""
    stopped: bool
    """Whether it was stopped before the end; the next build goes on."""


def build(
    plan: Plan, hands: dict[str, Hand], *, options: Options, stop: threading.Event, report: Reporter
) -> BuildReport:
    """Encode what a plan has as missing, one encoder after the other; `stop` ends it after the batches in flight."""
    start = time.monotonic()
    memory = plan.store.memory()
    tally = _Tally()
    claims = plan.store.claims() if _work(plan, options) else None
    try:
        for name, one in plan.encoders.items():
            entries = _entries(one, options)
            if entries and not stop.is_set():
                assert claims is not None
                _Line(plan, one, hands[name], tally, memory, claims, options=options, stop=stop).run(entries, report)
    finally:
        if claims is not None:
            claims.release()
        plan.store.remember(memory)
    return BuildReport(
        encoded=dict(tally.encoded),
        reused={name: len(one.ready) for name, one in plan.encoders.items()},
        failed=(*(failure for failure in plan.failed if failure.encoder is None), *tally.failed),
        changed=tally.changed,
        truncated=dict(tally.truncated),
        seconds=time.monotonic() - start,
        bytes=tally.nbytes,
        peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        stopped=stop.is_set(),
    )


def joined(first: BuildReport, second: BuildReport) -> BuildReport:
    """One report for two builds, one after the other."""
    return BuildReport(
        encoded=dict(Counter(first.encoded) + Counter(second.encoded)),
        reused=first.reused,
        failed=(*(failure for failure in first.failed if failure.encoder is not None), *second.failed),
        changed=second.changed,
        truncated=dict(Counter(first.truncated) + Counter(second.truncated)),
        seconds=first.seconds + second.seconds,
        bytes=first.bytes + second.bytes,
        peak_memory=second.peak_memory,
        stopped=second.stopped,
    )


class _Tally:
    """What was done so far."""

    def __init__(self) -> None:
        self.encoded: Counter[str] = Counter()
        self.truncated: Counter[str] = Counter()
        self.failed: list[Failure] = []
        self.changed = 0
        self.nbytes = 0


class _Line:
    """One encoder's way from planned entries to the store."""

    def __init__(
        self,
        plan: Plan,
        one: EncoderPlan,
        hand: Hand,
        tally: _Tally,
        memory: Memory,
        claims: Claims,
        *,
        options: Options,
        stop: threading.Event,
    ) -> None:
        self._plan = plan
        self._one = one
        self._hand = hand
        self._tally = tally
        self._memory = memory
        self._claims = claims
        self._options = options
        self._stop = stop
        self._name = one.wants.encoding.name
        self._recipe = one.wants.encoding.recipe
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._task: Task | None = None
        self._postponed: list[PlannedEntry] = []
        self._size = BatchSize(hand.batch_size)

    def run(self, entries: list[PlannedEntry], report: Reporter) -> None:
        """Encode entries; those that another builder has claimed come last, if it has not made them by then."""
        start, before, nbytes = time.monotonic(), self._tally.encoded[self._name], self._tally.nbytes
        crew = Crew(self._hand.make, self._hand.devices, self._size, Acceptance(self._name), self, self._stop)
        try:
            with (
                report.task(self._name, total=len(entries), unit="entries") as self._task,
                self._plan.store.writer() as self._writer,
                crew,
            ):
                while entries and not self._stop.is_set():
                    self._postponed = []
                    self._encode(entries, crew)
                    entries = self._others_work()
        finally:
            self._tally.truncated[self._name] += crew.truncated
            record_rate(
                self._memory,
                self._recipe,
                entries=self._tally.encoded[self._name] - before,
                nbytes=self._tally.nbytes - nbytes,
                seconds=time.monotonic() - start,
            )

    def store(self, job: Job, parts: Parts) -> None:
        """Keep a result; called by the crew."""
        assert self._writer is not None
        self._writer.put_parts(job.entry.key, parts, recipe=self._recipe)
        with self._lock:
            self._tally.encoded[self._name] += 1
            self._tally.nbytes += sum(leaf.data.nbytes for leaf in parts.leaves)
            self._memory.write_note(FAILURES, job.entry.key.bytes, None)
            self._advance()

    def fail(self, job: Job, error: Exception) -> None:
        """Note a failure; called by the crew."""
        self._note(job.entry, described(error), lasting=True)

    def _encode(self, entries: list[PlannedEntry], crew: Crew) -> None:
        if self._one.wants.encoding.input == "text":
            for chunk in self._claimed(entries, _TEXTS):
                jobs = list(self._read_texts(chunk))
                if jobs:
                    crew.give(jobs)
            return
        bins = Bins(self._size)
        units = (
            unit
            for chunk in self._claimed(_in_order(self._one, entries, self._plan), _WINDOW)
            for unit in picture_units(self._one, chunk, self._plan.settings.image.rgb)
        )
        for job in self._prepared(units, bins):
            for batch in bins.add(job):
                crew.give(batch)
            while bins.nbytes > self._options.memory:
                crew.give(bins.fullest())
        for batch in bins.rest():
            crew.give(batch)

    def _claimed(self, entries: Sequence[PlannedEntry], step: int) -> Iterator[list[PlannedEntry]]:
        """Entries, some at a time, that nobody else has made or claimed meanwhile."""
        for at in range(0, len(entries), step):
            if self._stop.is_set():
                return
            chunk = entries[at : at + step]
            missing = {key.bytes for key in self._plan.store.missing([entry.key for entry in chunk])}
            mine = self._claims.take(sorted(missing)) if missing else set()
            for entry in chunk:
                if entry.key.bytes not in missing:
                    self._advance()
                elif entry.key.bytes not in mine:
                    self._postponed.append(entry)
            self._claims.prolong()
            yield [entry for entry in chunk if entry.key.bytes in mine]

    def _others_work(self) -> list[PlannedEntry]:
        """What others have claimed and not made, once they have had the time to; waits for them."""
        entries = self._postponed
        while entries and not self._stop.wait(_POLL):
            missing = {key.bytes for key in self._plan.store.missing([entry.key for entry in entries])}
            for entry in entries:
                if entry.key.bytes not in missing:
                    self._advance()
            entries = [entry for entry in entries if entry.key.bytes in missing]
            if entries and self._claims.take([entries[0].key.bytes]):
                return entries
        return []

    def _prepared(self, units: Iterator[Unit], bins: Bins) -> Iterator[Job]:
        """Read, decode and cut ahead, in several threads and bounded memory; in order."""
        kind = self._one.wants.encoding.input
        waiting: deque[tuple[Unit, Future[list[Job]]]] = deque()
        ahead = 0
        with ThreadPoolExecutor(self._options.threads, thread_name_prefix="precook-decode") as pool:
            try:
                for unit in units:
                    waiting.append((unit, pool.submit(unit.prepare, kind)))
                    ahead += unit.nbytes
                    while len(waiting) > 4 * self._options.threads or ahead + bins.nbytes > self._options.memory:
                        first, future = waiting.popleft()
                        ahead -= first.nbytes
                        yield from self._jobs(first, future)
                        if not waiting:
                            break
                for first, future in waiting:
                    yield from self._jobs(first, future)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _jobs(self, unit: Unit, future: Future[list[Job]]) -> list[Job]:
        try:
            return future.result()
        except (SourceChangedError, UnusableError) as error:
            for entry in unit.entries:
                self._refuse(entry, error)
            return []

    def _read_texts(self, entries: Sequence[PlannedEntry]) -> Iterator[Job]:
        for job in text_jobs(self._one, entries):
            if isinstance(job, Job):
                yield job
            else:
                self._refuse(*job)

    def _refuse(self, entry: PlannedEntry, error: SourceChangedError | UnusableError) -> None:
        if isinstance(error, UnusableError):
            self._note(entry, str(error), lasting=error.lasting)
            return
        with self._lock:
            self._tally.changed += 1
            self._advance()

    def _note(self, entry: PlannedEntry, reason: str, *, lasting: bool) -> None:
        """Record that an entry could not be made; what may pass is told, and tried again by the next build."""
        with self._lock:
            self._tally.failed.append(Failure(reason, entry.path, entry.concept, self._name, entry.key))
            if lasting:
                note = json.dumps({"reason": reason, "when": int(time.time())})
                self._memory.write_note(FAILURES, entry.key.bytes, note)
            self._advance()
        if self._options.fail_fast:
            place = entry.path or "the empty prompt"
            raise EncodeError(f"{self._name}: {place}: {reason}", hint="without --fail-fast the others go on")

    def _advance(self) -> None:
        assert self._task is not None
        self._task.advance()


def _in_order(one: EncoderPlan, entries: list[PlannedEntry], plan: Plan) -> list[PlannedEntry]:
    """Entries in the order in which they are encoded: cut alike, then by file."""
    units = picture_units(one, entries, plan.settings.image.rgb)
    return [entry for unit in units for entry in unit.entries]


def _entries(one: EncoderPlan, options: Options) -> list[PlannedEntry]:
    """What an encoder has to make."""
    rows = [*one.missing.tolist(), *(one.failures if options.retry_failed else ())]
    return [entry_of(one, row) for row in rows]


def _work(plan: Plan, options: Options) -> bool:
    return bool(len(plan.missing)) or (options.retry_failed and any(one.failures for one in plan.encoders.values()))


def default_threads() -> int:
    """Threads that read and decode, where nobody says."""
    return max(2, min(16, os.cpu_count() or 1))
