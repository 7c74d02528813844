"""The device pool: threads for each device, from the jobs that they are given to accepted results."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from precook import threads
from precook.encode.batching import BatchSize
from precook.encode.encoder import BaseEncoder
from precook.encode.prepare import Job
from precook.encode.registry import AUTO, EncoderSpec
from precook.encode.results import Acceptance, described, free_memory, is_out_of_memory
from precook.encode.staged import StagedPipeline
from precook.encode.tuning import CompileChoice, Tuning
from precook.encode.worker import Sink, Worker
from precook.errors import ConfigError, EncodeError, PrecookError
from precook.interrupt import Condition
from precook.plan.plan import Plan

_AHEAD = 4
"""Batches that a device finds waiting when it has finished what it is at."""
_GPU = "cuda"
"""What the names of GPUs begin with."""
_FIRST_TOKENS = 16_384
"""Tokens of the first batches on a GPU: with fewer, a fast one is done before the next launch and waits for it."""
_FIRST_PIXELS = 4 << 20
"""The same in pixels."""
_FIRST_TEXTS = 64
"""The same in texts, of encoders that cannot measure them."""
_MODEST = 1 << 16
"""Pixels of the first batches on a CPU, at most: what larger ones need is asked of the system for every step and given
back, and eight pictures of 256 px then took more than twice as long, each, as one alone."""
_LOOK = 0.1
"""Seconds between two looks at whether it is time to stop."""
_LOADING = threading.Lock()
"""Of all pools: libraries change things for the whole process while they load a model, and pools share a plan."""


class NoRoomError(EncodeError):
    """A device has no memory for an encoder."""


class DevicePool:
    """Encodes what it is given; a context manager whose end waits for everything that was given.

    Threads begin with the first jobs, and each makes and loads its encoder then; it is unloaded at the end. With a
    `plan`, an encoder whose files have changed since is refused. What ends the work for good (a model that cannot be
    loaded, a full disk) is raised by the next `give`, or at the end. `tunings` are what earlier builds found out about
    devices, by their names.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        sink: Sink,
        stop: threading.Event,
        *,
        plan: Plan | None = None,
        tunings: Mapping[str, Tuning] | None = None,
    ) -> None:
        self._spec = spec
        self._plan = plan
        self.size = BatchSize(spec.batch_size)
        """Items at a time, the same for all devices."""
        self._tunings = tunings or {}
        self.expected: int | None = None
        """How many jobs will be given, where that is known."""
        self._choice: CompileChoice | None = None
        """When to compile, and the device that it is for: the first one that was loaded."""
        self._tuned_for = ""
        self._acceptance = Acceptance(spec.name)
        self._sink = sink
        self._stop = stop
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)
        self._waiting: deque[list[Job]] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._running: set[threading.Thread] = set()
        """Those that were started and have not ended."""
        self._begun: set[threading.Thread] = set()
        """Those that know it."""
        self.truncated = 0
        """Texts that were cut to fit, as far as encoders count them."""

    def __enter__(self) -> DevicePool:
        return self

    def tunings(self) -> dict[str, Tuning]:
        """What was found out about the device, by its name."""
        return {} if self._choice is None else {self._tuned_for: self._choice.found(self.size.found())}

    def give(self, jobs: list[Job]) -> None:
        """Hand jobs over, when there is room for them; they may be more than one batch."""
        self._start()
        with self._lock:
            while self._enough and not self._over:
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
        with self._lock:
            self._closed = True
            self._error = self._error or error
            self._changed.notify_all()
            # Not by joining them: after an interrupted join Python 3.11 takes a thread for dead that is not.
            while self._running:
                self._changed.wait(_LOOK)
        for thread in self._threads:
            thread.join()

    @property
    def _enough(self) -> bool:
        """Whether so much waits that the next batches are ready: little more, for others may be waiting for it too."""
        devices = len(self._spec.devices)
        waiting = sum(map(len, self._waiting))
        return len(self._waiting) > devices or (len(self._waiting) == devices and waiting > _AHEAD * self.size.now)

    @property
    def _over(self) -> bool:
        """Whether nothing more is to be encoded."""
        return self._stop.is_set() or self._error is not None

    def _start(self) -> None:
        while len(self._threads) < len(self._spec.devices):
            device = self._spec.devices[len(self._threads)]
            name = f"precook-encode-{device}"
            # As daemons: who interrupts twice does not wait for a batch that takes minutes.
            thread = threading.Thread(target=self._run, args=(device,), name=name, daemon=True)
            try:
                self._running.add(thread)
                self._threads.append(thread)
                threads.start(thread)
            except BaseException:
                # One that never runs is not waited for. It may run all the same, where only the wait for its start was
                # interrupted: it is one of ours if it has begun, and else it sees here that it is not.
                with self._lock:
                    if thread not in self._begun:
                        self._running.discard(thread)
                        self._threads = [other for other in self._threads if other is not thread]
                raise

    def _run(self, device: str) -> None:
        """A device's thread: loads its encoder at the first jobs, and unloads it when nobody uses it any more."""
        thread = threading.current_thread()
        with self._lock:
            if thread not in self._running:
                return
            self._begun.add(thread)
        encoder: BaseEncoder | None = None
        try:
            first = self._next()
            if first is not None:
                device = available_device() if device == AUTO else device
                encoder = self._load(device)
                self._work(encoder, device, first)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._fail(error)
        finally:
            if encoder is not None:
                self._unload(encoder)
            with self._lock:
                self._running.discard(thread)
                self._changed.notify_all()

    def _work(self, encoder: BaseEncoder, device: str, first: list[Job]) -> None:
        """Encode the first jobs and all that follow."""
        worker = Worker(
            self._spec.name,
            encoder,
            self.size,
            self._acceptance,
            self._sink,
            over=lambda: self._over,
            tells_apart=self._spec.built_in,
            choice=self._tune(encoder, device, first),
        )
        given = [first]

        def following() -> list[Job] | None:
            return given.pop() if given else self._next()

        # Now that the model and its libraries are loaded: they are most of what the collector would look at.
        with threads.short_pauses():
            # Only where a launch does not end with the work itself.
            if encoder.can_stage and device.startswith(_GPU):
                with threads.short_turns():
                    StagedPipeline(worker, following, self._fail).run(threading.current_thread().name)
                return
            while (jobs := following()) is not None:
                worker.run(jobs)

    def _tune(self, encoder: BaseEncoder, device: str, first: list[Job]) -> CompileChoice:
        """Begin where earlier builds have ended on such a device; when to compile."""
        with self._lock:
            if self._choice is None:
                self._tuned_for = name = device_name(device)
                known, on_gpu = self._tunings.get(name, Tuning()), device.startswith(_GPU)
                work, pictures = 0, bool(first[0].shape)
                if on_gpu and pictures:
                    work = _FIRST_PIXELS
                elif on_gpu:
                    work = _FIRST_TOKENS if encoder.measures else _FIRST_TEXTS
                modest = _MODEST if pictures and not on_gpu else None
                self.size.begin(work, known.sizes, modest=modest, bound=encoder.most_work)
                # On a CPU only where somebody asks for it: it seldom gains there, and needs a compiler.
                self._choice = CompileChoice(self._spec.compile, self.expected if on_gpu else None, known)
            return self._choice

    def _next(self) -> list[Job] | None:
        """The next jobs, when there are some; None at the end."""
        with self._lock:
            while not self._waiting and not self._closed and not self._over:
                self._changed.wait(_LOOK)
            if self._over or not self._waiting:
                return None
            self._changed.notify_all()
            return self._waiting.popleft()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            self._changed.notify_all()

    def _load(self, device: str) -> BaseEncoder:
        name = self._spec.name
        with _LOADING:
            try:
                encoder = self._spec.make()
                encoder.load(device)
                self._check_files(encoder)
            except ConfigError:
                raise  # it names the encoder, and its place in the config
            except PrecookError as error:
                raise EncodeError(f"{name}: {error.message}", hint=error.hint) from error
            except Exception as error:
                message = f"{name} cannot be loaded on {device}: {described(error)}"
                kind = NoRoomError if is_out_of_memory(error) else EncodeError
                free_memory(error)
                raise kind(message, hint="what was encoded before is kept") from error
            return encoder

    def _check_files(self, encoder: BaseEncoder) -> None:
        """Refuse an encoder that is not the one of the plan any more: nothing of it may get the planned keys."""
        if self._plan is not None:
            recipe = self._plan.encoders[self._spec.name].wants.encoding.recipe
            try:
                # Whoever gave us the plan waits for us and leaves its memory alone.
                self._spec.check_files(recipe, self._plan.memory)
            except BaseException:
                encoder.unload()
                raise

    def _unload(self, encoder: BaseEncoder) -> None:
        with self._lock:
            self.truncated += encoder.truncated
        try:
            encoder.unload()
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for us
            message = f"{self._spec.name} cannot be unloaded: {described(error)}"
            self._fail(EncodeError(message, hint="what was encoded before is kept"))


def device_name(device: str) -> str:
    """What devices that are equally quick have in common."""
    if device.startswith(_GPU):
        torch: Any = importlib.import_module("torch")
        if (torch.device(device).index or 0) < torch.cuda.device_count():
            return str(torch.cuda.get_device_name(device))
    return f"{device}, {os.cpu_count()} cores"


def available_device() -> str:
    """The device that `auto` means: a GPU where torch is installed and finds one, else the CPU."""
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    torch: Any = importlib.import_module("torch")
    return "cuda" if torch.cuda.is_available() else "cpu"
