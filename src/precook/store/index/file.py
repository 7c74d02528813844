"""The file of the index on the disk: what lies in its place, and how another one takes it.

Only a plain file is ever opened. A link would lead somebody else's database into our hands, and a FIFO would have us
wait for ever; such things are put aside, where nobody loses them.

A database made anew takes the place of the old one by a single rename, to `index.sqlite.next`: from then on that is the
index, whatever becomes of the process. The old one and its companions go next, then it gets its final name; whoever
takes the store's lock and finds it under the other name does that first.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path

from precook.errors import LockedError, printable
from precook.fs.system import system
from precook.store import files
from precook.store.index.connection import DoubtError, companions
from precook.store.layout import Layout

_log = logging.getLogger("precook")

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class IndexFile:
    """The places of one store's index; knows nothing of what is in it."""

    def __init__(self, layout: Layout) -> None:
        self.path = layout.index
        self._root = layout.root
        self._next = layout.next_index
        self._log, self._shared, self._journal = companions(layout.index)

    def find(self) -> tuple[Path, os.stat_result | None]:
        """Where the index lies for somebody who changes nothing, perhaps not under its final name yet, and what it is.

        None where there is none, or something else.
        """
        for path in (self._next, self.path):
            status = look(path)
            if status is not None:
                return path, status
        return self.path, None

    @property
    def unfinished(self) -> bool:
        """Whether a new index has yet to get its final name."""
        return _kind(self._next) is not None

    def log_bytes(self) -> int:
        """Size of the log, zero where there is none, or something else."""
        status = look(self._log)
        return status.st_size if status is not None else 0

    def check(self) -> None:
        """Doubt what cannot be opened as it lies there: `settle` sees to it, under the store's lock."""
        if self.unfinished:
            raise DoubtError("a new index has yet to take its place")
        for path in (self.path, self._log, self._shared):
            kind = _kind(path)
            if kind is not None and kind != stat.S_IFREG:
                raise DoubtError(f"{path.name} is {_KINDS.get(kind, 'no plain file')}")
        if _kind(self._journal) is not None:
            raise DoubtError(f"{self._journal.name} is none of ours")

    def settle(self) -> None:
        """Put aside what is no file of ours, and finish what was cut off; the caller holds the store's lock.

        `DoubtError` where the index that is left cannot be believed.
        """
        for path in (self.path, self._next, self._log, self._shared, self._journal):
            _put_aside(path)
        if self.unfinished:
            self._take_place()
        if _kind(self._journal) is not None:
            # Not for SQLite to see: it would copy into the index what stands there, and remove a file that it names.
            self._journal.unlink()
            raise DoubtError(f"{self._journal.name} lay beside it, which is none of ours")

    def replace(self, made: Path) -> None:
        """Let a database that is whole and durable be the index from now on; the caller holds the store's lock."""
        # Before it is announced: whoever finds that a new index waits stops using the old one.
        self._check_unused()
        files.publish_file(made, self._next)
        self._take_place()

    def _check_unused(self) -> None:
        """Refuse to go on where the old index cannot be removed, because another process has it open (on Windows)."""
        for old in (self.path, self._log, self._shared):
            try:
                system.check_removable(old)
            except OSError as error:
                hint = "close the other programs that use this store, and try again"
                raise LockedError(self.path, "another process has the index open", hint=hint) from error

    def _take_place(self) -> None:
        """Remove the old index, and give the new one its name."""
        # Whoever made it may have died before its name was durable, and it is about to be the only one.
        files.sync_directory(self._root)
        # SQLite replays any log that it finds beside a database, whatever database that is. So the old log is gone for
        # good, also after a power cut, before the new index can be found beside it.
        for old in (self.path, self._log, self._shared, self._journal):
            old.unlink(missing_ok=True)
        files.sync_directory(self._root)
        files.publish_file(self._next, self.path)


def look(path: Path) -> os.stat_result | None:
    """The status of a plain file; None where there is none, or something else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _kind(path: Path) -> int | None:
    """What lies at a path, as the system numbers it, not what a link leads to; None where nothing does."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return None


def _put_aside(path: Path) -> None:
    """Take something that is no plain file out of the way; a link is removed, and what it leads to is not touched."""
    kind = _kind(path)
    if kind is None or kind == stat.S_IFREG:
        return
    if kind == stat.S_IFLNK:
        path.unlink()
        _log.warning("%s was a symbolic link, which is not followed; it was removed", printable(path))
        return
    aside = path.with_name(f"{path.name}.aside-{secrets.token_hex(4)}")
    path.rename(aside)
    named = _KINDS.get(kind, "no plain file")
    _log.warning("%s was %s and not the index; it is now %s", printable(path), named, printable(aside.name))
