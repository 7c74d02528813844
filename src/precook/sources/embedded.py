"""Embedded pictures: those that stand in the cells of a table, as datasets of the hub have them.

What a picture is known by is its own bytes, as everywhere: it has the same keys as a file of them. What is remembered
of it is found by the digest of the table's file, its column and its row; so a table whose stamp is known is not read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from precook.errors import SourceChangedError, SourceError
from precook.fs.read import open_source
from precook.fs.stamps import COLUMNS, FILES, SIZE, Stamp, stamp_keys, stamp_of
from precook.fs.system import calls
from precook.fs.trust import FileSystem, FileSystems
from precook.identity.digest import derived_digest, digest_open
from precook.memo.columns import Kind, rows_of
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.arrow import ArrowFile, ArrowPictures
from precook.sources.facts import (
    LARGEST,
    FactReader,
    FileFacts,
    ReadResult,
    ReadSource,
    read_each,
    recall_facts,
    remember_facts,
    understand,
)
from precook.sources.parquet import TableFileError, most_unfolded, read_footer
from precook.sources.parquet_values import ParquetCells
from precook.sources.tables import SourceTable, open_table
from precook.units import format_size
from precook.values import Bytes, Flags, Numbers

EMBEDDED = Kind("embedded pictures/1", key=40, value=32)
"""Digests of pictures by the digest of a table with the column, and the row; zeros where the cell is null."""
_CONTEXT = "precook embedded pictures 1"
_KEPT = 256 << 20
"""Bytes of pages that are kept, for pictures that lie in the same one."""
_NULL = bytes(32)


class PageCache:
    """Keeps the pages that were read last, up to so many bytes; one that is larger is kept alone."""

    def __init__(self, nbytes: int = _KEPT) -> None:
        self._pages: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._most = nbytes
        self._nbytes = 0

    def clear(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._pages.clear()
            self._nbytes = 0

    def recall(self, name: object, make: Callable[[], Any]) -> Any:
        """A page that is kept, or that is made now; what is made has `nbytes`."""
        with self._lock:
            if name in self._pages:
                self._pages.move_to_end(name)
                return self._pages[name]
        page = make()
        with self._lock:
            if name not in self._pages:
                self._pages[name] = page
                self._nbytes += page.nbytes
            while self._nbytes > self._most and len(self._pages) > 1:
                _, dropped = self._pages.popitem(last=False)
                self._nbytes -= dropped.nbytes
        return page


@dataclass(slots=True, eq=False)
class TableFile:
    """One file of a table, and how the pictures in it are read."""

    path: Path
    name: str
    """Relative to the folder of the concept."""
    table: SourceTable
    cache: PageCache
    digest: bytes | None = None
    """Of its content, once that is known."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stamp: Stamp | None = None
    _columns: dict[str, ParquetCells | ArrowPictures] = field(default_factory=dict)

    def read(self, column: str, row: int) -> bytes:
        """The picture in a cell as it stands there now: whoever uses it compares its digest.

        `SourceChangedError` where there is none any more.
        """
        try:
            with open_source(self.path) as (descriptor, status):
                content = self.read_open(descriptor, stamp_of(status), column, row)
        except (TableFileError, EOFError, IndexError, KeyError) as error:
            raise SourceChangedError(self.path) from error
        if content is None:
            raise SourceChangedError(self.path)
        return content

    def read_open(self, descriptor: int, stamp: Stamp, column: str, row: int) -> bytes | None:
        """The picture in a cell of the file that is open, or None where the cell is null. For any thread."""
        with self._lock:
            if stamp != self._stamp:
                self._columns.clear()
                self._stamp = stamp
            if column not in self._columns:
                self._columns[column] = self._find_column(descriptor, stamp[SIZE], column)

            def recall(name: object, make: Callable[[], Any]) -> Any:
                return self.cache.recall((self.path, stamp, column, name), make)

            return self._columns[column].read(descriptor, row, recall)

    def _find_column(self, descriptor: int, size: int, column: str) -> ParquetCells | ArrowPictures:
        found: ParquetCells | ArrowPictures | None
        if self.path.suffix.lower() == ".parquet":
            footer = read_footer(descriptor, size)
            pictures = footer.pictures(column)
            found = None if pictures is None else ParquetCells(footer, pictures[0])
        else:
            found = ArrowFile(descriptor, size).pictures(column)
        if found is None:
            raise TableFileError("the column holds no pictures")
        return found


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What is known of the pictures in a column of one file, one for each row of its table."""

    facts: FileFacts
    present: Flags
    """Which cells have a picture, or something in its place; the others are null."""


def collect_embedded(
    file: TableFile,
    column: str,
    reader: FactReader,
    memory: Memory,
    *,
    file_system: FileSystem,
    save: Callable[[], None],
    report: Reporter,
) -> ColumnFacts:
    """The digests of the pictures in a column and the facts about them; only what is not remembered is read."""
    file_systems = FileSystems(file_system, _stamps(file), lambda _: str(file.path))
    if file.digest is None:
        file.digest = _file_digest(file, memory, file_systems)
    numbers = _numbers(file)
    keys = _keys(file.digest, column, numbers)
    known, digests = memory.recall(EMBEDDED, keys)
    facts, done, problems = recall_facts(digests, known, reader, memory)
    done |= known & ~digests.any(axis=1)
    found = FileFacts(digests, facts, problems)
    unknown = np.flatnonzero(~done).tolist()

    if unknown:
        with open_table(file.path, stamp=file.table.stamp) as (descriptor, stamp):

            def remember(results: list[ReadSource]) -> None:
                # What was read of a file that is being written to is that of no digest; the end of `with` says so.
                if results and stamp_of(calls.fstat(descriptor)) == stamp:
                    rows = [result.row for result in results]
                    memory.remember(EMBEDDED, keys[rows], rows_of([result.digest for result in results]))
                    remember_facts([result for result in results if result.digest != _NULL], reader, memory)

            cells = _Cells(file, column, descriptor, reader, numbers.tolist())
            found.fill(read_each(unknown, cells.read, remember, reader.task, save=save, report=report))
    present = np.asarray(digests.any(axis=1))
    present[list(problems)] = True
    return ColumnFacts(found, present)


def recall_embedded(
    file: TableFile, column: str, reader: FactReader, memory: Memory, *, file_system: FileSystem
) -> ColumnFacts:
    """What is remembered of the pictures in a column: the file is not opened, and of what is new nothing is known."""
    stamps = _stamps(file)
    known, found = memory.recall(FILES, stamp_keys(stamps))
    known &= FileSystems(file_system, stamps, lambda _: str(file.path)).trusted(stamps)
    numbers = _numbers(file)
    digests = np.zeros((len(numbers), 32), np.uint8)
    if known.all():
        _, digests = memory.recall(EMBEDDED, _keys(found[0].tobytes(), column, numbers))
    facts = np.zeros((len(numbers), reader.kind.value), np.uint8)
    return ColumnFacts(FileFacts(digests, facts, {}), np.asarray(digests.any(axis=1)))


class _Cells:
    """Reads the cells of a column of an open file, and what is to be known about their pictures."""

    def __init__(self, file: TableFile, column: str, descriptor: int, reader: FactReader, numbers: list[int]) -> None:
        self._file = file
        self._column = column
        self._descriptor = descriptor
        self._reader = reader
        self._numbers = numbers
        self._left = self._most = most_unfolded(file.table.stamp[SIZE])
        """Bytes of pictures that such a file may have: many cells may name one value, and each costs reading it."""
        self._lock = threading.Lock()

    def read(self, row: int) -> ReadResult:
        """What stands in a row; for any thread."""
        file, stamp = self._file, self._file.table.stamp
        try:
            content = file.read_open(self._descriptor, stamp, self._column, self._numbers[row])
        except (TableFileError, EOFError) as error:
            return row, f"broken {file.path.suffix[1:]}: {error}"
        if content is None:
            return ReadSource(row, stamp, _NULL, bytes(self._reader.kind.value), None)
        with self._lock:
            self._left -= len(content)
            if self._left < 0:
                message = f"its pictures are more than {format_size(self._most)}, much more than the file"
                raise SourceError(file.path, message, hint="write the file again")
        if len(content) > LARGEST:
            return row, f"{len(content):,} bytes, and a source has at most {LARGEST:,}: shrink it"
        return understand(row, stamp, content, self._reader)


def _stamps(file: TableFile) -> Numbers:
    return np.array([file.table.stamp], np.int64).reshape(1, COLUMNS)


def _numbers(file: TableFile) -> Numbers:
    """Rows of the file, from 0."""
    return np.array([row.number - 1 for row in file.table.rows], np.int64)


def _keys(table: bytes, column: str, numbers: Numbers) -> Bytes:
    place = derived_digest(_CONTEXT, table + column.encode("utf-8", "surrogatepass"))
    rows = numbers.astype("<u8")[:, None].view(np.uint8)
    return np.concatenate([np.broadcast_to(np.frombuffer(place, np.uint8), (len(rows), 32)), rows], axis=1)


def _file_digest(file: TableFile, memory: Memory, file_systems: FileSystems) -> bytes:
    """The digest of a table's content; a file whose stamp is remembered is not read."""
    stamps = _stamps(file)
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    if not (known & file_systems.trusted(stamps)).all():
        with open_table(file.path, stamp=file.table.stamp) as (descriptor, _):
            digests = rows_of([digest_open(descriptor, file.path).bytes])
        if file_systems.lasting(stamps).all():
            memory.remember(FILES, stamp_keys(stamps), digests)
    content: bytes = digests[0].tobytes()
    return content
