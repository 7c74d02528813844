"""Users of one group, each in a process of his own that lasts, with a store that stays open."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import precook

FIRST, SECOND, STRANGER = 61_311, 61_312, 61_313
"""Two users of the group, and one who is not: numbers that no account is likely to have."""
GROUP = 61_310


class User:
    """A process that is one user for good, and does what it is told with its own store. A context manager."""

    def __init__(self, number: int, path: Path, *, umask: int) -> None:
        # As a fork: the user may not be allowed to read what it would have to import.
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, number, path, umask))
        self._process.start()
        theirs.close()

    def does(self, work: Callable[..., Any], *args: Any) -> Any:
        """Have it call a function of some module with its store; what came of it. An error there is one here."""
        self._pipe.send((work, args))
        done, result = self._pipe.recv()
        assert done, result
        return result

    def __enter__(self) -> User:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.send(None)
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, number: int, path: Path, umask: int) -> None:
    os.setgroups([] if number == STRANGER else [GROUP])
    os.setgid(number)
    os.setuid(number)
    os.umask(umask)
    store: precook.Store | None = None
    while (asked := pipe.recv()) is not None:
        work, args = asked
        try:
            store = store or precook.open(path)
            pipe.send((True, work(store, *args)))
        except Exception:  # noqa: BLE001 - told to the test, which fails
            pipe.send((False, traceback.format_exc()))
    if store is not None:
        store.close()
