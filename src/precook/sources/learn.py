"""Learning: the digest of every file and what its content says, remembered or read.

A file whose stamp is remembered is not opened. Everything else is read once, whole: its digest and what is to be known
about it come from the same bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from precook.report import Reporter
from precook.sources.memory import Memory
from precook.sources.segments import Bytes, Kind
from precook.sources.stamps import COLUMNS, FILES, Stamps, settled, stamp_keys, stamp_of

_BATCH = 32
_SAVE_SECONDS = 5.0
_ATTEMPTS = 3


class Lesson(Protocol):
    """What is to be known about the content of files of one kind."""

    task: str
    """For the progress bar."""
    facts: Kind
    """Rows of facts by digest; the last byte of a row is 1 for content that was refused."""
    refusals: str
    """The kind of notes that say why, by digest."""

    def study(self, digest: bytes, content: bytes) -> bytes:
        """The row of facts about some content; `ValueError` says why it is refused. Runs in any thread."""

    def keep(self, memory: Memory) -> None:
        """Remember what does not fit into a row."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What is known about some files, a row each."""

    digests: Bytes
    facts: Bytes
    problems: dict[int, str]
    """Files that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the files lie on."""

    now: int
    """The file system's clock, read before any file."""
    trusted: bool
    """Whether stamps may be remembered."""


@dataclass(frozen=True, slots=True)
class _Read:
    row: int
    stamp: tuple[int, int, int, int, int]
    digest: bytes
    facts: bytes
    refusal: str | None


def learn(
    stamps: Stamps,
    path_of: Callable[[int], str],
    lesson: Lesson,
    memory: Memory,
    *,
    ground: Ground,
    save: Callable[[], None],
    report: Reporter,
) -> Learnt:
    """The digests of files and what their content says; files that memory does not answer for are read.

    `save` is called now and then, so that whoever is interrupted does not read everything again.
    """
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    understood, facts = memory.recall(lesson.facts, digests)
    problems: dict[int, str] = {}
    reasons = memory.notes(lesson.refusals)
    for row in np.flatnonzero(known & understood & (facts[:, -1] == 1)).tolist():
        reason = reasons.get(digests[row].tobytes())
        if reason is None:
            understood[row] = False  # another version might take it
        else:
            problems[row] = reason
    missing = np.flatnonzero(~(known & understood))
    if len(missing):
        digests, facts = digests.copy(), facts.copy()
        for read in _read_all(missing.tolist(), path_of, lesson, memory, ground=ground, save=save, report=report):
            if isinstance(read, tuple):
                problems[read[0]] = read[1]
                continue
            digests[read.row] = np.frombuffer(read.digest, np.uint8)
            facts[read.row] = np.frombuffer(read.facts, np.uint8)
            if read.refusal is not None:
                problems[read.row] = read.refusal
    return Learnt(digests, facts, problems)


def _read_all(
    rows: list[int],
    path_of: Callable[[int], str],
    lesson: Lesson,
    memory: Memory,
    *,
    ground: Ground,
    save: Callable[[], None],
    report: Reporter,
) -> Iterator[_Read | tuple[int, str]]:
    """Read files in several threads and remember what they say."""

    def read_some(batch: list[int]) -> list[_Read | tuple[int, str]]:
        return [_read(row, path_of(row), lesson) for row in batch]

    batches = [rows[at : at + _BATCH] for at in range(0, len(rows), _BATCH)]
    saved = time.monotonic()
    fresh: list[_Read] = []
    pool = ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1)), thread_name_prefix="precook-read")
    try:
        with report.task(lesson.task, total=len(rows), unit="files") as task:
            for results in pool.map(read_some, batches):
                task.advance(len(results))
                fresh += [read for read in results if isinstance(read, _Read)]
                if time.monotonic() - saved > _SAVE_SECONDS:
                    _keep(fresh, lesson, memory, ground)
                    save()
                    fresh, saved = [], time.monotonic()
                yield from results
    finally:
        # Whatever ends this early, no further file is opened.
        pool.shutdown(wait=True, cancel_futures=True)
        _keep(fresh, lesson, memory, ground)


def _read(row: int, path: str, lesson: Lesson) -> _Read | tuple[int, str]:
    """One file's digest and facts, from one descriptor and the same bytes."""
    for _ in range(_ATTEMPTS):
        try:
            # Not blocking: something else may have taken the place of a regular file.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                before = stamp_of(os.fstat(descriptor))
                content = file.readall()
                after = stamp_of(os.fstat(descriptor))
        except OSError as error:
            return row, f"cannot be read: {error.strerror or error}"
        if before == after:
            break
    else:
        return row, "changed while it was being read"
    digest: bytes = blake3(content).digest()
    try:
        return _Read(row, before, digest, lesson.study(digest, content), None)
    except ValueError as error:
        refused = bytes(lesson.facts.value - 1) + b"\1"
        return _Read(row, before, digest, refused, str(error))


def _keep(reads: list[_Read], lesson: Lesson, memory: Memory, ground: Ground) -> None:
    if not reads:
        return
    digests = _rows([read.digest for read in reads])
    stamps = np.array([read.stamp for read in reads], np.int64).reshape(-1, COLUMNS)
    lasting = settled(stamps, ground.now) if ground.trusted else np.zeros(len(reads), bool)
    memory.remember(FILES, stamp_keys(stamps)[lasting], digests[lasting])
    memory.remember(lesson.facts, digests, _rows([read.facts for read in reads]))
    for read in reads:
        if read.refusal is not None:
            memory.write_note(lesson.refusals, read.digest, read.refusal)
    lesson.keep(memory)


def _rows(values: list[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
