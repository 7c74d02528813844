"""A disk that is full, for real: a small file system of its own, filled before a scenario or at any call of it.

Nothing is acknowledged that is not kept; what is there can be read while not a byte is free; gc and evict work out of
the reserve; and once there is room again, everything goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from .aftermath import Scenario, check_aftermath, perform
from .children import Journal, in_child
from .library import FAULTS, Library, UnavailableError
from .meanwhile import Halting
from .power import started
from .report import Report
from .users import copy_owned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .children import Outcome

_DISK = 24 << 20
_RESERVE = 2 << 20
_REMOVES = ("gc", "evict")
"""Scenarios that make room: those have to work on a full disk, or nothing would."""


def fill_up(
    scenario: Scenario, library: Library, workspace: Path, *, system: str, stride: int = 1, first: int = 0
) -> Report:
    """Fill the disk before the scenario (call 0) and at every `stride`-th call of it, and check each time."""
    some = f"every {stride}. call" if stride > 1 else ""
    report = Report(" / ".join(filter(None, (scenario.name, f"full {system}", some))))
    with _small_disk(workspace, system) as disk, started(scenario, workspace) as start:
        area = disk / "area"
        for at in itertools.count(first, stride):
            copy_owned(start, area)
            if (area / "cache").is_dir():
                _take((area / "cache" / "reserve"), _RESERVE)
            filler = disk / "filler"
            try:
                if not _point(scenario, library, area, at, filler, report):
                    return report
            finally:
                filler.unlink(missing_ok=True)
                shutil.rmtree(area)
    raise AssertionError  # the loop ends by itself


def _point(scenario: Scenario, library: Library, area: Path, at: int, filler: Path, report: Report) -> bool:
    """One point; False when the scenario ended before the disk could be filled."""
    if at == 0:
        _fill(filler)
    child = Halting(scenario, FAULTS["stop"], library, area, at or 1 << 40, patient=True)
    if child.stands_still():
        _fill(filler)
    outcome = child.finish()
    where = f"call {outcome.fired}" if at else "before anything"
    if at and not outcome.fired:
        return False
    report.points += 1
    report.checked += 1
    acked = scenario.kept | frozenset(outcome.acked)
    problems = _misbehaviour(scenario, outcome)
    if scenario.name in _REMOVES and (area / "cache" / "reserve").exists():
        # It had begun while there was room, so it left the reserve alone; or it could not even begin.
        again = in_child(lambda journal: perform(scenario, area, journal, part="tries again"), scenario.tolerated)
        problems += [f"the reserve does not help: {name}: {text}" for name, text in again.errors]
        problems += [again.crash] * bool(again.crash)
    problems += [f"on the full disk: {problem}" for problem in _read(scenario, area, acked)]
    filler.unlink()
    problems += check_aftermath(scenario, area, acked)
    for problem in problems:
        report.violation(where, problem)
    for name, _ in outcome.errors:
        report.error(name)
    return True


def _misbehaviour(scenario: Scenario, outcome: Outcome) -> list[str]:
    problems = []
    if outcome.crash:
        problems.append(f"an error that is none of the store's own, or no end at all: {outcome.crash}")
    for name, text in outcome.errors:
        if scenario.names and name not in scenario.names[errno.ENOSPC]:
            problems.append(f"a full disk became {name}: {text}")
    return problems


def _read(scenario: Scenario, area: Path, acked: frozenset[int]) -> list[str]:
    """What is wrong with what can be read while the disk is full."""

    def work(journal: Journal) -> None:
        journal.say("problems", scenario.check(area, acked) if (area / "cache").exists() else [])

    outcome = in_child(work)
    return [*outcome.said.get("problems", ()), *([outcome.crash] if outcome.crash else [])]


def _take(path: Path, size: int) -> None:
    with path.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _fill(path: Path) -> None:
    """Leave not a byte."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _small_disk(workspace: Path, system: str) -> Iterator[Path]:
    """A file system of its own, which nobody but this process and its children see, and which goes with them."""
    if os.geteuid() != 0:
        message = f"a full {system} needs root, to mount it"
        raise UnavailableError(message)
    disk, image = workspace / "disk", workspace / "image"
    disk.mkdir()
    try:
        _private_mounts()
        if system == "tmpfs":
            _call("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", str(disk))
        else:
            with image.open("wb") as file:
                file.truncate(_DISK)
            _call(f"mkfs.{system}", "-q", "-F", "-m", "0", str(image))
            _call("mount", "-o", "loop", str(image), str(disk))
        try:
            yield disk
        finally:
            _call("umount", str(disk))
    finally:
        disk.rmdir()
        image.unlink(missing_ok=True)


def _private_mounts() -> None:
    new_mounts = 0x00020000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(new_mounts):
        message = f"a mount of our own cannot be had here: {os.strerror(ctypes.get_errno())}"
        raise UnavailableError(message)
    _call("mount", "--make-rprivate", "/")


def _call(*command: str) -> None:
    program = shutil.which(command[0], path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin")
    if program is None:
        message = f"a disk of its own needs {command[0]}, which is not installed"
        raise UnavailableError(message)
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(command)}: {done.stderr.strip()}"
        raise UnavailableError(message)
