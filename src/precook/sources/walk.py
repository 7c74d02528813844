"""The walk: one pass over a folder that lists the files that matter and asks for their stamps."""

from __future__ import annotations

import bisect
import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from precook.errors import SourceError
from precook.fs.stamps import COLUMNS, Stamps, why_not_a_file
from precook.fs.stat_many import stat_many
from precook.fs.trust import resource_error
from precook.values import Flags, Numbers

OUTSIDE = -errno.EXDEV
"""The mode of a file that lies outside: as the kernel says it of a path that leaves the folder it has to stay in."""
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
    """Folders that could not or may not be listed, and links that may have led to some: relative path and reason."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Files without a role, by the end of their name in lower case; "" for none."""
    modes: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Modes of files, or minus the errno where they could not be looked at."""
    stamps: Stamps = field(default_factory=lambda: np.zeros((0, COLUMNS), np.int64))

    def path(self, row: int) -> str:
        """A file's path relative to the root, or as it was given."""
        folder = bisect.bisect_right(self.folders, row, key=lambda folder: folder[1]) - 1
        return self.folders[folder][0] + self.names[row]

    def full_path(self, row: int) -> str:
        """A file's path."""
        return os.path.join(self.root, self.path(row))  # noqa: PTH118 - plain strings: there are many

    def regular(self) -> Flags:
        """Which are regular files, as they should be."""
        return np.asarray((self.modes > 0) & (self.modes & 0o170000 == stat.S_IFREG))

    def absent(self) -> Flags:
        """Which are not there at all; a name that is too long cannot be."""
        return np.isin(self.modes, (-errno.ENOENT, -errno.ENOTDIR, -errno.ENAMETOOLONG))

    def problem(self, row: int) -> str:
        """Why something is not a file that can be read."""
        mode = int(self.modes[row])
        if mode == OUTSIDE:
            return _why_outside(self.full_path(row))
        return os.strerror(-mode).lower() if mode < 0 else why_not_a_file(mode) or "a file"

    def add(self, other: Listing) -> None:
        """Append the files of another listing of the same root."""
        first = len(self.names)
        self.folders += [(folder, first + start, first + stop) for folder, start, stop in other.folders]
        self.names += other.names
        self.roles += other.roles
        self.modes = np.concatenate([self.modes, other.modes])
        self.stamps = np.concatenate([self.stamps, other.stamps])


def walk(root: Path, wanted: Roles, *, recursive: bool, outside: bool = False, helpers: int | None = None) -> Listing:
    """List a folder and ask for the stamp of every file that has a role.

    Hidden files and folders are passed over, and so are precook stores. Links are followed, into each directory once;
    those that lead out of the folder only if `outside` is allowed. An absent folder is an error: a drive that is not
    mounted must not look like an empty dataset. `helpers` is for `stat_many`.
    """
    listing = Listing(root)
    limit = None if outside else os.path.realpath(root)
    linked_out: list[int] = []
    # Nearly all names end in one of these, and need no further look at their case.
    wanted = {**wanted, **{suffix.upper(): role for suffix, role in wanted.items()}}
    visited: set[tuple[int, int]] = set()
    todo = [""]
    while todo:
        folder = todo.pop()
        start = len(listing.names)
        try:
            below = _scan(listing, folder, wanted, visited, recursive=recursive, limit=limit, linked_out=linked_out)
        except OSError as error:
            del listing.names[start:], listing.roles[start:]
            linked_out = [row for row in linked_out if row < start]
            if not folder:
                raise _root_error(root, error) from error
            if shortage := resource_error(root / folder, error.errno or 0):
                raise shortage from error
            listing.problems.append((folder, f"this folder cannot be read: {error.strerror}"))
            continue
        if len(listing.names) > start:
            listing.folders.append((folder, start, len(listing.names)))
        todo += [f"{folder}{name}/" for name in sorted(below, reverse=True)]
    _stat_files(listing, helpers)
    _mark(listing, linked_out)
    return listing


def list_names(root: Path, names: list[str], roles: bytearray, *, helpers: int | None = None) -> Listing:
    """Ask for the stamps of files by name, relative to a folder or absolute; some may be absent."""
    listing = Listing(root, names, roles, [("", 0, len(names))])
    _stat_files(listing, helpers)
    return listing


def mark_outside(listing: Listing, rows: Iterable[int], *, by_pattern: bool) -> None:
    """Mark those of some files, listed by name, that lie outside of the root.

    A table's folder is where its files have to be. A `by_pattern` is the config's own word for a folder, which may well
    lie elsewhere: then it is that folder which the file must not leave by a link.
    """
    root = os.path.realpath(listing.root)
    limits: dict[str, tuple[str | None, frozenset[str] | None]] = {}
    there = (~listing.absent()).tolist()
    outside = []
    for row in rows:
        if not there[row]:
            continue
        folder, slash, name = listing.names[row].rpartition("/")
        folder += slash
        if folder not in limits:
            path = os.path.join(listing.root, folder)  # noqa: PTH118 - plain strings: there are many
            real = os.path.realpath(path)
            elsewhere = by_pattern and not _is_below(os.path.abspath(path), os.path.abspath(listing.root))  # noqa: PTH100
            limit = real if elsewhere else root if _is_below(real, root) else None
            limits[folder] = limit, _links_in(path)
        limit, links = limits[folder]
        # Of a file that is no link its folder decides. Measured: asking each file takes longer than its stamp.
        may_leave = links is None or name in links or name in ("", "..")
        if limit is None or (may_leave and _leads_out(listing.full_path(row), limit)):
            outside.append(row)
    _mark(listing, outside)


def _links_in(folder: str) -> frozenset[str] | None:
    """The names in a folder that are links; None where it cannot be listed, and any might be."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_symlink())
    except (OSError, ValueError):  # ValueError: a NUL, or characters that no bytes stand for
        return None


def _mark(listing: Listing, outside: list[int]) -> None:
    if outside:
        rows = np.array(outside, np.int64)
        # What is no regular file is not read in any case, and that is the better reason.
        listing.modes = listing.modes.copy()
        listing.modes[rows[listing.regular()[rows]]] = OUTSIDE


def _leads_out(path: str, limit: str) -> bool:
    return not _is_below(os.path.realpath(path), limit)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _why_outside(path: str) -> str:
    target = os.path.realpath(path)
    return f"leads out of the concept's folder, to {target}: write `outside: allow` in the concept if it may"


def _scan(
    listing: Listing,
    folder: str,
    wanted: Roles,
    visited: set[tuple[int, int]],
    *,
    recursive: bool,
    limit: str | None,
    linked_out: list[int],
) -> list[str]:
    """Add the files of one directory, to `linked_out` those outside; the directories in it that are to be listed."""
    path = os.path.join(listing.root, folder)  # noqa: PTH118 - plain strings: this is most of what a warm plan does
    status = os.stat(path)  # noqa: PTH116
    directory = status.st_dev, status.st_ino
    if directory in visited:
        return []
    visited.add(directory)
    folders: list[os.DirEntry[str]] = []
    broken: list[tuple[str, str]] = []
    ignored: list[str] = []
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
                folders.append(entry)
            elif role and len(suffix) < len(name):
                if limit is not None and entry.is_symlink() and _leads_out(entry.path, limit):
                    linked_out.append(len(listing.names))
                add_name(name)
                add_role(role)
            elif recursive and entry.is_symlink() and (reason := _why_broken(entry)):
                broken.append((folder + name, reason))
            else:
                ignored.append(suffix.lower() if len(suffix) < len(name) else "")
    listing.problems += broken
    listing.ignored.update(ignored)
    return _below(listing, folder, folders, limit) if recursive else []


def _below(listing: Listing, folder: str, entries: list[os.DirEntry[str]], limit: str | None) -> list[str]:
    """Which directories in a folder are to be listed; a link to one outside is a problem, a store is passed over."""
    below = []
    for entry in entries:
        if limit is not None and entry.is_symlink() and _leads_out(entry.path, limit):
            listing.problems.append((folder + entry.name, _why_outside(entry.path)))
        elif not os.path.exists(os.path.join(entry.path, _STORE_MARKER)):  # noqa: PTH110, PTH118
            below.append(entry.name)
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


def _stat_files(listing: Listing, helpers: int | None) -> None:
    folders = [
        (os.path.join(listing.root, folder), listing.names[start:stop])  # noqa: PTH118
        for folder, start, stop in listing.folders
    ]
    rows = stat_many(folders, helpers=helpers)
    listing.modes, listing.stamps = rows[:, 0], rows[:, 1:]
    for number in np.unique(-listing.modes[listing.modes < 0]).tolist():
        if error := resource_error(listing.root, number):
            raise error


def _root_error(root: Path, error: OSError) -> SourceError:
    if shortage := resource_error(root, error.errno or 0):
        return shortage
    if isinstance(error, FileNotFoundError):
        hint = "is the drive mounted? An absent folder is not an empty dataset"
        return SourceError(root, "no such folder", hint=hint)
    if isinstance(error, NotADirectoryError):
        return SourceError(root, "not a folder")
    return SourceError(root, f"this folder cannot be read: {error.strerror}")
