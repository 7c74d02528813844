"""The walk: one pass over a folder that lists what matters and asks for its stamps."""

from __future__ import annotations

import bisect
import errno
import os
import stat
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.errors import SourceError
from precook.sources import stat_names as helper
from precook.sources.stamps import Stamps

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
    """Folders that could not be listed: relative path and reason."""
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
        """Which are not there at all."""
        return np.isin(self.modes, (-errno.ENOENT, -errno.ENOTDIR))

    def problem(self, row: int) -> str:
        """Why something is not a file that can be read."""
        mode = int(self.modes[row])
        if mode < 0:
            return os.strerror(-mode).lower()
        kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
        return f"{kinds.get(stat.S_IFMT(mode), 'a device')}, not a file"

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


def _list(listing: Listing, wanted: Roles, *, recursive: bool) -> None:
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
    by_suffix = {**wanted, **{suffix.upper(): role for suffix, role in wanted.items()}}
    add_name, add_role = listing.names.append, listing.roles.append
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name[0] == ".":
                continue
            suffix = name.rpartition(".")[2]
            role = by_suffix.get(suffix) or wanted.get(suffix.lower())
            if entry.is_dir():
                if recursive and not os.path.exists(os.path.join(entry.path, _STORE_MARKER)):  # noqa: PTH110, PTH118
                    below.append(name)
            elif role and len(suffix) < len(name):
                add_name(name)
                add_role(role)
    return below


def _stat(listing: Listing, helpers: int | None) -> array[int]:
    """Ask for all stamps, in several processes if there are many."""
    count = len(listing.names)
    parts = 1 + (min(os.cpu_count() or 1, 4) - 1 if helpers is None and count >= _MANY else helpers or 0)
    borders = [count * part // parts for part in range(parts + 1)]
    with _Helpers() as others:
        for start, stop in pairwise(borders[1:]):
            others.start(_groups(listing, start, stop))
        rows = array("q")
        for folder, names in _groups(listing, 0, borders[1]):
            rows.extend(helper.stat_names(folder, names))
        for part in others.results():
            rows.frombytes(part)
    return rows


class _Helpers:
    """Processes that look at a part of the files each; a folder that is left early leaves none behind."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Helpers:
        return self

    def start(self, groups: Iterable[tuple[str, list[str]]]) -> None:
        """Hand a part to a new process."""
        with tempfile.TemporaryFile() as file:
            text = "\0\0".join("\0".join([folder, *names]) for folder, names in groups)
            file.write(os.fsencode(text))
            file.seek(0)
            command = [sys.executable, "-I", "-S", helper.__file__]
            self._processes.append(subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE))  # noqa: S603 - our own program

    def results(self) -> Iterator[bytes]:
        """What each process found, in the order they were started."""
        for process in self._processes:
            output, _ = process.communicate()
            if process.returncode:
                raise OSError(f"a helper process ended with {process.returncode}")
            yield output

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _groups(listing: Listing, start: int, stop: int) -> Iterator[tuple[str, list[str]]]:
    """The files from `start` to `stop`, by directory."""
    for folder, first, last in listing.folders:
        names = listing.names[max(first, start) : min(last, stop)]
        if names:
            yield os.path.join(listing.root, folder), names  # noqa: PTH118


def _root_error(root: Path, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        hint = "is the drive mounted? An absent folder is not an empty dataset"
        return SourceError(root, "no such folder", hint=hint)
    if isinstance(error, NotADirectoryError):
        return SourceError(root, "not a folder")
    return SourceError(root, f"this folder cannot be read: {error.strerror}")
