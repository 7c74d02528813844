"""The crew: threads for each device, which share an encoder, from batches of items to accepted results.

Where the encoder allows it, a GPU has two threads: while one takes its results apart and stores them, the other has the
GPU at work.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from precook.encode.batches import BatchSize
from precook.encode.encoder import Item
from precook.encode.prepare import Job
from precook.encode.results import Acceptance
from precook.errors import ConfigError, EncodeError, PrecookError, TreeError
from precook.store.tree import Parts, Tree

_log = logging.getLogger("precook")

AUTO = "auto"
"""The device that is chosen when an encoder is loaded: until then nobody needs to know."""
_LOOK = 0.1
"""Seconds between two looks at whether it is time to stop."""


class Worker(Protocol):
    """The part of an encoder that does the work.

    One for texts may have `length(text)`, what a text costs, so that texts of similar cost are encoded together; and
    `truncated`, how many texts it has cut to fit. One that says `concurrent = True` may be called from two threads.
    """

    def load(self, device: str) -> None:
        """Called before the first batch."""

    def encode(self, batch: list[Item]) -> list[Tree]:
        """One tree for each item."""

    def unload(self) -> None:
        """Let go of the device."""


class Sink(Protocol):
    """Where results go; called from any thread of the crew, once for each job unless the work ends early."""

    def store(self, job: Job, parts: Parts) -> None:
        """Keep a result; `TreeError` if that cannot be done for what it is."""

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made; `lasting` if trying again would give the same."""

    def batch_done(self) -> None:
        """Everything that came of a batch was told."""


class Crew:
    """Encodes what it is given; a context manager whose end waits for everything that was given.

    Threads begin with the first jobs, and each makes and loads its encoder then; it is unloaded at the end. What ends
    the work for good (a model that cannot be loaded, a full disk) is raised by the next `give`, or at the end.
    """

    def __init__(
        self,
        encoder: str,
        make: Callable[[], Worker],
        devices: Sequence[str],
        size: BatchSize,
        sink: Sink,
        stop: threading.Event,
    ) -> None:
        self._encoder = encoder
        self._make = make
        self._devices = devices
        self._size = size
        self._acceptance = Acceptance(encoder)
        self._sink = sink
        self._stop = stop
        self._changed = threading.Condition()
        self._waiting: deque[list[Job]] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._loading = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self.truncated = 0
        """Texts that were cut to fit, as far as encoders count them."""

    def __enter__(self) -> Crew:
        return self

    def give(self, jobs: list[Job]) -> None:
        """Hand jobs over, when there is room for them; they may be more than one batch."""
        self._start()
        with self._changed:
            # At most one more than the threads are at: so the next batch is ready, and little waits.
            while len(self._waiting) > len(self._devices) and not self._over:
                self._changed.wait(_LOOK)
            self.check()
            self._waiting.append(jobs)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what ended the work, if something did."""
        if self._error is not None:
            raise self._error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        except BaseException as interruption:
            # What is in flight is still waited for, and kept; at a second interruption no more.
            self._end(interruption)
            raise
        if error is None:
            self.check()

    def _end(self, error: BaseException | None) -> None:
        """Wait for the threads, which do what they were given, or after an error only what they are at."""
        with self._changed:
            self._closed = True
            self._error = self._error or error
            self._changed.notify_all()
            # Not by joining them: after an interrupted join Python 3.11 takes a thread for dead that is not.
            while self._running:
                self._changed.wait(_LOOK)
        for thread in self._threads:
            thread.join()

    @property
    def _over(self) -> bool:
        """Whether nothing more is to be encoded."""
        return self._stop.is_set() or self._error is not None

    def _start(self) -> None:
        while len(self._threads) < len(self._devices):
            device = self._devices[len(self._threads)]
            name = f"precook-encode-{device}"
            # As daemons: who interrupts twice does not wait for a batch that takes minutes.
            thread = threading.Thread(target=self._run, args=(device,), name=name, daemon=True)
            self._threads.append(thread)
            with self._changed:
                self._running += 1
            thread.start()

    def _run(self, device: str) -> None:
        """A device's thread: loads its encoder at the first jobs, and unloads it when nobody uses it any more."""
        worker: Worker | None = None
        second: threading.Thread | None = None
        try:
            while (jobs := self._next()) is not None:
                if worker is None:
                    device = available_device() if device == AUTO else device
                    worker = self._load(device)
                    second = self._second(worker, device)
                self._do(worker, jobs)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)
        finally:
            if second is not None:
                second.join()
            if worker is not None:
                self._unload(worker)
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _second(self, worker: Worker, device: str) -> threading.Thread | None:
        """Another thread for a GPU, if its encoder allows it."""
        if not device.startswith("cuda") or not getattr(worker, "concurrent", False):
            return None
        thread = threading.Thread(target=self._help, args=(worker,), name=f"precook-encode-{device}-2", daemon=True)
        thread.start()
        return thread

    def _help(self, worker: Worker) -> None:
        try:
            while (jobs := self._next()) is not None:
                self._do(worker, jobs)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)

    def _do(self, worker: Worker, jobs: list[Job]) -> None:
        for batch in self._batches(worker, jobs):
            self._encode(worker, batch)
            self._sink.batch_done()

    def _next(self) -> list[Job] | None:
        """The next jobs, when there are some; None at the end."""
        with self._changed:
            while not self._waiting and not self._closed and not self._over:
                self._changed.wait(_LOOK)
            if self._over or not self._waiting:
                return None
            self._changed.notify_all()
            return self._waiting.popleft()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _load(self, device: str) -> Worker:
        # One after the other: libraries change things for the whole process while they load a model.
        with self._loading:
            try:
                worker = self._make()
                worker.load(device)
            except ConfigError:
                raise  # it names the encoder, and its place in the config
            except PrecookError as error:
                raise EncodeError(f"{self._encoder}: {error.message}", hint=error.hint) from error
            except Exception as error:
                message = f"{self._encoder} cannot be loaded on {device}: {described(error)}"
                raise EncodeError(message, hint="what was encoded before is kept") from error
            return worker

    def _unload(self, worker: Worker) -> None:
        with self._changed:
            self.truncated += getattr(worker, "truncated", 0)
        try:
            worker.unload()
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for us
            message = f"{self._encoder} cannot be unloaded: {described(error)}"
            self._fail(EncodeError(message, hint="what was encoded before is kept"))

    def _batches(self, worker: Worker, jobs: list[Job]) -> Iterator[list[Job]]:
        """Jobs in batches of the size of the moment; texts of similar length together, so that little is padded."""
        if jobs[0].item.text is not None:
            lengths = {id(job): _length(worker, job) for job in jobs}
            # The longest first: if one batch does not fit into memory, the first one shows it.
            jobs = sorted(jobs, key=lambda job: -lengths[id(job)])
        at = 0
        while at < len(jobs) and not self._over:
            batch = jobs[at : at + self._size.now]
            at += len(batch)
            yield batch

    def _encode(self, worker: Worker, batch: list[Job]) -> None:
        start = time.perf_counter()
        trees = self._try(worker, batch)
        if isinstance(trees, Exception):
            # Once for the whole batch, not for its pieces: one item too large for any size must not slow the others.
            if out_of_memory(trees):
                self._size.too_large(len(batch))
            self._encode_pieces(worker, batch, trees)
            return
        results = self._acceptance.accept(batch, trees)
        # Without the storing: a slow disk says nothing about the encoder.
        self._size.took(len(batch), _work(batch), time.perf_counter() - start)
        self._tell(batch, results)

    def _encode_pieces(self, worker: Worker, batch: list[Job], error: Exception) -> None:
        """A batch that failed: in halves if memory was short, else one by one, so that only the bad one fails."""
        step = max(1, len(batch) // 2) if out_of_memory(error) else 1
        for at in range(0, len(batch), step):
            if self._over:
                return
            piece = batch[at : at + step]
            trees = self._try(worker, piece)
            if not isinstance(trees, Exception):
                self._tell(piece, self._acceptance.accept(piece, trees))
            elif len(piece) > 1:
                self._encode_pieces(worker, piece, trees)
            else:
                # Memory may be there next time; of anything else its content is thought to be the cause.
                self._sink.fail(piece[0], described(trees), lasting=not out_of_memory(trees))

    def _try(self, worker: Worker, batch: list[Job]) -> Sequence[Tree] | Exception:
        try:
            return self._acceptance.count(worker.encode([job.item for job in batch]), len(batch))
        except Exception as error:  # noqa: BLE001 - an encoder may raise anything; what it raised is told
            failure = error
        _log.debug("%s failed on a batch of %d", self._encoder, len(batch), exc_info=failure)
        # Its frames hold on to what they had in the device's memory.
        traceback.clear_frames(failure.__traceback__)
        if out_of_memory(failure):
            _empty_cache()
        elif device_lost(failure):
            message = f"{self._encoder}: the device failed at {batch[0].entry.path}: {described(failure)}"
            raise EncodeError(message, hint="look at the device, then build again: what was encoded is kept")
        return failure

    def _tell(self, batch: Sequence[Job], results: Sequence[Parts | EncodeError]) -> None:
        for job, result in zip(batch, results, strict=True):
            if isinstance(result, EncodeError):
                self._sink.fail(job, result.message, lasting=True)
                continue
            try:
                self._sink.store(job, result)
            except TreeError as error:
                self._sink.fail(job, error.message, lasting=True)


def out_of_memory(error: Exception) -> bool:
    """Whether memory was short, on the device or here, as Python and torch say it."""
    said = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said))
    )


def device_lost(error: Exception) -> bool:
    """Whether the device can do no more in this process: after such an error CUDA fails at everything."""
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def described(error: Exception) -> str:
    """An error as the reason of a failure."""
    if isinstance(error, PrecookError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def available_device() -> str:
    """The device that `auto` means: a GPU where torch is installed and finds one, else the CPU."""
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    torch: Any = importlib.import_module("torch")
    return "cuda" if torch.cuda.is_available() else "cpu"


def _length(worker: Worker, job: Job) -> int:
    """What a text costs. Where the encoder cannot even measure it, it will say so when it encodes it."""
    text = job.item.text or ""
    measure = getattr(worker, "length", None)
    if not callable(measure):
        return len(text)
    try:
        return int(measure(text))
    except Exception:  # noqa: BLE001 - told when the text is encoded
        return 0


def _work(batch: Sequence[Job]) -> float:
    """How much there was to encode: the pixels, or texts as long as the longest, to which the others are padded."""
    if batch[0].item.text is None:
        return float(sum(job.nbytes for job in batch))
    return float(len(batch) * max(1, *(job.nbytes for job in batch)))


def _empty_cache() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
