"""Stamps of files by name: a function, and a program that `stat_many` starts to share the work.

The program imports nothing but what stands here, so it starts in a few milliseconds. It reads groups from stdin,
`folder NUL count NUL name NUL …`, and answers with six numbers per name.
"""

from __future__ import annotations

import errno
import os
import sys
from array import array

COLUMNS = 6
"""Mode (or minus the errno), inode, device, size, mtime and ctime in nanoseconds."""
_63 = (1 << 63) - 1
if sys.platform != "win32":
    _FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
    """Enough to look at a name in a folder, even in one that may not be listed."""


def stat_names(folder: bytes | str, names: list[bytes] | list[str]) -> array[int]:
    """Six numbers for each name in a folder; links are followed."""
    rows = array("q")
    extend = rows.extend
    if sys.platform == "win32":
        from precook.fs.windows import stat  # noqa: PLC0415 - the program, which has nothing else, is not started there
    else:
        stat = os.stat
    descriptor: int | None = None
    try:
        if sys.platform == "win32":
            # There is no descriptor of a folder: each name is looked up by its whole path.
            os.stat(folder)  # noqa: PTH116
            names = [os.path.join(os.fsdecode(folder), os.fsdecode(name)) for name in names]  # noqa: PTH118
        else:
            descriptor = os.open(folder, _FOLDER)
    except OSError as error:
        extend(_failure_row(error) * len(names))
        return rows
    try:
        for name in names:
            try:
                s = stat(name, dir_fd=descriptor)
                # Inodes and devices may use the 64th bit, which the array has no room for.
                extend((s.st_mode, s.st_ino & _63, s.st_dev & _63, s.st_size, s.st_mtime_ns, s.st_ctime_ns))
            except OSError as error:
                extend(_failure_row(error))
            except OverflowError:
                del rows[len(rows) // COLUMNS * COLUMNS :]
                extend(numbers(s))
            except ValueError:
                # No file can have such a name: a NUL, or characters that no bytes stand for.
                extend((-errno.EINVAL, 0, 0, 0, 0, 0))
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return rows


def numbers(status: os.stat_result) -> tuple[int, int, int, int, int, int]:
    """The six numbers in a stat result; times beyond the years 1677 to 2262 become the first or last of them."""
    modified, changed = (max(-_63, min(time, _63)) for time in (status.st_mtime_ns, status.st_ctime_ns))
    return status.st_mode, status.st_ino & _63, status.st_dev & _63, status.st_size, modified, changed


def _failure_row(error: OSError) -> tuple[int, ...]:
    """Minus the errno where a mode would be."""
    return -(error.errno or errno.EIO), 0, 0, 0, 0, 0


def _main() -> None:
    parts = sys.stdin.buffer.read().split(b"\0")
    rows = array("q")
    position = 0
    while position < len(parts) - 1:
        folder, count, first = parts[position], int(parts[position + 1]), position + 2
        position = first + count
        rows.extend(stat_names(folder, parts[first:position]))
    # All at once: a pipe holds little, and nobody reads it before the other part of the work is done.
    sys.stdout.buffer.write(rows)


if __name__ == "__main__":
    _main()
