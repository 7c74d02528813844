"""The crew: one thread per device, each with an encoder of its own, from batches of items to entries in the store."""

from __future__ import annotations

import importlib
import importlib.util
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

from precook.encode.batches import BatchSize
from precook.encode.encoder import Item
from precook.encode.prepare import Job
from precook.encode.results import Acceptance
from precook.errors import EncodeError, PrecookError
from precook.store.tree import Parts, Tree

_STOP = None


class Worker(Protocol):
    """The part of an encoder that does the work."""

    def load(self, device: str) -> None:
        """Called before the first batch."""

    def encode(self, batch: list[Item]) -> list[Tree]:
        """One tree for each item."""

    def unload(self) -> None:
        """Let go of the device."""


class Sink(Protocol):
    """Where results go; called from any thread of the crew."""

    def store(self, job: Job, parts: Parts) -> None:
        """Keep a result."""

    def fail(self, job: Job, error: Exception) -> None:
        """Note that an entry could not be made."""


class Crew:
    """Encodes what it is given; a context manager whose end waits for everything that was given.

    An encoder is made and loaded when its thread gets its first jobs, and unloaded at the end. What ends a thread for
    good (a model that cannot be loaded, a full disk) is raised by the next `give`, or at the end.
    """

    def __init__(
        self,
        make: Callable[[], Worker],
        devices: Sequence[str],
        size: BatchSize,
        acceptance: Acceptance,
        sink: Sink,
        stop: threading.Event,
    ) -> None:
        self._make = make
        self._size = size
        self._acceptance = acceptance
        self._sink = sink
        self._stop = stop
        self._queue: queue.Queue[list[Job] | None] = queue.Queue(maxsize=len(devices) + 1)
        self._error: BaseException | None = None
        self.truncated = 0
        """Texts that were cut to fit, as far as encoders count them."""
        self._threads = [
            threading.Thread(target=self._run, args=(device,), name=f"precook-encode-{device}", daemon=True)
            for device in devices
        ]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def give(self, jobs: list[Job]) -> None:
        """Hand jobs over, when a thread has room for them; they may be more than one batch."""
        while True:
            self._check()
            if self._stop.is_set():
                return
            try:
                self._queue.put(jobs, timeout=0.1)
            except queue.Full:
                continue
            return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop.set()
        for _ in self._threads:
            while any(thread.is_alive() for thread in self._threads):
                try:
                    self._queue.put(_STOP, timeout=0.1)
                    break
                except queue.Full:
                    continue
        for thread in self._threads:
            thread.join()
        if error is None:
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self, device: str) -> None:
        worker: Worker | None = None
        try:
            while True:
                jobs = self._queue.get()
                if jobs is _STOP:
                    return
                if self._stop.is_set() or self._error is not None:
                    continue  # drained, so that nobody waits for room
                if worker is None:
                    worker = self._make()
                    worker.load(device)
                for batch in self._batches(worker, jobs):
                    if self._stop.is_set():
                        break
                    self._encode(worker, batch)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._error = self._error or error
            self._drain()
        finally:
            if worker is not None:
                self.truncated += getattr(worker, "truncated", 0)
                worker.unload()

    def _drain(self) -> None:
        """Go on taking jobs that nobody will do until told to stop, so that whoever gives them gets to know."""
        while self._queue.get() is not _STOP:
            pass

    def _batches(self, worker: Worker, jobs: list[Job]) -> list[list[Job]]:
        """Jobs in batches; texts of similar length together, so that little is padded."""
        length: Callable[[str], int] | None = getattr(worker, "length", None)
        if jobs[0].item.text is not None:
            measure = length if length is not None else len
            # The longest first: if one batch does not fit into memory, the first one shows it.
            jobs = sorted(jobs, key=lambda job: -measure(job.item.text or ""))
        batches, at = [], 0
        size = self._size.now
        while at < len(jobs):
            batches.append(jobs[at : at + size])
            at += size
        return batches

    def _encode(self, worker: Worker, batch: list[Job]) -> None:
        start = time.perf_counter()
        try:
            trees = self._acceptance.count(worker.encode([job.item for job in batch]), len(batch))
        except Exception as error:  # noqa: BLE001 - an encoder may raise anything; what it raised is told
            self._try_again(worker, batch, error)
            return
        self._size.took(len(batch), time.perf_counter() - start)
        for job, tree in zip(batch, trees, strict=True):
            try:
                parts = self._acceptance.accept(job, tree)
            except EncodeError as error:
                self._sink.fail(job, error)
            else:
                self._sink.store(job, parts)

    def _try_again(self, worker: Worker, batch: list[Job], error: Exception) -> None:
        """A batch that failed: in halves if memory was short, else one by one, so that only the bad one fails."""
        if out_of_memory(error):
            self._size.too_large(len(batch))
            _empty_cache()
        if len(batch) == 1:
            self._sink.fail(batch[0], error)
            return
        step = (len(batch) + 1) // 2 if out_of_memory(error) else 1
        for at in range(0, len(batch), step):
            if self._stop.is_set():
                return
            self._encode(worker, batch[at : at + step])


def out_of_memory(error: Exception) -> bool:
    """Whether a device ran out of memory, as torch says it."""
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )


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


def _empty_cache() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
