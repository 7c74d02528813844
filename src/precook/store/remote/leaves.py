"""Leaves: the heads of packs as objects of their own, and packs that are opened by them.

A leaf is the head of its pack byte for byte, so that whoever has it knows every key, checksum and offset before a
single request to the pack. Its name ends with the pack's id, which is the digest of these very bytes: a leaf that was
changed is never used.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from precook.errors import DamagedPackError
from precook.fs.system import calls
from precook.store import files
from precook.store.format.header import header_length
from precook.store.format.pack import MAX_HEAD, Head, pack_id, parse_head, parse_pack_header
from precook.store.packfile import Guard, PackFile, PackGoneError
from precook.store.remote.courier.client import CourierClient, NoObjectError
from precook.store.remote.layout import LEAVES, NearLayout, pack_object, read_leaf

_ATTEMPTS = 3
"""How often the head of a snapshot is read that is not what its name says: it may have changed on the way."""
_NO_SNAPSHOT = 1 << 20
"""Bytes that are fetched of a snapshot whose head cannot be read."""
_AT_A_TIME = 1000
"""Leaves that are asked for by one call."""


def read_head(head: bytes, name: str, path: Path) -> Head:
    """The head of a pack from the bytes of its leaf; `DamagedPackError` where they are another's."""
    if pack_id(head) != name:
        raise DamagedPackError(path, "its head does not match its name")
    try:
        return parse_head(parse_pack_header(head[: header_length(head)]), head)
    except ValueError as error:
        raise DamagedPackError(path, f"not a pack: {error}") from error


class NearPackFile(PackFile):
    """A pack of a bucket: known by its leaf, and brought here when a row of it is read."""

    def __init__(self, path: Path, guard: Guard, head: Head, fetch: Callable[[], None]) -> None:
        super().__init__(path, head.id, guard, head=head)
        self._fetch = fetch
        self.replaced = False
        """Whether a copy that was damaged has made way for another, which a new object reads."""
        self._noted = False

    @property
    def nbytes(self) -> int:
        """Size of the file; before it is here, what its head says."""
        return super().nbytes if self._noted else self.head.file_bytes

    def descriptor(self) -> int:
        """A descriptor of its file, which is brought here if need be."""
        if self._noted:
            return super().descriptor()
        try:
            descriptor = _open(self.path)
        except FileNotFoundError:
            self._fetch()
            descriptor = _open(self.path)
        self.note_file(os.fstat(descriptor))
        self._noted = True
        return descriptor


def _open(path: Path) -> int:
    return calls.open(path, os.O_RDONLY | calls.O_NOFOLLOW | calls.O_NONBLOCK | calls.O_CLOEXEC)


class BucketHome:
    """The packs of a bucket, as its leaves name them; safe to use from several threads and after a fork."""

    def __init__(self, layout: NearLayout, courier: CourierClient) -> None:
        self._layout = layout
        self._courier = courier
        self._lock = threading.Lock()
        self._leaves: dict[str, tuple[str, int]] = {}
        """The leaf of each pack as it was listed, and when it was written."""
        self._gone: set[str] = set()
        """Packs whose leaf is there and that are not."""
        self._fetched_again: set[str] = set()

    def after_fork(self) -> None:
        """Replace the lock, which another thread may have held in the parent."""
        self._lock = threading.Lock()

    def names(self) -> set[str]:
        """The packs whose leaves are in the bucket; their heads are here when this returns."""
        leaves = {}
        for item in self._courier.list(LEAVES):
            pack = read_leaf(item.name)
            if pack is not None and pack not in self._gone:
                leaves[pack] = item.name, item.modified
        with self._lock:
            new = [pack for pack in leaves if pack not in self._leaves]
        self._bring([pack for pack in new if not self._layout.head(pack).exists()], leaves)
        with self._lock:
            self._leaves = leaves
        return set(leaves)

    def note_packs(self, named: set[str], packs: set[str]) -> set[str]:
        """Compare packs that leaves name with a list of packs that was made later; those that are lost.

        A pack is put before its leaf, so what has a leaf and is not in a later list is gone: its leaf is passed over
        from now on, or the next look at the leaves would bring it back. What is listed again, somebody has sent anew.
        """
        lost = named - packs
        with self._lock:
            self._gone = (self._gone - packs) | lost
        return lost

    def note_sent(self, name: str) -> None:
        """A pack is in the bucket now, whatever was known of it before."""
        with self._lock:
            self._gone.discard(name)

    def open(self, name: str, guard: Guard) -> PackFile:
        """A pack to read from; its rows are fetched when they are asked for."""
        return NearPackFile(self._layout.pack(name), guard, self.head(name), lambda: self.fetch(name))

    def head(self, name: str) -> Head:
        """What a pack says before its leaf columns, from its leaf."""
        path = self._layout.head(name)
        for last in (False, True):
            try:
                with files.reading(path):
                    return read_head(path.read_bytes(), name, path)
            except (FileNotFoundError, DamagedPackError):
                if last:
                    raise
            self._bring([name], self._leaves)
        raise AssertionError  # the loop ends by itself

    def fetch(self, name: str, *, anew: bool = False) -> None:
        """Bring a pack near; `PackGoneError` where the bucket has it no more."""
        path = self._layout.pack(name)
        # One more than it has by its head: an object that is longer is then seen to be.
        most = self.head(name).file_bytes + 1
        place = os.fspath(path.relative_to(self._layout.root))
        try:
            self._courier.fetch(pack_object(name), name, place, most=most, anew=anew)
        except NoObjectError:
            with self._lock:
                self._gone.add(name)
            raise PackGoneError(path) from None

    def fetch_again(self, pack: PackFile) -> bool:
        """Fetch a pack once more of which a row is damaged here; False where it is so in the bucket."""
        assert isinstance(pack, NearPackFile)
        with self._lock:
            if pack.replaced:
                return True
            if pack.head.id in self._fetched_again:
                return False
            self._fetched_again.add(pack.head.id)
        self.fetch(pack.head.id, anew=True)
        pack.replaced = True
        return True

    def _bring(self, packs: Iterable[str], leaves: dict[str, tuple[str, int]]) -> None:
        """Bring heads near; those that cannot be had are told by whoever reads them."""
        wanted = [(pack, *leaves[pack]) for pack in packs if pack in leaves]
        for start in range(0, len(wanted), _AT_A_TIME):
            self._courier.heads(wanted[start : start + _AT_A_TIME])


def bound_snapshot(courier: CourierClient, name: str, pack: str) -> int:
    """The most bytes to fetch of a snapshot: one more than its head says, so that one that is longer is seen to be.

    Of an object that is none, a piece is enough for whoever reads it to say so.
    """
    there = courier.head(name).nbytes
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(ValueError, DamagedPackError):
            header = _first(courier, name, header_length(_first(courier, name, 8, there)), there)
            head = _first(courier, name, len(header) + parse_pack_header(header).directory, there)
            return read_head(head, pack, Path(name)).file_bytes + 1
    return _NO_SNAPSHOT


def _first(courier: CourierClient, name: str, nbytes: int, there: int) -> bytes:
    """The first bytes of an object; `ValueError` where it does not have so many, or they are too many for a head."""
    if nbytes > min(there, MAX_HEAD):
        message = "not a pack"
        raise ValueError(message)
    return courier.range(name, 0, nbytes)


def keep_head(layout: NearLayout, pack: str, head: bytes) -> None:
    """Keep the head of a pack that this machine has just committed: nobody need fetch its leaf here."""
    path = layout.head(pack)
    with files.explained(layout.root):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{pack}.{os.getpid()}.{threading.get_ident()}{files.PARTIAL}")
        try:
            partial.write_bytes(head)
            partial.rename(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                partial.unlink()
