"""Stamps of many files, asked for in several processes.

Asking for a stamp is mostly holding the one lock that Python has per process, so threads do not help. Measured on two
cores with 20,000 to 60,000 samples, a plan of an unchanged dataset takes 1.45 to 1.55 times as long as a bare walk of
its folder, and in one process 1.9 times as long.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from precook.fs import stat_names as program
from precook.values import Numbers

_log = logging.getLogger("precook")

_MANY = 20_000
"""Files that make a second process worth its start."""

FolderNames = tuple[str, list[str]]
"""A folder, and names of files in it."""


def stat_many(folders: Sequence[FolderNames], *, helpers: int | None = None) -> Numbers:
    """Six numbers for each file, as `stat_names` gives them, in so many processes besides this one.

    With None there is one process for each core, up to four, if there are many files.
    """
    count = sum(len(names) for _, names in folders)
    if sys.platform == "win32":
        helpers = 0  # another process would have to import what asks for the times of change
    if helpers is None:
        helpers = min(os.cpu_count() or 1, 4) - 1 if count >= _MANY else 0
    parts = 1 + helpers if helpers and _can_start_python() else 1
    borders = [count * part // parts for part in range(parts + 1)]
    with _Helpers(folders) as others:
        for start, stop in pairwise(borders[1:]):
            others.start(start, stop)
        rows = _stat_part(folders, 0, borders[1])
        for part_rows in others.results():
            rows.extend(part_rows)
    return np.frombuffer(rows, np.int64).reshape(count, program.COLUMNS)


def _can_start_python() -> bool:
    """Whether another process can be started: a frozen or embedding application would start itself instead."""
    name = os.path.basename(sys.executable or "")  # noqa: PTH119
    return "python" in name.lower() and not hasattr(sys, "frozen") and os.path.isfile(program.__file__)  # noqa: PTH113


def _stat_part(folders: Sequence[FolderNames], start: int, stop: int) -> array[int]:
    rows = array("q")
    for folder, names in _part(folders, start, stop):
        rows.extend(program.stat_names(folder, names))
    return rows


def _part(folders: Sequence[FolderNames], start: int, stop: int) -> Iterator[FolderNames]:
    """The files from `start` to `stop`, counted over all folders."""
    first = 0
    for folder, names in folders:
        if chosen := names[max(start - first, 0) : max(stop - first, 0)]:
            yield folder, chosen
        first += len(names)


class _Helpers:
    """Processes that look at a part of the files each; none is left behind.

    What one of them fails to do is done here instead, so the result never depends on them.
    """

    def __init__(self, folders: Sequence[FolderNames]) -> None:
        self._folders = folders
        self._parts: list[tuple[subprocess.Popen[bytes] | None, int, int]] = []

    def __enter__(self) -> _Helpers:
        return self

    def start(self, start: int, stop: int) -> None:
        """Hand the files from `start` to `stop` to a new process."""
        process = None
        try:
            if message := self._message(start, stop):
                process = _start_program(message)
        except OSError as error:
            _log.warning("no helper process could be started: %s", error)
        self._parts.append((process, start, stop))

    def results(self) -> Iterator[array[int]]:
        """The numbers of each part, in order."""
        for process, start, stop in self._parts:
            rows = array("q")
            if process is not None:
                output, _ = process.communicate()
                if process.returncode == 0 and len(output) == (stop - start) * program.COLUMNS * rows.itemsize:
                    rows.frombytes(output)
                else:
                    _log.warning("a helper process ended with %s and %d bytes", process.returncode, len(output))
            yield rows or _stat_part(self._folders, start, stop)

    def __exit__(self, *_: object) -> None:
        for process in [part[0] for part in self._parts]:
            if process is not None:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def _message(self, start: int, stop: int) -> bytes | None:
        """A part as the program reads it; None where a name (from a table) is none that a file can have."""
        fields: list[str] = []
        for folder, names in _part(self._folders, start, stop):
            fields += [folder, str(len(names)), *names]
        text = "\0".join([*fields, ""])
        try:
            return os.fsencode(text) if text.count("\0") == len(fields) else None
        except UnicodeEncodeError:
            return None


def _start_program(message: bytes) -> subprocess.Popen[bytes]:
    # A file, not a pipe: a pipe holds 64 KiB, and this process goes on at once with its own part of the work.
    with tempfile.TemporaryFile() as file:
        file.write(message)
        file.seek(0)
        # Without site packages: they would take longer to import than the work takes.
        command = [sys.executable, "-I", "-S", program.__file__]
        return subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
