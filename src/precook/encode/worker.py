"""The worker: runs one encoder on one device, batch after batch, and tells a sink what came of each item."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from precook.encode.batching import BatchSize, JobBatch, count_pixels
from precook.encode.encoder import BaseEncoder, Cost, StagedBatch
from precook.encode.prepare import Job
from precook.encode.results import Acceptance, described, free_memory, is_device_lost, is_out_of_memory
from precook.encode.tuning import CompileChoice
from precook.errors import EncodeError
from precook.store.tree import Parts, Tree

_log = logging.getLogger("precook")


@dataclass(frozen=True, slots=True)
class Lot:
    """Jobs that came together, in the order in which they are encoded."""

    jobs: list[Job]
    costs: list[int]
    """What each costs: its tokens or pixels."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch that the device has its orders for."""

    batch: JobBatch
    staged: StagedBatch
    compiled: bool
    """Whether they are compiled code."""
    start: float
    seconds: float
    """What it took to give them."""


class Sink(Protocol):
    """Where results go; called from any thread of a pool, once for each job unless the work ends early."""

    def store(self, results: Sequence[tuple[Job, Parts]], *, compiled: bool) -> None:
        """Keep results of a batch, which `compiled` code has made or not; those that no pack could hold fail."""

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made; `lasting` if trying again would give the same."""

    def batch_done(self, seconds: float) -> None:
        """Everything that came of a batch was told; to encode it took its device so long."""


class Worker:
    """Encodes batches, and tells the sink what comes of each item; as safe for several threads as its encoder is."""

    def __init__(
        self,
        name: str,
        encoder: BaseEncoder,
        size: BatchSize,
        acceptance: Acceptance,
        sink: Sink,
        *,
        over: Callable[[], bool],
        tells_apart: bool,
        choice: CompileChoice,
    ) -> None:
        self._name = name
        self._tells_apart = tells_apart
        """Whether different texts must have different results, which is so for models."""
        self.encoder = encoder
        self.size = size
        self._acceptance = acceptance
        self._sink = sink
        self.over = over
        """Whether nothing more is to be encoded."""
        self._choice = choice

    def run(self, jobs: list[Job]) -> None:
        """Encode jobs, batch after batch, each told before the next is begun."""
        for batch in self.batches(self.ordered(jobs)):
            self.compile_if_due(batch)
            start = time.perf_counter()
            trees = self.attempt(batch.jobs, lambda jobs=batch.jobs: self._encode(jobs))  # type: ignore[misc]
            if isinstance(trees, Exception):
                self.failed(batch, trees)
                continue
            seconds = time.perf_counter() - start
            compiled = self.encoder.compiled
            # Nothing is launched ahead here, and a long batch is no sign that something was compiled.
            self._choice.took(len(batch.jobs), seconds, launch=0.0, compiled=compiled)
            results = self._accept(batch.jobs, trees)
            # Without the storing: a slow disk says nothing about the encoder.
            self.size.took(batch, time.perf_counter() - start)
            self._tell(batch.jobs, results, compiled=compiled)
            self._sink.batch_done(seconds)

    def compile_if_due(self, batch: JobBatch) -> None:
        """Compile the encoder before a batch, if it can be and is not yet, when that is worth it."""
        if self.encoder.can_compile and not self.encoder.compiled and self._choice.is_due():
            start = time.perf_counter()
            self.encoder.compile([job.item for job in batch.jobs])
            if self.encoder.compiled:
                self._choice.compiled_in(time.perf_counter() - start)

    def ordered(self, jobs: list[Job]) -> Lot:
        """Jobs in the order in which they are encoded: texts by length, so that little is padded."""
        if jobs[0].shape:
            return Lot(jobs, [count_pixels(job.shape) for job in jobs])
        lengths = self._lengths([job.text or "" for job in jobs])
        # The longest first: if one batch does not fit into memory, the first one shows it.
        order = sorted(range(len(jobs)), key=lambda number: -lengths[number])
        costs = [lengths[number] if self.encoder.measures else 1 for number in order]
        return Lot([jobs[number] for number in order], costs)

    def batches(self, lot: Lot) -> Iterator[JobBatch]:
        """Jobs in batches of the size of the moment, until nothing more is to be encoded."""
        start = 0
        while start < len(lot.jobs) and not self.over():
            each = lot.costs[start]
            batch = JobBatch(lot.jobs[start : start + self.size.count(lot.jobs[start].shape, each)], each)
            start += len(batch.jobs)
            yield batch

    def landed(self, launched: Launched, trees: Sequence[Tree], seconds: float) -> None:
        """Accept and tell the results of a batch that took so long."""
        batch, staged, compiled = launched.batch, launched.staged, launched.compiled
        cost: Cost | None = getattr(staged, "cost", None)
        self.size.took(batch, seconds, cost)
        took = seconds if cost is None else cost.seconds
        self._choice.took(len(batch.jobs), took, launch=launched.seconds, compiled=compiled)
        results = self._accept(batch.jobs, trees, not_finite=getattr(staged, "not_finite", None))
        self._tell(batch.jobs, results, compiled=compiled)
        self._sink.batch_done(took)

    def failed(self, batch: JobBatch, error: Exception) -> None:
        """A batch that failed as a whole: only what fails again, alone, fails for good."""
        # Once for the whole batch, not for its pieces: one item too large for any size must not slow the others.
        if is_out_of_memory(error):
            self.size.too_large(batch)
        start = time.perf_counter()
        self._encode_pieces(batch.jobs, error)
        self._sink.batch_done(time.perf_counter() - start)

    def attempt(self, batch: list[Job], encode: Callable[[], object]) -> Sequence[Tree] | Exception:
        """The trees of a batch, or what the encoder raised; a device that is lost ends the work."""
        try:
            return self._acceptance.count(encode(), len(batch))
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for us
            failure = error
        _log.debug("%s failed on a batch of %d", self._name, len(batch), exc_info=failure)
        free_memory(failure)
        if is_device_lost(failure) and not is_out_of_memory(failure):
            message = f"{self._name}: the device failed at {batch[0].entry.path}: {described(failure)}"
            raise EncodeError(message, hint="look at the device, then build again: what was encoded is kept")
        return failure

    def _encode_pieces(self, batch: list[Job], error: Exception) -> None:
        """A batch that failed: in halves if memory was short, else one by one, so that only the bad one fails."""
        step = max(1, len(batch) // 2) if is_out_of_memory(error) else 1
        for start in range(0, len(batch), step):
            if self.over():
                return
            piece = batch[start : start + step]
            trees = self.attempt(piece, lambda piece=piece: self._encode(piece))  # type: ignore[misc]
            if not isinstance(trees, Exception):
                self._tell(piece, self._accept(piece, trees), compiled=self.encoder.compiled)
            elif len(piece) > 1:
                self._encode_pieces(piece, trees)
            else:
                # Memory may be there next time; of anything else its content is thought to be the cause.
                self._sink.fail(piece[0], described(trees), lasting=not is_out_of_memory(trees))

    def _encode(self, batch: list[Job]) -> object:
        items = [job.item for job in batch]
        if not self.encoder.can_stage:
            return self.encoder.encode(items)
        # Without the copies that `encode` makes for those who keep its trees.
        staged = self.encoder.stage(items)
        staged.launch()
        return staged.land()

    def _accept(
        self, batch: Sequence[Job], trees: Sequence[Tree], *, not_finite: Collection[int] | None = None
    ) -> list[Parts | EncodeError]:
        # What has a text is as long as that, whatever the pictures beside it.
        shapes = [job.shape if job.text is None else () for job in batch]
        copy = not self.encoder.gives_away
        results = self._acceptance.accept(shapes, trees, copy=copy, not_finite=not_finite)
        if self._tells_apart and batch[0].text is not None and not batch[0].shape:
            texts = [job.text or "" for job in batch]
            captions = [(job.entry.sample, job.entry.caption) for job in batch]
            self._acceptance.compare_texts(texts, results, captions, cut=self.encoder.truncated > 0)
        return results

    def _tell(self, batch: Sequence[Job], results: Sequence[Parts | EncodeError], *, compiled: bool) -> None:
        """Tell the sink what came of a batch; what is good first, because a sink may end the work at what is not."""
        pairs = list(zip(batch, results, strict=True))
        good = [(job, result) for job, result in pairs if not isinstance(result, EncodeError)]
        self._sink.store(good, compiled=compiled)
        for job, result in pairs:
            if isinstance(result, EncodeError):
                self._sink.fail(job, result.message, lasting=True)

    def _lengths(self, texts: list[str]) -> list[int]:
        """What each text costs. Where the encoder cannot measure one, it says so when it encodes it."""
        try:
            return list(self.encoder.lengths(texts))
        except Exception:  # noqa: BLE001 - told when the texts are encoded
            _log.debug("%s cannot measure %d texts", self._name, len(texts), exc_info=True)
            return [len(text) for text in texts]
