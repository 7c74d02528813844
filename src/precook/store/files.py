"""Files that appear whole and stay: the order of writes that survives a kill and a power cut.

Everything the store writes outside SQLite goes through `publish`. The store calls these functions through the module,
so that the fault harness can seed each classic mistake and prove that it would notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from precook.errors import LockedError, NoSpaceError, ReadOnlyError, StoreError, StoreReadError, StoreWriteError
from precook.fs.system import calls, system

PARTIAL = ".partial"
_BUFFERS_AT_ONCE = 512  # below IOV_MAX everywhere
_BYTES_AT_ONCE = 32 << 20
"""Bytes that one call writes, and the disk then begins with: half a pack. After each call a thread may have to wait for
the interpreter, beside busy ones longer than the call took."""

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_MORE_FILES = "close some files or raise `ulimit -n`"
_NOT_ALLOWED = {errno.EROFS, errno.EACCES, errno.EPERM}
_NOT_SUPPORTED = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""What is said of a hard link or of another group or mode by a file system, or to a user, that has none to give."""
_NO_LOCKS = "use a local disk; a store can also be read without locks, with read_only=True"
MEDIUM = {errno.EIO, errno.ENODATA, getattr(errno, "EUCLEAN", errno.EIO), errno.EBADMSG}
"""What the system says when the disk has lost the bytes; anything else may pass or can be mended."""


def publish(
    path: Path,
    buffers: Sequence[Any] | Iterator[Any],
    *,
    modified: int | None = None,
    prove: Callable[[Path], None] | None = None,
) -> None:
    """Write `buffers` to `path` so that its name appears only when every byte is durable, and stays.

    `modified`, in nanoseconds, is given to a file that holds what another one held before. `prove` gets the file before
    it has its name: what it raises ends it.

    On a failure before that nothing is published and the partial file is removed if the disk lets us. A failed fsync is
    never tried again: the kernel may have dropped the data and report success the second time.
    """
    partial, descriptor = _create_partial(path)
    try:
        try:
            for some in [buffers] if isinstance(buffers, Sequence) else ([buffer] for buffer in buffers):
                write_all(descriptor, some)
            if modified is not None:
                system.set_modified(descriptor, partial, modified)
            sync_file(descriptor)
            if prove is not None:
                prove(partial)
            # While it is still locked: a sweep takes it for what a dead writer has left.
            publish_file(partial, path)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)  # noqa: PTH108
        raise


def publish_file(durable: Path, path: Path) -> None:
    """Give a file or folder whose content is durable its name, which then stays.

    Also where the name itself cannot be made durable: others may have found it already. Only a caller who knows better,
    under the store's lock, takes it away again.
    """
    system.rename(durable, path)
    sync_directory(path.parent)


def write_all(descriptor: int, buffers: Sequence[Any]) -> None:
    """Write every byte of every buffer: a write that takes only some of them is continued."""
    rest = iter(buffers)
    pending: list[memoryview] = []
    nbytes = 0
    begun = False
    while True:
        # As many as one call writes, enough to keep the disk busy meanwhile. Not all at once: thousands of views are as
        # many objects for Python's collector to go through.
        while len(pending) < _BUFFERS_AT_ONCE and nbytes < _BYTES_AT_ONCE and (buffer := next(rest, None)) is not None:
            view = memoryview(buffer).cast("B")
            if view.nbytes:
                pending.append(view)
                nbytes += view.nbytes
        if not pending:
            return
        if begun:
            begin_writeback(descriptor)
        written = calls.writev(descriptor, pending)
        begun = True
        nbytes -= written
        done = 0
        while done < len(pending) and written >= pending[done].nbytes:
            written -= pending[done].nbytes
            done += 1
        del pending[:done]
        if written:
            pending[0] = pending[0][written:]


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """So many bytes of a file, fewer only where it ends: a read that gives only some of them is continued."""
    pieces = []
    while size and (piece := calls.pread(descriptor, size, offset)):
        pieces.append(piece)
        size -= len(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def sync_file(descriptor: int) -> None:
    """Make a file's content durable."""
    system.sync_file(descriptor)


def sync_directory(path: Path) -> None:
    """Make a directory's names durable."""
    system.sync_directory(path)


class Directories:
    """Directories in and above `root` that are there to stay: made by this process, or found and synced by it once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: set[Path] = set()

    def make(self, path: Path) -> None:
        """Make a directory and its missing parents, each durable before anything is put into it."""
        if path in self._durable:
            return
        if path.is_dir():
            # Whoever made it may have died before it was durable. A parent that we may not open is not one of ours.
            with contextlib.suppress(PermissionError):
                sync_directory(path.parent)
            if self._root in path.parents and not os.access(path, os.W_OK | os.X_OK):
                # Another user made it and has not shared it yet, or died before. An empty one can be made anew.
                with contextlib.suppress(OSError):
                    path.rmdir()
                    make_directory(path)
                    sync_directory(path.parent)
        else:
            self.make(path.parent)
            if self._root in path.parents:
                make_directory(path)
            else:
                # Who may write to the store itself, its maker's umask says.
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
            sync_directory(path.parent)
        self._durable.add(path)


def make_directory(path: Path) -> None:
    """Make a directory of the store, if it is not there; shared as the one that it lies in is."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        with contextlib.suppress(FileNotFoundError):  # somebody has replaced or removed it since
            system.share_folder(path)


def create(path: Path) -> int:
    """Make a file of the store that nobody else has, and open it to write; shared as its directory is."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | calls.O_NOFOLLOW | calls.O_CLOEXEC
    descriptor = calls.open(path, flags, 0o666)
    try:
        share(descriptor, path.parent)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        raise
    return descriptor


def open_lock(path: Path) -> int:
    """Open the file at `path` that is there to be locked; it is made where there is none."""
    flags = os.O_RDWR | calls.O_NOFOLLOW | calls.O_CLOEXEC
    if not is_shared(path.parent):
        return calls.open(path, flags | os.O_CREAT, 0o666)
    while True:
        with contextlib.suppress(FileNotFoundError):
            return calls.open(path, flags)
        # It has its name only when it is shared: whoever could not open it would be kept out for good if we died here.
        partial = path.with_name(f"lock.{secrets.token_hex(4)}{PARTIAL}")
        os.close(create(partial))
        try:
            os.link(partial, path)
        except (FileExistsError, FileNotFoundError):
            pass  # another one was quicker to make it, or to sweep what we have made
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            return calls.open(path, flags | os.O_CREAT, 0o666)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)  # noqa: PTH108


def is_shared(folder: Path) -> bool:
    """Whether a group may write to a directory."""
    return system.group_may_write(os.stat(folder))  # noqa: PTH116 - as where a file is shared


def share(made: int, folder: Path) -> None:
    """Give an open file or directory the group and the rights of the directory it lies in, if a group may write there.

    The umask of whoever makes a file says nothing about those he shares the store with. Nothing is changed by one who
    is not of that group: the rights would be another group's.
    """
    system.share(made, os.fstat(made), folder)


def share_again(path: Path) -> None:
    """The same for a file or directory that is there already, if it is ours: an older one, or one that SQLite made."""
    if sys.platform != "linux":
        return
    try:
        # Not to be read or written: closing such a descriptor would end the locks that SQLite has on the file.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        with explained(path.parent):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                system.share(f"/proc/self/fd/{descriptor}", status, path.parent)
    finally:
        os.close(descriptor)


def is_closed(path: Path) -> bool:
    """Whether a file belongs to another user, and we may not write to it."""
    before = _identity(path)
    denied = not os.access(path, os.W_OK)
    # Nor can one be written to that is not there, and SQLite's files come and go: only what stayed meanwhile is denied.
    return denied and before is not None and before == _identity(path)


def _identity(path: Path) -> tuple[int, ...] | None:
    """What tells another user's file from one that takes its place; None where there is none, or it is ours."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino, status.st_ctime_ns) if system.is_anothers(status) else None


def _create_partial(path: Path) -> tuple[Path, int]:
    """A new file beside `path`, locked for as long as its writer lives: `sweep` takes only those of the dead."""
    while True:
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        descriptor = create(partial)
        try:
            # A sweep may take it between our open and our lock: then it is removed.
            if lock(descriptor, partial) and system.has_name(descriptor, partial):
                return partial, descriptor
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(partial)  # noqa: PTH108
            raise
        os.close(descriptor)


def sweep_partial(path: Path) -> bool:
    """Remove a partial file whose writer is dead; whether it was. Where nobody can tell it stays."""
    try:
        # To be written: file systems that make `flock` of other locks give no other descriptor an exclusive one.
        descriptor = calls.open(path, os.O_RDWR | calls.O_NOFOLLOW | calls.O_NONBLOCK | calls.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not lock(descriptor, path):
            return False
        path.unlink()
    except (OSError, LockedError):
        return False
    finally:
        os.close(descriptor)
    return True


def lock(descriptor: int, path: Path, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file until its last descriptor is closed; False where another one holds it, unless we `wait`.

    `LockedError` where the file system has no locks: nobody could tell then what the living need from what the dead
    have left.
    """
    try:
        system.lock(descriptor, shared=shared, wait=wait)
    except BlockingIOError:
        return False
    except OSError as error:
        reason = f"this file system has no locks: {error.strerror}"
        raise LockedError(path, reason, hint=_NO_LOCKS) from error
    return True


def unlink_inside(root: Path, path: Path) -> bool:
    """Remove a file of the store at `root`; whether it was there. No link below `root` is followed on the way to it."""
    try:
        system.unlink_inside(root, path)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the operating system says about writing to the store at `path` into our errors."""
    try:
        yield
    except OSError as error:
        raise explain(path, error) from error


def explain(path: Path, error: OSError) -> StoreError:
    """Our error for one of the operating system's."""
    reason = error.strerror or str(error)
    if error.errno in _NO_SPACE:
        return NoSpaceError(path, f"no space left: {reason}")
    if error.errno in _NOT_ALLOWED:
        return ReadOnlyError(path, f"cannot be written: {reason}")
    hint = _MORE_FILES if error.errno in (errno.EMFILE, errno.ENFILE) else None
    return StoreWriteError(path, f"writing failed: {reason}", hint=hint)


def read_error(path: Path, error: OSError) -> StoreReadError:
    """Our error for what the system says about reading a file or a directory."""
    hint = _MORE_FILES if error.errno in (errno.EMFILE, errno.ENFILE) else None
    # The system's own word about which file it was is closer than what we were doing.
    named = Path(error.filename) if isinstance(error.filename, str) else path
    return StoreReadError(named, f"cannot be read: {error.strerror or error}", hint=hint)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system says about a read into our error; that the file is gone is told as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_error(path, error) from error


_SYNC_FILE_RANGE_WRITE = 2
"""Begin to write, and wait for nothing."""


def begin_writeback(descriptor: int) -> None:
    """Have the disk begin with what was written to a file so far, where the system can; the sync at the end is shorter.

    No promise is made here and no error is told: what goes wrong with the data, fsync reports, because only waiting for
    pages would use an error up.
    """
    if _SYNC_FILE_RANGE is not None:
        # From the beginning to the end: what is on its way is not written twice.
        _SYNC_FILE_RANGE(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)


def _find_sync_file_range() -> Any:
    if sys.platform != "linux":
        return None
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_SYNC_FILE_RANGE = _find_sync_file_range()


def reached(point: str) -> None:
    """Say that a step of the order of writes is done. Does nothing; a test puts a function in its place that waits."""
