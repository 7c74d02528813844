"""Sync points: places where a test can stop a process, so that a race becomes a sequence of steps.

`PRECOOK_SYNCPOINTS=gc.before_drop=/tmp/fifo` stops the process at that point until somebody has opened the FIFO for
writing and closed it again. Opening it blocks until the process is there, so whoever holds it open knows where the
process stands. Off by default: a point is then one look into an empty dict.
"""

from __future__ import annotations

import os

ENVIRONMENT = "PRECOOK_SYNCPOINTS"


def _named() -> dict[str, str]:
    pairs = (item.partition("=") for item in os.environ.get(ENVIRONMENT, "").split(os.pathsep))
    return {name: fifo for name, _, fifo in pairs if name and fifo}


_POINTS = _named()


def syncpoint(name: str) -> None:
    """Wait here, once, if a test asks for it."""
    fifo = _POINTS.pop(name, None) if _POINTS else None
    if fifo is not None:
        with open(fifo, "rb") as file:  # noqa: PTH123 - blocks until somebody opens the other end
            file.read()
