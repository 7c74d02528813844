"""The parts of a store, for code that looks after it."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from precook.store import files
from precook.store.index.index import Index
from precook.store.layout import Layout
from precook.store.lease import Lease
from precook.store.packfile import Guard, PackFile
from precook.store.reader import Reader
from precook.store.uses import Uses
from precook.store.writer import Commit, Upkeep
from precook.values import Key


class Session:
    """The leases, uses and bounds of one opened store."""

    def __init__(
        self, layout: Layout, reader: Reader, make_room: Callable[[int], None], *, max_bytes: int | None
    ) -> None:
        self._layout = layout
        self._make_room = make_room
        self._reader = reader
        self._uses = Uses(layout)
        self._leases: list[weakref.ref[Lease]] = []
        """Not kept alive: a lease that its holder has dropped ends."""
        self.max_bytes = max_bytes

    def lease(self, index: Index | None, purpose: str) -> Lease:
        """A lease that ends with the session at the latest."""
        lease = Lease(self._layout, index, purpose)
        self._leases = [*(other for other in self._leases if other() is not None), weakref.ref(lease)]
        return lease

    def check(self) -> None:
        """Stop where a lease of ours was broken, while this machine slept perhaps: what it protected may be gone."""
        for lease in self._held():
            if lease.protects:
                lease.check()

    def record(self, index: Index, *, now: bool = False) -> None:
        """Write down what was read since the last time, if it is time for it or must be `now`."""
        if index.read_only or not (now or self._uses.due):
            return
        marks = self._reader.take_uses()
        if not self._uses.record(index, marks):
            self._reader.give_back(marks)

    def keep(self, index: Index) -> None:
        """Make it known that what was just read is in use, or fail; the caller holds the store's lock."""
        marks = self._reader.take_uses()
        try:
            self._uses.write(index, marks)
        except BaseException:
            self._reader.give_back(marks)
            raise

    def make_room(self, nbytes: int) -> None:
        """See to it that a pack of this size fits, or refuse it."""
        if self.max_bytes is not None:
            self._make_room(nbytes)

    def close(self, index: Index | None) -> None:
        """Let go of the leases and write down what was used."""
        for lease in self._held():
            lease.close()
        if index is not None:
            self.record(index, now=True)

    def _held(self) -> list[Lease]:
        return [lease for one in self._leases if (lease := one()) is not None]


@dataclass(frozen=True, slots=True)
class StoreInternals:
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
