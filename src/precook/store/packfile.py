"""Packs on disk: reading heads and rows from files that may be anything.

The first read of a row copies it with `pread` and checks it: a bad sector is then an error like any other, where a
mapping would end the process. Once two small rows were read that lie near each other, those around them are read and
checked in the same way, all at once. Later reads come from mappings, as long as the file looks as it did: where
somebody has written into it or cut it short, the pack is opened anew and its rows are checked again. Each row of a
private mapping is handed out once and the table is mapped anew when it is asked for again, so tensors may be written to
and nobody else ever sees those writes.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import functools
import itertools
import logging
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from xxhash import xxh3_128

from precook.errors import DamagedPackError, printable
from precook.fs.system import calls, system
from precook.store import files
from precook.store.format.header import header_length
from precook.store.format.pack import (
    MAX_HEAD,
    Head,
    LeafColumn,
    Table,
    pack_id,
    pair,
    parse_head,
    parse_pack_header,
    row_checksums,
    row_tail,
    shared_tail,
)
from precook.store.leaves import Library, converter
from precook.store.tree import Tree
from precook.values import Array, Bytes

_log = logging.getLogger("precook")

LARGE = 16 << 10
"""Leaves from this size on are handed out from a mapping; smaller ones are cheaper to copy."""

AROUND = 128 << 10
"""Bytes read ahead around a small leaf: as much as the system reads around a fault in a mapping."""

_NEAR_READ = 2
"""After so many rows of a block the others are checked: who reads here and there only reads no more than he needs."""
_NEAR_BYTES = 256 << 10
"""What a block takes at most: entries of 3 kB took more CPU time to check with half of it."""
_MOST_NEAR_BITS = 6
"""At most 64 rows are checked at a time: nobody waits for more than some tenths of a millisecond."""

_PIECE = 1 << 20
"""Bytes of a large row that are held at a time."""


USED, RECORDED = 1, 2

_Result = TypeVar("_Result")

Givers = list[tuple[Callable[[int], Array], Callable[[Array], Any]]]
"""For each leaf what gives it of a row, and what makes a tensor of that."""

now = time.monotonic

_ADVISE = system.advise


NO_MATCH = "its checksum does not match"


class RowDamagedError(ValueError):
    """A row that is not what was put; the message says how that was noticed."""


class PackGoneError(FileNotFoundError):
    """The pack that was opened is gone, or another file has taken its place."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be had as it was put, twice in a row."""

    row: int
    reason: str
    refused: bool
    """Whether the system refused to read it: that may pass, and says nothing about the bytes."""


def damage_reason(error: Exception, path: Path) -> str:
    """What is wrong with a pack or a row, in a few words; an error that says nothing about its bytes is raised."""
    if isinstance(error, DamagedPackError):
        return error.reason
    if isinstance(error, OSError):
        if error.errno not in files.MEDIUM:
            raise files.read_error(path, error) from error
        return f"cannot be read: {error.strerror}"
    return str(error)


class Guard:
    """What all packs of a reader share: one lock, so that a forked child has only one to replace."""

    __slots__ = ("lock", "pause")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pause = 0.0
        """Seconds from one look at a mapped file to the next."""

    def after_fork(self) -> None:
        """Forget who holds the lock: in a forked child its holder may not exist."""
        self.lock = threading.Lock()


class PackFile:
    """An opened pack: its head, and its tables to read rows from. Safe to use from several threads."""

    def __init__(self, path: Path, name: str, guard: Guard, *, head: Head | None = None) -> None:
        """`head` is what is known already of a pack whose file need not be here yet."""
        self.path = path
        self.guard = guard
        self.placed: list[bytes] = []
        """Keys whose place the reader remembers in this pack."""
        self._name = os.fspath(path)
        self._changed = False
        self.look_at = 0.0
        """When the file has to be looked at again, by the monotonic clock."""
        self._file: tuple[int, int, int] = (0, 0, 0)
        self._stamp: tuple[int, ...] = ()
        self.written = 0
        """When the file was written, in nanoseconds."""
        self.whole = True
        """Whether the file is as long as its head says; one that is not is never mapped."""
        if head is not None:
            self.head = head
        else:
            descriptor = _open_regular(self._name)
            try:
                self.head = _twice(descriptor, functools.partial(_read_head, descriptor, path, name))
                self.note_file(os.fstat(descriptor))
            finally:
                os.close(descriptor)
        self.tables: tuple[TableFile, ...] = tuple(TableFile(self, table) for table in self.head.tables)
        self._ends = list(itertools.accumulate(table.rows for table in self.head.tables))
        """The row of the pack at which each table ends."""

    def note_file(self, status: os.stat_result) -> None:
        """Remember the file that holds it, by which a change of it is noticed."""
        self._file = _same_file(status)
        self._stamp = _stamp(status)
        self.written = status.st_mtime_ns
        self.whole = status.st_size == self.head.file_bytes

    @property
    def nbytes(self) -> int:
        """Size of the file as it is; a file cut short has less than its head says."""
        return self._file[2]

    def release(self) -> None:
        """Let go of the tables: they hold the pack as it holds them, and would wait for the garbage collector."""
        self.tables = ()

    def locate(self, row: int) -> tuple[TableFile, int]:
        """The table that holds a row of the pack, and its number there."""
        # By bisection: a pack may have thousands of tables.
        number = bisect.bisect_right(self._ends, row)
        if number == len(self.tables):
            raise RowDamagedError("the pack has fewer rows")
        table = self.tables[number]
        return table, row - (self._ends[number] - table.table.rows)

    def first_row(self, table: TableFile) -> int:
        """The pack's number of a table's first row."""
        number = self.tables.index(table)
        return self._ends[number] - table.table.rows

    def look(self) -> bool:
        """Whether checked rows may be taken from the mapped file: it is whole, and still what they were checked in.

        To be asked when `look_at` has come, and not before each read: that would be a third of what a read costs.
        """
        if not self.whole:
            return False
        try:
            # By ctime, too, which nobody can put back.
            same = _stamp(os.lstat(self._name)) == self._stamp
        except FileNotFoundError:
            same = True  # a file that has lost its name keeps its bytes as long as it is mapped
        except OSError:
            return False  # whoever reads it instead is told what is wrong
        if same:
            self.look_at = now() + self.guard.pause
        elif not self._changed:
            self._changed = True
            _log.warning("%s has changed since it was opened: its entries are checked again", printable(self.path))
        return same

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """A descriptor of the very file whose head was read."""
        descriptor = self.descriptor()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def descriptor(self) -> int:
        """The same, for the caller to close."""
        descriptor = _open_regular(self._name)
        if self._changed or _same_file(os.fstat(descriptor)) != self._file:
            os.close(descriptor)
            raise PackGoneError(self.path)
        return descriptor

    def read_bytes(self, descriptor: int, offset: int, size: int) -> bytes:
        """Some of its bytes as they are; a file that ends too early is damage."""
        return _pread(descriptor, size, offset)

    def damage(self, rows: Iterable[int] | None = None) -> Iterator[BadRow]:
        """Read every row, or some of them, from the disk and check them: those that cannot be had, and why.

        A row is bad when it was read twice. `StoreReadError` where the system refuses for lack of something else.
        """
        with self.open() as descriptor:
            for row in range(self.head.rows) if rows is None else rows:
                table, number = self.locate(row)
                try:
                    _twice(descriptor, functools.partial(table.verify, descriptor, number))
                except (RowDamagedError, OSError) as error:
                    yield BadRow(row, damage_reason(error, self.path), isinstance(error, OSError))

    def map(self, *, private: bool, spares: deque[Any] | None = None) -> Bytes:
        """The file as an array; `spares` is for private ones that nobody has written to."""
        with self.open() as descriptor:
            return system.map_file(descriptor, self.nbytes, private=private, spares=spares)


class TableFile:
    """The rows of one table of a pack."""

    __slots__ = (
        "_announced",
        "_converters",
        "_gift",
        "_gift_givers",
        "_near",
        "_near_bits",
        "_source",
        "_spares",
        "_tail",
        "_taken",
        "address",
        "checked",
        "copiers",
        "gives_mapped",
        "most_bytes",
        "pack",
        "signature",
        "table",
        "takers",
        "trees",
        "used",
    )

    def __init__(self, pack: PackFile, table: Table) -> None:
        self.pack = pack
        self.table = table
        self.checked = bytearray(table.rows)
        """Nonzero for rows that were read from the disk and passed their checksum in this process."""
        self.used = bytearray(table.rows)
        """`USED` for rows that this process has used, `RECORDED` once the index says so."""
        shapes = [leaf.shape for leaf in table.leaves]
        self.signature = None if None in shapes else stack_signature(table.skeleton, shapes)
        """What two tables must share so that all their rows can be stacked; None where shapes vary inside this one."""
        most = [leaf.most_bytes for leaf in table.leaves]
        self.most_bytes = sum(most)
        """What a row takes at most."""
        self._tail = shared_tail(table)
        self._near_bits = min((_NEAR_BYTES // max(self.most_bytes, 1)).bit_length() - 1, _MOST_NEAR_BITS)
        self._near = bytearray((table.rows >> self._near_bits) + 1) if self.most_bytes < LARGE else None
        """How many rows of each block were read one by one; None where rows are large, and blocks short."""
        self.gives_mapped = any(size >= LARGE for size in most)
        """Whether leaves of it are handed out without a copy."""
        self._source: tuple[list[Array], int] | None = None
        """The columns as they are mapped, and the address of the mapping; never mapped anew, for addresses are kept."""
        self.copiers: dict[Library | None, Givers] = {}
        """What `givers` has given where all leaves are small, by library."""
        self.trees: dict[Library | None, Callable[[int], Tree]] = {}
        """Likewise what makes the whole tree of any checked row, where trees have no plain values."""
        self._gift: list[Array] | None = None
        """The columns of a private mapping; rows of it that were given away are marked in `_taken`."""
        self._gift_givers: dict[Library | None, Givers] = {}
        self._spares: deque[Any] = deque(maxlen=1)
        """The mapping before, once all its tensors are gone, if none of them was written to."""
        self._taken = bytearray()
        self.takers: list[Callable[[int], Any]] | None = None
        """What `make_takers` made, once it has."""
        self._converters: dict[Library | None, list[Callable[[Array], Any]]] = {}
        self._announced: set[tuple[int, int]] = set()
        self.address = 0
        """What `find_address` found, once it has."""

    def key(self, row: int) -> bytes:
        """The key of a row."""
        return bytes(self.table.keys[row])

    def row_bytes(self, row: int) -> int:
        """Bytes of a row's leaves."""
        return sum(leaf.span(row)[1] for leaf in self.table.leaves)

    def converters(self, tensors: Library | None) -> list[Callable[[Array], Any]]:
        """What makes a tensor of each leaf's array, in the library asked for or in its own."""
        converters = self._converters.get(tensors)
        if converters is None:
            converters = [converter(leaf.dtype, tensors or leaf.library) for leaf in self.table.leaves]
            self._converters[tensors] = converters
        return converters

    def read(self, row: int, *, check: bool) -> list[Array]:
        """A row's leaves, read from the disk into memory of their own."""
        arrays = self._empty(row)
        self.read_into(row, arrays, check=check)
        return arrays

    def read_one(self, row: int, number: int, part: int | None = None) -> Array:
        """One leaf of a row, or one part of it along its first dimension, read from the disk and not checked."""
        leaf = self.table.leaves[number]
        begin, shape = leaf.span(row)[0], leaf.row_shape(row)
        if part is not None:
            begin, shape = begin + part * (leaf.span(row)[1] // shape[0]), shape[1:]
        array = np.empty(shape, leaf.dtype.bits)
        with self.pack.open() as descriptor:
            _read_span(descriptor, array, begin)
        return array

    def read_into(self, row: int, arrays: Sequence[Array], *, check: bool) -> None:
        """Read a row's leaves from the disk into arrays of their shapes."""
        # Not by `open`: this is the way of every first read, and a context manager of Python code is a tenth of it.
        descriptor = self.pack.descriptor()
        try:
            self._announce(descriptor, (row,))
            self.read_from(descriptor, row, arrays, check=check)
        finally:
            os.close(descriptor)

    def read_from(self, descriptor: int, row: int, arrays: Sequence[Array], *, check: bool) -> None:
        """The same through a descriptor of the pack, which several rows may share."""
        if not all([array.flags.c_contiguous for array in arrays]):  # noqa: C419 - a generator takes longer
            buffers = self._empty(row)
            self.read_from(descriptor, row, buffers, check=check)
            for array, buffer in zip(arrays, buffers, strict=True):
                array[...] = buffer
            return
        self._read(descriptor, row, arrays)
        if check:
            self.check(row, arrays)
        self.checked[row] = 1
        if check and self._near is not None:
            self._check_near(descriptor, row, self._near)

    def _check_near(self, descriptor: int, row: int, near: bytearray) -> None:
        """Check the small rows around one, too, once two of them were read: the others are going to be, and many at a
        time take less than half of the time. What is wrong with one of them is left to whoever reads it.
        """
        block = row >> self._near_bits
        near[block] += near[block] <= _NEAR_READ
        if near[block] != _NEAR_READ:
            return
        table = self.table
        rows = slice(block << self._near_bits, min(block + 1 << self._near_bits, table.rows))
        leaves = []
        for leaf in table.leaves:
            begin, end = leaf.span(rows.start)[0], sum(leaf.span(rows.stop - 1))
            data = np.empty(end - begin, np.uint8)
            try:
                _read_span(descriptor, data, begin)
            except (RowDamagedError, OSError):
                return
            leaves.append(data.data)
        found = row_checksums(table, self.pack.head.recipe_digests, rows, leaves)
        sound = np.flatnonzero((found == table.checksums[rows]).all(axis=1)) + rows.start
        if table.values.offsets is None:
            np.frombuffer(self.checked, np.uint8)[sound] = 1
            return
        for other in sound.tolist():
            with contextlib.suppress(ValueError):
                table.check_values(other)
                self.checked[other] = 1

    def verify(self, descriptor: int, row: int) -> list[Array]:
        """A row's leaves, read from the disk and checked; `RowDamagedError` where they are not what was put."""
        arrays = self._empty(row)
        self._read(descriptor, row, arrays)
        self.check(row, arrays)
        return arrays

    def verify_large(self, descriptor: int, row: int) -> None:
        """The same for a row that need not fit into memory; nothing of it is kept."""
        if not self.pack.whole:
            raise RowDamagedError("the pack is cut short")
        spans = [leaf.span(row) for leaf in self.table.leaves]
        self.check(row, itertools.chain.from_iterable(_pieces(descriptor, *span) for span in spans))
        self.checked[row] = 1

    def announce(self, *rows: int) -> None:
        """Ask the system to read rows ahead: many small waits for the disk become one."""
        with self.pack.open() as descriptor:
            self._announce(descriptor, rows)

    def check(self, row: int, pieces: Iterable[Array]) -> None:
        """Compare a row's leaves, whole or in pieces, with its checksum."""
        state = xxh3_128(self.hashed_first(row))
        for piece in pieces:
            state.update(piece.data)
        if state.digest() != self.table.checksums[row].tobytes():
            raise RowDamagedError(NO_MATCH)
        try:
            # Whoever made the checksum may have made it over anything.
            self.table.check_values(row)
        except ValueError as error:
            raise RowDamagedError(f"its plain values cannot be read: {error}") from error

    def hashed_first(self, row: int) -> bytes:
        """What a row's checksum is made of before its leaves: next to nothing is left to do then beside the hash."""
        table = self.table
        key: bytes = table.keys[row].tobytes()
        return key + self.pack.head.recipe_digests[table.recipes.item(row)] + (self._tail or row_tail(table, row))

    def is_mapped(self, row: int) -> bool:
        """Whether a row was checked and may now be taken from the mapped file."""
        return bool(self.checked[row]) and (now() < self.pack.look_at or self.pack.look())

    def givers(self, row: int, tensors: Library | None) -> Givers:
        """For each leaf what gives it of a checked row, to be written to, and what makes a tensor of it.

        They are for this row and this caller alone: a large leaf is not copied, and lies in a private mapping of which
        each row is given away once. Where all leaves are small, `copiers` has them from then on, for any row.
        """
        if not self.gives_mapped:
            return self._make_copiers(tensors)
        with self.pack.guard.lock:
            if self._gift is None or self._taken[row]:
                self._gift = None  # first, so that it can be used again if nobody else has a part of it
                self._gift_givers = {}
                self._gift = self._columns(self.pack.map(private=True, spares=self._spares))
                self._taken = bytearray(self.table.rows)
            self._taken[row] = 1
            return self._gift_givers.get(tensors) or self._make_givers(self._gift, tensors)

    def columns(self) -> list[Array]:
        """Every leaf's column as it is mapped, read-only: of checked rows only."""
        return (self._source or self._map())[0]

    def find_address(self) -> int:
        """Where the pack's first byte lies in memory, as long as this table is there: of checked rows only."""
        self.address = (self._source or self._map())[1]
        return self.address

    def make_takers(self) -> list[Callable[[int], Any]]:
        """For each leaf what gives it of any checked row as it is mapped: made once, so that rows cost little."""
        columns = zip(self.table.leaves, self.columns(), strict=True)
        self.takers = [_taker(leaf, column) for leaf, column in columns]
        return self.takers

    def forget(self, *, spare: bool) -> None:
        """Let go of what may have been written to; tensors that were handed out keep it alive as long as they live.

        With `spare`, a mapping that nobody has written to is kept to be used again: it holds no memory of its own.
        """
        with self.pack.guard.lock:
            self._gift, self._gift_givers = None, {}
            if not spare:
                self._spares.clear()

    def _make_copiers(self, tensors: Library | None) -> Givers:
        leaves = zip(self.table.leaves, self.columns(), self.converters(tensors), strict=True)
        copiers = self.copiers[tensors] = [(_copier(leaf, column), convert) for leaf, column, convert in leaves]
        if not self.table.parts:
            build = self.table.build
            self.trees[tensors] = lambda row: build([convert(copy(row)) for copy, convert in copiers], [])
        return copiers

    def _make_givers(self, columns: list[Array], tensors: Library | None) -> Givers:
        leaves = zip(self.table.leaves, columns, self.converters(tensors), strict=True)
        self._gift_givers[tensors] = [(_giver(leaf, column), convert) for leaf, column, convert in leaves]
        return self._gift_givers[tensors]

    def _empty(self, row: int) -> list[Array]:
        # Nothing is allocated on the word of a file that cannot keep it.
        if not self.pack.whole and any(sum(leaf.span(row)) > self.pack.nbytes for leaf in self.table.leaves):
            raise RowDamagedError("the pack is cut short")
        return [np.empty(leaf.row_shape(row), leaf.dtype.bits) for leaf in self.table.leaves]

    def _read(self, descriptor: int, row: int, arrays: Sequence[Array]) -> None:
        for leaf, array in zip(self.table.leaves, arrays, strict=True):
            _read_span(descriptor, array, leaf.span(row)[0])

    def _announce(self, descriptor: int, rows: Sequence[int]) -> None:
        """Large leaves are read ahead as they are, small ones with their neighbours, which will be wanted too."""
        if _ADVISE is None:
            return
        for number, leaf in enumerate(self.table.leaves):
            near = set()
            for begin, size in map(leaf.span, rows):
                if size >= LARGE:
                    _ADVISE(descriptor, begin, size, system.WILL_NEED)
                else:
                    near.add((number, begin // AROUND))
            for around in near - self._announced:
                self._announced.add(around)
                _ADVISE(descriptor, around[1] * AROUND, AROUND, system.WILL_NEED)

    def _map(self) -> tuple[list[Array], int]:
        with self.pack.guard.lock:
            if self._source is None:
                mapping = self.pack.map(private=False)
                self._source = self._columns(mapping), mapping.__array_interface__["data"][0]
            return self._source

    def _columns(self, mapping: Bytes) -> list[Array]:
        return [_column(leaf, mapping, self.table.rows) for leaf in self.table.leaves]


def stack_signature(skeleton: bytes, shapes: list[Any]) -> str:
    """Nesting, types and shapes as one text, the same object for equal ones: comparing them is comparing pointers."""
    return sys.intern(f"{skeleton!r} {shapes!r}")


def _column(leaf: LeafColumn, mapping: Bytes, rows: int) -> Array:
    if leaf.shape is None:
        return mapping[leaf.start : pair(leaf.offsets, rows - 1)[1] + leaf.start].view(leaf.dtype.bits)
    column = mapping[leaf.start : leaf.start + rows * leaf.row_bytes].view(leaf.dtype.bits)
    return column.reshape(rows, *leaf.shape)


def _row(leaf: LeafColumn, column: Array, row: int) -> Array:
    if leaf.shape is not None:
        return column[row, ...]
    begin, end = pair(leaf.offsets, row)
    size = leaf.dtype.size
    array = column[begin // size : end // size]
    return array if leaf.rank == 1 else array.reshape(leaf.row_shape(row))


def _taker(leaf: LeafColumn, column: Array) -> Callable[[int], Any]:
    """What gives a leaf of any row as it lies in its column; of those without dimensions, a number."""
    if leaf.shape is not None:
        return column.__getitem__
    if leaf.rank > 1:
        return lambda row: _row(leaf, column, row)
    edges, shift = _edges(leaf)
    return lambda row: column[edges[row] >> shift : edges[row + 1] >> shift]


def _edges(leaf: LeafColumn) -> tuple[memoryview, int]:
    """Where rows of several lengths begin, in bytes, and by how many bits to shift that for elements."""
    # All sizes are powers of two, and a memoryview gives Python's own numbers: half the time of `offsets.item`.
    assert leaf.offsets is not None
    return leaf.offsets.data, leaf.dtype.size.bit_length() - 1


def _copier(leaf: LeafColumn, column: Array) -> Callable[[int], Array]:
    """What copies a leaf of any row."""
    if leaf.shape == ():
        return lambda row: column[row, ...].copy()
    if leaf.shape is not None:
        return lambda row: column[row].copy()
    if leaf.rank > 1:
        return lambda row: _row(leaf, column, row).copy()
    edges, shift = _edges(leaf)
    return lambda row: column[edges[row] >> shift : edges[row + 1] >> shift].copy()


def _giver(leaf: LeafColumn, column: Array) -> Callable[[int], Array]:
    """What gives away a leaf of any row of a private mapping: a large one as it lies there, a small one as a copy.

    A small leaf shares its page with others, and a write would cost a page of memory.
    """
    if leaf.shape is not None:
        return _taker(leaf, column) if leaf.row_bytes >= LARGE else _copier(leaf, column)

    def give(row: int) -> Array:
        array = _row(leaf, column, row)
        return array if array.nbytes >= LARGE else array.copy()

    return give


def _read_span(descriptor: int, array: Array, offset: int) -> None:
    """Fill an array from the file; one that ends too early is damage."""
    if not array.nbytes:
        return
    size = calls.preadv(descriptor, [array.data], offset)
    if size == array.nbytes:
        return
    pending = memoryview(array.reshape(-1).view(np.uint8).data)
    while size:
        pending = pending[size:]
        offset += size
        if not pending.nbytes:
            return
        size = calls.preadv(descriptor, [pending], offset)
    raise RowDamagedError("the pack is cut short")


def _open_regular(path: str) -> int:
    # A FIFO must not hang us and a link must not lead us elsewhere.
    try:
        return calls.open(path, os.O_RDONLY | calls.O_NOFOLLOW | calls.O_NONBLOCK | calls.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise DamagedPackError(Path(path), "a link or a device, not a file") from error
        raise


def _twice(descriptor: int, read: Callable[[], _Result]) -> _Result:
    """What a read gives, at the second try where the first one fails: much that goes wrong with one read passes."""
    try:
        return read()
    except (DamagedPackError, RowDamagedError, OSError):
        forget_cached(descriptor)
        return read()


def forget_cached(descriptor: int) -> None:
    """Have the next read of a file come from the disk, not from what the system holds of it, where that can be had."""
    if _ADVISE is not None:
        # Advice that nobody has to take: what is no file cannot be advised on at all.
        with contextlib.suppress(OSError):
            _ADVISE(descriptor, 0, 0, system.DONT_NEED)


def _same_file(status: os.stat_result) -> tuple[int, int, int]:
    """What stays the same of a file that nobody writes into, however it is touched."""
    return status.st_dev, status.st_ino, status.st_size


def _stamp(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """What no longer stays the same once somebody has written into a file."""
    return status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _read_head(descriptor: int, path: Path, name: str) -> Head:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise DamagedPackError(path, "not a regular file")
    size = os.fstat(descriptor).st_size
    try:
        length = header_length(_pread(descriptor, min(8, size), 0))
        if length > size:
            raise DamagedPackError(path, "cut short inside its header")
        header = parse_pack_header(_pread(descriptor, length, 0))
        end = length + header.directory
        if end > size or end > MAX_HEAD:
            raise DamagedPackError(path, "cut short inside its directory")
        head = _pread(descriptor, end, 0)
        if pack_id(head) != name:
            raise DamagedPackError(path, "its head does not match its name")
        return parse_head(header, head)
    except ValueError as error:
        raise DamagedPackError(path, f"not a pack: {error}") from error


def _pieces(descriptor: int, offset: int, size: int) -> Iterator[Array]:
    """Some bytes of a file, one piece after the other in the same memory."""
    buffer = np.empty(min(size, _PIECE), np.uint8)
    for start in range(0, size, _PIECE):
        piece = buffer[: min(_PIECE, size - start)]
        _read_span(descriptor, piece, offset + start)
        yield piece


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    # In one call nearly always, and then without a second copy: a head may have hundreds of megabytes.
    data = calls.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    whole = np.empty(size, np.uint8)
    _read_span(descriptor, whole, offset)
    return whole.tobytes()
