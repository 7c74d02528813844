"""Processes that stop at a step of the order of writes, so that a test decides what happens meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

_HOOK = """
from precook.store import files as hooked

def _wait_once(point, left=[{point!r}]):
    if point in left:
        left.remove(point)
        with open({fifo!r}, "rb") as file:  # blocks until somebody opens the other end
            file.read()

hooked.reached = _wait_once
"""


class Stopped:
    """A Python process that runs a script and stops where it calls `files.reached`. A context manager."""

    def __init__(self, folder: Path, point: str, script: str, *args: object) -> None:
        self._fifo = folder / f"{point}.fifo"
        os.mkfifo(self._fifo)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        hook = _HOOK.format(point=point, fifo=str(self._fifo))
        command = [sys.executable, "-c", hook + script, *map(str, args)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._held: IO[bytes] | None = None
        self._watch = threading.Thread(target=self._free)
        self._watch.start()

    def arrive(self) -> None:
        """Wait until the process stands at the point."""
        self._held = open(self._fifo, "wb")  # noqa: SIM115 - blocks until the process is there, and stays open
        assert self.process.poll() is None, "it ended before it came to the point"

    def go(self) -> str:
        """Let it go on, and wait for its end; what it printed."""
        assert self._held is not None
        self._held.close()
        out, err = self.process.communicate()
        assert self.process.returncode == 0, err
        return out

    def kill(self) -> None:
        """Kill -9, where it stands."""
        self.process.kill()
        self.process.wait()

    def _free(self) -> None:
        """Nobody is coming any more: whoever waits to open the other end need not."""
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(os.open(self._fifo, os.O_RDONLY | os.O_NONBLOCK))

    def __enter__(self) -> Stopped:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._watch.join()
        if self._held is not None:
            with contextlib.suppress(OSError):
                self._held.close()
