"""The lock around every write to the index."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from precook.errors import LockedError, printable
from precook.fs.system import calls, system
from precook.store import files

PATIENCE = 60.0
"""Seconds to wait for another writer; a commit takes milliseconds."""
_HOLDER = 200
"""Most bytes about the holder."""


@contextlib.contextmanager
def locked(path: Path, *, patience: float = PATIENCE, holder: str = "") -> Iterator[None]:
    """Hold the lock at `path`: one holder among all threads and processes, freed by the kernel when its holder dies.

    The descriptor is opened anew each time, so threads exclude each other too, and nothing is left to close in a fork.
    `holder` says who it is, for those who wait in vain.
    """
    with files.explained(path.parent):
        descriptor = files.open_lock(path)
    try:
        _acquire(descriptor, path, time.monotonic() + patience)
        try:
            if holder:
                # For people only, and a full disk is when this lock is needed most.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    calls.pwrite(descriptor, holder.encode()[:_HOLDER], 0)
            yield
        finally:
            # Not by closing alone: a child that was forked meanwhile has the same file open. But that does it, too.
            with contextlib.suppress(OSError):
                system.unlock(descriptor)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, deadline: float) -> None:
    pause = 0.001
    while not files.lock(descriptor, path):
        if time.monotonic() >= deadline:
            holder = printable(calls.pread(descriptor, _HOLDER, 0).decode("utf-8", "replace"))
            who = f"{holder} holds" if holder else "another process holds"
            raise LockedError(path, f"{who} the lock of this store")
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
