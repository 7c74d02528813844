"""What a process draws at random and reads off the clock, the same in every run: so that equal states can be told.

A fault at one call and a fault at the next often leave the same bytes behind, but for a name drawn at random or a time.
Where these follow from the part that a process plays, a state that was checked once need not be checked again.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import re
import secrets
import time
import zlib
from pathlib import Path

_NOW = time.time()
"""When the driver was started: one moment for all of its children."""
_PROCESS = re.compile(rb"\bpid\W{1,4}\d+")
_SMALL = 4096


def be_repeatable(part: str) -> None:
    """From now on, draw what everybody draws who plays this part. In a forked child: there is no way back.

    Processes that work side by side, or one after the other on one store, play different parts: names that they make
    up would be the same.
    """
    drawn = itertools.count()

    def token_bytes(nbytes: int | None = None) -> bytes:
        return hashlib.shake_128(f"{part} {next(drawn)}".encode()).digest(nbytes or 32)

    secrets.token_bytes = token_bytes
    secrets.token_hex = lambda nbytes=None: token_bytes(nbytes).hex()
    time.time = lambda: _NOW
    time.time_ns = lambda: int(_NOW * 1e9)
    ctypes.CDLL(None).fi_seed(zlib.crc32(part.encode()) or 1)


def same_for_all(content: bytes) -> bytes:
    """What a file says, whichever process wrote it: leases and locks say who holds them."""
    return _PROCESS.sub(b"pid", content) if len(content) <= _SMALL else content


def fingerprint(area: Path) -> bytes:
    """What lies in `area`: names, owners, modes and content."""
    digest = hashlib.blake2b(digest_size=16)
    for folder, folders, names in os.walk(area):
        folders.sort()
        for name in sorted((*folders, *names)):
            path = Path(folder, name)
            status = path.lstat()
            content = b""
            if path.is_symlink():
                content = os.fsencode(path.readlink())
            elif path.is_file():
                content = same_for_all(path.read_bytes())
            place = os.fsencode(path.relative_to(area))
            facts = (len(place), status.st_mode, status.st_uid, status.st_gid, status.st_nlink, len(content))
            digest.update(repr(facts).encode() + place + content)
    return digest.digest()
