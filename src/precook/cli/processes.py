"""Several processes for one build: others of our kind share the work by their claims, and none outlives us.

A process of ours is bound by its stdin, which nobody but the first process holds the other end of. A byte asks it to
finish what it is at, as a signal would; when the other end closes after that it ends at once, and when the other end
closes unasked, because the first process was killed, it finishes what it is at. It answers on stdout, one line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from precook.cli.codes import INTERRUPTED, SOME_FAILED

_WELL = (0, SOME_FAILED, INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)
"""How a process ends that was not lost: a signal may come before it listens."""
_LOOK = 0.1
"""Seconds between two looks at whether a process has failed."""
_THREADS = "OMP_NUM_THREADS"
_TAIL = 1 << 16
"""Bytes of a process's remarks that are searched for its error."""
_BEGIN = """
import os, sys
sys.path[:] = sys.argv.pop(1).split(os.pathsep)
from precook.cli.main import main
main()
"""
"""Not `-m precook`: that puts the working folder before everything, where a user's random.py may lie."""


@contextmanager
def shared_cores(processes: int) -> Iterator[None]:
    """Give each of so many processes its part of the cores, where nobody has said how many it takes.

    torch reads it when it is imported, and the processes that are started here inherit it.
    """
    if processes == 1 or _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = str(max(1, _cores() // processes))
    try:
        yield
    finally:
        del os.environ[_THREADS]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Stop(threading.Event):
    """Ends a build in all its processes.

    Setting it tells the others before it returns: after that a second signal may end this process at any moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._processes: list[_Process] = []

    def add(self, process: _Process) -> None:
        """Tell this process, too."""
        with self._lock:
            self._processes.append(process)
            if self.is_set():
                process.stop()

    def set(self) -> None:
        """Tell everyone, once."""
        with self._lock:
            if not self.is_set():
                for process in self._processes:
                    process.stop()
                super().set()


class Others:
    """The other processes of a build; a context manager that begins them and whose end waits for theirs.

    `stop` ends them too, and so does an error inside; with `fail_fast`, the first of them that fails sets it.
    """

    def __init__(self, arguments: Sequence[str], count: int, stop: Stop, *, fail_fast: bool) -> None:
        self._arguments = arguments
        self._count = count
        self._stop = stop
        self._fail_fast = fail_fast
        self._processes: list[_Process] = []
        self._watch = threading.Thread(target=self._watch_failures, name="precook-processes", daemon=True)

    def __enter__(self) -> Others:
        try:
            for number in range(2, self._count + 2):
                self._processes.append(_begin(number, self._arguments))
                self._stop.add(self._processes[-1])
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        if self._processes and self._fail_fast:
            self._watch.start()
        return self

    def wait(self) -> None:
        """Wait until all have ended."""
        for one in self._processes:
            one.process.wait()
        if self._watch.ident is not None:
            self._watch.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop.set()
        self.wait()
        for one in self._processes:
            one.close()

    @property
    def answers(self) -> list[bytes]:
        """What those have answered that came to their end."""
        found = (one.answer() for one in self._processes)
        return [answer for answer in found if answer.endswith(b"\n")]

    @property
    def lost(self) -> tuple[str, ...]:
        """Why processes failed or died."""
        return tuple(f"process {one.number}: {one.trouble()}" for one in self._processes if one.is_lost)

    def _watch_failures(self) -> None:
        """Stop the build when a process fails."""
        while any(one.process.poll() is None for one in self._processes) and not self._stop.wait(_LOOK):
            if any(one.is_lost for one in self._processes):
                break
        if any(one.is_lost for one in self._processes):
            self._stop.set()


@dataclass(frozen=True, slots=True)
class _Process:
    number: int
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    @property
    def is_lost(self) -> bool:
        return self.process.poll() not in (None, *_WELL)

    def stop(self) -> None:
        """Ask it to finish what it is at."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self.process.stdin.write(b"x")
            self.process.stdin.flush()

    def close(self) -> None:
        """Let go of what is left of it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # what was said to it when it had ended
            self.process.stdin.close()
        self.out.close()
        self.err.close()

    def answer(self) -> bytes:
        """What it has written to stdout."""
        self.out.seek(0)
        return self.out.read()

    def trouble(self) -> str:
        """How it ended, and its error or else its last line."""
        code = self.process.returncode
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.err.seek(max(0, self.err.seek(0, os.SEEK_END) - _TAIL))
        lines = self.err.read().decode(errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        return ": ".join([ended, *(errors or said)[-1:]])


def _begin(number: int, arguments: Sequence[str]) -> _Process:
    # Files, not pipes: nobody has to read them before the end.
    out, err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed with the process
    command = [sys.executable, "-c", _BEGIN, os.pathsep.join(map(str, sys.path)), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err)  # noqa: S603 - it is this program
    return _Process(number, process, out, err)


@contextmanager
def bound(stop: threading.Event) -> Iterator[IO[str]]:
    """Make this process one of the others: where it answers, and `stop` is set when the first process says so or ends.

    What an encoder prints goes nowhere, and it finds nothing to read.
    """
    line, answer = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    threading.Thread(target=_listen, args=(line, stop), name="precook-bound", daemon=True).start()
    with os.fdopen(answer, "w", encoding="utf-8") as file:
        yield file


def _listen(line: int, stop: threading.Event) -> None:
    asked = os.read(line, 1)
    stop.set()
    if asked:
        os.read(line, 1)
        # Nothing is tidied up: whatever a store holds is valid at every moment.
        os._exit(INTERRUPTED)
