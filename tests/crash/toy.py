"""A store in forty lines: one file per entry, no index. With it the harness tests itself.

It has the three functions in which bugs are seeded, and mistakes of its own that no replaced function could make.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .aftermath import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from .children import Journal


class ToyError(Exception):
    """The toy store's own error."""


def write_all(descriptor: int, buffers: Any) -> None:
    """Write every byte, however often it takes."""
    for buffer in buffers:
        view = memoryview(buffer)
        while view:
            view = view[os.write(descriptor, view) :]


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Read every byte, however often it takes."""
    found = b""
    while len(found) < size and (more := os.pread(descriptor, size - len(found), offset + len(found))):
        found += more
    return found


def sync_file(descriptor: int) -> None:
    """Make content durable."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Make names durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def content(number: int) -> bytes:
    """What entry `number` holds: a few pages, so that some can go missing."""
    return bytes([number + 1]) * 10_000


class ToyScenario(Scenario):
    """Three puts into a new store and a look at them, with one of the mistakes a store can make, or none."""

    numbers = range(3)
    tolerated = (ToyError,)

    def __init__(self, mistake: str = "") -> None:
        self.name = f"toy {mistake}".rstrip()
        self._mistake = mistake

    def run(self, area: Path, journal: Journal) -> None:
        """Put all entries; then read them and remove what is damaged, under a lock."""
        for number in self.numbers:
            if self._mistake == "acknowledges too early":
                journal.acknowledge(number)
            journal.commit(functools.partial(self._explained, self._write, area / "toy", number), number)
        for number in self.numbers:
            journal.commit(functools.partial(self._explained, self._tidy, area / "toy", number))

    def _explained(self, step: Callable[[Path, int], None], store: Path, number: int) -> None:
        try:
            step(store, number)
        except OSError as error:
            if self._mistake == "leaks errors":
                raise
            raise ToyError(str(error)) from error

    def _tidy(self, store: Path, number: int) -> None:
        store.mkdir(exist_ok=True)
        with (store / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._remove_damaged(store / str(number), number)

    def _remove_damaged(self, path: Path, number: int) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            found = read_at(descriptor, len(content(number)), 0)
        except OSError:
            if self._mistake != "takes a read error for damage":
                raise
            found = b""
        finally:
            os.close(descriptor)
        if found != content(number):
            path.unlink()

    def _write(self, store: Path, number: int) -> None:
        with contextlib.suppress(FileExistsError):
            store.mkdir()
        sync_directory(store.parent)
        path, partial = store / str(number), store / f"{number}.{os.getpid()}.partial"
        if self._mistake == "trusts what it finds" and path.exists():
            return
        if self._mistake == "writes in place":
            partial = path
        mode = 0o600 if self._mistake == "keeps files to itself" else 0o666
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            write_all(descriptor, [content(number)])
            try:
                sync_file(descriptor)
            except OSError:
                if self._mistake != "tries a failed sync again":
                    raise
                sync_file(descriptor)
        finally:
            os.close(descriptor)
        partial.rename(path)
        try:
            sync_directory(store)
        except OSError:
            if self._mistake == "takes a name away again":
                path.unlink()
            raise

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """Compare every entry; a shorter file is noticed, other bytes are not: the toy has no checksums."""
        problems = []
        for number in self.numbers:
            try:
                found = (area / "toy" / str(number)).read_bytes()
            except FileNotFoundError:
                if number in acked and not lenient:
                    problems.append(f"entry {number} was acknowledged and is lost")
            else:
                if found != content(number):
                    problems.append(f"entry {number} has wrong bytes")
        return problems

    def files(self) -> ModuleType:
        """This module."""
        return sys.modules[__name__]


MISTAKES = (
    "acknowledges too early",
    "leaks errors",
    "trusts what it finds",
    "writes in place",
    "tries a failed sync again",
    "takes a read error for damage",
    "takes a name away again",
    "keeps files to itself",
)
