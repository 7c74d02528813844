"""The frame of an archive: plain tar headers, written one way and accepted no other way.

An archive from somewhere else is never given to a general tar reader, which would follow long names, sparse maps and
extended headers before anyone could object. A header is accepted if it is, byte for byte, the one we would write.
"""

from __future__ import annotations

import re
import tarfile

BLOCK = 512
END = bytes(2 * BLOCK)
"""What follows the last member."""
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a folder",
    b"6": "a FIFO",
    b"S": "a sparse file",
    b"g": "an extended header",
    b"x": "an extended header",
    b"L": "a long name",
    b"K": "a long name",
}
_SIZE = re.compile(rb"[0-7]{11}\0")
_LARGE = 0x80
"""First byte of a size that is not written in octal digits, because it takes more than eleven."""


class FrameError(ValueError):
    """Bytes that are no header of ours; the message says why."""


def padding(size: int) -> int:
    """Zeros that follow a member of this size."""
    return -size % BLOCK


def make_header(name: str, size: int) -> bytes:
    """The header of a regular file: nobody's, of no particular time."""
    info = tarfile.TarInfo(name)
    info.size = size
    header = info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")
    assert len(header) == BLOCK
    return header


def read_header(block: bytes) -> tuple[str, int]:
    """Name and size of the member that a header announces; `FrameError` for anything that we do not write."""
    if not any(block):
        raise FrameError("ends before its last member")
    try:
        name = block[:100].rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError as error:
        raise FrameError("a header in it is not one that precook writes") from error
    kind = block[156:157]
    if kind in _KINDS:
        raise FrameError(f"its member {name[:100]!a} is {_KINDS[kind]}, not a file")
    size = _read_size(block[124:136])
    if size is None or make_header(name, size) != block:
        raise FrameError("a header in it is not one that precook writes")
    return name, size


def _read_size(field: bytes) -> int | None:
    if field[0] == _LARGE:
        return int.from_bytes(field[1:], "big")
    return int(field[:11], 8) if _SIZE.fullmatch(field) else None
