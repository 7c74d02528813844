"""Reads what the injection library recorded: every change below the root, in the order it was made."""

from __future__ import annotations

import enum
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("<II5q2IQ")
_MAGIC = 0x52544946


class Kind(enum.IntEnum):
    """Kinds of operations. Keep in step with inject.c."""

    OPEN = 1
    WRITE = 2
    SIZE = 3
    ALLOCATE = 4
    SYNC = 5
    RENAME = 6
    LINK = 7
    UNLINK = 8
    MKDIR = 9
    RMDIR = 10
    SYMLINK = 11
    MARK = 12
    MAP = 13
    RANGE = 14
    FIRED = 15


@dataclass(frozen=True)
class Operation:
    """One recorded call, with its outcome."""

    kind: Kind
    result: int
    """What the call returned: a count for writes, below zero when it failed."""
    error: int
    inode: int
    a: int
    """Offset of a write, new size, flags of an open or a rename, number of a mark."""
    b: int
    """Of an open: whether the file was there before. Of a sync: whether it was a directory. Of fallocate: its mode."""
    path: str
    """As seen below the root; a descriptor's file may since have been unlinked, the path then ends in ` (deleted)`."""
    other: str
    """The new name, of a rename or link."""
    data: bytes

    def __str__(self) -> str:
        names = f"{self.path} -> {self.other}" if self.other else self.path
        size = f" {len(self.data)} bytes at {self.a}" if self.kind is Kind.WRITE else ""
        failed = f" failed with {os.strerror(self.error)}" if self.result < 0 else ""
        return f"{self.kind.name.lower()} {names}{size}{failed}"


def read_trace(path: Path, root: Path) -> Iterator[Operation]:
    """The operations in `path`; names are given relative to `root`, and absolute when they lie elsewhere."""
    content = path.read_bytes()
    at = 0
    while at < len(content):
        magic, kind, result, error, inode, a, b, *lengths = _HEADER.unpack_from(content, at)
        if magic != _MAGIC:
            message = f"{path}: no record at byte {at}"
            raise ValueError(message)
        at += _HEADER.size
        parts = []
        for length in lengths:
            parts.append(content[at : at + length])
            at += length
        name, other, data = parts
        yield Operation(Kind(kind), result, error, inode, a, b, _relative(name, root), _relative(other, root), data)


def _relative(name: bytes, root: Path) -> str:
    text = os.fsdecode(name)
    if text == str(root):
        return "."
    prefix = f"{root}/"
    return text.removeprefix(prefix)
