"""Threads: started in one place, so that a system that gives no more of them ends in an error that says so."""

from __future__ import annotations

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
