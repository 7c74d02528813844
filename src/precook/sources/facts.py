"""Facts about files: digests, picture sizes and caption lines, each read once and remembered.

Digests are remembered by stamp and everything else by digest. So a file is opened only if its stamp is new, and what is
known about some content is known of every file that holds it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL
from blake3 import blake3
from PIL import features

from precook.errors import SourceError
from precook.fs.read import NotAFileError, bytes_there, open_source, read_all
from precook.fs.stamps import COLUMNS, FILES, SIZE, Stamp, Stamps, read_stamps, settled, stamp_keys, stamp_of
from precook.fs.system import calls
from precook.fs.trust import FileSystem, FileSystems, file_system_time, resource_error, stamps_are_reliable
from precook.identity.digest import digest_files
from precook.interrupt import interruption
from precook.memo.columns import Kind, rows_of
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.caption_rule import CaptionRule
from precook.sources.documents import DocumentRule
from precook.sources.pictures import read_facts, reads
from precook.sources.walk import Listing
from precook.threads import ThreadPool
from precook.values import Bytes, Digest, Flags, Numbers

_BATCH = 32
_SAVE_SECONDS = 5.0
_ATTEMPTS = 3
LARGEST = 1 << 30
"""Bytes of a file that is read: several are in memory at once, and what is larger is no picture and no caption."""
_MAX_HOLES = 64 << 20
_PICTURE = struct.Struct("<IIBB5xB")
ALPHA = 9
"""The byte of a picture's row that says whether it has alpha."""
_CAPTION = struct.Struct("<I32sB2xB")
_NOTES = 36
"""The byte of a caption's row that says what a plan tells about its file."""
PILLOW = "/".join(
    [PIL.__version__, *(name for name in ("avif", "webp") if name in features.modules and features.check_module(name))]
    + [name for name in ("HEIF", "JXL") if reads(name)]
)
"""Which Pillow this is, and what it was built with: another one may read what this one refuses."""


class FactReader(Protocol):
    """What is to be known about the content of files of one sort, and how it is read."""

    task: str
    """For the progress bar."""
    kind: Kind
    """Rows of facts by digest; the last byte of a row is 1 for content that was refused."""
    refusals: str
    """The kind of notes that say why, by digest."""

    def read(self, digest: bytes, content: bytes) -> bytes:
        """The row of facts about some content; `ValueError` says why it is refused. Runs in any thread."""

    def remember_rest(self, memory: Memory) -> None:
        """Remember what was read and does not fit into a row."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known about some files, a row each."""

    digests: Bytes
    facts: Bytes
    problems: dict[int, str]
    """Files that cannot be used, and why."""

    def fill(self, results: Iterable[ReadResult]) -> None:
        """Add what was read."""
        for result in results:
            if isinstance(result, tuple):
                row, reason = result
                self.problems[row] = reason
                continue
            self.digests[result.row] = np.frombuffer(result.digest, np.uint8)
            self.facts[result.row] = np.frombuffer(result.facts, np.uint8)
            if result.refusal is not None:
                self.problems[result.row] = result.refusal


def collect_facts(
    stamps: Stamps,
    path_of: Callable[[int], str],
    reader: FactReader,
    memory: Memory,
    *,
    file_system: FileSystem,
    save: Callable[[], None],
    report: Reporter,
) -> FileFacts:
    """The digests of files and the facts about their content; only files that are not remembered are read.

    `save` is called now and then, so that whoever is interrupted does not read everything again.
    """
    file_systems = FileSystems(file_system, stamps, path_of)
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    # What was remembered while stamps were trusted is no longer believed where they are not.
    known &= file_systems.trusted(stamps)
    digests[~known] = 0
    facts, done, problems = recall_facts(digests, known, reader, memory)

    def read(row: int) -> ReadResult:
        return _read_file(row, path_of(row), reader)

    def remember(files: list[ReadSource]) -> None:
        if files:
            stamps = np.array([file.stamp for file in files], np.int64).reshape(-1, COLUMNS)
            lasting = file_systems.lasting(stamps)
            memory.remember(FILES, stamp_keys(stamps)[lasting], rows_of([file.digest for file in files])[lasting])
            remember_facts(files, reader, memory)

    unknown = np.flatnonzero(~done).tolist()
    results = read_each(unknown, read, remember, reader.task, save=save, report=report)
    found = FileFacts(digests, facts, problems)
    found.fill(results)
    return found


def recall_facts(
    digests: Bytes, known: Flags, reader: FactReader, memory: Memory
) -> tuple[Bytes, Flags, dict[int, str]]:
    """The facts about content whose digest is `known`, which of it need not be read, and why some is refused."""
    has_facts, facts = memory.recall(reader.kind, digests)
    problems: dict[int, str] = {}
    reasons = memory.notes(reader.refusals)
    for row in np.flatnonzero(known & has_facts & (facts[:, -1] == 1)).tolist():
        reason = reasons.get(digests[row].tobytes())
        if reason is None:
            has_facts[row] = False  # refused by another version; this one might take it
        else:
            problems[row] = reason
    return facts, known & has_facts, problems


def remembered_files(
    listing: Listing, root: Path, memory: Memory, digests: Collection[bytes], *, trust: bool
) -> Iterator[str]:
    """The files of a listing whose content has one of these digests, as far as that is remembered: none is read."""
    rows = np.flatnonzero(listing.regular())
    stamps = listing.stamps[rows]

    def path_of(number: int) -> str:
        return listing.full_path(int(rows[number]))

    known, found = memory.recall(FILES, stamp_keys(stamps))
    known &= FileSystems(FileSystem.of(root, trust=trust), stamps, path_of).trusted(stamps)
    for number in np.flatnonzero(known).tolist():
        if found[number].tobytes() in digests:
            yield path_of(number)


# Reading


class _UnreadableError(Exception):
    """Why a file is not read, for people and without its path."""


@dataclass(frozen=True, slots=True)
class ReadSource:
    """What was read of one source: a file, or a cell of a table."""

    row: int
    stamp: Stamp
    """Of the file that it stands in."""
    digest: bytes
    facts: bytes
    refusal: str | None


ReadResult = ReadSource | tuple[int, str]
"""What was read, or a row and why it was not."""


def read_each(
    rows: list[int],
    read: Callable[[int], ReadResult],
    remember: Callable[[list[ReadSource]], None],
    name: str,
    *,
    save: Callable[[], None],
    report: Reporter,
) -> Iterator[ReadResult]:
    """Read sources in several threads and remember their facts in order: the next plan asks memory in that order.

    `name` is what the progress bar says.
    """

    def read_batch(batch: list[int]) -> list[ReadResult]:
        return [read(row) for row in batch]

    if not rows:
        return
    saved = time.monotonic()
    unsaved: list[ReadSource] = []
    pool = ThreadPool(min(8, 2 * (os.cpu_count() or 1)), thread_name_prefix="precook-read")
    waiting: deque[Future[list[ReadResult]]] = deque()
    try:
        with report.task(name, total=len(rows), unit="files") as task:
            waiting += [pool.submit(read_batch, rows[start : start + _BATCH]) for start in range(0, len(rows), _BATCH)]
            while waiting:
                with interruption():
                    results = waiting[0].result()
                unsaved += [result for result in results if isinstance(result, ReadSource)]
                waiting.popleft()
                task.advance(len(results))
                if time.monotonic() - saved > _SAVE_SECONDS:
                    remember(unsaved)
                    save()
                    unsaved, saved = [], time.monotonic()
                yield from results
    finally:
        # Whatever ends this early, no further file is opened, and what was read is kept.
        pool.shutdown(wait=True, cancel_futures=True)
        done = [future for future in waiting if not future.cancelled() and future.exception() is None]
        unsaved += [result for future in done for result in future.result() if isinstance(result, ReadSource)]
        remember(unsaved)


def _read_file(row: int, path: str, reader: FactReader) -> ReadResult:
    """One file's digest and facts, from one descriptor and the same bytes."""
    try:
        stamp, content = _stamp_and_content(path)
    except (_UnreadableError, OSError, ValueError, MemoryError) as error:
        return row, _why_unreadable(path, error)
    return understand(row, stamp, content, reader)


def understand(row: int, stamp: Stamp, content: bytes, reader: FactReader) -> ReadResult:
    """The digest of some content, and the facts about it."""
    digest: bytes = blake3(content).digest()
    try:
        return ReadSource(row, stamp, digest, reader.read(digest, content), None)
    except ValueError as error:
        refused = bytes(reader.kind.value - 1) + b"\1"
        return ReadSource(row, stamp, digest, refused, str(error))
    except Exception as error:  # noqa: BLE001 - one file must not end the work on all others
        # Nothing of this is remembered: it may be the decoder's fault, and a later one may do better.
        return row, f"cannot be understood: {type(error).__name__}: {error}"


def _stamp_and_content(path: str) -> tuple[Stamp, bytes]:
    """A file's stamp and its bytes, which belong together."""
    reason = ""
    for _ in range(_ATTEMPTS):
        with open_source(path) as (descriptor, status):
            if status.st_size > LARGEST:
                raise _UnreadableError(f"{status.st_size:,} bytes, and a source has at most {LARGEST:,}: shrink it")
            if status.st_size > _MAX_HOLES and bytes_there(descriptor, status.st_size) < status.st_size - _MAX_HOLES:
                raise _UnreadableError(f"{status.st_size:,} bytes, most of which are not on the disk: copy it again")
            content = read_all(descriptor)
            stamp, after = stamp_of(status), stamp_of(calls.fstat(descriptor))
        if stamp != after:
            reason = "changed while it was being read"
        elif len(content) != stamp[SIZE]:
            reason = f"{len(content):,} bytes were read of a file that is said to have {stamp[SIZE]:,}"
        else:
            return stamp, content
    raise _UnreadableError(reason)


def _why_unreadable(path: str, error: Exception) -> str:
    """The reason for people; the error itself where it is about this machine and not about the file."""
    if isinstance(error, _UnreadableError):
        return str(error)
    if isinstance(error, NotAFileError):
        return error.reason
    if isinstance(error, OSError):
        if shortage := resource_error(Path(path), error.errno or 0):
            raise shortage from error
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "cannot be read: there is not enough memory for it"
    return "cannot be read: no file can have such a name"  # ValueError: a NUL, or a lone surrogate


def remember_facts(sources: list[ReadSource], reader: FactReader, memory: Memory) -> None:
    """Remember what was read, by its digest."""
    if not sources:
        return
    digests = rows_of([source.digest for source in sources])
    memory.remember(reader.kind, digests, rows_of([source.facts for source in sources]))
    for source in sources:
        if source.refusal is not None:
            memory.write_note(reader.refusals, source.digest, source.refusal)
    reader.remember_rest(memory)


# Pictures


@dataclass(frozen=True, slots=True)
class PictureReader:
    """Reads a picture's size after orientation, its orientation, and whether it has alpha."""

    task = "reading pictures"
    kind = Kind("pictures/1", key=32, value=_PICTURE.size)
    refusals = f"refused pictures/1/{PILLOW}"

    def read(self, digest: bytes, content: bytes) -> bytes:  # noqa: ARG002
        facts = read_facts(content)
        return _PICTURE.pack(facts.width, facts.height, facts.orientation, facts.alpha, 0)

    def remember_rest(self, memory: Memory) -> None:
        pass


def picture_sizes(facts: Bytes) -> Numbers:
    """Width and height of each picture."""
    return np.ascontiguousarray(facts[:, :8]).view("<u4").astype(np.int64)


def picture_alphas(facts: Bytes) -> Flags:
    """Which pictures have alpha."""
    return facts[:, ALPHA].astype(bool)


# Captions


class CaptionReader:
    """Reads the digests of a caption file's texts: the first is in the row, further ones are rows of their own."""

    task = "reading captions"

    def __init__(self, rule: CaptionRule | DocumentRule) -> None:
        self._rule = rule
        self.kind = Kind(f"captions/{rule.name}", key=32, value=_CAPTION.size)
        self.further = Kind(f"caption lines/{rule.name}", key=40, value=32)
        """The texts but the first, by the digest of the file and the number of the text."""
        self.refusals = f"refused captions/{rule.name}"
        self._lock = threading.Lock()
        self._pending: list[tuple[bytes, list[bytes]]] = []

    def read(self, digest: bytes, content: bytes) -> bytes:
        captions = self._rule.read(content)
        lines = [blake3(text.encode("utf-8")).digest() for text in captions.texts]
        if len(lines) > 1:
            with self._lock:
                self._pending.append((digest, lines))
        return _CAPTION.pack(
            len(lines), lines[0] if lines else bytes(32), captions.several_lines + 2 * captions.empty_tags, 0
        )

    def remember_rest(self, memory: Memory) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        keys = [digest + number.to_bytes(8, "little") for digest, lines in pending for number in range(1, len(lines))]
        if keys:
            memory.remember(self.further, rows_of(keys), rows_of([line for _, lines in pending for line in lines[1:]]))

    def lines(self, digests: Bytes, facts: Bytes, memory: Memory) -> tuple[Numbers, Bytes]:
        """How many lines each file has, and the digests of all of them, one after the other.

        `LookupError` where memory has lost some of them.
        """
        counts = np.ascontiguousarray(facts[:, :4]).view("<u4").ravel().astype(np.int64)
        firsts = facts[:, 4:36]
        if (counts <= 1).all():
            return counts, firsts[counts == 1]
        ends = np.cumsum(counts)
        starts = ends - counts
        lines = np.zeros((int(ends[-1]), 32), np.uint8)
        lines[starts[counts > 0]] = firsts[counts > 0]
        further = np.maximum(counts - 1, 0)
        files = np.repeat(np.arange(len(counts)), further)
        numbers = np.arange(int(further.sum())) - np.repeat(np.cumsum(further) - further, further) + 1
        keys = np.concatenate([digests[files], numbers.astype("<u8")[:, None].view(np.uint8)], axis=1)
        known, values = memory.recall(self.further, keys)
        if not known.all():
            raise LookupError("caption lines are not remembered in full")
        lines[starts[files] + numbers] = values
        return counts, lines

    def several_lines(self, facts: Bytes) -> Flags:
        """Which files have several lines."""
        if self._rule.is_plain:  # rows that are older than the byte that says it tell it by their number
            return np.asarray(np.ascontiguousarray(facts[:, :4]).view("<u4").ravel() > 1)
        return np.asarray(facts[:, _NOTES] & 1 == 1)

    def empty_tags(self, facts: Bytes) -> Flags:
        """Which files have empty tags."""
        return np.asarray(facts[:, _NOTES] & 2 == 2)  # noqa: PLR2004 - the second bit


class DocumentReader(CaptionReader):
    """Reads the digests of a text file's passages, as a caption file's lines; a text that is not split has one."""

    task = "reading texts"


# Models


def remembered_digests(paths: Iterable[Path], memory: Memory, *, trust: bool, report: Reporter) -> list[Digest]:
    """The digest of each file of a model, in order; those whose stamp is remembered are not opened.

    `trust` believes stamps on every file system.
    """
    paths = list(paths)
    # Where the files themselves lie: models are often links into a cache or onto another drive.
    folders = [Path(os.path.realpath(path)).parent for path in paths]
    # The clock first: what is edited after this is young, and not remembered.
    now = {folder: file_system_time(folder) for folder in set(folders)}
    trusted = {folder: trust or stamps_are_reliable(folder) for folder in set(folders)}
    with _source_errors():
        stamps = read_stamps(paths)
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    known &= np.array([trusted[folder] for folder in folders], bool)
    unknown = np.flatnonzero(~known).tolist()
    if unknown:
        with report.task("reading models", total=int(stamps[unknown, SIZE].sum()), unit="bytes") as task:
            for row in unknown:
                path, folder, stamp = paths[row], folders[row], stamps[[row]]
                (digest,) = digest_files([path])
                digests[row] = np.frombuffer(digest.bytes, np.uint8)
                task.advance(int(stamps[row, SIZE]))
                # Looked at again: a file that changed meanwhile keeps neither stamp.
                with _source_errors():
                    unchanged = (read_stamps([path]) == stamp).all()
                if trusted[folder] and unchanged and settled(stamp, now[folder])[0]:
                    memory.remember(FILES, stamp_keys(stamp), digests[[row]])
    return [Digest(row.tobytes()) for row in digests]


@contextlib.contextmanager
def _source_errors() -> Iterator[None]:
    """An error of the system as a `SourceError` that names the file."""
    try:
        yield
    except OSError as error:
        raise SourceError(Path(error.filename), error.strerror or str(error)) from error
