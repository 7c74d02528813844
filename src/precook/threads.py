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
    with _named_error(thread.name):
        thread.start()


class ThreadPool(ThreadPoolExecutor):
    """Python's pool of threads, with the same error."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Have a thread call a function."""
        with _named_error(self._thread_name_prefix or "one"):
            return super().submit(function, *args, **options)


@contextmanager
def _named_error(name: str) -> Iterator[None]:
    try:
        with interruption():
            yield
    except RuntimeError as error:
        # By its message, which is as old as the module: Python has no class for it.
        if "start new thread" not in str(error):
            raise
        raise PrecookError(f"the system gives no more threads: {name} cannot be started", hint=_HINT) from error
