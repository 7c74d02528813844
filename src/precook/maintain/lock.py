"""The maintenance lock: one process at a time removes or moves entries, while builders and readers go on.

With it comes the reserve, a little space that is kept free: dropping entries needs room for the index's log before it
gives any back, and without a reserve nothing could be removed from a disk that is full.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator

from precook.errors import ReadOnlyError, printable
from precook.fs.system import system
from precook.store import files
from precook.store.internals import StoreInternals
from precook.store.layout import Layout
from precook.store.lease import sweep_leases
from precook.store.lock import locked

_RESERVE_SHARE = 100
"""The reserve is a hundredth of the store ..."""
_LARGEST_RESERVE = 64 << 20
"""... and no more than that."""
_SMALLEST_RESERVE = 1 << 20
"""Bytes below which it would not be worth a file."""
_SCARCE = 16 << 20
"""Free bytes below which the reserve is needed."""
_PATIENCE = 5.0
"""Seconds to wait for another one who removes or moves entries; that may take long."""
_CACHE = 64 << 10
"""KiB of the index kept in memory meanwhile: entries of one pack lie all over it."""


@contextlib.contextmanager
def maintaining(internals: StoreInternals, command: str) -> Iterator[None]:
    """Be the only one who removes or moves entries; builders and readers go on. `LockedError` names who is at it."""
    layout = internals.layout
    if internals.index.read_only:
        raise ReadOnlyError(layout.root, "opened read-only")
    _check_owner(layout)
    with files.explained(layout.root):
        # First of all, for without room not even SQLite's own files can be made. And only where it is needed: it would
        # have to be written anew each time.
        if shutil.disk_usage(layout.root).free < _SCARCE:
            files.unlink_inside(layout.root, layout.reserve)
    holder = f"{command} (pid {os.getpid()} on {socket.gethostname()})"
    with locked(layout.maintenance, patience=_PATIENCE, holder=holder):
        with internals.index.exclusive(), files.explained(layout.root):
            sweep_leases(layout)
        internals.index.widen_cache(_CACHE)
        files.reached("maintenance.locked")
        yield
        keep_reserve(layout, internals.index.pack_bytes())


def _check_owner(layout: Layout) -> None:
    """Refuse to remove anything from a directory that somebody else may have planted."""
    with files.reading(layout.root):
        status = layout.root.stat()
    if system.everybody_may_write(status):
        hint = f"take that right away: chmod o-w {printable(layout.root)}"
        raise ReadOnlyError(
            layout.root, "everybody may write to this directory, so nothing is removed from it", hint=hint
        )
    if system.is_anothers(status) and not system.is_superuser() and not system.group_may_write(status):
        hint = "run it as its owner, or let its group write to it"
        raise ReadOnlyError(layout.root, "this directory belongs to somebody else", hint=hint)


def keep_reserve(layout: Layout, pack_bytes: int) -> int:
    """Make the reserve of a store of so many bytes, where the disk has room; the size of the one there is now."""
    try:
        kept = layout.reserve.stat().st_size
    except FileNotFoundError:
        kept = 0
    wanted = min(_LARGEST_RESERVE, pack_bytes // _RESERVE_SHARE)
    # Made anew when the store has doubled, and not at every open.
    if wanted < max(_SMALLEST_RESERVE, 2 * kept) or shutil.disk_usage(layout.root).free < 2 * wanted + _SCARCE:
        return kept
    # Nothing depends on it: where it cannot be had, it is tried again when the store is next opened.
    with contextlib.suppress(OSError):
        layout.reserve.unlink(missing_ok=True)
        kept = 0
        make_reserve(layout, wanted)
        kept = wanted
    return kept


def make_reserve(layout: Layout, size: int) -> None:
    """Take so much space from the disk."""
    descriptor = files.create(layout.reserve)
    try:
        system.preallocate(descriptor, size)
    except BaseException:
        with contextlib.suppress(OSError):
            layout.reserve.unlink()
        raise
    finally:
        os.close(descriptor)
