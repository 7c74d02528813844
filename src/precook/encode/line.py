"""The line: one encoder's way from planned entries to the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from precook.encode.batches import BatchSize, Bins
from precook.encode.crew import Crew, Worker
from precook.encode.ledger import Ledger, Page
from precook.encode.order import in_order
from precook.encode.prepare import Changed, Job, Prepared, Refused, Unit, make_units
from precook.encode.results import ready_entries
from precook.encode.risk import Risk
from precook.encode.room import Room
from precook.encode.share import Share
from precook.identity.recipe import Recipe
from precook.plan.entries import entries_of
from precook.plan.forecast import record_rate
from precook.plan.plan import EncoderPlan, Plan
from precook.report import Reporter
from precook.sources.memory import Memory
from precook.sources.pairing import Numbers
from precook.store.claims import Claims
from precook.store.tree import Parts
from precook.store.writer import Writer

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


@dataclass(frozen=True, slots=True)
class Hand:
    """How one encoder is run."""

    make: Callable[[], Worker]
    devices: tuple[str, ...]
    batch_size: int | None
    """None: found by trying."""
    check: Callable[[Recipe], None] | None = None
    """Raises if the encoder, once it is loaded, is not that of a recipe: its files may have changed since the plan."""

    def checked(self, recipe: Recipe) -> Callable[[], None] | None:
        """The check for one recipe."""
        return None if self.check is None else partial(self.check, recipe)


@dataclass(frozen=True, slots=True)
class Options:
    """How a build is run."""

    memory: int
    """Bytes that sources may take from when they are read until they are encoded."""
    threads: int
    """Threads that read and decode."""
    retry_failed: bool
    fail_fast: bool
    processes: int = 1
    """Processes that build the same at the same time, this one among them."""


def run_line(
    plan: Plan,
    one: EncoderPlan,
    rows: Numbers,
    hand: Hand,
    ledger: Ledger,
    memory: Memory,
    claims: Claims,
    *,
    options: Options,
    stop: threading.Event,
    report: Reporter,
) -> None:
    """Make the entries of these rows; those that another builder has claimed come last, if it has not made them."""
    name, recipe = one.wants.encoding.name, one.wants.encoding.recipe
    start, before, nbytes = time.monotonic(), ledger.encoded[name], ledger.nbytes
    try:
        with report.task(name, total=len(rows), unit="entries") as task, plan.store.writer() as writer:
            page = Page(ledger, name, memory, task, fail_fast=options.fail_fast)
            share = Share(plan.store, one, claims, writer, page, stop)
            line = Line(plan, one, hand, writer, page, share, options=options, stop=stop)
            try:
                line.run(rows)
            finally:
                ledger.truncated[name] += line.truncated
    finally:
        record_rate(
            memory,
            recipe,
            entries=ledger.encoded[name] - before,
            nbytes=ledger.nbytes - nbytes,
            seconds=time.monotonic() - start,
        )
        # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
        plan.store.remember(memory)
        claims.release()


class Line:
    """Encodes what one encoder has to make; what its crew makes comes back through the methods of a `Sink`."""

    def __init__(
        self,
        plan: Plan,
        one: EncoderPlan,
        hand: Hand,
        writer: Writer,
        page: Page,
        share: Share,
        *,
        options: Options,
        stop: threading.Event,
    ) -> None:
        self._plan = plan
        self._one = one
        self._writer = writer
        self._page = page
        self._share = share
        self._options = options
        self._stop = stop
        self._devices = len(hand.devices)
        self._size = BatchSize(hand.batch_size)
        self._room = Room(options.memory)
        encoding = one.wants.encoding
        check = hand.checked(encoding.recipe)
        self._crew = Crew(encoding.name, hand.make, hand.devices, self._size, self, stop, check=check)
        self._risk = Risk()

    @property
    def truncated(self) -> int:
        """Texts that were cut to fit."""
        return self._crew.truncated

    def run(self, rows: Numbers) -> None:
        """Make the entries of these rows."""
        left = in_order(self._plan, self._one, rows)
        with self._crew:
            while len(left) and not self._stop.is_set():
                self._give(left)
                left = self._share.others_work()

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
        """Keep the results of a batch, but for those that no pack could hold: they fail."""
        entries, refused = ready_entries(results, self._one.wants.encoding.recipe)
        if entries:
            keys = [entry.key for entry in entries]
            self._share.stored(keys, self._writer.put_entries(entries))
            self._page.stored(keys, sum(entry.parts.nbytes for entry in entries))
        self._room.give_back(sum(job.nbytes for job, _ in results))
        for job, reason in refused:
            self._page.failed(job.entry, reason, lasting=True)

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made."""
        self._room.give_back(job.nbytes)
        self._page.failed(job.entry, reason, lasting=lasting)

    def batch_done(self, seconds: float) -> None:
        """Make what was stored durable if a kill would cost too much by now."""
        if self._risk.too_high(seconds):
            self._writer.flush()

    def _give(self, rows: Numbers) -> None:
        """Read, decode and cut in several threads and bounded memory, and hand batches to the crew."""
        is_text = self._one.wants.encoding.input == "text"
        processes = self._options.processes
        parts = self._devices if processes == 1 else self._devices * processes * _TURNS
        most = -(-len(rows) // parts)
        texts = min(_TEXTS, most)
        # So much at once leaves room for the batch that is encoded, the next and the one that is prepared.
        share = max(1, self._options.memory // (2 * self._devices + 2))
        bins = Bins((lambda: texts) if is_text else (lambda: self._size.now), share)
        waiting: deque[tuple[Unit, Future[list[Prepared]]]] = deque()

        def pass_on() -> None:
            nonlocal texts
            unit, future = waiting.popleft()
            prepared = future.result()
            self._room.give_back(unit.nbytes)
            for job in self._usable(prepared):
                for batch in bins.add(job):
                    self._crew.give(batch)
                    texts = max(texts, min(2 * texts, _MOST_TEXTS, len(rows) // parts))

        pool = ThreadPoolExecutor(self._options.threads, thread_name_prefix="precook-decode")
        try:
            window = _TEXTS if is_text else _WINDOW
            for unit in self._units(rows, window if processes == 1 else min(window, most)):
                while not self._room.has(unit.nbytes) and not self._stop.is_set():
                    if waiting:
                        pass_on()
                    elif bins:
                        self._crew.give(bins.largest())
                    else:
                        self._crew.check()
                        self._room.wait()
                if self._stop.is_set():
                    return
                self._room.take(unit.nbytes)
                waiting.append((unit, pool.submit(unit.prepare)))
                while waiting and (len(waiting) > _AHEAD * self._options.threads or waiting[0][1].done()):
                    pass_on()
            while waiting:
                pass_on()
            for batch in bins.rest():
                self._crew.give(batch)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _usable(self, prepared: Sequence[Prepared]) -> list[Job]:
        """What can be encoded; it takes its room from now on, and what cannot is told."""
        jobs = [one for one in prepared if isinstance(one, Job)]
        self._room.take(sum(job.nbytes for job in jobs))
        for one in prepared:
            if isinstance(one, Refused):
                self._page.failed(one.entry, one.reason, lasting=one.lasting)
            elif isinstance(one, Changed):
                self._page.changed(one.entry)
        return jobs

    def _units(self, rows: Numbers, step: int) -> Iterator[Unit]:
        """The files of rows that nobody else has made or claimed meanwhile, some rows at a time."""
        for at in range(0, len(rows), step):
            if self._stop.is_set():
                return
            entries = entries_of(self._one, self._share.take(rows[at : at + step]).tolist())
            yield from make_units(self._one, entries, self._plan.settings.image.rgb)
