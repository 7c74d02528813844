"""A store in a bucket: the same methods, over what this machine keeps of it and a courier who fetches the rest.

The folder on this machine (`path`) has the index that was made of leaves, packs that were read or written here, and
what is remembered of sources. All of it can be deleted: the bucket is the truth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from precook.errors import DamagedPackError, LockedError, NotAStoreError, StoreError, printable
from precook.store import files
from precook.store.index.index import Index
from precook.store.internals import Stats, StoreInternals
from precook.store.layout import MAX_MARKER, Marker, new_marker, parse_marker
from precook.store.packfile import Guard, PackFile
from precook.store.remote.commit import Sender
from precook.store.remote.courier.client import CourierClient, NoObjectError
from precook.store.remote.layout import (
    LEAVES,
    MARKER,
    PACKS,
    SNAPSHOTS,
    NearLayout,
    read_pack,
    read_snapshot_name,
    snapshot_object,
)
from precook.store.remote.leaves import BucketHome, bound_snapshot
from precook.store.remote.url import StoreUrl, near_name
from precook.store.remote.view import View
from precook.store.snapshot import Snapshot, SnapshotFile
from precook.store.store import Store

_ATTEMPTS = 3
"""How often the marker is read until two reads agree: nothing else vouches for its bytes."""
_ON_ITS_WAY = 3600.0
"""So many seconds a snapshot may lie here that the bucket does not have: another process may be sending it."""
_FOR_LATER = "do it to a store in a folder, and `precook push` that one to a prefix of its own"


class BucketInternals(StoreInternals):
    """The parts of a store in a bucket."""

    layout: NearLayout
    home: BucketHome

    def __init__(self, location: str, courier: CourierClient, *, refuses: bool, **parts: Any) -> None:
        self.courier = courier
        self._location = location
        self._refuses = refuses
        super().__init__(**parts, home=BucketHome(parts["layout"], courier), read_only=False, make_room=None)
        self.sender = Sender(self.layout, courier, self.home)
        self.send = self.sender.send

    def make_index(self, *, read_only: bool) -> Index:  # noqa: ARG002 - what is near can always be written
        """What finds entries in the packs of the bucket."""
        return View(self.layout, self.marker.id, self.packs.heads, self.home)

    def pack_names(self) -> set[str]:
        """Every pack that the bucket has."""
        # Before the list: what somebody adds meanwhile is not lost.
        known = self.index.pack_ids()
        packs = {pack for item in self.courier.list(PACKS) if (pack := read_pack(item.name)) is not None}
        # What only a leaf names is lost, and told as such.
        self.index.drop_packs(self.home.note_packs(known, packs))
        return packs

    def open_pack(self, name: str) -> PackFile:
        """A pack as the bucket has it now, whatever lies here."""
        self.home.fetch(name, anew=True)
        return PackFile(self.layout.pack(name), name, Guard())

    def stats(self) -> Stats:
        """Counts and sizes."""
        return dataclasses.replace(super().stats(), path=self._location, read_only=self._refuses)

    def after_fork(self, *, child: bool) -> None:
        """Go on; in the child with connections of its own."""
        if child:
            self.courier.after_fork_in_child()
            self.home.after_fork()
        super().after_fork(child=child)

    def close(self) -> None:
        """Let go of the leases, the index and the courier."""
        try:
            super().close()
        finally:
            self.courier.close()


class BucketStore(Store):
    """A store whose truth lies in a bucket; it may be used after a fork, and pickled to another process by its URL."""

    def __init__(
        self,
        url: StoreUrl,
        *,
        cache: Path,
        read_only: bool,
        verify_reads: Any,
        flush_bytes: int,
        flush_seconds: float,
    ) -> None:
        self.url = url
        """Where it lies, and how it is reached."""
        self._cache = cache
        near = cache / near_name(url)
        self._courier = CourierClient(url, cache)
        self._sent: set[tuple[str, str]] = set()
        """Snapshots and pins that the bucket has, by dataset and name."""
        super().__init__(
            near,
            read_only=read_only,
            verify_reads=verify_reads,
            flush_bytes=flush_bytes,
            flush_seconds=flush_seconds,
            max_bytes=None,
        )

    @property
    def location(self) -> str:
        """Its URL."""
        return str(self.url)

    def reindex(self) -> int:
        """Make the view anew, and adopt packs whose leaves were never written; the number of entries found."""
        internals = self._bucket_internals()
        if self._read_only:
            internals.pack_names()  # packs that are lost are not to be found again by their leaves
        else:
            internals.sender.adopt()
        internals.index.rebuild()
        return internals.index.count()

    def pin(self, file: SnapshotFile) -> None:
        """Keep a snapshot and all it names, also when a newer one takes its place."""
        self._check_writable()
        self._courier.put(snapshot_object(file.dataset, file.pin.name), b"kept by `precook snapshots pin`\n")
        super().pin(file)

    def unpin(self, file: SnapshotFile) -> None:
        """Keep a snapshot no longer than until a newer one takes its place."""
        self._check_writable()
        self._courier.delete([snapshot_object(file.dataset, file.pin.name)])
        super().unpin(file)

    def remove_snapshot(self, file: SnapshotFile) -> None:  # noqa: ARG002 - as a folder has it
        """Refused: nothing is removed from a bucket yet."""
        self.check_removable("removing a snapshot")

    def check_removable(self, doing: str) -> None:
        """Refused: nothing is removed from a bucket yet."""
        raise StoreError(self.location, f"{doing} is not for a store in a bucket yet", hint=_FOR_LATER)

    def look_for_snapshots(self) -> None:
        """Bring near what snapshots the bucket has, and let go of those that it has no more."""
        layout = self._layout
        here = set(_names(layout.snapshots))
        there = {
            name: item.modified
            for item in self._courier.list(SNAPSHOTS)
            if (name := read_snapshot_name(item.name)) is not None
        }
        for dataset, file in sorted(there.keys() - here):
            if file.endswith(".pin"):
                with files.explained(self.path):
                    (layout.snapshots / dataset).mkdir(parents=True, exist_ok=True)
                    (layout.snapshots / dataset / file).touch()
            else:
                with contextlib.suppress(NoObjectError):
                    self._fetch_snapshot(dataset, file)
        gone = here - there.keys()
        if gone and self._internals is not None:
            # Whoever writes one just now has the lock: it is not here to be taken for one that is gone.
            with contextlib.suppress(LockedError), self._internals.index.exclusive(patience=0.1):
                for dataset, file in gone:
                    path = layout.snapshots / dataset / file
                    # It is sent after the lock is free again. What the bucket had before is not on its way there.
                    if (dataset, file) in self._sent or _is_old(path):
                        path.unlink(missing_ok=True)
        self._sent = set(there)

    def _read_snapshot(self, file: SnapshotFile) -> Snapshot:
        """Read a snapshot; where the copy here is damaged, once more from the bucket."""
        try:
            return super()._read_snapshot(file)
        except DamagedPackError:
            try:
                self._fetch_snapshot(file.dataset, file.path.name, anew=True)
            except NoObjectError:
                raise FileNotFoundError(file.path) from None  # whoever has listed it lists them again
            return super()._read_snapshot(file)

    def _fetch_snapshot(self, dataset: str, file: str, *, anew: bool = False) -> None:
        """Bring a snapshot near, and no more of its object than belongs to it."""
        name = snapshot_object(dataset, file)
        pack = file.partition("-")[2].removesuffix(".safetensors")
        most = bound_snapshot(self._courier, name, pack)
        self._courier.fetch(name, pack, f"snapshots/{dataset}/{file}", most=most, anew=anew)

    def _send_snapshot(self, file: SnapshotFile) -> None:
        """Bring a snapshot to the bucket, after everything that it names."""
        if (file.dataset, file.path.name) in self._sent:
            return
        # By a name of its own: nobody can take it from under the courier's hands.
        outbox = NearLayout(self.path).outbox / f"{file.id}.{secrets.token_hex(8)}"
        with files.explained(self.path):
            outbox.parent.mkdir(parents=True, exist_ok=True)
            os.link(file.path, outbox)
        try:
            self._courier.put(snapshot_object(file.dataset, file.path.name), outbox)
        except BaseException:
            with contextlib.suppress(OSError):
                file.path.unlink()
            raise
        finally:
            with contextlib.suppress(OSError):
                outbox.unlink()
        self._sent.add((file.dataset, file.path.name))

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Any, ...]]:
        # A URL and options, which hold no secret: the other process has its own credentials.
        options = {
            "cache": self._cache,
            "read_only": self.asked_read_only,
            "verify_reads": self._verify_reads,
            "flush_bytes": self._flush_bytes,
            "flush_seconds": self._flush_seconds,
        }
        return _reopen, (type(self), self.url, options)

    def close(self) -> None:
        """Wait for puts under way, and hang up. Tensors that were handed out stay valid."""
        try:
            super().close()
        finally:
            self._courier.close()

    def after_fork_in_child(self) -> None:
        """Go on with locks and connections of this process."""
        self._courier.after_fork_in_child()
        super().after_fork_in_child()

    def _bucket_internals(self) -> BucketInternals:
        internals = self.internals(create=False)
        assert isinstance(internals, BucketInternals)
        return internals

    def _look_for_rights(self) -> None:
        """Whether it can be written to, the bucket says when it is."""

    def _read_marker(self) -> Marker | None:
        """What store.toml says in the bucket; None where there is no store yet."""
        try:
            before = self._courier.get(MARKER)
            if not before or len(before) > MAX_MARKER:
                raise NotAStoreError(self.location, "store.toml is empty or too large")
            for _ in range(_ATTEMPTS):
                # By range: a server that cannot do that is no place for a store.
                now = self._courier.range(MARKER, 0, len(before))
                if now == before:
                    break
                before = now
            else:
                hint = "look at the server and what lies between"
                raise StoreError(self.location, "store.toml is another one each time it is read", hint=hint)
        except NoObjectError:
            return None
        try:
            return parse_marker(self.location, now.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise NotAStoreError(self.location, "store.toml is not text") from error

    def _make_store(self) -> Marker:
        marker = self._read_marker()
        if marker is None:
            if self._courier.list(LEAVES):
                hint = "restore store.toml, or choose another prefix"
                raise NotAStoreError(self.location, "packs without store.toml", hint=hint)
            self._courier.create(MARKER, new_marker("docs/reference/bucket.md describes it.")[1])
            # Somebody else may have been quicker, and a server may not say so: what is there now counts for all.
            marker = self._read_marker()
        if marker is None:
            raise StoreError(self.location, "store.toml is not there after it was written", hint="look at the server")
        return marker

    def _start(self, marker: Marker) -> None:
        """Look at what the bucket has."""
        self._make_near()
        layout = NearLayout(self.path)
        self._layout = layout
        internals = BucketInternals(
            self.location,
            self._courier,
            refuses=self._read_only,
            layout=layout,
            marker=marker,
            directories=self._directories,
            verify=self._verify_reads,
        )
        with files.reading(self.path):
            internals.sender.sweep()
            internals.index.sweep()
            internals.index.refresh()
        self._internals = internals
        self.look_for_snapshots()

    def _make_near(self) -> None:
        """The folder for what this machine keeps, which is its user's alone."""
        with files.explained(self.path):
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            status = self.path.stat()
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022):
            hint = f"remove {printable(self.path)}, or name another folder with cache="
            raise StoreError(self.path, "others can write to what is kept of this store", hint=hint)


def _names(folder: Path) -> Iterator[tuple[str, str]]:
    """The snapshots and pins that lie here, by dataset and name."""
    for path in folder.glob("*/*"):
        if read_snapshot_name(f"snapshots/{path.parent.name}/{path.name}") is not None:
            yield path.parent.name, path.name


def _is_old(path: Path) -> bool:
    """Whether a file has lain here for so long that nobody is sending it any more."""
    try:
        return time.time() - path.stat().st_ctime > _ON_ITS_WAY
    except FileNotFoundError:
        return False


def _reopen(kind: type[BucketStore], url: StoreUrl, options: dict[str, Any]) -> BucketStore:
    return kind(url, **options)
