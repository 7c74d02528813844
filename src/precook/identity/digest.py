"""Digests of content: BLAKE3-256 of bytes, text and files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from precook.errors import SourceChangedError, SourceError
from precook.threads import ThreadPool, starting
from precook.values import Digest

CHUNK = 4 << 20
"""Bytes read at a time: with the number of threads, all the memory that hashing takes."""
_PROCESS = os.getpid()
"""The process that this module was imported in."""


def digest(content: bytes | str | Path) -> Digest:
    """BLAKE3-256 of bytes, of a text's UTF-8, or of the bytes in the file at a `Path`.

    A `str` is always text, never a path. A file that changes while it is read is refused.

    >>> digest("a cat") == digest(b"a cat")
    True
    """
    if isinstance(content, bytes):
        return Digest(blake3(content).digest())
    if isinstance(content, str):
        return Digest(blake3(content.encode("utf-8", "surrogatepass")).digest())
    if isinstance(content, Path):
        return _digest_file(content, threads=max_threads())
    message = f"digest takes bytes, str or Path, not {type(content).__name__}"
    raise TypeError(message)


def digest_files(paths: Iterable[Path], *, threads: int | None = None) -> list[Digest]:
    """The digest of each file, in order; several files are read at once."""
    paths = list(paths)
    if len(paths) == 1:
        return [digest(paths[0])]
    with ThreadPool(threads or min(8, os.cpu_count() or 1), thread_name_prefix="precook-digest") as pool:
        return list(pool.map(lambda path: _digest_file(path, threads=1), paths))


def max_threads() -> int:
    """How many threads one digest may take: all there are, in a forked process one.

    The library keeps its threads for good, and those of the parent do not come along: a child would wait for them.
    """
    return blake3.AUTO if os.getpid() == _PROCESS else 1


def derived_digest(context: str, content: bytes) -> bytes:
    """BLAKE3 of `content` in a domain of its own, so that a recipe can never be mistaken for a key."""
    return blake3(content, derive_key_context=context).digest()


def digest_open(descriptor: int, path: Path) -> Digest:
    """The digest of a file that is open, whatever its path leads to by now; where it was read up to is lost."""
    with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        return _digest_stream(file, path, threads=max_threads())


def _digest_file(path: Path, *, threads: int) -> Digest:
    try:
        with path.open("rb", buffering=0) as file:
            return _digest_stream(file, path, threads=threads)
    except OSError as error:
        raise SourceError(path, error.strerror or str(error)) from error


def _digest_stream(file: io.FileIO, path: Path, *, threads: int) -> Digest:
    hasher = blake3(max_threads=threads)
    try:
        # Unbuffered reads of one descriptor: a mapping would die with SIGBUS if the file shrank.
        before = _size_and_times(file.fileno())
        chunk = memoryview(bytearray(min(CHUNK, max(before[0], 1) + 1)))
        with starting("precook-digest"):
            while size := file.readinto(chunk):
                hasher.update(chunk[:size])
        after = _size_and_times(file.fileno())
    except OSError as error:
        raise SourceError(path, error.strerror or str(error)) from error
    if before != after:
        raise SourceChangedError(path)
    return Digest(hasher.digest())


def _size_and_times(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
