"""Leases: what a living builder or feed needs, so that nobody takes it away.

A lease is a file in `leases/` that its holder keeps locked (`flock`): it holds exactly as long as its process lives,
whatever its number and wherever it runs. Its first line tells people who holds it; the keys it protects follow. Keys
are added under the store's lock and looked up after: a removal, which reads all leases under the same lock, either sees
the keys, or is over before the look-up and then the look-up misses.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import socket
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from precook.errors import ClosedStoreError, LostLeaseError, NoLeaseError, NoSpaceError
from precook.fs.system import calls, system
from precook.store import files
from precook.store import fork as forks
from precook.store.index.index import Index
from precook.store.keysets import BLOCK, beginnings
from precook.store.layout import Layout
from precook.values import Bytes

_log = logging.getLogger("precook")

_NAME = re.compile(r"[0-9a-f]{32}")
_LINE = 4096
"""Most bytes of the line for people."""
_NO_LEASE = {errno.ENOENT, errno.ELOOP, errno.ENXIO}
"""What the system says of a lease that was let go, of a link and of a socket; after anything else it may be held."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease: information for people, never what decides whether it holds."""

    id: str
    purpose: str
    pid: int
    host: str
    since: int
    """Unix seconds, by the holder's clock."""
    keys: int
    """How many entries it protects."""


class Lease:
    """Protects entries for as long as it is open; a context manager, made with `store.lease`.

    It ends with its process at the latest, and is not handed on to forked children. On a store that cannot be written
    to it protects nothing: the grace period and snapshots have to. Nor does one of somebody who only reads, and so asks
    for a lease that is `optional`, on a full disk; that is told as a warning.
    """

    def __init__(self, layout: Layout, index: Index | None, purpose: str, *, optional: bool = False) -> None:
        self._layout = layout
        self._index = index
        self._purpose = purpose
        self._optional = optional
        self._seen: set[bytes] = set()
        self._descriptor = -1
        self._end: weakref.finalize[[int, Path], Lease] | None = None
        self.id = secrets.token_hex(16)
        self.keys = 0
        """How many keys were given to it."""
        if index is not None:
            with self._doing_without(), index.exclusive(), files.explained(layout.root):
                sweep_leases(layout)
                self._descriptor = self._create(purpose)
                # Also where nobody closes it: when it is forgotten, and at the end of the process.
                self._end = weakref.finalize(self, _let_go, self._descriptor, self.path)
                # Still under the lock that a fork waits for: no child gets the descriptor without being told.
                forks.remember(self)

    @property
    def protects(self) -> bool:
        """Whether it keeps anything from being removed."""
        return self._descriptor >= 0

    @property
    def path(self) -> Path:
        """Its file."""
        return self._layout.leases / self.id

    def protect(self, keys: Bytes) -> None:
        """Keep the entries of these keys, one per row of 32 bytes, whether they are there yet or not.

        Look them up after this call, never before.
        """
        if self._index is None:
            return
        rows = np.ascontiguousarray(keys, np.uint8).reshape(-1, 32)
        with self._doing_without(), self._index.exclusive():
            self.check()
            # A build plans again at its end and asks for the same once more.
            same = blake3(rows.data).digest()
            if not len(rows) or same in self._seen:
                return
            before = os.fstat(self._descriptor).st_size
            try:
                with files.explained(self._layout.root):
                    files.write_all(self._descriptor, [rows])
            except BaseException:
                # Half a key would shift all that follow.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise
            self._seen.add(same)
            self.keys += len(rows)

    @contextlib.contextmanager
    def _doing_without(self) -> Iterator[None]:
        """Go on without protection where the disk is full and the lease is optional."""
        try:
            yield
        except NoSpaceError as error:
            if not self._optional:
                raise
            self.close()
            self._index = None
            _log.warning("%s; nothing keeps what this %s needs from being removed", error.message, self._purpose)

    def check(self) -> None:
        """Make sure that the lease still holds; `LostLeaseError` where somebody has broken it by force meanwhile."""
        if self._index is None:
            return
        if self._descriptor < 0:
            raise ClosedStoreError(self._layout.root, "this lease is closed, or belongs to the process that was forked")
        if not system.has_name(self._descriptor, self.path):
            raise LostLeaseError(self._layout.root, f"lease {self.id[:8]} was broken while it was held")

    def close(self) -> None:
        """Let go."""
        self._descriptor = -1
        if self._end is not None:
            self._end()

    def before_fork(self) -> None:
        """Nothing to prepare."""

    def after_fork_in_parent(self) -> None:
        """Nothing has changed."""

    def after_fork_in_child(self) -> None:
        """Let go of the lock here: a worker that outlives its builder must not keep its lease alive."""
        descriptor, self._descriptor = self._descriptor, -1
        if self._end is not None and self._end.detach() is not None:
            os.close(descriptor)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self, purpose: str) -> int:
        """The file, locked before anybody else can take it for one of the dead: they look under the store's lock."""
        files.make_directory(self._layout.leases)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | calls.O_CLOEXEC | calls.O_NOFOLLOW
        descriptor = system.open_inside(self._layout.leases, self.id, flags)
        holder = {"purpose": purpose[:200], "pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time())}
        try:
            files.share(descriptor, self._layout.leases)
            # Waits a moment where somebody is just looking whether we hold it.
            files.lock(descriptor, self.path, wait=True)
            files.write_all(descriptor, [json.dumps(holder).encode() + b"\n"])
        except BaseException:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(descriptor)
            raise
        return descriptor


class LeaseKeys:
    """The keys that a lease protects, read from its file when they are asked for: however many, they take no memory.

    Read and not mapped: its holder shortens the file where a key could be written by half only.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self.begin = self.count = 0
        # The file may be gone by then, with its holder.
        self._end = weakref.finalize(self, os.close, descriptor)

    def after(self, seen: int) -> Callable[[], Iterator[npt.NDArray[np.uint64]]]:
        """The beginnings of all keys but the first so many, a block at a time, as often as they are asked for."""

        def blocks() -> Iterator[npt.NDArray[np.uint64]]:
            for start in range(seen, self.count, BLOCK):
                # Every key that is there: one that is not read is one that is not protected.
                with files.reading(self._path):
                    size = 32 * min(BLOCK, self.count - start)
                    raw = files.read_at(self._descriptor, size, self.begin + 32 * start)
                yield beginnings(np.frombuffer(raw, np.uint8, len(raw) // 32 * 32).reshape(-1, 32))

        return blocks


def live_leases(layout: Layout) -> Iterator[tuple[Holder, LeaseKeys]]:
    """Each lease that is held, with the keys it protects.

    One that cannot be opened is an error: nobody knows what it keeps.
    """
    for path in _paths(layout):
        try:
            descriptor = _open_if_held(path)
        except OSError as error:
            raise files.read_error(path, error) from error
        if descriptor is not None:
            keys = LeaseKeys(descriptor, path)
            with files.reading(path):
                holder, keys.begin = _parse(path.name, descriptor)
            keys.count = holder.keys
            yield holder, keys


def sweep_leases(layout: Layout) -> None:
    """Remove the leases of the dead; the caller holds the store's lock."""
    for path in _paths(layout):
        try:
            descriptor = _open_if_held(path)
        except OSError:
            continue  # its holder may live
        if descriptor is None:
            files.unlink_inside(layout.root, path)
        else:
            os.close(descriptor)


def break_lease(layout: Layout, index: Index, prefix: str) -> Holder:
    """Take a lease away from its holder, by the first digits of its id; the holder stops at its next step."""
    with index.exclusive():
        matching = [path for path in _paths(layout) if prefix and path.name.startswith(prefix)]
        if len(matching) != 1:
            raise NoLeaseError(layout.root, prefix, len(matching))
        with matching[0].open("rb") as file:
            holder, _ = _parse(matching[0].name, file.fileno())
        with files.explained(layout.root):
            matching[0].unlink()
    return holder


def _paths(layout: Layout) -> list[Path]:
    try:
        with os.scandir(layout.leases) as entries:
            names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise files.read_error(layout.leases, error) from error
    return [layout.leases / name for name in sorted(names)]


def _open_if_held(path: Path) -> int | None:
    """A lease to read from, None where nobody holds it."""
    try:
        descriptor = calls.open(path, os.O_RDONLY | calls.O_NOFOLLOW | calls.O_NONBLOCK | calls.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_LEASE:
            return None
        raise
    held = False
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            # Shared: two who look at the same time do not take each other for its holder.
            held = not files.lock(descriptor, path, shared=True)
    finally:
        if not held:
            os.close(descriptor)
    return descriptor if held else None


def _parse(name: str, descriptor: int) -> tuple[Holder, int]:
    """Who holds a lease, and where its keys begin."""
    line, end, _ = files.read_at(descriptor, _LINE, 0).partition(b"\n")
    begin = len(line) + 1
    keys = (os.fstat(descriptor).st_size - begin) // 32 if end else 0
    fields: dict[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(line)
        fields = read if isinstance(read, dict) else {}
    numbers = [value if type(value := fields.get(field)) is int else 0 for field in ("pid", "since")]
    return Holder(
        name, str(fields.get("purpose", "")), numbers[0], str(fields.get("host", "")), numbers[1], keys
    ), begin


def _let_go(descriptor: int, path: Path) -> None:
    # The name first: nobody then finds a file without a holder. One that is left is removed by whoever does.
    with contextlib.suppress(OSError):
        if system.has_name(descriptor, path):
            path.unlink()
    os.close(descriptor)
