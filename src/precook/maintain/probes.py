"""Probes: what a directory's file system does when it is asked for what the store relies on.

Each one works in a temporary directory that is removed again, and says what it saw in a `Finding`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precook.store import files
from precook.store.mapping import map_file

Level = Literal["ok", "note", "problem"]

_STAMP = 1_000_000_000 * 10**9 + 123_456_789


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at."""

    level: Level
    topic: str
    message: str
    hint: str = ""
    paths: tuple[Path, ...] = ()
    """The files it is about, where it is about files."""


def probe(directory: Path) -> Iterator[Finding]:
    """Try what the store relies on, in a temporary directory that is removed again."""
    read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    if read_only or not os.access(directory, os.W_OK | os.X_OK):
        yield Finding("note", "probes", "not tried: this directory cannot be written to")
        return
    try:
        # Named like our other partial files, so that one left by a kill is taken for what it is.
        temporary = tempfile.TemporaryDirectory(
            prefix="doctor.", suffix=files.PARTIAL, dir=directory, ignore_cleanup_errors=True
        )
    except OSError as error:
        yield Finding("problem", "probes", f"nothing can be made here: {error.strerror}")
        return
    with temporary as name:
        yield from (_attempt(topic, attempt, Path(name)) for topic, attempt in _PROBES.items())


def _attempt(topic: str, attempt: Callable[[Path], Finding], folder: Path) -> Finding:
    try:
        return attempt(folder)
    except (OSError, sqlite3.Error) as error:
        return Finding("problem", topic, f"failed: {error}", "keep the store on another file system")


def _probe_flock(folder: Path) -> Finding:
    with (folder / "lock").open("wb") as first, (folder / "lock").open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Finding("ok", "flock", "a lock keeps a second one out")
    hint = "keep the store on another file system, or write to it from one process only"
    return Finding("problem", "flock", "two locks were given for one file: writers do not exclude each other", hint)


def _probe_sync(folder: Path) -> Finding:
    files.publish(folder / "synced", [b"content"])
    return Finding("ok", "fsync", "files and directories can be made durable")


def _probe_rename(folder: Path) -> Finding:
    old, new = folder / "old", folder / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    new.replace(old)
    if old.read_bytes() != b"new" or new.exists():
        return Finding("problem", "rename", "a renamed file did not replace the other one whole")
    return Finding("ok", "rename", "a file replaces another whole")


def _probe_times(folder: Path) -> Finding:
    path = folder / "times"
    path.touch()
    os.utime(path, ns=(_STAMP, _STAMP))
    lost = _STAMP - path.stat().st_mtime_ns
    if lost == 0:
        return Finding("ok", "file times", "kept to the nanosecond")
    if 0 < lost < 10**6:
        return Finding("ok", "file times", "kept to less than a millisecond")
    message = "kept to about a second: a source edited twice within one is read again to be sure"
    return Finding("note", "file times", message)


def _probe_mapping(folder: Path) -> Finding:
    path = folder / "mapped"
    path.write_bytes(b"content")
    with path.open("rb") as file:
        try:
            shared, private = (map_file(file.fileno(), 7, private=private) for private in (False, True))
        except OSError as error:
            return Finding("note", "mmap", f"not possible here ({error.strerror}): every read is a copy")
    private[0] = 0
    if shared.tobytes() != b"content" or path.read_bytes() != b"content":
        return Finding("problem", "mmap", "a private mapping changed its file", "keep the store on another file system")
    return Finding("ok", "mmap", "files can be mapped, privately too")


def _probe_wal(folder: Path) -> Finding:
    path = str(folder / "probe.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as writer, contextlib.closing(sqlite3.connect(path)) as reader:
        mode = writer.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        writer.execute("CREATE TABLE probe (number INTEGER)")
        writer.execute("INSERT INTO probe VALUES (7)")
        writer.commit()
        seen = reader.execute("SELECT number FROM probe").fetchall()
    if mode != "wal" or seen != [(7,)]:
        hint = "keep the store on a local file system"
        return Finding("problem", "sqlite wal", f"not possible here: the journal mode stays {mode}", hint)
    return Finding("ok", "sqlite wal", "works")


_PROBES: dict[str, Callable[[Path], Finding]] = {
    "flock": _probe_flock,
    "fsync": _probe_sync,
    "rename": _probe_rename,
    "file times": _probe_times,
    "mmap": _probe_mapping,
    "sqlite wal": _probe_wal,
}
