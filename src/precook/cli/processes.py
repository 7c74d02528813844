"""Several processes for one build: the first one starts the others, stops them, and adds up their reports.

All of them run `precook build`, and claims in the store share the work out among them. Each of the others is tied to
the first one by its stdin, a pipe whose other end only the first process holds. A byte in it asks the process to finish
its batch, as a signal would. When the pipe is closed after that, the process ends at once. When the pipe is closed
without a byte, the first process was killed, and the process finishes its batch: none of them outlives the first one
for long. Each reports on stdout, in one line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from precook import threads
from precook.errors import INTERRUPTED, SOME_FAILED

if TYPE_CHECKING:
    from precook.encode.build import BuildReport
    from precook.plan.entries import Failure
    from precook.plan.plan import Plan

_GOOD_CODES = (0, SOME_FAILED, INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)
"""How a process ends that has not failed: a signal may come before it listens to signals."""
_POLL_SECONDS = 0.1
"""Between two looks at whether a process has failed."""
_THREADS_VARIABLE = "OMP_NUM_THREADS"
_ERROR_TAIL = 1 << 16
"""Bytes at the end of a process's stderr that are searched for its error."""
_SCRIPT = """
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
    if processes == 1 or _THREADS_VARIABLE in os.environ:
        yield
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ[_THREADS_VARIABLE] = str(max(1, cores // processes))
    try:
        yield
    finally:
        del os.environ[_THREADS_VARIABLE]


class StopAll(threading.Event):
    """An event that stops a build in all its processes.

    Setting it asks the others before it returns: after that a second signal may end this process at any moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._processes: list[_OtherProcess] = []

    def add(self, process: _OtherProcess) -> None:
        """Stop this process, too."""
        with self._lock:
            self._processes.append(process)
            # A signal may come while processes are being started.
            if self.is_set():
                process.stop()

    def set(self) -> None:
        """Ask every process to stop, once."""
        with self._lock:
            if not self.is_set():
                for process in self._processes:
                    process.stop()
                super().set()


class OtherProcesses:
    """The other processes of a build; a context manager that starts them and at its end waits for theirs.

    `stop` ends them too, and an error inside sets it; with `fail_fast`, so does the first of them that fails.
    """

    def __init__(self, arguments: Sequence[str], count: int, stop: StopAll, *, fail_fast: bool) -> None:
        self._arguments = arguments
        self._count = count
        self._stop = stop
        self._fail_fast = fail_fast
        self._processes: list[_OtherProcess] = []
        self._watch = threading.Thread(target=self._stop_on_failure, name="precook-processes", daemon=True)

    def __enter__(self) -> OtherProcesses:
        try:
            for number in range(2, self._count + 2):
                self._processes.append(_start(number, self._arguments))
                self._stop.add(self._processes[-1])
            if self._processes and self._fail_fast:
                threads.start(self._watch)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def wait(self) -> None:
        """Wait until all have ended."""
        for process in self._processes:
            process.popen.wait()
        if self._watch.ident is not None:
            self._watch.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop.set()
        self.wait()
        for process in self._processes:
            process.close()

    def reports(self) -> list[BuildReport]:
        """Reports of those that came to their end; the line of one that was killed may be cut off."""
        lines = (process.read_out() for process in self._processes)
        return [read_report(line) for line in lines if line.endswith(b"\n")]

    @property
    def lost(self) -> tuple[str, ...]:
        """Why processes failed or died."""
        return tuple(
            f"process {process.number}: {process.failure()}" for process in self._processes if process.has_failed
        )

    def _stop_on_failure(self) -> None:
        while any(process.popen.poll() is None for process in self._processes) and not self._stop.wait(_POLL_SECONDS):
            if any(process.has_failed for process in self._processes):
                break
        if any(process.has_failed for process in self._processes):
            self._stop.set()


@dataclass(frozen=True, slots=True)
class _OtherProcess:
    number: int
    popen: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    @property
    def has_failed(self) -> bool:
        return self.popen.poll() not in (None, *_GOOD_CODES)

    def stop(self) -> None:
        """Ask it to finish its batch."""
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self.popen.stdin.write(b"x")
            self.popen.stdin.flush()

    def close(self) -> None:
        """Close its pipe and files."""
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # a byte for a process that had ended is still in the buffer
            self.popen.stdin.close()
        self.out.close()
        self.err.close()

    def read_out(self) -> bytes:
        """What it has written to stdout."""
        self.out.seek(0)
        return self.out.read()

    def failure(self) -> str:
        """How it ended, and its error or else its last line."""
        code = self.popen.returncode
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.err.seek(max(0, self.err.seek(0, os.SEEK_END) - _ERROR_TAIL))
        lines = [line for line in self.err.read().decode(errors="replace").split("\n") if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return ": ".join([ended, *(errors or lines)[-1:]])


def _start(number: int, arguments: Sequence[str]) -> _OtherProcess:
    # Files, not pipes: nobody has to read them before the end.
    out, err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed with the process
    command = [sys.executable, "-c", _SCRIPT, os.pathsep.join(map(str, sys.path)), *arguments]
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err)  # noqa: S603 - it is this program
    return _OtherProcess(number, popen, out, err)


@contextmanager
def tied_to_first_process(stop: threading.Event) -> Iterator[IO[str]]:
    """Make this process one of the others: `stop` is set when the first process asks or ends; the file is for a report.

    What an encoder prints goes nowhere, and it finds nothing to read.
    """
    pipe, report = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    threads.start(threading.Thread(target=_listen, args=(pipe, stop), name="precook-first-process", daemon=True))
    with os.fdopen(report, "w", encoding="utf-8") as file:
        yield file


def _listen(pipe: int, stop: threading.Event) -> None:
    asked = os.read(pipe, 1)
    stop.set()
    if asked:
        os.read(pipe, 1)  # returns when the first process has ended, of itself or by a second signal
        # Nothing is cleaned up: whatever a store holds is valid at every moment.
        os._exit(INTERRUPTED)


def write_report(report: BuildReport) -> str:
    """A report as a line of text."""
    failed = [{**dataclasses.asdict(failure), "key": failure.key and failure.key.hex} for failure in report.failed]
    file = report.snapshot
    snapshot = None if file is None else {**dataclasses.asdict(file), "path": os.fsencode(file.path).hex()}
    return json.dumps({**dataclasses.asdict(report), "failed": failed, "snapshot": snapshot}) + "\n"


def read_report(line: bytes) -> BuildReport:
    """The report that was written so."""
    from precook.encode.build import BuildReport
    from precook.plan.entries import Failure
    from precook.store.snapshot import SnapshotFile
    from precook.values import Key

    document = json.loads(line)
    failed = tuple(
        Failure(**{**failure, "key": failure["key"] and Key.from_hex(failure["key"])}) for failure in document["failed"]
    )
    file = document["snapshot"]
    snapshot = file and SnapshotFile(**{**file, "path": Path(os.fsdecode(bytes.fromhex(file["path"])))})
    return BuildReport(**{**document, "failed": failed, "snapshot": snapshot})


def add_up(plan: Plan, reports: Sequence[BuildReport], *, retry_failed: bool) -> BuildReport:
    """One report for processes that built a plan together; the first of them is that of the first process."""
    own = reports[0]
    encoded, truncated = (
        {name: sum(getattr(report, field).get(name, 0) for report in reports) for name in plan.encoders}
        for field in ("encoded", "truncated")
    )
    failed = _add_up_failures(plan, reports)
    return dataclasses.replace(
        own,
        encoded=encoded,
        # What the others made, the first process counts as reused.
        reused={
            name: max(len(encoder.ready), own.reused[name] - encoded[name] + own.encoded[name])
            for name, encoder in plan.encoders.items()
        },
        failed=failed,
        left=_count_left(plan, failed, retry_failed=retry_failed) if own.stopped else own.left,
        truncated=truncated,
        bytes=sum(report.bytes for report in reports),
        peak_memory=sum(report.peak_memory for report in reports),
    )


def _add_up_failures(plan: Plan, reports: Sequence[BuildReport]) -> tuple[Failure, ...]:
    """What failed, once each; but not what failed for one process and was made by another."""
    failures = {
        (failure.encoder, failure.key or (failure.concept, failure.path)): failure
        for report in reports
        for failure in report.failed
    }
    missing = set(plan.store.missing([failure.key for failure in failures.values() if failure.key is not None]))
    return tuple(failure for failure in failures.values() if failure.key is None or failure.key in missing)


def _count_left(plan: Plan, failed: Sequence[Failure], *, retry_failed: bool) -> int:
    """How many entries nobody has made or tried."""
    from precook.values import Key

    tried = {(failure.encoder, failure.key) for failure in failed}
    left = 0
    for name, encoder in plan.encoders.items():
        rows = [*encoder.missing.tolist(), *(encoder.failures if retry_failed else ())]
        keys = [Key(key.tobytes()) for key in encoder.wants.keys[rows]]
        left += sum((name, key) not in tried for key in plan.store.missing(keys))
    return left
