"""Live encoding: what a batch lacks is made there and then, stored, and never made again."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precook.encode.pool import DevicePool
from precook.encode.prepare import Job, Refused, make_units
from precook.encode.registry import EncoderSpec, MadeWith
from precook.encode.results import write_results
from precook.encode.stages import StageTimes
from precook.errors import FeedError
from precook.interrupt import Condition
from precook.plan.plan import Plan
from precook.plan.ready import record_failure
from precook.plan.wanted import Encoding, rows_with
from precook.store.tree import Parts
from precook.store.writer import Writer
from precook.units import format_count
from precook.values import Key

_LOOK = 0.1
"""Seconds between two looks at whether an encoder has given up."""


@dataclass(frozen=True, slots=True)
class _LiveFailure:
    """Why an entry could not be made, and whether trying again would give the same."""

    text: str
    lasting: bool


class Live:
    """Encoders that are loaded when a batch first lacks something, and stay loaded until the end."""

    def __init__(self, plan: Plan, specs: Mapping[str, EncoderSpec]) -> None:
        self._plan = plan
        self._specs = specs
        self._pools: dict[str, tuple[DevicePool, _Results]] = {}
        self._pid = os.getpid()

    def make(self, encoder: str, keys: list[Key]) -> dict[Key, str]:
        """Encode and store entries: durable when it returns; why some could not be made."""
        if os.getpid() != self._pid:
            # The threads of a pool stay behind at a fork: nobody would ever answer.
            hint = "build first, or let the DataLoader work without workers"
            lacking = format_count(len(keys), "entry")
            raise FeedError(f"{encoder}: {lacking} missing, and a worker encodes none", hint=hint)
        failed: dict[Key, _LiveFailure] = {}
        shapes: dict[tuple[int, ...], list[Job]] = {}
        planned = self._plan.encoders[encoder]
        rows = rows_with(planned.wants.keys, {key.bytes for key in keys})
        # Several rows may want the same entry; one of them is enough.
        row_of = {planned.wants.keys[row].tobytes(): row for row in rows.tolist()}
        entries, encoding = planned.entries(list(row_of.values())), planned.wants.encoding
        times = StageTimes({})  # nobody asks
        for unit in make_units(planned.samples, encoding, entries):
            for prepared in unit.prepare(times):
                key = prepared.entry.key
                if isinstance(prepared, Job):
                    shapes.setdefault(prepared.shape, []).append(prepared)
                elif isinstance(prepared, Refused):
                    failed[key] = _LiveFailure(prepared.reason, prepared.lasting)
                else:
                    failed[key] = _LiveFailure("its source has changed since the feed began", lasting=False)
        pool, results = self._pool(encoder)
        results.expect({job.entry.key for batch in shapes.values() for job in batch})
        for batch in shapes.values():
            pool.give(batch)
        failed |= results.wait(pool)
        # What trying again would not mend is remembered, as a build does.
        memory = self._plan.store.memory()
        for key, failure in failed.items():
            if failure.lasting:
                record_failure(memory, key.bytes, failure.text)
        self._plan.store.remember(memory)
        return {key: failure.text for key, failure in failed.items()}

    def _pool(self, encoder: str) -> tuple[DevicePool, _Results]:
        if encoder not in self._pools:
            results = _Results(
                self._plan.store.writer(), self._plan.encoders[encoder].wants.encoding, self._specs[encoder]
            )
            pool = DevicePool(self._specs[encoder], results, threading.Event(), plan=self._plan)
            self._pools[encoder] = pool.__enter__(), results
        return self._pools[encoder]

    def close(self) -> None:
        """Unload the encoders."""
        pools, self._pools = self._pools, {}
        if os.getpid() != self._pid:
            return
        # All of them, also where one has failed and says so again here.
        with contextlib.ExitStack() as ends:
            for pool, results in pools.values():
                ends.callback(results.writer.close)
                ends.push(pool)


class _Results:
    """The sink of a pool: what it made is stored, and counted."""

    def __init__(self, writer: Writer, encoding: Encoding, spec: EncoderSpec) -> None:
        self.writer = writer
        self._encoding = encoding
        self._spec = spec
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)
        self._expected: set[Key] = set()
        """Entries that are waited for."""
        self._failed: dict[Key, _LiveFailure] = {}

    @functools.cached_property
    def _made(self) -> MadeWith:
        """What its entries are made with, once the encoder is loaded."""
        return MadeWith(self._spec, self._encoding.inputs)

    def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
        entries = [(job.entry.key.bytes, parts) for job, parts in results]
        written = write_results(self.writer, self._encoding.recipe, entries, made=self._made.form(compiled=compiled))
        self._answer(map(Key, written.keys))
        for number, error in written.refused:
            self.fail(results[number][0], error.message, lasting=True)

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        with self._lock:
            self._failed[job.entry.key] = _LiveFailure(reason, lasting)
        self._answer([job.entry.key])

    def batch_done(self, seconds: float) -> None:
        """Nothing to do: `wait` makes everything durable at once."""

    def expect(self, keys: set[Key]) -> None:
        """Say what will be waited for.

        By key, not by number: where a wait was interrupted, answers to what it asked for are still on their way.
        """
        with self._lock:
            self._expected, self._failed = keys, {}

    def wait(self, pool: DevicePool) -> dict[Key, _LiveFailure]:
        """Wait until all that is expected was stored or has failed; what failed, and why."""
        with self._lock:
            while self._expected:
                pool.check()
                self._changed.wait(_LOOK)
            failed, self._failed = self._failed, {}
        self.writer.flush()
        return failed

    def _answer(self, keys: Iterable[Key]) -> None:
        with self._lock:
            self._expected.difference_update(keys)
            self._changed.notify_all()
