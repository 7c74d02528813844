"""Reading: one way to open a file that may have become something else since it was listed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from precook.fs.stamps import why_not_a_file
from precook.fs.system import calls

_MAX_SEGMENTS = 10_000
_LARGEST_READ = 1 << 30
"""Bytes that are asked for at a time: Linux gives no more than two GiB, and says so only by giving less."""
_PIECE = 1 << 20
"""Bytes of a small file that are read at a time: memory is taken for what is there, not for what may be."""


class NotAFileError(OSError):
    """A folder, a FIFO or the like where a file was expected."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)
        self.reason = reason


class TooLargeError(OSError):
    """A file of more bytes than anybody would write there."""

    def __init__(self, limit: int) -> None:
        self.reason = f"larger than {limit:,} bytes"
        super().__init__(errno.EFBIG, self.reason)


@contextmanager
def open_source(path: str | os.PathLike[str]) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of the regular file at a path, and how it looks; never waits for the other end of a FIFO."""
    descriptor = calls.open(path, os.O_RDONLY | calls.O_CLOEXEC | calls.O_NONBLOCK)
    try:
        status = calls.fstat(descriptor)
        if reason := why_not_a_file(status.st_mode):
            raise NotAFileError(reason)
        yield descriptor, status
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """Everything from here to the end of a file."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return file.readall()


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """So many bytes from a place in a file on; `EOFError` where it ends before."""
    pieces, left = [], size
    while left:
        piece = calls.pread(descriptor, min(left, _LARGEST_READ), offset + size - left)
        if not piece:
            raise EOFError(f"the file ends before byte {offset + size:,}")
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_small(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a regular file that has no reason to be large; `TooLargeError` before more than `limit` is read.

    Any other error of the system is as `open` and `read` raise it, and `NotAFileError` says what lies there instead.
    """
    with open_source(path) as (descriptor, status):
        if status.st_size > limit:
            raise TooLargeError(limit)
        # Not by its size alone: a file may grow meanwhile, and those of /proc say that they are empty.
        pieces, left = [], limit + 1
        while left and (piece := os.read(descriptor, min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
        if not left:
            raise TooLargeError(limit)
        return b"".join(pieces)


def bytes_there(descriptor: int, size: int) -> int:
    """How many of a file's bytes are not in holes: one of a terabyte may take nothing on the disk.

    Where the file system does not tell, and where there are very many holes, all of them count.
    """
    if sys.platform == "win32":
        return size
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    there = position = 0
    try:
        for _ in range(_MAX_SEGMENTS):
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            there += position - start
    except OSError as error:
        return there if error.errno == errno.ENXIO else size  # ENXIO: no data from here on
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return size
