"""Protection: what keeps an entry from being removed, each protector with a name to tell people.

Leases, snapshots and recent use protect. What a removal sees when it is planned is looked at once more, under the
store's lock, right before anything is dropped: whoever came in between is seen, too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from precook.store.index.scan import Chunk
from precook.store.keysets import ManyKeys, in_columns
from precook.store.layout import Layout
from precook.store.lease import live_leases
from precook.store.snapshot import SnapshotFile, read_snapshot, with_snapshots
from precook.values import Flags


class Protector(Protocol):
    """Something that entries are kept for."""

    @property
    def name(self) -> str:
        """What it is, for people."""

    def holds(self, chunk: Chunk) -> Flags:
        """Which entries it keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class ProtectedKeys:
    """Keeps the entries that somebody names: a lease, a snapshot, this run."""

    name: str
    keys: ManyKeys

    def holds(self, chunk: Chunk) -> Flags:
        """Entries of these keys."""
        return self.keys.among(chunk.starts)


@dataclass(frozen=True, slots=True)
class ProtectedAge:
    """Keeps what was written or used after a moment."""

    name: str
    since: int
    """Nanoseconds."""

    def holds(self, chunk: Chunk) -> Flags:
        """Entries that were written or used since."""
        return chunk.touched > self.since


@dataclass(frozen=True, slots=True)
class ProtectedStore:
    """Keeps all there is."""

    name: str

    def holds(self, chunk: Chunk) -> Flags:
        """All of them."""
        return np.ones(len(chunk.keys), bool)


@dataclass(frozen=True, slots=True)
class Roots:
    """Which snapshots keep what they name; leases always do."""

    latest: bool = True
    """The latest one of each dataset."""
    but: Collection[str] = ()
    """Not those of these datasets, unless they are pinned."""
    younger_than: int | None = None
    """Also those written after this moment, in nanoseconds."""

    def of(self, files: list[SnapshotFile]) -> list[SnapshotFile]:
        """The snapshots that count, among all there are."""
        latest = {file.dataset: file for file in files}  # the last one of each is the newest
        return [
            file
            for file in files
            if file.pinned
            or (file.dataset not in self.but and ((self.latest and latest[file.dataset] is file) or self._young(file)))
        ]

    def _young(self, file: SnapshotFile) -> bool:
        if self.younger_than is None:
            return False
        try:
            return file.path.stat().st_mtime_ns > self.younger_than
        except FileNotFoundError:
            return False


class Protection:
    """Leases and snapshots of a store as they were, and what has come since."""

    def __init__(self, layout: Layout, roots: Roots) -> None:
        self._layout = layout
        self.roots = roots
        self._leases: dict[str, int] = {}
        """Leases that were read, and how many keys they had."""
        self._snapshots: set[str] = set()

    def look(self) -> list[ProtectedKeys]:
        """What protects now and was not seen before: all of it the first time.

        A snapshot that cannot be read is an error: nobody knows what it keeps.
        """
        new = []
        for holder, keys in live_leases(self._layout):
            seen = self._leases.get(holder.id, 0)
            if holder.keys > seen:
                name = f"lease: {holder.purpose} (pid {holder.pid} on {holder.host})"
                new.append(ProtectedKeys(name, ManyKeys(holder.keys - seen, keys.after(seen))))
                self._leases[holder.id] = holder.keys
        return new + with_snapshots(self._layout, self._read_new)

    def _read_new(self, listed: list[SnapshotFile]) -> list[ProtectedKeys]:
        """What those snapshots keep that count and were not seen before."""
        new = {}
        for file in self.roots.of(listed):
            # By name, not by inode: a snapshot is written once.
            if file.id not in self._snapshots:
                kind = "pinned snapshot" if file.pinned else "snapshot"
                keys = in_columns(read_snapshot(file).key_columns())
                new[file.id] = ProtectedKeys(f"{kind}: {file.dataset} {file.number}", keys)
        self._snapshots.update(new)
        return list(new.values())
