"""Reading: one way to open a file that may have become something else since it was listed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from precook.fs.stamps import why_not_a_file


class NotAFileError(OSError):
    """A folder, a FIFO or the like where a file was expected."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)
        self.reason = reason


@contextmanager
def open_source(path: str | os.PathLike[str]) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of the regular file at a path, and how it looks; never waits for the other end of a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if reason := why_not_a_file(status.st_mode):
            raise NotAFileError(reason)
        yield descriptor, status
    finally:
        os.close(descriptor)


def read_all(descriptor: int) -> bytes:
    """Everything from here to the end of a file."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return file.readall()


def read_source(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the regular file at a path."""
    with open_source(path) as (descriptor, _):
        return read_all(descriptor)
