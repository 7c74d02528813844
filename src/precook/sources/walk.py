"""The walk: one pass over a folder that lists what matters and asks for its stamps."""

from __future__ import annotations

import bisect
import errno
import logging
import os
import stat
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.errors import SourceError
from precook.fs import stat_names as helper
from precook.fs.stamps import Stamps, why_not_a_file
from precook.fs.trust import exhausted

_log = logging.getLogger("precook")

_MANY = 20_000
"""Files that make a second process worth its start."""
_STORE_MARKER = "store.toml"

Roles = Mapping[str, int]
"""What files are for, by the end of their name after the last dot, in lower case."""


@dataclass(slots=True)
class Listing:
    """The files of a folder that matter, with their stamps; those in one directory lie together."""

    root: Path
    names: list[str] = field(default_factory=list)
    roles: bytearray = field(default_factory=bytearray)
    folders: list[tuple[str, int, int]] = field(default_factory=list)
    """Directories relative to the root ("" or with a slash at the end), and their first and last file plus one."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Folders that could not be listed, and links that may have led to some: relative path and reason."""
    modes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Modes of files, or minus the errno where they could not be looked at."""
    stamps: Stamps = field(default_factory=lambda: np.zeros((0, 5), np.int64))

    def path(self, row: int) -> str:
        """A file's path relative to the root, or as it was given."""
        at = bisect.bisect_right(self.folders, row, key=lambda folder: folder[1]) - 1
        return self.folders[at][0] + self.names[row]

    def full_path(self, row: int) -> str:
        """A file's path."""
        return os.path.join(self.root, self.path(row))  # noqa: PTH118 - plain strings: there are many

    def regular(self) -> npt.NDArray[np.bool_]:
        """Which are regular files, as they should be."""
        return np.asarray((self.modes > 0) & (self.modes & 0o170000 == stat.S_IFREG))

    def absent(self) -> npt.NDArray[np.bool_]:
        """Which are not there at all; a name that is too long cannot be."""
        return np.isin(self.modes, (-errno.ENOENT, -errno.ENOTDIR, -errno.ENAMETOOLONG))

    def problem(self, row: int) -> str:
        """Why something is not a file that can be read."""
        mode = int(self.modes[row])
        return os.strerror(-mode).lower() if mode < 0 else why_not_a_file(mode) or "a file"

    def add(self, other: Listing) -> None:
        """Append the files of another listing of the same root."""
        first = len(self.names)
        self.folders += [(folder, first + start, first + stop) for folder, start, stop in other.folders]
        self.names += other.names
        self.roles += other.roles
        self.modes = np.concatenate([self.modes, other.modes])
        self.stamps = np.concatenate([self.stamps, other.stamps])


def walk(root: Path, wanted: Roles, *, recursive: bool, helpers: int | None = None) -> Listing:
    """List a folder and ask for the stamp of every file that has a role.

    Hidden files and folders are passed over, and so are precook stores. Links are followed, into each directory once.
    An absent folder is an error: a drive that is not mounted must not look like an empty dataset.
    """
    listing = Listing(root)
    _list(listing, wanted, recursive=recursive)
    _look(listing, helpers)
    return listing


def list_names(root: Path, names: list[str], roles: bytearray, *, helpers: int | None = None) -> Listing:
    """Ask for the stamps of files by name, relative to a folder or absolute; some may be absent."""
    listing = Listing(root, names, roles, [("", 0, len(names))])
    _look(listing, helpers)
    return listing


def _look(listing: Listing, helpers: int | None) -> None:
    table = np.frombuffer(_stat(listing, helpers), np.int64).reshape(len(listing.names), helper.COLUMNS)
    listing.modes, listing.stamps = table[:, 0], table[:, 1:]
    for number in np.unique(-listing.modes[listing.modes < 0]).tolist():
        if error := exhausted(listing.root, number):
            raise error


def _list(listing: Listing, wanted: Roles, *, recursive: bool) -> None:
    # Nearly all names end in one of these, and need no further look at their case.
    wanted = {**wanted, **{suffix.upper(): role for suffix, role in wanted.items()}}
    visited: set[tuple[int, int]] = set()
    todo = [""]
    while todo:
        folder = todo.pop()
        start = len(listing.names)
        try:
            below = _scan(listing, folder, wanted, visited, recursive=recursive)
        except OSError as error:
            del listing.names[start:], listing.roles[start:]
            if not folder:
                raise _root_error(listing.root, error) from error
            if short := exhausted(listing.root / folder, error.errno or 0):
                raise short from error
            listing.problems.append((folder, f"this folder cannot be read: {error.strerror}"))
            continue
        if len(listing.names) > start:
            listing.folders.append((folder, start, len(listing.names)))
        todo += [f"{folder}{name}/" for name in sorted(below, reverse=True)]


def _scan(listing: Listing, folder: str, wanted: Roles, visited: set[tuple[int, int]], *, recursive: bool) -> list[str]:
    """Add the files of one directory; the directories in it that are to be listed too."""
    path = os.path.join(listing.root, folder)  # noqa: PTH118 - plain strings: this is most of what a warm plan does
    status = os.stat(path)  # noqa: PTH116
    here = status.st_dev, status.st_ino
    if here in visited:
        return []
    visited.add(here)
    below: list[str] = []
    broken: list[tuple[str, str]] = []
    add_name, add_role = listing.names.append, listing.roles.append
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name[0] == ".":
                continue
            suffix = name.rpartition(".")[2]
            role = wanted.get(suffix) or wanted.get(suffix.lower())
            try:
                is_folder = entry.is_dir()
            except OSError:
                is_folder = False  # a link in a circle, or through a folder that may not be searched
            if is_folder:
                if recursive and not os.path.exists(os.path.join(entry.path, _STORE_MARKER)):  # noqa: PTH110, PTH118
                    below.append(name)
            elif role and len(suffix) < len(name):
                add_name(name)
                add_role(role)
            elif recursive and entry.is_symlink() and (reason := _why_broken(entry)):
                broken.append((folder + name, reason))
    listing.problems += broken
    return below


def _why_broken(link: os.DirEntry[str]) -> str | None:
    """Why a link leads nowhere: behind it might be a folder on a drive that is not mounted."""
    try:
        link.stat()
    except FileNotFoundError:
        return "a link to something that is not there"
    except OSError as error:
        return f"a link that cannot be followed: {error.strerror}"
    return None


def _stat(listing: Listing, helpers: int | None) -> array[int]:
    """Ask for all stamps, in several processes if there are many."""
    count = len(listing.names)
    parts = 1 + (min(os.cpu_count() or 1, 4) - 1 if helpers is None and count >= _MANY else helpers or 0)
    if parts > 1 and not _can_help():
        parts = 1
    borders = [count * part // parts for part in range(parts + 1)]
    with _Helpers(listing) as others:
        for start, stop in pairwise(borders[1:]):
            others.start(start, stop)
        rows = _stat_part(listing, 0, borders[1])
        for part in others.results():
            rows.extend(part)
    return rows


def _stat_part(listing: Listing, start: int, stop: int) -> array[int]:
    rows = array("q")
    for folder, names in _groups(listing, start, stop):
        rows.extend(helper.stat_names(folder, names))
    return rows


def _can_help() -> bool:
    """Whether another process can be started: a frozen or embedding application would start itself instead."""
    program = os.path.basename(sys.executable or "")  # noqa: PTH119
    return "python" in program.lower() and not hasattr(sys, "frozen") and os.path.isfile(helper.__file__)  # noqa: PTH113


class _Helpers:
    """Processes that look at a part of the files each; none is left behind.

    What one of them fails to do is done here instead, so the result never depends on them.
    """

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._parts: list[tuple[subprocess.Popen[bytes] | None, int, int]] = []

    def __enter__(self) -> _Helpers:
        return self

    def start(self, start: int, stop: int) -> None:
        """Hand the files from `start` to `stop` to a new process."""
        process = None
        try:
            message = self._message(start, stop)
            process = _run(message) if message else None
        except OSError as error:
            _log.warning("no helper process could be started: %s", error)
        self._parts.append((process, start, stop))

    def results(self) -> Iterator[array[int]]:
        """The numbers of each part, in order."""
        for process, start, stop in self._parts:
            rows = array("q")
            if process is not None:
                output, _ = process.communicate()
                if process.returncode == 0 and len(output) == (stop - start) * helper.COLUMNS * rows.itemsize:
                    rows.frombytes(output)
                else:
                    _log.warning("a helper process ended with %s and %d bytes", process.returncode, len(output))
            yield rows or _stat_part(self._listing, start, stop)

    def __exit__(self, *_: object) -> None:
        for process in [part[0] for part in self._parts]:
            if process is not None:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def _message(self, start: int, stop: int) -> bytes | None:
        """A part as the helper reads it; None where a name (from a table) is none that a file can have."""
        parts: list[str] = []
        for folder, names in _groups(self._listing, start, stop):
            parts += [folder, str(len(names)), *names]
        text = "\0".join([*parts, ""])
        try:
            return os.fsencode(text) if text.count("\0") == len(parts) else None
        except UnicodeEncodeError:
            return None


def _run(message: bytes) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(message)
        file.seek(0)
        # Without site packages: they would take longer to import than the work takes.
        command = [sys.executable, "-I", "-S", helper.__file__]
        return subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )


def _groups(listing: Listing, start: int, stop: int) -> Iterator[tuple[str, list[str]]]:
    """The files from `start` to `stop`, by directory."""
    for folder, first, last in listing.folders:
        names = listing.names[max(first, start) : min(last, stop)]
        if names:
            yield os.path.join(listing.root, folder), names  # noqa: PTH118


def _root_error(root: Path, error: OSError) -> SourceError:
    if short := exhausted(root, error.errno or 0):
        return short
    if isinstance(error, FileNotFoundError):
        hint = "is the drive mounted? An absent folder is not an empty dataset"
        return SourceError(root, "no such folder", hint=hint)
    if isinstance(error, NotADirectoryError):
        return SourceError(root, "not a folder")
    return SourceError(root, f"this folder cannot be read: {error.strerror}")
