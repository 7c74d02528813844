"""The doctor: whether this machine and this directory can keep what a store promises.

It looks at the files of the store and at the file system below them, tries on it what the store relies on, and asks the
libraries for their versions, torch without importing it. Every answer is a value, a `Finding`. Nothing is printed, and
nothing in the store is written or removed.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from precook.errors import NoStoreError, PrecookError, UnreachableError
from precook.fs.system import system
from precook.fs.trust import find_mount
from precook.store import files
from precook.store.index import database
from precook.store.layout import Layout, list_packs, parse_marker, read_marker
from precook.store.remote.courier.client import CourierClient, NoObjectError
from precook.store.remote.url import StoreUrl, default_cache
from precook.units import format_duration

Level = Literal["ok", "note", "problem"]

_LIBRARIES = ("numpy", "safetensors", "blake3", "xxhash")
_OPTIONAL = {
    "torch": "entries that hold torch tensors are then read as numpy arrays only",
    "ml_dtypes": "bfloat16 and 8-bit floats are then read as torch tensors only",
}
_NETWORK = re.compile(r"nfs.*|cifs|smb.*|9p|afs|ceph|lustre|gpfs|beegfs|fuse\..*|virtiofs")
_FLEETING = {
    "tmpfs": "its content lies in memory and is gone after a restart",
    "ramfs": "its content lies in memory and is gone after a restart",
    "overlay": "in a container its content may be gone with the container",
}
_RACE = ((3, 7, 0), (3, 51, 2))
"""First and last SQLite release with the WAL-reset race."""
_LITTLE_SPACE = 1 << 30
"""Free bytes below which that is worth a note."""
_TOO_LITTLE_SPACE = 64 << 20
"""Free bytes into which no pack of the usual size fits."""
_KNOWN_FILES = re.compile(
    r"store\.toml|CACHEDIR\.TAG|(index|maintenance)\.lock|reserve|index\.sqlite(-wal|-shm|\.next)?"
)
_KNOWN_FOLDERS = {"imports", "leases", "packs", "snapshots"}
_STAMP = 1_000_000_000 * 10**9 + 123_456_789
"""A file time that is not a whole number of seconds, in nanoseconds."""

_PROBE = b"precook doctor\n"
_RACERS = 16
_APART = 60.0
"""Seconds between our clock and the bucket's below which nobody needs to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at."""

    level: Level
    topic: str
    message: str
    hint: str = ""
    paths: tuple[Path, ...] = ()
    """The files it is about, where it is about files."""


def examine(path: Path) -> list[Finding]:
    """Everything worth knowing about the store at `path`, or about the place where it would be made."""
    real = Path(os.path.realpath(path))
    # Where there is no store yet, the closest directory above it that exists.
    directory = next(folder for folder in (real, *real.parents) if folder.is_dir())
    probes = list(_probe(directory))
    lock_works = all(finding.level != "problem" for finding in probes if finding.topic == "flock")
    return [
        *_examine_store(path),
        _examine_mount(directory),
        _examine_space(directory),
        *probes,
        _examine_sqlite(lock_works=lock_works),
        *_examine_libraries(),
    ]


def examine_bucket(url: StoreUrl) -> list[Finding]:
    """What a bucket can do of what a store needs, tried with objects that are removed again; and what lies there."""
    courier = CourierClient(url, url.cache or default_cache())
    probe = f"doctor/{secrets.token_hex(8)}"
    findings: list[Finding] = []
    steps: list[tuple[str, Callable[[], Finding]]] = [
        ("store", lambda: _examine_marker(courier)),
        ("write", lambda: _examine_write(courier, probe)),
        ("read", lambda: _compared("read", courier.get(f"{probe}/object"), _PROBE)),
        ("range", lambda: _compared("range", courier.range(f"{probe}/object", 2, 9), _PROBE[2:9])),
        ("list", lambda: _examine_list(courier, probe)),
        ("create", lambda: _examine_create(courier, probe)),
        ("clock", lambda: _examine_clock(courier)),
        ("delete", lambda: _examine_delete(courier, probe)),
    ]
    try:
        for topic, step in steps:
            try:
                findings.append(step())
            except NoObjectError as error:
                findings.append(Finding("problem", topic, str(error)))
            except PrecookError as error:
                findings.append(Finding("problem", topic, error.message, error.hint))
                if isinstance(error, (UnreachableError, NoStoreError)):
                    break  # what comes next would be told the same
    finally:
        courier.close()
    return [*findings, *_examine_libraries()]


def _examine_write(courier: CourierClient, probe: str) -> Finding:
    courier.put(f"{probe}/object", _PROBE)
    return Finding("ok", "write", "objects can be written")


def _compared(topic: str, got: bytes, wanted: bytes) -> Finding:
    if got == wanted:
        return Finding("ok", topic, f"{len(got)} bytes came back as they were written")
    return Finding("problem", topic, "what came back is not what was written", "use another server")


def _examine_marker(courier: CourierClient) -> Finding:
    try:
        marker = parse_marker("store.toml", courier.get("store.toml").decode("utf-8", "replace"))
    except NoObjectError:
        return Finding("note", "store", "there is no store yet; the first write makes it")
    return Finding("ok", "store", f"format {marker.format}, made {marker.created}")


def _examine_list(courier: CourierClient, probe: str) -> Finding:
    if [item.name for item in courier.list(f"{probe}/")] == [f"{probe}/object"]:
        return Finding("ok", "list", "what was written is listed at once")
    return Finding("problem", "list", "what was written is not listed at once", "use another server")


def _examine_create(courier: CourierClient, probe: str) -> Finding:
    """Whether of many who create one object one alone succeeds; precook can do without."""
    with ThreadPoolExecutor(_RACERS) as pool:
        created = sum(pool.map(lambda _: courier.create(f"{probe}/race", _PROBE), range(_RACERS)))
    if created == 1:
        return Finding("ok", "create", f"If-None-Match is enforced: 1 of {_RACERS} at once has won")
    return Finding(
        "note", "create", f"If-None-Match is not enforced: {created} of {_RACERS} have won; nothing needs it"
    )


def _examine_clock(courier: CourierClient) -> Finding:
    apart = abs(courier.clock() / 1e9 - time.time())
    if apart < _APART:
        return Finding("ok", "clock", "the bucket's clock is ours")
    return Finding("note", "clock", f"the bucket's clock is {format_duration(apart)} from ours; only its own counts")


def _examine_delete(courier: CourierClient, probe: str) -> Finding:
    courier.delete([item.name for item in courier.list(f"{probe}/")])
    return Finding("ok", "delete", "objects can be deleted")


def _examine_store(path: Path) -> Iterator[Finding]:
    layout = Layout(path)
    try:
        marker = read_marker(layout)
    except PrecookError as error:
        yield Finding("problem", "store", error.message, error.hint)
        return
    except OSError as error:
        yield Finding("problem", "store", f"cannot be read: {error.strerror}", paths=(layout.marker,))
        return
    if marker is None:
        yield Finding("note", "store", f"there is no store at {path} yet; the place it would be made in was examined")
        return
    ids, partials = list_packs(layout)
    yield Finding("ok", "store", f"format {marker.format}, made {marker.created}, packs: {len(ids):,}")
    if not layout.index.exists():
        yield Finding("note", "index", "there is none; `precook reindex` makes one, and so does the next writer")
    others = sorted(_unknown_files(layout))
    if partials := sorted([*partials, *(other for other in others if other.name.endswith(files.PARTIAL))]):
        message = f"{len(partials):,} unfinished: being written now, or left by a process that died"
        yield Finding("note", "partial files", message, paths=tuple(partials))
    if unknown := [other for other in others if not other.name.endswith(files.PARTIAL)]:
        message = f"{len(unknown):,} that precook did not write; they are left alone"
        yield Finding("note", "unknown files", message, paths=tuple(unknown))


def _unknown_files(layout: Layout) -> Iterator[Path]:
    """What lies in the store and is neither a pack nor another file of ours; a foreign folder stands for all in it."""
    for path in _listed(layout.root):
        known = path.name in _KNOWN_FOLDERS if path.is_dir() else _KNOWN_FILES.fullmatch(path.name) is not None
        if not known:
            yield path
    ids, partials = list_packs(layout)
    known_packs = {layout.pack(name) for name in ids}.union(partials)
    for folder in _listed(layout.packs):
        if not re.fullmatch(r"[0-9a-f]{2}", folder.name) or not folder.is_dir():
            yield folder
        else:
            yield from (path for path in _listed(folder) if path not in known_packs)


def _listed(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _examine_mount(directory: Path) -> Finding:
    mount = find_mount(directory)
    if mount is None:
        return Finding("note", "file system", "its type is not known here: there is no /proc/mounts")
    message = f"{mount.kind} at {mount.point} ({mount.options})"
    if _NETWORK.fullmatch(mount.kind):
        hint = "write to a store on a shared file system from one machine only"
        return Finding("note", "file system", f"{message}: locks may not reach other machines", hint)
    if mount.kind in _FLEETING:
        return Finding("note", "file system", f"{message}: {_FLEETING[mount.kind]}")
    return Finding("ok", "file system", message)


def _examine_space(directory: Path) -> Finding:
    usage = shutil.disk_usage(directory)
    free, total = usage.free, usage.total
    message = f"{free / 2**30:,.1f} GiB free of {total / 2**30:,.1f} GiB"
    if system.has_no_inodes(directory):
        return Finding("problem", "space", f"{message}, but no file can be made: all inodes are in use")
    if free < _TOO_LITTLE_SPACE:
        return Finding("problem", "space", f"{message}: not enough for one pack", "free some space")
    return Finding("note" if free < _LITTLE_SPACE else "ok", "space", message)


def _probe(directory: Path) -> Iterator[Finding]:
    """Try what the store relies on, in a temporary directory that is removed again."""
    if system.is_read_only(directory) or not os.access(directory, os.W_OK | os.X_OK):
        yield Finding("note", "probes", "not tried: this directory cannot be written to")
        return
    try:
        # Named like our other partial files, so that one left by a kill is taken for what it is.
        temporary = tempfile.TemporaryDirectory(
            prefix="doctor.", suffix=files.PARTIAL, dir=directory, ignore_cleanup_errors=True
        )
    except OSError as error:
        yield Finding("problem", "probes", f"nothing can be made here: {error.strerror}")
        return
    with temporary as name:
        for topic, attempt in _PROBES.items():
            try:
                yield attempt(Path(name))
            except (OSError, sqlite3.Error) as error:
                yield Finding("problem", topic, f"failed: {error}", "keep the store on another file system")


def _probe_flock(folder: Path) -> Finding:
    with (folder / "lock").open("wb") as first, (folder / "lock").open("rb") as second:
        system.lock(first.fileno(), shared=False, wait=False)
        try:
            system.lock(second.fileno(), shared=False, wait=False)
        except BlockingIOError:
            return Finding("ok", "flock", "a lock keeps a second one out")
    hint = "keep the store on another file system, or write to it from one process only"
    return Finding("problem", "flock", "two locks were given for one file: writers do not exclude each other", hint)


def _probe_sync(folder: Path) -> Finding:
    with (folder / "synced").open("wb", buffering=0) as file:
        file.write(b"content")
        files.sync_file(file.fileno())
    files.sync_directory(folder)
    return Finding("ok", "fsync", "files and directories can be made durable")


def _probe_rename(folder: Path) -> Finding:
    old, new = folder / "old", folder / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    new.replace(old)
    if old.read_bytes() != b"new" or new.exists():
        return Finding("problem", "rename", "a renamed file did not replace the other one whole")
    return Finding("ok", "rename", "a file replaces another whole")


def _probe_times(folder: Path) -> Finding:
    path = folder / "times"
    path.touch()
    os.utime(path, ns=(_STAMP, _STAMP))
    lost = _STAMP - path.stat().st_mtime_ns
    if lost == 0:
        return Finding("ok", "file times", "kept to the nanosecond")
    if 0 < lost < 10**6:
        return Finding("ok", "file times", "kept to less than a millisecond")
    message = "kept to about a second: a source edited twice within one is read again to be sure"
    return Finding("note", "file times", message)


def _probe_mapping(folder: Path) -> Finding:
    path = folder / "mapped"
    path.write_bytes(b"content")
    with path.open("rb") as file:
        try:
            shared, private = (system.map_file(file.fileno(), 7, private=private) for private in (False, True))
        except OSError as error:
            return Finding("note", "mmap", f"not possible here ({error.strerror}): every read is a copy")
    private[0] = 0
    if shared.tobytes() != b"content" or path.read_bytes() != b"content":
        return Finding("problem", "mmap", "a private mapping changed its file", "keep the store on another file system")
    return Finding("ok", "mmap", "files can be mapped, privately too")


def _probe_wal(folder: Path) -> Finding:
    mode, seen = database.try_wal(folder / "probe.sqlite")
    if mode != "wal" or not seen:
        hint = "keep the store on a local file system"
        return Finding("problem", "sqlite wal", f"not possible here: the journal mode stays {mode}", hint)
    return Finding("ok", "sqlite wal", "works")


_PROBES: dict[str, Callable[[Path], Finding]] = {
    "flock": _probe_flock,
    "fsync": _probe_sync,
    "rename": _probe_rename,
    "file times": _probe_times,
    "mmap": _probe_mapping,
    "sqlite wal": _probe_wal,
}


def _examine_sqlite(*, lock_works: bool) -> Finding:
    version = sqlite3.sqlite_version
    if not _RACE[0] <= sqlite3.sqlite_version_info <= _RACE[1]:
        return Finding("ok", "sqlite", version)
    race = f"{version} has the WAL-reset race of 3.7.0 to 3.51.2"
    if lock_works:
        return Finding("note", "sqlite", f"{race}; precook writes and checkpoints under its own lock, which covers it")
    message = f"{race}, and locks do not work here to cover it"
    return Finding("problem", "sqlite", message, "use SQLite 3.51.3 or newer")


def _examine_libraries() -> Iterator[Finding]:
    yield Finding("ok", "python", platform.python_version())
    for name in (*_LIBRARIES, *_OPTIONAL):
        try:
            yield Finding("ok", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            if name in _OPTIONAL:
                yield Finding("note", name, f"not installed: {_OPTIONAL[name]}")
            else:
                yield Finding("problem", name, "not installed", "install precook anew")
