"""The calls on files that systems have differently: locks, syncing, renaming, mapping, descriptors, ownership.

`system` is `posix.py` on Linux and macOS and `windows.py` on Windows: two modules with the same functions, and nothing
else of precook asks for `fcntl`, `msvcrt` or the descriptor of a folder. mypy checks each half with all that calls it.
`calls` has the few calls that are made often: on POSIX it is the module `os` itself, so that nothing stands between a
read and the system.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from precook.fs import windows as calls
    from precook.fs import windows as system
else:
    import os as calls

    from precook.fs import posix as system

__all__ = ["calls", "system"]
