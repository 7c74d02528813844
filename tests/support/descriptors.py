"""The files that this process has open."""

from __future__ import annotations

import contextlib
import gc
import os


def descriptors() -> list[str]:
    """What is open here, by name; Linux only.

    Garbage goes first: what an earlier test left in a cycle would else be closed between two looks.
    """
    gc.collect()
    return sorted(listed())


def listed() -> list[str]:
    """The same, garbage and all."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is closed by now, and another thread may close one at any moment.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found
