"""The worker: runs one encoder on one device, batch after batch, and tells a sink what came of each item."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from precook.encode.batching import BatchSize
from precook.encode.encoder import BaseEncoder
from precook.encode.prepare import Job
from precook.encode.results import Acceptance, described, free_memory, is_device_lost, is_out_of_memory
from precook.errors import EncodeError
from precook.store.tree import Parts, Tree

_log = logging.getLogger("precook")


class Sink(Protocol):
    """Where results go; called from any thread of a pool, once for each job unless the work ends early."""

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
        """Keep results of a batch; those that no pack could hold fail, and no others."""

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made; `lasting` if trying again would give the same."""

    def batch_done(self, seconds: float) -> None:
        """Everything that came of a batch was told; to encode it took so long."""


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
        tells_apart: bool = False,
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

    def run(self, jobs: list[Job]) -> None:
        """Encode jobs, batch after batch, each told before the next is begun."""
        for batch in self.batches(self.ordered(jobs)):
            start = time.perf_counter()
            trees = self.attempt(batch, lambda batch=batch: self._encode(batch))  # type: ignore[misc]
            if isinstance(trees, Exception):
                self.failed(batch, trees)
                continue
            seconds = time.perf_counter() - start
            results = self._accept(batch, trees)
            # Without the storing: a slow disk says nothing about the encoder.
            self.size.took(len(batch), work(batch), time.perf_counter() - start)
            self._tell(batch, results)
            self._sink.batch_done(seconds)

    def ordered(self, jobs: list[Job]) -> list[Job]:
        """Jobs in the order in which they are encoded: texts by length, so that little is padded."""
        if jobs[0].item.text is None:
            return jobs
        lengths = self._lengths([job.item.text or "" for job in jobs])
        # The longest first: if one batch does not fit into memory, the first one shows it.
        return [jobs[number] for number in sorted(range(len(jobs)), key=lambda number: -lengths[number])]

    def batches(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """Jobs in batches of the size of the moment, until nothing more is to be encoded."""
        start = 0
        while start < len(jobs) and not self.over():
            batch = jobs[start : start + self.size.now]
            start += len(batch)
            yield batch

    def landed(self, batch: list[Job], trees: Sequence[Tree], seconds: float) -> None:
        """Accept and tell the results of a batch that took the device so long."""
        self.size.took(len(batch), work(batch), seconds)
        self._tell(batch, self._accept(batch, trees))
        self._sink.batch_done(seconds)

    def failed(self, batch: list[Job], error: Exception) -> None:
        """A batch that failed as a whole: only what fails again, alone, fails for good."""
        # Once for the whole batch, not for its pieces: one item too large for any size must not slow the others.
        if is_out_of_memory(error):
            self.size.too_large(len(batch))
        start = time.perf_counter()
        self._encode_pieces(batch, error)
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
                self._tell(piece, self._accept(piece, trees))
            elif len(piece) > 1:
                self._encode_pieces(piece, trees)
            else:
                # Memory may be there next time; of anything else its content is thought to be the cause.
                self._sink.fail(piece[0], described(trees), lasting=not is_out_of_memory(trees))

    def _encode(self, batch: list[Job]) -> object:
        return self.encoder.encode([job.item for job in batch])

    def _accept(self, batch: Sequence[Job], trees: Sequence[Tree]) -> list[Parts | EncodeError]:
        results = self._acceptance.accept([job.shape for job in batch], trees, copy=not self.encoder.gives_away)
        if self._tells_apart and batch[0].item.text is not None:
            texts = [job.item.text or "" for job in batch]
            self._acceptance.compare_texts(texts, results, cut=self.encoder.truncated > 0)
        return results

    def _tell(self, batch: Sequence[Job], results: Sequence[Parts | EncodeError]) -> None:
        """Tell the sink what came of a batch; what is good first, because a sink may end the work at what is not."""
        pairs = list(zip(batch, results, strict=True))
        self._sink.store([(job, result) for job, result in pairs if not isinstance(result, EncodeError)])
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


def work(batch: Sequence[Job]) -> float:
    """How much there was to encode: the pixels, or texts as long as the longest, to which the others are padded."""
    if batch[0].item.text is None:
        return float(sum(job.nbytes for job in batch))
    return float(len(batch) * max(1, *(job.nbytes for job in batch)))
