"""Digests of files by stamp: a model's weights are read once, not at every start."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import PIL
from blake3 import blake3
from PIL import features

from precook.errors import SourceError
from precook.fs.read import NotAFileError, open_source, read_all
from precook.fs.stamps import (
    COLUMNS,
    DEVICE,
    FILES,
    SIZE,
    Stamp,
    Stamps,
    look,
    settled,
    stamp_keys,
    stamp_of,
)
from precook.fs.trust import clock, exhausted, trusted
from precook.identity.digest import digest_files
from precook.memo.columns import Kind, rows_of
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.captions import read_lines
from precook.sources.image import read_facts
from precook.values import Bytes, Digest

_PICTURE = struct.Struct("<IIBB5xB")
_CAPTION = struct.Struct("<I32s3xB")
_PILLOW = "/".join(
    [PIL.__version__, *(name for name in ("avif", "webp") if name in features.modules and features.check_module(name))]
)
"""Which Pillow this is, and what it was built with: another one may read what this one refuses."""


@dataclass(frozen=True, slots=True)
class PictureLesson:
    """A picture's size after orientation, its orientation, and whether it has alpha."""

    task = "reading pictures"
    facts = Kind("pictures/1", key=32, value=_PICTURE.size)
    refusals = f"refused pictures/1/{_PILLOW}"

    def study(self, digest: bytes, content: bytes) -> bytes:  # noqa: ARG002
        facts = read_facts(content)
        return _PICTURE.pack(facts.width, facts.height, facts.orientation, facts.alpha, 0)

    def keep(self, memory: Memory) -> None:
        pass


def picture_sizes(facts: Bytes) -> npt.NDArray[np.int64]:
    """Width and height of each picture."""
    return np.ascontiguousarray(facts[:, :8]).view("<u4").astype(np.int64)


def picture_alphas(facts: Bytes) -> npt.NDArray[np.bool_]:
    """Which pictures have alpha."""
    return facts[:, 9].astype(bool)


class CaptionLesson:
    """The digests of a caption file's lines: the first in the row, further ones beside."""

    task = "reading captions"

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self.facts = Kind(f"captions/1/{encoding}", key=32, value=_CAPTION.size)
        self.further = Kind(f"caption lines/1/{encoding}", key=40, value=32)
        self.refusals = f"refused captions/1/{encoding}"
        self._lock = threading.Lock()
        self._pending: list[tuple[bytes, list[bytes]]] = []

    def study(self, digest: bytes, content: bytes) -> bytes:
        lines = [blake3(line.encode("utf-8")).digest() for line in read_lines(content, self._encoding)]
        if len(lines) > 1:
            with self._lock:
                self._pending.append((digest, lines))
        return _CAPTION.pack(len(lines), lines[0] if lines else bytes(32), 0)

    def keep(self, memory: Memory) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        keys = [_line_key(digest, number) for digest, lines in pending for number in range(1, len(lines))]
        if keys:
            further = b"".join(line for _, lines in pending for line in lines[1:])
            memory.remember(self.further, rows_of(keys), np.frombuffer(further, np.uint8).reshape(-1, 32))

    def lines(self, digests: Bytes, facts: Bytes, memory: Memory) -> tuple[npt.NDArray[np.int64], Bytes]:
        """How many lines each file has, and the digests of all of them, one after the other.

        `LookupError` where memory has lost some of them.
        """
        counts = np.ascontiguousarray(facts[:, :4]).view("<u4").ravel().astype(np.int64)
        firsts = facts[:, 4:36]
        if (counts <= 1).all():
            return counts, firsts[counts == 1]
        ends = np.cumsum(counts)
        lines = np.zeros((int(ends[-1]), 32), np.uint8)
        some = counts > 0
        lines[(ends - counts)[some]] = firsts[some]
        more = np.maximum(counts - 1, 0)
        files = np.repeat(np.arange(len(counts)), more)
        numbers = np.arange(int(more.sum())) - np.repeat(np.cumsum(more) - more, more) + 1
        keys = np.concatenate([digests[files], numbers.astype("<u8")[:, None].view(np.uint8)], axis=1)
        known, found = memory.recall(self.further, keys)
        if not known.all():
            raise LookupError("caption lines are not remembered in full")
        lines[(ends - counts)[files] + numbers] = found
        return counts, lines


def _line_key(digest: bytes, number: int) -> bytes:
    return digest + number.to_bytes(8, "little")


_BATCH = 32
_SAVE_SECONDS = 5.0
_ATTEMPTS = 3
_LARGEST = 1 << 30
"""Bytes of a file that is read: several are in memory at once, and what is larger is no picture and no caption."""


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
class FileSystem:
    """What files lie on."""

    now: int
    """The file system's clock, read before any file."""
    trusted: bool
    """Whether stamps may be believed and remembered."""
    device: int | None = None
    """The device it speaks for; files on others, behind links and mounts, are judged on their own. None: for all."""


class _UnreadableError(Exception):
    """Why a file is not read, for people and without its path."""


@dataclass(frozen=True, slots=True)
class _Read:
    row: int
    stamp: Stamp
    digest: bytes
    facts: bytes
    refusal: str | None


_Result = _Read | tuple[int, str]
"""What was read, or a row and why it was not."""


def learn(
    stamps: Stamps,
    path_of: Callable[[int], str],
    lesson: Lesson,
    memory: Memory,
    *,
    ground: FileSystem,
    save: Callable[[], None],
    report: Reporter,
) -> Learnt:
    """The digests of files and what their content says; files that memory does not answer for are read.

    `save` is called now and then, so that whoever is interrupted does not read everything again.
    """
    grounds = _Grounds(ground, stamps, path_of)
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    # What was remembered while stamps were trusted is no longer believed where they are not.
    known &= grounds.firm(stamps)
    digests[~known] = 0
    understood, facts = memory.recall(lesson.facts, digests)
    problems: dict[int, str] = {}
    reasons = memory.notes(lesson.refusals)
    for row in np.flatnonzero(known & understood & (facts[:, -1] == 1)).tolist():
        reason = reasons.get(digests[row].tobytes())
        if reason is None:
            understood[row] = False  # another version might take it
        else:
            problems[row] = reason
    missing = np.flatnonzero(~(known & understood)).tolist()
    for read in _read_all(missing, path_of, lesson, memory, grounds=grounds, save=save, report=report):
        if isinstance(read, tuple):
            problems[read[0]] = read[1]
            continue
        digests[read.row] = np.frombuffer(read.digest, np.uint8)
        facts[read.row] = np.frombuffer(read.facts, np.uint8)
        if read.refusal is not None:
            problems[read.row] = read.refusal
    return Learnt(digests, facts, problems)


class _Grounds:
    """The ground of every file, by its device; those of other devices are looked at here, before any file is read."""

    def __init__(self, ground: FileSystem, stamps: Stamps, path_of: Callable[[int], str]) -> None:
        self._ground = ground
        self._others: dict[int, FileSystem] = {}
        if ground.device is not None:
            others = np.flatnonzero(stamps[:, DEVICE] != ground.device)
            for device, first in zip(*np.unique(stamps[others, DEVICE], return_index=True), strict=True):
                folder = Path(os.path.realpath(path_of(int(others[first])))).parent
                self._others[int(device)] = FileSystem(clock(folder), trusted(folder), int(device))

    def firm(self, stamps: Stamps) -> npt.NDArray[np.bool_]:
        """Which stamps can be believed."""
        firm = np.full(len(stamps), self._ground.trusted)
        if self._ground.device is not None:
            firm &= stamps[:, DEVICE] == self._ground.device
        for device, ground in self._others.items():
            firm |= (stamps[:, DEVICE] == device) & ground.trusted
        return firm

    def lasting(self, stamps: Stamps) -> npt.NDArray[np.bool_]:
        """Which stamps can be believed from now on."""
        lasting = settled(stamps, self._ground.now)
        for device, ground in self._others.items():
            lasting = np.where(stamps[:, DEVICE] == device, settled(stamps, ground.now), lasting)
        return np.asarray(lasting & self.firm(stamps))


def _read_all(
    rows: list[int],
    path_of: Callable[[int], str],
    lesson: Lesson,
    memory: Memory,
    *,
    grounds: _Grounds,
    save: Callable[[], None],
    report: Reporter,
) -> Iterator[_Result]:
    """Read files in several threads and remember what they say in order: memory is then asked in that order again."""

    def read_some(batch: list[int]) -> list[_Result]:
        return [_read(row, path_of(row), lesson) for row in batch]

    if not rows:
        return
    saved = time.monotonic()
    fresh: list[_Read] = []
    pool = ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1)), thread_name_prefix="precook-read")
    waiting: deque[Future[list[_Result]]] = deque()
    try:
        with report.task(lesson.task, total=len(rows), unit="files") as task:
            waiting += [pool.submit(read_some, rows[at : at + _BATCH]) for at in range(0, len(rows), _BATCH)]
            while waiting:
                results = waiting[0].result()
                fresh += [read for read in results if isinstance(read, _Read)]
                waiting.popleft()
                task.advance(len(results))
                if time.monotonic() - saved > _SAVE_SECONDS:
                    _keep(fresh, lesson, memory, grounds)
                    save()
                    fresh, saved = [], time.monotonic()
                yield from results
    finally:
        # Whatever ends this early, no further file is opened, and what was read is kept.
        pool.shutdown(wait=True, cancel_futures=True)
        done = [future for future in waiting if not future.cancelled() and future.exception() is None]
        fresh += [read for future in done for read in future.result() if isinstance(read, _Read)]
        _keep(fresh, lesson, memory, grounds)


def _read(row: int, path: str, lesson: Lesson) -> _Result:
    """One file's digest and facts, from one descriptor and the same bytes."""
    try:
        stamp, content = _content(path)
    except _UnreadableError as error:
        return row, str(error)
    except NotAFileError as error:
        return row, error.reason
    except OSError as error:
        if short := exhausted(Path(path), error.errno or 0):
            raise short from error
        return row, f"cannot be read: {error.strerror or error}"
    except ValueError:
        return row, "cannot be read: no file can have such a name"
    except MemoryError:
        return row, "cannot be read: there is not enough memory for it"
    digest: bytes = blake3(content).digest()
    try:
        return _Read(row, stamp, digest, lesson.study(digest, content), None)
    except ValueError as error:
        refused = bytes(lesson.facts.value - 1) + b"\1"
        return _Read(row, stamp, digest, refused, str(error))
    except Exception as error:  # noqa: BLE001 - one file must not end the work on all others
        # Nothing of this is remembered: it may be the decoder's fault, and a later one may do better.
        return row, f"cannot be understood: {type(error).__name__}: {error}"


def _content(path: str) -> tuple[Stamp, bytes]:
    """A file's stamp and its bytes, which belong together."""
    reason = ""
    for _ in range(_ATTEMPTS):
        with open_source(path) as (descriptor, status):
            if status.st_size > _LARGEST:
                raise _UnreadableError(f"{status.st_size:,} bytes, and a source has at most {_LARGEST:,}: shrink it")
            content = read_all(descriptor)
            stamp, after = stamp_of(status), stamp_of(os.fstat(descriptor))
        if stamp != after:
            reason = "changed while it was being read"
        elif len(content) != stamp[SIZE]:
            reason = f"{len(content):,} bytes were read of a file that is said to have {stamp[SIZE]:,}"
        else:
            return stamp, content
    raise _UnreadableError(reason)


def _keep(reads: list[_Read], lesson: Lesson, memory: Memory, grounds: _Grounds) -> None:
    if not reads:
        return
    digests = rows_of([read.digest for read in reads])
    stamps = np.array([read.stamp for read in reads], np.int64).reshape(-1, COLUMNS)
    lasting = grounds.lasting(stamps)
    memory.remember(FILES, stamp_keys(stamps)[lasting], digests[lasting])
    memory.remember(lesson.facts, digests, rows_of([read.facts for read in reads]))
    for read in reads:
        if read.refusal is not None:
            memory.write_note(lesson.refusals, read.digest, read.refusal)
    lesson.keep(memory)


def remembered_digests(paths: Iterable[Path], memory: Memory, *, trust: bool, report: Reporter) -> list[Digest]:
    """The digest of each file, in order; those whose stamp is remembered are not opened.

    `trust` believes stamps on every file system.
    """
    paths = list(paths)
    # Where the files themselves lie: models are often links into a cache or onto another drive.
    folders = [Path(os.path.realpath(path)).parent for path in paths]
    # The clock first: what is edited after this is young, and not remembered.
    clocks = {folder: clock(folder) for folder in set(folders)}
    firm = {folder: trust or trusted(folder) for folder in set(folders)}
    with _named():
        stamps = look(paths)
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    known &= np.array([firm[folder] for folder in folders], bool)
    unknown = np.flatnonzero(~known).tolist()
    if unknown:
        with report.task("reading models", total=int(stamps[unknown, SIZE].sum()), unit="bytes") as task:
            for at in unknown:
                (found,) = digest_files([paths[at]])
                digests[at] = np.frombuffer(found.bytes, np.uint8)
                task.advance(int(stamps[at, SIZE]))
                # Looked at again: a file that changed meanwhile keeps neither stamp.
                with _named():
                    same = (look([paths[at]]) == stamps[[at]]).all()
                if firm[folders[at]] and same and settled(stamps[[at]], clocks[folders[at]])[0]:
                    memory.remember(FILES, stamp_keys(stamps[[at]]), digests[[at]])
    return [Digest(row.tobytes()) for row in digests]


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(Path(error.filename), error.strerror or str(error)) from error
