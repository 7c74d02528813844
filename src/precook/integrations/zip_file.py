"""Zip files that other programs wrote: read only if what they claim to hold is there.

The directory of a zip file is a claim: members may share their bytes, unfold to a thousand times of them, or lie in a
hole of the file. All of it is compared with the bytes that are there before a member is read.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from precook.fs.read import bytes_there, open_source
from precook.units import format_size

MAX_DIRECTORY = 8 << 20
"""Bytes of a directory: about 80,000 members of ordinary names."""
MAX_UNFOLDED = 256 << 20
"""Bytes that compressed members may unfold to, beyond four times the file."""
_MAX_HOLES = 64 << 20
"""An honest file may have been copied with small ones."""
_ENCRYPTED = 1
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
"""What is read. Python knows two more, which cannot be told to stop at the size that a member claims."""


class ZipReader:
    """The members of one zip file; a `ValueError` says what is wrong with it, an `OSError` why it cannot be read."""

    def __init__(self, path: Path) -> None:
        with contextlib.ExitStack() as stack:
            descriptor, status = stack.enter_context(open_source(path))
            self.size = status.st_size
            self._file = stack.enter_context(_BoundedFile(descriptor, "rb", closefd=False))
            with _as_value_error():
                self._archive = stack.enter_context(zipfile.ZipFile(self._file))
            self._members = self._checked(min(self.size, bytes_there(descriptor, self.size) + _MAX_HOLES))
            self._file.limit = None
            self._open = stack.pop_all()

    @property
    def names(self) -> tuple[str, ...]:
        """The members there are, in the order of the directory."""
        return tuple(self._members)

    def starts_with(self, start: bytes) -> bool:
        """Whether the file as a whole begins so."""
        self._file.seek(0)
        return self._file.read(len(start)) == start

    def is_compressed(self, name: str) -> bool:
        """Whether a member takes fewer bytes than it has."""
        return self._members[name].compress_type != zipfile.ZIP_STORED

    def member_size(self, name: str) -> int:
        """The bytes that a member has."""
        return self._members[name].file_size

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A member, or its first bytes; a whole one is checked against its CRC."""
        size = self._members[name].file_size
        wanted = size if limit is None else min(size, limit)
        with _as_value_error(), self._archive.open(self._members[name]) as file:
            # Never without a size: zipfile would unfold 2 GiB before it compares them with what the member claims.
            content = file.read(wanted)
        if len(content) != wanted:
            raise ValueError(f"{name} is cut off")
        return content

    def close(self) -> None:
        """Let go of the file."""
        self._open.close()

    def __enter__(self) -> ZipReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, there: int) -> dict[str, zipfile.ZipInfo]:
        """The members by name, each of which can be read, and all of them one after the other."""
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            if info.filename in members:
                raise ValueError(f"{info.filename} stands there twice")
            if info.flag_bits & _ENCRYPTED:
                raise ValueError(f"{info.filename} is encrypted")
            if info.compress_type not in _METHODS:
                known = f"{' and '.join(_METHODS.values())} members are read"
                raise ValueError(f"{info.filename} is compressed by method {info.compress_type}; {known}")
            if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
                raise ValueError(f"{info.filename} is stored, and has two sizes")
            members[info.filename] = info
        stored = sum(info.compress_size for info in members.values())
        if stored > there:
            raise ValueError(f"its members claim {format_size(stored)}, and {format_size(there)} are there")
        unfolded = sum(info.file_size for info in members.values())
        if unfolded > max(MAX_UNFOLDED, 4 * self.size):
            raise ValueError(f"its members claim {format_size(unfolded)}, and the file has {format_size(self.size)}")
        return members


class _BoundedFile(io.FileIO):
    """A file of which only so much is read at a time: zipfile takes a directory's word for its size."""

    limit: int | None = MAX_DIRECTORY

    def read(self, size: int | None = -1, /) -> bytes:
        if self.limit is not None:
            left = os.fstat(self.fileno()).st_size - self.tell()
            if (left if size is None or size < 0 else min(size, left)) > self.limit:
                raise ValueError(f"its directory is larger than {format_size(self.limit)}")
        return super().read(size) or b""


@contextlib.contextmanager
def _as_value_error() -> Iterator[None]:
    """Whatever zipfile stumbles over, as one error."""
    try:
        yield
    except zipfile.BadZipFile as error:
        raise ValueError(f"not a whole zip file: {error}") from error
    except (NotImplementedError, RuntimeError, struct.error, zlib.error, OverflowError, EOFError) as error:
        # Versions and flags that it does not know, numbers out of range, streams that end early.
        raise ValueError(f"not a zip file that can be read: {error}") from error
