"""Bugs seeded on purpose: a harness that does not catch them proves nothing.

They live here and nowhere else. Each replaces one function of the store's module of small file operations, by name, in
the forked child that is about to be broken.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def _sync_directories_only(descriptor: int) -> None:
    """Forget the file; directories may be synced through the same function, and are."""
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.fsync(descriptor)


def _nothing(*_: Any, **__: Any) -> None:
    """Promise, and do nothing."""


def _write_once(descriptor: int, buffers: Any) -> None:
    """Write, and believe that all of it was written."""
    parts = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
    at_once = os.sysconf("SC_IOV_MAX")
    for start in range(0, len(parts), at_once):
        os.writev(descriptor, parts[start : start + at_once])


def _read_once(descriptor: int, size: int, offset: int) -> bytes:
    """Read, and believe that there is no more."""
    return os.pread(descriptor, size, offset)


BUGS: dict[str, tuple[str, Callable[..., Any]]] = {
    "no-file-sync": ("sync_file", _sync_directories_only),
    "no-directory-sync": ("sync_directory", _nothing),
    "ignored-short-write": ("write_all", _write_once),
    "believed-short-read": ("read_at", _read_once),
}


def seed_bug(name: str, files: ModuleType) -> None:
    """Break `files` in the way called `name`."""
    function, replacement = BUGS[name]
    if not hasattr(files, function):
        # A bug seeded into a name that nobody calls would pass for a caught one: the store must keep these names.
        message = f"{files.__name__} has no {function} to break"
        raise LookupError(message)
    setattr(files, function, replacement)
