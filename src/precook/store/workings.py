"""The parts of a store, for code that looks after it."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from precook.errors import ReadOnlyError, printable
from precook.store import files
from precook.store.index import Index
from precook.store.layout import Layout
from precook.store.leases import sweep_leases
from precook.store.lock import locked
from precook.store.packfile import Guard, PackFile
from precook.store.reader import Reader
from precook.store.reserve import keep_reserve, release_reserve
from precook.store.syncpoints import syncpoint
from precook.store.writer import Commit, Upkeep
from precook.values import Key

_PATIENCE = 5.0
"""Seconds to wait for another one who removes or moves entries; that may take long."""

_CACHE = 64 << 10
"""KiB of the index kept in memory meanwhile: entries of one pack lie all over it."""


@dataclass(frozen=True, slots=True)
class Workings:
    """What a store is made of."""

    layout: Layout
    index: Index
    reader: Reader
    directories: files.Directories
    upkeep: Upkeep | None = None

    @property
    def commit(self) -> Commit:
        """What makes packs of entries."""
        return Commit(self.layout, self.index, self.reader, self.directories, self.upkeep)

    def open_pack(self, name: str) -> PackFile:
        """A pack, opened for whoever reads it once."""
        return PackFile(self.layout.pack(name), name, Guard())

    def is_sound(self, key: bytes) -> bool:
        """Whether an entry is there and, read from the disk, what was put; one that is not becomes a miss."""
        return self.reader.checksum(self.index, Key(key)) is not None

    def take_in(self, staged: Path, pack: PackFile) -> None:
        """Make a pack that lies durable on the same disk part of the store; nobody else may know of it yet."""
        if self.upkeep is not None:
            self.upkeep.check()
            self.upkeep.make_room(pack.nbytes)
        path = self.layout.pack(pack.head.id)
        with files.explained(self.layout.root):
            self.directories.make(self.layout.packs)
            self.directories.make(path.parent)
            os.rename(staged, path)  # noqa: PTH104 - each step of the order of writes stands here by name
            try:
                files.sync_directory(path.parent)
            except BaseException:
                # A name that may vanish must not be found by others, who would take it for durable.
                with contextlib.suppress(OSError):
                    os.unlink(path)  # noqa: PTH108
                raise
        self.index.add([pack.head])


@contextlib.contextmanager
def maintaining(workings: Workings, what: str) -> Iterator[None]:
    """Be the only one who removes or moves entries; builders and readers go on. `LockedError` names who is at it."""
    if workings.index.read_only:
        raise ReadOnlyError(workings.layout.root, "opened read-only")
    _check_owner(workings.layout)
    holder = f"{what} (pid {os.getpid()} on {socket.gethostname()})"
    with locked(workings.layout.maintenance, patience=_PATIENCE, holder=holder):
        with workings.index.exclusive(), files.explained(workings.layout.root):
            release_reserve(workings.layout)
            sweep_leases(workings.layout)
        workings.index.query(lambda db: db.execute(f"PRAGMA cache_size=-{_CACHE}"))
        syncpoint("maintenance.locked")
        yield
        keep_reserve(workings.layout, workings.index.pack_bytes())


def _check_owner(layout: Layout) -> None:
    """Refuse to remove anything from a directory that somebody else may have planted."""
    status = layout.root.stat()
    if status.st_mode & stat.S_IWOTH:
        hint = f"take that right away: chmod o-w {printable(layout.root)}"
        raise ReadOnlyError(
            layout.root, "everybody may write to this directory, so nothing is removed from it", hint=hint
        )
    shared = bool(status.st_mode & stat.S_IWGRP)
    if status.st_uid != os.geteuid() and os.geteuid() != 0 and not shared:
        hint = "run it as its owner, or let its group write to it"
        raise ReadOnlyError(layout.root, "this directory belongs to somebody else", hint=hint)
