"""Threads: started in one place, so that a system that gives no more of them ends in an error that says so."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from precook.errors import PrecookError
from precook.interrupt import interruption

_HINT = "end other programs, or raise the limit of processes (`ulimit -u`, or that of the container)"


def start(thread: threading.Thread) -> None:
    """Start a thread; a `PrecookError` where the system gives no more of them, and then it never runs."""
    with starting(thread.name):
        thread.start()


class ThreadPool(ThreadPoolExecutor):
    """Python's pool of threads, with the same error."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Have a thread call a function."""
        with starting(self._thread_name_prefix or "one"):
            return super().submit(function, *args, **options)


@contextmanager
def starting(name: str) -> Iterator[None]:
    """The same error for whatever starts threads in here, Python or a library."""
    try:
        with interruption():
            yield
    except BaseException as error:
        # By their messages: Python has no class for it, and libraries in Rust panic with one that cannot be imported.
        if not any(words in str(error) for words in ("start new thread", "ThreadPoolBuildError")):
            raise
        raise PrecookError(f"the system gives no more threads: {name} cannot be started", hint=_HINT) from error


_TURN = 0.00005
"""Seconds that a thread may keep the interpreter while others wait for it, during `short_turns`."""


class _Turns:
    """How long threads keep the interpreter, which Python has once for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._before = 0.0

    def shorten(self) -> None:
        with self._lock:
            if not self._wanted:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _TURN))
            self._wanted += 1

    def restore(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                sys.setswitchinterval(self._before)


_TURNS = _Turns()


@contextmanager
def short_turns() -> Iterator[None]:
    """Threads take turns more often in here.

    For a thread that gives orders to a GPU: it lets go of the interpreter at each of hundreds, and by Python's default
    each time it may have to wait five milliseconds for a thread that computes.
    """
    _TURNS.shorten()
    try:
        yield
    finally:
        _TURNS.restore()


_FEW = 10_000
"""Objects: fewer than these nobody leaves alone on purpose. Python 3.12 begins with some hundreds of its own."""


class _Frozen:
    """What Python's collector leaves alone, of which there is one list for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._ours = False

    def freeze(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                # Somebody else may have a list of their own, which thawing would end.
                self._ours = gc.get_freeze_count() < _FEW
                if self._ours:
                    gc.freeze()

    def thaw(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted and self._ours:
                gc.unfreeze()


_FROZEN = _Frozen()


@contextmanager
def short_pauses() -> Iterator[None]:
    """Python's collector stops no thread for long in here.

    It looks at everything that there is from time to time, and all threads wait: for a third of a second where torch
    and a library of models are loaded. What was there before is left alone in here, and looked at again afterwards.
    """
    _FROZEN.freeze()
    try:
        yield
    finally:
        _FROZEN.thaw()
