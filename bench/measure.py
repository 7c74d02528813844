"""Clocks, medians, memory, the disk and the page cache: what every section measures with."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PATIENCE = 5.0
"""Seconds that others who use the disk may keep us waiting."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a folder takes."""

    nbytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory of this process that lies in RAM."""

    own: int
    """Memory that only this process holds."""
    mapped: int
    """Mapped files: page cache that the system takes back when it needs it."""


def seconds(action: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median(values: Iterable[float]) -> float:
    """The middle of several measurements."""
    return statistics.median(values)


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios of measurements taken in pairs: noise that hits both of a pair drops out."""
    return median(a / b for a, b in zip(above, below, strict=True))


def interleave(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure each in turn, and all of them again: a slow minute of the machine then meets everyone."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            gc.collect()
            found[name].append(run())
    return found


def rate(run: Callable[[], int], *, at_least: float) -> float:
    """Items per second: whole runs, until they have taken long enough to be measured."""
    items, start = 0, time.perf_counter()
    while True:
        items += run()
        passed = time.perf_counter() - start
        if passed >= at_least:
            return items / passed


def all_files(folder: Path) -> Iterator[Path]:
    """Every file under a folder."""
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)


def disk_use(folder: Path) -> DiskUse:
    """Bytes, as the files state them, and number of files under a folder."""
    sizes = [path.stat().st_size for path in all_files(folder)]
    return DiskUse(sum(sizes), len(sizes))


def sync_tree(folder: Path) -> None:
    """Make everything under a folder durable at once: far cheaper than an fsync for each of thousands of files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(descriptor)


def settle(folder: Path) -> None:
    """Sync, and wait until the disk is idle: freeing the blocks of deleted files keeps it busy for a while."""
    sync_tree(folder)
    device = folder.stat().st_dev
    inflight = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/inflight")
    idle, end = 0, time.perf_counter() + _PATIENCE
    while idle < 5 and time.perf_counter() < end:
        time.sleep(0.05)
        try:
            idle = idle + 1 if inflight.read_text("ascii").split() == ["0", "0"] else 0
        except OSError:
            return  # no such device: a file system in memory, or one of many disks


def drop_cache(folder: Path) -> str:
    """Let the next reads of a folder come from the disk; how that was done."""
    gc.collect()
    os.sync()
    try:
        DROP_CACHES.write_text("3")
    except OSError:
        for path in all_files(folder):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        return "posix_fadvise(DONTNEED) on every file (not root: names and inodes stay cached)"
    return "echo 3 > /proc/sys/vm/drop_caches"


def resident() -> Resident:
    """Memory of this process now."""
    return Resident(_status("RssAnon"), _status("RssFile") + _status("RssShmem"))


def peak_resident() -> int:
    """Most bytes this process has had in RAM at once, mapped files included."""
    # Not getrusage: its maximum begins with that of the process we were forked from.
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0
