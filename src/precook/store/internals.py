"""What an opened store is made of: the one handle for code that looks after it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from precook.errors import LockedError, StoreError
from precook.fs.trust import file_system_time
from precook.store import files
from precook.store.copy import Verify
from precook.store.format.build import PackImage
from precook.store.home import DiskHome, PackHome
from precook.store.index.index import Index
from precook.store.layout import Layout, Marker
from precook.store.lease import Lease
from precook.store.lookup import Lookup
from precook.store.pack_cache import PackCache
from precook.store.packfile import Guard, PackFile
from precook.store.reader import Reader
from precook.values import Key

_log = logging.getLogger("precook")

_RECORD_SECONDS = 300.0
"""Seconds between two records of what was used, of a store that stays open."""
_PATIENCE = 5.0
"""Seconds to wait for the lock: a record may be late."""


@dataclass(frozen=True, slots=True)
class RecipeStats:
    """What one recipe takes."""

    form: bytes
    """The recipe's canonical form; empty for entries put without one."""
    entries: int
    nbytes: int
    newest: int
    """When its newest entry was written, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds."""

    path: Path | str
    """Where it lies: a path, or a URL."""
    format: int = 0
    """Version of the format; 0 where there is no store yet."""
    id: str = ""
    read_only: bool = False
    entries: int = 0
    packs: int = 0
    payload_bytes: int = 0
    """Bytes of tensors and plain values."""
    pack_bytes: int = 0
    """Bytes of the pack files."""
    index_bytes: int = 0
    recipes: tuple[RecipeStats, ...] = ()
    damaged: tuple[tuple[Key, str], ...] = ()
    """Entries found damaged, with the reason."""
    bad_packs: tuple[tuple[str, str], ...] = ()
    """Packs that could not be used, with the reason."""


class StoreInternals:
    """The parts of a store that exists on the disk, with its leases and its record of what was used.

    Safe to use from several threads. `commit` asks it before every write: for the leases, the record and the bound.
    """

    def __init__(
        self,
        layout: Layout,
        marker: Marker,
        directories: files.Directories,
        *,
        read_only: bool,
        verify: Verify,
        make_room: Callable[[int], None] | None,
        home: PackHome | None = None,
    ) -> None:
        self.layout = layout
        self.marker = marker
        self.directories = directories
        self.home: PackHome = home or DiskHome(layout)
        self.packs = PackCache(layout, self.home)
        self.index = self.make_index(read_only=read_only)
        self.lookup = Lookup(layout, self.index, self.packs)
        self.reader = Reader(layout, self.lookup, verify=verify)
        self.send: Callable[[PackImage], None] | None = None
        """What makes a pack durable where the store does not lie on this disk; None where it does."""
        self.putting = threading.RLock()
        """Held by a thread that puts single entries: a second one finds what the first has put."""
        self._make_room = make_room
        self._room = threading.RLock()
        """Held while a pack is written to a store that is bounded."""
        self._leases: list[weakref.ref[Lease]] = []
        """Not kept alive: a lease that its holder has dropped ends."""
        self._recorded = time.monotonic()

    def open_pack(self, name: str) -> PackFile:
        """A pack, opened for whoever reads it once."""
        return self.home.open(name, Guard())

    def make_index(self, *, read_only: bool) -> Index:
        """What finds entries in these packs."""
        return Index(self.layout, self.marker.id, self.packs.heads, read_only=read_only)

    def pack_names(self) -> set[str]:
        """Every pack that is there to be read."""
        return self.home.names()

    def is_sound(self, key: bytes) -> bool:
        """Whether an entry is there and, read from the disk, what was put; one that is not becomes a miss."""
        return self.reader.checksum(Key(key)) is not None

    def stats(self) -> Stats:
        """Counts and sizes."""
        recipes = tuple(RecipeStats(*row) for row in self.index.totals())
        packs = self.index.packs()
        return Stats(
            path=self.layout.root,
            format=self.marker.format,
            id=self.marker.id,
            read_only=self.index.read_only,
            entries=self.index.count(),
            packs=len(packs),
            payload_bytes=sum(recipe.nbytes for recipe in recipes),
            pack_bytes=sum(size for _, size in packs),
            index_bytes=self.layout.index.stat().st_size if self.layout.index.exists() else 0,
            recipes=recipes,
            damaged=tuple((Key(key), reason) for key, _, reason in self.index.damage()),
            bad_packs=tuple(sorted(self.packs.bad_packs.items())),
        )

    @contextlib.contextmanager
    def room(self, nbytes: int) -> Iterator[None]:
        """Around the writing of a pack of this size: into a store that is bounded it fits, or it is refused."""
        if self._make_room is None:
            yield
            return
        # One at a time, until the index counts it: a second one would be given the same room.
        with self._room:
            self._make_room(nbytes)
            yield

    def lease(self, purpose: str, *, optional: bool = False) -> Lease:
        """A lease that ends with this store at the latest; one of a read-only store protects nothing."""
        lease = Lease(self.layout, None if self.index.read_only else self.index, purpose, optional=optional)
        self._leases = [*(other for other in self._leases if other() is not None), weakref.ref(lease)]
        return lease

    def check_leases(self) -> None:
        """Stop where a lease of ours was broken, while this machine slept perhaps: what it protected may be gone."""
        for reference in self._leases:
            lease = reference()
            if lease is not None and lease.protects:
                lease.check()

    def record_uses(self, *, now: bool = False) -> None:
        """Write down what was read since the last time, if it is time for it or must be `now`."""
        if self.index.read_only or not (now or time.monotonic() - self._recorded > _RECORD_SECONDS):
            return
        # Also where it cannot be done: who reads must not wait for the lock at every step.
        self._recorded = time.monotonic()
        marks = self.packs.take_uses()
        if not marks:
            return
        try:
            with self.index.exclusive(patience=_PATIENCE):
                self.index.record_uses(marks, file_system_time(self.layout.root))
        except StoreError as error:
            # A full disk, say: reading must go on, and the order of eviction is all that suffers.
            if not isinstance(error, LockedError):
                _log.debug("uses could not be recorded: %s", error)
            self.packs.give_back(marks)

    def keep_uses(self) -> None:
        """Make it known that what was just read is in use, or fail; the caller holds the store's lock."""
        self._recorded = time.monotonic()
        marks = self.packs.take_uses()
        try:
            if marks:
                self.index.record_uses(marks, file_system_time(self.layout.root))
        except BaseException:
            self.packs.give_back(marks)
            raise

    def close(self) -> None:
        """Let go of the leases and of the index, and write down what was used."""
        for reference in self._leases:
            lease = reference()
            if lease is not None:
                lease.close()
        with contextlib.ExitStack() as after:
            after.callback(self.index.close)
            self.record_uses(now=True)

    def before_fork(self) -> None:
        """Leave no SQLite state for the child to inherit."""
        self.index.before_fork()

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child with locks that no thread of the parent holds."""
        if child:
            self.putting = threading.RLock()
            self._room = threading.RLock()
            self.packs.after_fork()
        self.index.after_fork(child=child)
