"""Compiles the injection library and steers it from the process it is loaded into."""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("inject.c")


class UnavailableError(Exception):
    """Faults cannot be injected on this machine; the message says why."""


class Action(enum.IntEnum):
    """What happens at the chosen call. Keep in step with inject.c."""

    KILL = 1
    KILL_AFTER = 2
    TORN = 3
    SHORT = 4
    ERROR = 5
    LIE = 6
    STOP = 7


class Calls(enum.IntFlag):
    """Classes of system calls: which ones are counted, and so may be hit. Keep in step with inject.c."""

    OPEN = 1
    WRITE = 2
    SIZE = 4
    SYNC = 8
    NAME = 16
    REMOVE = 32
    MKDIR = 64
    REOPEN = 128
    READ = 256
    READ_OPEN = 512
    LIST = 1024
    LOOK = 2048
    MAP = 4096
    LOCK = 8192

    CHANGES = 255
    """All that change something."""
    READS = READ | READ_OPEN | LIST | LOOK | MAP
    """All that only look."""


@dataclass(frozen=True)
class Fault:
    """One way in which a system call goes wrong."""

    name: str
    action: Action
    calls: Calls = Calls.CHANGES
    errno: int = 0
    forever: bool = False

    @property
    def kills(self) -> bool:
        """Whether the process does not live to see the end of the call."""
        return self.action in (Action.KILL, Action.KILL_AFTER, Action.TORN)

    @property
    def reads(self) -> bool:
        """Whether it strikes reads only: nothing that was to be written fails."""
        return not self.calls & ~Calls.READS


# What a full disk refuses. It still lets you delete: refusing that would only hide what happens after a clean-up.
_FILLS = Calls.OPEN | Calls.WRITE | Calls.SYNC | Calls.NAME | Calls.MKDIR
# What a failing disk cannot give back: content of files and of directories.
_CONTENT = Calls.READ | Calls.READ_OPEN | Calls.LIST

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", Action.KILL),
        Fault("killafter", Action.KILL_AFTER),
        Fault("kill-at-sync", Action.KILL, Calls.SYNC),
        Fault("torn", Action.TORN, Calls.WRITE),
        Fault("short", Action.SHORT, Calls.WRITE),
        Fault("short-forever", Action.SHORT, Calls.WRITE, forever=True),
        Fault("enospc", Action.ERROR, _FILLS, errno.ENOSPC),
        Fault("enospc-forever", Action.ERROR, _FILLS, errno.ENOSPC, forever=True),
        Fault("edquot-forever", Action.ERROR, _FILLS & ~Calls.SYNC, errno.EDQUOT, forever=True),
        Fault("eio", Action.ERROR, Calls.CHANGES, errno.EIO),
        # A disk that takes no change any more. Files that are there can be opened and cut: where that fails, SQLite
        # tries for ten seconds to read its log, each time.
        Fault("eio-forever", Action.ERROR, _FILLS | Calls.REMOVE, errno.EIO, forever=True),
        Fault("fsync-eio", Action.ERROR, Calls.SYNC, errno.EIO),
        Fault("fsync-eio-forever", Action.ERROR, Calls.SYNC, errno.EIO, forever=True),
        Fault("emfile", Action.ERROR, Calls.OPEN | Calls.REOPEN, errno.EMFILE),
        Fault("emfile-forever", Action.ERROR, Calls.OPEN | Calls.REOPEN, errno.EMFILE, forever=True),
        # Not for syncs: SQLite does not try those again, and no signal interrupts them on a local disk.
        Fault("eintr", Action.ERROR, Calls.OPEN | Calls.REOPEN | Calls.WRITE, errno.EINTR),
        Fault("lie", Action.LIE, Calls.SYNC, forever=True),
        # Nothing fails: the process is slow, and others come in between.
        Fault("stop", Action.STOP),
        # A read that fails and would succeed a moment later; and a disk that gives nothing back for a while.
        Fault("read-eio", Action.ERROR, _CONTENT, errno.EIO),
        Fault("read-eio-forever", Action.ERROR, _CONTENT, errno.EIO, forever=True),
        Fault("read-short", Action.SHORT, Calls.READ),
        Fault("read-short-forever", Action.SHORT, Calls.READ, forever=True),
        Fault("read-eintr", Action.ERROR, Calls.READ | Calls.READ_OPEN, errno.EINTR),
        Fault("stat-eio", Action.ERROR, Calls.LOOK, errno.EIO),
        Fault("stat-eio-forever", Action.ERROR, Calls.LOOK, errno.EIO, forever=True),
        # A file system that knows no locks, and a lock server that is away for a moment.
        Fault("flock-enolck", Action.ERROR, Calls.LOCK, errno.ENOLCK),
        Fault("flock-enolck-forever", Action.ERROR, Calls.LOCK, errno.ENOLCK, forever=True),
        # A mapping does not say that the disk failed: it is refused where the process may have no more of them.
        Fault("mmap-enomem", Action.ERROR, Calls.MAP, errno.ENOMEM),
        Fault("mmap-enomem-forever", Action.ERROR, Calls.MAP, errno.ENOMEM, forever=True),
    )
}


def compile_library(directory: Path) -> Path:
    """The injection library, compiled into `directory`."""
    if not sys.platform.startswith("linux"):
        message = f"fault injection needs Linux (LD_PRELOAD and /proc), this is {sys.platform}"
        raise UnavailableError(message)
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        message = "fault injection needs a C compiler (cc, gcc or clang), none is installed"
        raise UnavailableError(message)
    library = directory / "inject.so"
    command = [compiler, "-std=gnu11", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(_SOURCE)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{_SOURCE.name} does not compile here: {done.stderr.strip()}"
        raise UnavailableError(message)
    return library


class Library:
    """The library as loaded into this process. Arm it in a forked child only: there is no way back to innocence."""

    def __init__(self) -> None:
        handle = ctypes.CDLL(None, use_errno=True)
        try:
            self._arm, self._record = handle.fi_arm, handle.fi_record
            self._mark, self._count = handle.fi_mark, handle.fi_count
            self._stand_still, self._tell_waiting = handle.fi_stand_still, handle.fi_tell_waiting
        except AttributeError:
            message = "the injection library is not loaded: this Python ignores LD_PRELOAD"
            raise UnavailableError(message) from None
        self._arm.argtypes = [ctypes.c_char_p, ctypes.c_long, *[ctypes.c_int] * 5]
        self._arm.restype = self._mark.restype = None
        self._record.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self._mark.argtypes = [ctypes.c_long]
        self._stand_still.argtypes = self._tell_waiting.argtypes = [ctypes.c_int]
        self._stand_still.restype = self._tell_waiting.restype = None
        self._count.restype = ctypes.c_long

    def arm(self, root: Path, fault: Fault, at: int, report: int = -1) -> None:
        """Let `fault` strike at the `at`-th call below `root`; the call is named in a line written to `report`."""
        self._arm(os.fsencode(root), at, fault.action, fault.errno, fault.forever, fault.calls, report)

    def stand_still(self, resume: int) -> None:
        """Let the process stand still where the fault strikes, and go on once a byte comes through `resume`."""
        self._stand_still(resume)

    def tell_waiting(self, report: int) -> None:
        """Write a line to `report` when a lock below the root is first found to be held by somebody else."""
        self._tell_waiting(report)

    def record(self, root: Path, trace: Path) -> None:
        """Append every call below `root` to the file `trace` from now on."""
        if self._record(os.fsencode(root), os.fsencode(trace)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(trace))

    def mark(self, number: int) -> None:
        """Note in the trace that commit `number` has been acknowledged."""
        self._mark(number)

    @property
    def count(self) -> int:
        """How many calls of the armed classes were made."""
        return int(self._count())
