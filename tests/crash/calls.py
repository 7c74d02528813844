"""One call of each kind, made for real: all must be seen, and the model must end where the disk does."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from .children import Journal, in_child
from .disk import Disk, Survivors, Tree, lay_out
from .library import Action, Calls, Fault
from .report import Report
from .trace import Kind, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .library import Library

# Every one of these must be in the trace: a call that slips by unseen would make all sweeps look better than they are.
_EXPECTED = frozenset(Kind) - {Kind.FIRED}


def replay_every_call(library: Library, workspace: Path) -> Report:
    """Record a tour of the file system calls, replay it, and compare what the model holds with what the disk holds."""
    report = Report("every call")
    start, area, trace, model = (workspace / name for name in ("start", "area", "trace", "model"))
    start.mkdir()
    try:
        (start / "old").write_bytes(b"was here before" * 100)
        shutil.copytree(start, area)

        def work(journal: Journal) -> None:
            library.record(area, trace)
            _files(area)
            _not_in_python(area)
            _names(area)
            _database(area)
            library.mark(7)

        outcome = in_child(work)
        if outcome.crash:
            report.violation("while recording", outcome.crash)
        disk = Disk(start)
        seen = set()
        for operation in read_trace(trace, area):
            report.points += 1
            seen.add(operation.kind)
            disk.apply(operation)
        for kind in sorted(_EXPECTED - seen):
            report.violation(kind.name.lower(), "made, and not seen")
        lay_out(disk.crash(Survivors.EVERYTHING), model)
        for path in sorted(_differences(_tree(model), _tree(area))):
            report.violation(path, "the model has it otherwise than the disk")
    finally:
        for place in (start, area, model):
            shutil.rmtree(place, ignore_errors=True)
        trace.unlink(missing_ok=True)
    return report


def refuse_every_read(library: Library, workspace: Path) -> Report:
    """Make each call that only looks, and each lock, twice: the first is refused, and the second is as it would be."""
    report = Report("every read")
    area = workspace / "area"
    area.mkdir()
    try:
        (area / "file").write_bytes(b"read me" * 1000)
        with contextlib.closing(sqlite3.connect(area / "database")) as database:
            database.execute("CREATE TABLE t (a)")
        for name, (calls, look) in _READS.items():

            def work(journal: Journal, calls: Calls = calls, look: Callable[[Path], object] = look) -> None:
                library.arm(area, Fault("", Action.ERROR, calls, errno.EIO), 1, journal.fd)
                try:
                    look(area)
                except (OSError, sqlite3.OperationalError):
                    look(area)
                else:
                    message = "made, and not refused"
                    raise AssertionError(message)

            outcome = in_child(work)
            report.points += 1
            if outcome.crash:
                report.violation(name, outcome.crash)
    finally:
        shutil.rmtree(area)
    return report


@contextlib.contextmanager
def _opened(area: Path) -> Iterator[int]:
    descriptor = os.open(area / "file", os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _through(call: Callable[[int], object]) -> Callable[[Path], object]:
    def look(area: Path) -> None:
        with _opened(area) as descriptor:
            call(descriptor)

    return look


def _query(area: Path) -> None:
    with contextlib.closing(sqlite3.connect(area / "database")) as database:
        database.execute("SELECT * FROM t").fetchall()


_READS: dict[str, tuple[Calls, Callable[[Path], object]]] = {
    "read": (Calls.READ, _through(lambda file: os.read(file, 10))),
    "readv": (Calls.READ, _through(lambda file: os.readv(file, [bytearray(10)]))),
    "pread": (Calls.READ, _through(lambda file: os.pread(file, 10, 3))),
    "preadv": (Calls.READ, _through(lambda file: os.preadv(file, [bytearray(10)], 3))),
    "read by Python": (Calls.READ, lambda area: (area / "file").read_bytes()),
    "read by SQLite": (Calls.READ, _query),
    "open": (Calls.READ_OPEN, lambda area: (area / "file").read_bytes()),
    "list": (Calls.LIST, os.listdir),
    "scan": (Calls.LIST, lambda area: list(area.iterdir())),
    "stat": (Calls.LOOK, os.stat),
    "lstat": (Calls.LOOK, os.lstat),
    "fstat": (Calls.LOOK, _through(os.fstat)),
    "mmap": (Calls.MAP, _through(lambda file: mmap.mmap(file, 0, prot=mmap.PROT_READ))),
    "flock": (Calls.LOCK, _through(lambda file: fcntl.flock(file, fcntl.LOCK_SH))),
}


def _files(area: Path) -> None:
    """All ways to give a file content and size."""
    with (area / "plain").open("wb") as file:
        file.write(b"buffered " * 3000)
    with (area / "plain").open("ab") as file:
        file.write(b"appended")
    descriptor = os.open(area / "vectors", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.writev(descriptor, [b"one ", b"", b"two ", b"three"])
    os.pwrite(descriptor, b"TWO", 4)
    os.pwritev(descriptor, [b"far ", b"away"], 9000)
    os.fsync(descriptor)
    os.ftruncate(descriptor, 8000)
    os.posix_fallocate(descriptor, 0, 12000)
    os.fdatasync(descriptor)
    os.lseek(descriptor, 100, os.SEEK_SET)
    with (area / "old").open("rb") as old:
        os.sendfile(descriptor, old.fileno(), 10, 50)
        os.copy_file_range(old.fileno(), descriptor, 40, 3, 11000)
    os.close(descriptor)
    os.truncate(area / "old", 33)
    # Opened by no call that we count, and written to under a name it no longer has.
    descriptor = os.open(area / "old", os.O_RDWR)
    (area / "old").rename(area / "renamed")
    os.write(descriptor, b"WAS")
    os.close(descriptor)
    (area / "plain").write_bytes(b"from scratch")


def _not_in_python(area: Path) -> None:
    """What Python has no function for, and a library of its might use."""
    libc = ctypes.CDLL(None)
    descriptor = os.open(area / "by-hand", os.O_WRONLY | os.O_CREAT)
    libc.fallocate(descriptor, 0, ctypes.c_long(100), ctypes.c_long(5000))
    libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(100), 7)
    os.close(descriptor)
    here = -100  # AT_FDCWD
    libc.renameat2(here, bytes(area / "by-hand"), here, bytes(area / "by-hand-2"), 1)
    libc.creat(bytes(area / "created"), 0o600)


def _names(area: Path) -> None:
    """All ways to give a file a name, through paths and through directories."""
    (area / "folder" / "inner").mkdir(parents=True)
    folder = os.open(area / "folder", os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("second", dir_fd=folder)
    os.close(os.open("by-folder", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.link(area / "renamed", area / "folder" / "linked")
    os.link("by-folder", "by-link", src_dir_fd=folder, dst_dir_fd=folder)
    os.rename("by-folder", "inner/moved", src_dir_fd=folder, dst_dir_fd=folder)
    os.replace(area / "folder" / "by-link", area / "folder" / "inner" / ".." / "replaced")
    os.symlink("inner/moved", "pointer", dir_fd=folder)
    os.unlink("replaced", dir_fd=folder)
    os.rmdir("second", dir_fd=folder)
    (area / "gone").mkdir()
    (area / "gone").rmdir()
    os.fsync(folder)
    os.close(folder)
    _nameless(area)


def _nameless(area: Path) -> None:
    """A file that gets its name last; some file systems have no such thing."""
    try:
        descriptor = os.open(area, os.O_TMPFILE | os.O_WRONLY)
    except OSError:
        return
    os.write(descriptor, b"born without a name")
    # With a directory given, Python uses linkat, which can follow the link in /proc; link cannot.
    os.link(f"/proc/self/fd/{descriptor}", area / "named", src_dir_fd=descriptor, follow_symlinks=True)
    os.close(descriptor)


def _database(area: Path) -> None:
    """SQLite in the mode the index uses, with a checkpoint and a log that is removed at the end."""
    database = sqlite3.connect(area / "database", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE t (a, b)")
    for round_ in range(3):
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO t VALUES (?, ?)", ((number, bytes(100)) for number in range(200)))
        database.execute("COMMIT")
        if round_ == 1:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    database.execute("DELETE FROM t WHERE a > 20")
    database.execute("VACUUM")
    database.close()


def _tree(area: Path) -> Tree:
    return {
        str(path.relative_to(area)): None
        if path.is_dir() and not path.is_symlink()
        else os.readlink(path).encode()
        if path.is_symlink()
        else path.read_bytes()
        for path in area.rglob("*")
    }


def _differences(one: Tree, other: Tree) -> set[str]:
    return {path for path in one.keys() | other.keys() if one.get(path, b"none") != other.get(path, b"none")}
