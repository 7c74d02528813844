"""The station: one loaded encoder, from batches of items to accepted results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from precook.encode.batches import BatchSize
from precook.encode.prepare import Job
from precook.encode.results import Acceptance
from precook.encode.trouble import described, device_lost, free_memory, out_of_memory
from precook.encode.worker import Sink, Worker
from precook.errors import EncodeError
from precook.store.tree import Parts, Tree

_log = logging.getLogger("precook")

Trees = Sequence[Tree]


class Station:
    """Encodes batches, and tells the sink what comes of each item; as safe for several threads as its worker is."""

    def __init__(
        self,
        encoder: str,
        worker: Worker,
        size: BatchSize,
        acceptance: Acceptance,
        sink: Sink,
        *,
        over: Callable[[], bool],
    ) -> None:
        self._encoder = encoder
        self.worker = worker
        self.size = size
        self._acceptance = acceptance
        self._sink = sink
        self.over = over
        """Whether nothing more is to be encoded."""
        self._copy = not getattr(worker, "gives_away", False)

    def run(self, jobs: list[Job]) -> None:
        """Encode jobs, batch after batch, each told before the next is begun."""
        for batch in self.batches(self.ordered(jobs)):
            self.encode(batch)

    def ordered(self, jobs: list[Job]) -> list[Job]:
        """Jobs in the order in which they are encoded: texts by length, so that little is padded."""
        if jobs[0].item.text is None:
            return jobs
        lengths = _lengths(self.worker, [job.item.text or "" for job in jobs])
        # The longest first: if one batch does not fit into memory, the first one shows it.
        return [jobs[at] for at in sorted(range(len(jobs)), key=lambda at: -lengths[at])]

    def batches(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """Jobs in batches of the size of the moment, until nothing more is to be encoded."""
        at = 0
        while at < len(jobs) and not self.over():
            batch = jobs[at : at + self.size.now]
            at += len(batch)
            yield batch

    def encode(self, batch: list[Job]) -> None:
        """Encode a batch and tell what came of it."""
        start = time.perf_counter()
        trees = self.attempt(batch, lambda: self.worker.encode([job.item for job in batch]))
        if isinstance(trees, Exception):
            self.failed(batch, trees)
            return
        seconds = time.perf_counter() - start
        results = self._acceptance.accept(batch, trees, copy=self._copy)
        # Without the storing: a slow disk says nothing about the encoder.
        self.size.took(len(batch), work(batch), time.perf_counter() - start)
        self._tell(batch, results)
        self._sink.batch_done(seconds)

    def landed(self, batch: list[Job], trees: Trees, seconds: float) -> None:
        """Accept and tell the results of a batch that took the device so long."""
        self.size.took(len(batch), work(batch), seconds)
        self._tell(batch, self._acceptance.accept(batch, trees, copy=self._copy))
        self._sink.batch_done(seconds)

    def failed(self, batch: list[Job], error: Exception) -> None:
        """A batch that failed as a whole: only what fails again, alone, fails for good."""
        # Once for the whole batch, not for its pieces: one item too large for any size must not slow the others.
        if out_of_memory(error):
            self.size.too_large(len(batch))
        start = time.perf_counter()
        self._encode_pieces(batch, error)
        self._sink.batch_done(time.perf_counter() - start)

    def attempt(self, batch: list[Job], encode: Callable[[], object]) -> Trees | Exception:
        """The trees of a batch, or what the encoder raised; a device that is lost ends the work."""
        try:
            return self._acceptance.count(encode(), len(batch))
        except Exception as error:  # noqa: BLE001 - an encoder may raise anything; what it raised is told
            failure = error
        _log.debug("%s failed on a batch of %d", self._encoder, len(batch), exc_info=failure)
        free_memory(failure)
        if device_lost(failure) and not out_of_memory(failure):
            message = f"{self._encoder}: the device failed at {batch[0].entry.path}: {described(failure)}"
            raise EncodeError(message, hint="look at the device, then build again: what was encoded is kept")
        return failure

    def _encode_pieces(self, batch: list[Job], error: Exception) -> None:
        """A batch that failed: in halves if memory was short, else one by one, so that only the bad one fails."""
        step = max(1, len(batch) // 2) if out_of_memory(error) else 1
        for at in range(0, len(batch), step):
            if self.over():
                return
            piece = batch[at : at + step]
            trees = self.attempt(piece, lambda piece=piece: self.worker.encode([job.item for job in piece]))  # type: ignore[misc]
            if not isinstance(trees, Exception):
                self._tell(piece, self._acceptance.accept(piece, trees, copy=self._copy))
            elif len(piece) > 1:
                self._encode_pieces(piece, trees)
            else:
                # Memory may be there next time; of anything else its content is thought to be the cause.
                self._sink.fail(piece[0], described(trees), lasting=not out_of_memory(trees))

    def _tell(self, batch: Sequence[Job], results: Sequence[Parts | EncodeError]) -> None:
        """Tell the sink what came of a batch; what is good first, because a sink may end the work at what is not."""
        told = list(zip(batch, results, strict=True))
        self._sink.store([(job, result) for job, result in told if not isinstance(result, EncodeError)])
        for job, result in told:
            if isinstance(result, EncodeError):
                self._sink.fail(job, result.message, lasting=True)


def work(batch: Sequence[Job]) -> float:
    """How much there was to encode: the pixels, or texts as long as the longest, to which the others are padded."""
    if batch[0].item.text is None:
        return float(sum(job.nbytes for job in batch))
    return float(len(batch) * max(1, *(job.nbytes for job in batch)))


def _lengths(worker: Worker, texts: list[str]) -> list[int]:
    """What each text costs."""
    many = getattr(worker, "lengths", None)
    if callable(many):
        try:
            return list(many(texts))
        except Exception:  # noqa: BLE001 - one by one it shows which of them it was
            _log.debug("%d texts cannot be measured together", len(texts), exc_info=True)
    measure = getattr(worker, "length", None)
    return [_length(measure, text) for text in texts] if callable(measure) else [len(text) for text in texts]


def _length(measure: Callable[[str], object], text: str) -> int:
    """What a text costs. Where the encoder cannot even measure it, it will say so when it encodes it."""
    try:
        return int(measure(text))  # type: ignore[call-overload, no-any-return]
    except Exception:  # noqa: BLE001 - told when the text is encoded
        return 0
