"""The maintenance lock: one process at a time removes or moves entries, while builders and readers go on."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

from precook.errors import ReadOnlyError, printable
from precook.maintain.reserve import keep_reserve, release_reserve
from precook.store import files
from precook.store.files import syncpoint
from precook.store.internals import StoreInternals
from precook.store.layout import Layout
from precook.store.lease import sweep_leases
from precook.store.lock import locked

_PATIENCE = 5.0
"""Seconds to wait for another one who removes or moves entries; that may take long."""

_CACHE = 64 << 10
"""KiB of the index kept in memory meanwhile: entries of one pack lie all over it."""


@contextlib.contextmanager
def maintaining(internals: StoreInternals, what: str) -> Iterator[None]:
    """Be the only one who removes or moves entries; builders and readers go on. `LockedError` names who is at it."""
    if internals.index.read_only:
        raise ReadOnlyError(internals.layout.root, "opened read-only")
    _check_owner(internals.layout)
    holder = f"{what} (pid {os.getpid()} on {socket.gethostname()})"
    with locked(internals.layout.maintenance, patience=_PATIENCE, holder=holder):
        with internals.index.exclusive(), files.explained(internals.layout.root):
            release_reserve(internals.layout)
            sweep_leases(internals.layout)
        internals.index.widen_cache(_CACHE)
        syncpoint("maintenance.locked")
        yield
        keep_reserve(internals.layout, internals.index.pack_bytes())


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
