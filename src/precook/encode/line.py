"""The line: one encoder's way from planned entries to the store."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np

from precook.encode.batches import BatchSize, Bins
from precook.encode.crew import Crew, Worker
from precook.encode.order import in_order
from precook.encode.prepare import Changed, Job, Prepared, Refused, Unit, make_units
from precook.encode.room import Room
from precook.encode.tally import Tally
from precook.errors import EncodeError
from precook.plan.entries import Failure, PlannedEntry, entries_of, entry_of
from precook.plan.failures import forget_failure, read_failures, record_failure
from precook.plan.forecast import record_rate
from precook.plan.plan import EncoderPlan, Plan
from precook.report import Reporter, Task
from precook.sources.memory import Memory
from precook.sources.pairing import Numbers
from precook.store.claims import Claims
from precook.store.tree import Parts
from precook.store.writer import Writer
from precook.values import Key

_log = logging.getLogger("precook")

Keys = dict[int, Key]
"""Rows of the plan, each with its key."""

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
_AT_RISK = 20
"""One batch in so many may be encoded and not yet durable."""
_CHEAP = 0.00005
"""Seconds: no encoder that computes anything is done with a batch so soon."""
_POLL = 0.2
"""Seconds between two looks at what another builder does."""


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
    """Bytes that sources may take from when they are read until they are encoded."""
    threads: int
    """Threads that read and decode."""
    retry_failed: bool
    fail_fast: bool
    processes: int = 1
    """Processes that build the same at the same time, this one among them."""


class Line:
    """Encodes what one encoder has to make; what its crew makes comes back through `store`, `fail` and `batch_done`."""

    def __init__(
        self,
        plan: Plan,
        one: EncoderPlan,
        hand: Hand,
        tally: Tally,
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
        self._size = BatchSize(hand.batch_size)
        self._room = Room(options.memory)
        self._postponed: list[int] = []
        """Rows that another builder has claimed."""
        self._lock = threading.Lock()
        """Around everything below, and the tally, the memory and the task."""
        self._done: list[Key] = []
        """What was stored and is still claimed."""
        self._unmade: list[Key] = []
        """What could not be made and is still claimed."""
        self._batches = self._durable = 0
        self._writer: Writer | None = None
        self._task: Task | None = None

    def run(self, rows: Numbers, report: Reporter) -> None:
        """Make the entries of these rows; those that another builder has claimed come last, if it has not made them."""
        start, before, nbytes = time.monotonic(), self._tally.encoded[self._name], self._tally.nbytes
        crew = Crew(self._name, self._hand.make, self._hand.devices, self._size, self, self._stop)
        left = in_order(self._plan, self._one, rows)
        try:
            with (
                report.task(self._name, total=len(rows), unit="entries") as self._task,
                self._plan.store.writer() as self._writer,
                crew,
            ):
                while len(left) and not self._stop.is_set():
                    self._postponed = []
                    self._give(left, crew)
                    left = self._others_work()
        finally:
            self._tally.truncated[self._name] += crew.truncated
            record_rate(
                self._memory,
                self._recipe,
                entries=self._tally.encoded[self._name] - before,
                nbytes=self._tally.nbytes - nbytes,
                seconds=time.monotonic() - start,
            )
            # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
            self._plan.store.remember(self._memory)
            self._claims.release()

    def store(self, job: Job, parts: Parts) -> None:
        """Keep a result."""
        assert self._writer is not None
        self._writer.put_parts(job.entry.key, parts, recipe=self._recipe)
        self._room.give_back(job.nbytes)
        nbytes = sum(leaf.data.nbytes for leaf in parts.leaves)
        with self._lock:
            self._tally.encoded[self._name] += 1
            self._tally.nbytes += nbytes
            forget_failure(self._memory, job.entry.key.bytes)
            self._done.append(job.entry.key)
            self._advance(nbytes=nbytes)

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made."""
        self._room.give_back(job.nbytes)
        self._note(job.entry, reason, lasting=lasting)

    def batch_done(self, seconds: float) -> None:
        """Make what was stored durable if a kill would cost too much by now.

        The first batches one by one, then a small part of all there were: few packs, and little to do again. What
        costs next to nothing is sooner made again than waited for.
        """
        assert self._writer is not None
        with self._lock:
            self._batches += 1
            due = seconds >= _CHEAP and self._batches - self._durable > self._batches // _AT_RISK
            if due:
                self._durable = self._batches
        if due:
            self._writer.flush()

    def _give(self, rows: Numbers, crew: Crew) -> None:
        """Read, decode and cut in several threads and bounded memory, and hand batches to the crew."""
        devices = len(self._hand.devices)
        is_text = self._one.wants.encoding.input == "text"
        processes = self._options.processes
        parts = devices if processes == 1 else devices * processes * _TURNS
        most = -(-len(rows) // parts)
        texts = min(_TEXTS, most)
        # So much at once leaves room for the batch that is encoded, the next and the one that is prepared.
        share = max(1, self._options.memory // (2 * devices + 2))
        bins = Bins((lambda: texts) if is_text else (lambda: self._size.now), share)
        waiting: deque[tuple[Unit, Future[list[Prepared]]]] = deque()

        def pass_on() -> None:
            nonlocal texts
            unit, future = waiting.popleft()
            prepared = future.result()
            self._room.give_back(unit.nbytes)
            for one in prepared:
                for batch in self._sorted(one, bins):
                    crew.give(batch)
                    texts = max(texts, min(2 * texts, _MOST_TEXTS, len(rows) // parts))

        pool = ThreadPoolExecutor(self._options.threads, thread_name_prefix="precook-decode")
        try:
            window = _TEXTS if is_text else _WINDOW
            for unit in self._units(rows, window if processes == 1 else min(window, most)):
                while not self._room.has(unit.nbytes) and not self._stop.is_set():
                    if waiting:
                        pass_on()
                    elif bins:
                        crew.give(bins.largest())
                    else:
                        crew.check()
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
                crew.give(batch)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _sorted(self, one: Prepared, bins: Bins) -> list[list[Job]]:
        """Put what was prepared where it belongs; the batches that are full with it."""
        if isinstance(one, Job):
            self._room.take(one.nbytes)
            return bins.add(one)
        if isinstance(one, Refused):
            self._note(one.entry, one.reason, lasting=one.lasting)
        if isinstance(one, Changed):
            with self._lock:
                self._tally.changed += 1
                self._unmade.append(one.entry.key)
                self._advance()
        return []

    def _units(self, rows: Numbers, step: int) -> Iterator[Unit]:
        """The files of rows that nobody else has made or claimed meanwhile, some rows at a time."""
        for at in range(0, len(rows), step):
            if self._stop.is_set():
                return
            wanted = self._absent(self._keys(rows[at : at + step].tolist()))
            mine = self._claim(wanted)
            if self._postponed:
                # What others have made by now is told at once, not when all the rest is done.
                self._postponed = list(self._absent(self._keys(self._postponed)))
            self._postponed += [row for row in wanted if row not in mine]
            # Once more: whoever had claimed some may have made them between our look and our claim.
            entries = entries_of(self._one, list(self._absent(mine)))
            yield from make_units(self._one, entries, self._plan.settings.image.rgb)

    def _claim(self, wanted: Keys) -> Keys:
        """Claim rows, and give up what is durable by now; the rows that are ours."""
        if not wanted:
            return {}
        with self._lock:
            done, self._done = self._done, []
        open_ = set(self._plan.store.missing(done))
        with self._lock:
            self._done += open_
        mine = self._claims.take(
            [key.bytes for key in wanted.values()], done=[key.bytes for key in done if key not in open_]
        )
        return {row: key for row, key in wanted.items() if key.bytes in mine}

    def _absent(self, wanted: Keys) -> Keys:
        """The rows that are still to be made; the others are told."""
        missing = set(self._plan.store.missing(wanted.values()))
        absent = {}
        for row, key in wanted.items():
            reason = self._tally.reasons.get(key.bytes)
            if key not in missing:
                with self._lock:
                    self._tally.reused[self._name] += 1
                    self._advance()
            elif reason is not None:
                self._note(entry_of(self._one, row), reason, lasting=False)
            else:
                absent[row] = key
        return absent

    def _others_work(self) -> Numbers:
        """What others had claimed and have given up; waits for them."""
        rows = self._postponed
        if rows:
            _log.info("%s: another build has claimed %d entries; waiting for it", self._name, len(rows))
        while rows and not self._stop.is_set():
            self._give_up()
            first = self._absent(self._keys(rows[:_WINDOW]))
            rows = [*first, *rows[_WINDOW:]]
            if first and self._claim(dict(islice(first.items(), 1))):
                self._read_failures(rows)
                break
            if first:
                time.sleep(_POLL)
        return np.array(rows, np.int64)

    def _give_up(self) -> None:
        """Let others see what we could not make: two that wait for each other's would wait for ever."""
        with self._lock:
            keys, self._unmade = self._unmade, []
            if keys:
                # Failures before claims, as at the end.
                self._plan.store.remember(self._memory)
        if keys:
            self._claims.take([], done=[key.bytes for key in keys])

    def _read_failures(self, rows: list[int]) -> None:
        """What another builder could not make either, since the plan was made, need not be tried again."""
        found = read_failures(self._plan.store.memory())
        for row, key in self._keys(rows).items():
            if key.bytes in found and row not in self._one.failures:
                self._tally.reasons[key.bytes] = found[key.bytes]

    def _note(self, entry: PlannedEntry, reason: str, *, lasting: bool) -> None:
        """Record that an entry could not be made; what may pass is told, and tried again by the next build."""
        with self._lock:
            self._tally.failed.append(Failure(reason, entry.path, entry.concept, self._name, entry.key))
            self._tally.reasons[entry.key.bytes] = reason
            self._unmade.append(entry.key)
            if lasting:
                record_failure(self._memory, entry.key.bytes, reason)
            self._advance(failed=1)
        if self._options.fail_fast:
            place = entry.path or "the empty prompt"
            raise EncodeError(f"{self._name}: {place}: {reason}", hint="without --fail-fast the others go on")

    def _keys(self, rows: list[int]) -> Keys:
        return {row: Key(key.tobytes()) for row, key in zip(rows, self._one.wants.keys[rows], strict=True)}

    def _advance(self, *, nbytes: int = 0, failed: int = 0) -> None:
        assert self._task is not None
        self._task.advance(nbytes=nbytes, failed=failed)
