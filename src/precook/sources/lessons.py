"""What is to be known about pictures and caption files, as rows of facts."""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import PIL
from blake3 import blake3
from PIL import features

from precook.sources.captions import read_lines
from precook.sources.memory import Memory
from precook.sources.pictures import read_facts
from precook.sources.segments import Bytes, Kind, rows_of

_PICTURE = struct.Struct("<IIBB5xB")
_CAPTION = struct.Struct("<I32s3xB")
_PILLOW = "/".join(
    [PIL.__version__, *(name for name in ("avif", "webp") if name in features.modules and features.check_module(name))]
)
"""Which Pillow this is, and what it was built with: another one may read what this one refuses."""


@dataclass(frozen=True, slots=True)
class PictureLesson:
    """A picture's size after orientation, its orientation, and whether it has alpha."""

    task = "reading pictures"
    facts = Kind("pictures/1", key=32, value=_PICTURE.size)
    refusals = f"refused pictures/1/{_PILLOW}"

    def study(self, digest: bytes, content: bytes) -> bytes:  # noqa: ARG002
        facts = read_facts(content)
        return _PICTURE.pack(facts.width, facts.height, facts.orientation, facts.alpha, 0)

    def keep(self, memory: Memory) -> None:
        pass


def picture_sizes(facts: Bytes) -> npt.NDArray[np.int64]:
    """Width and height of each picture."""
    return np.ascontiguousarray(facts[:, :8]).view("<u4").astype(np.int64)


def picture_alphas(facts: Bytes) -> npt.NDArray[np.bool_]:
    """Which pictures have alpha."""
    return facts[:, 9].astype(bool)


class CaptionLesson:
    """The digests of a caption file's lines: the first in the row, further ones beside."""

    task = "reading captions"

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self.facts = Kind(f"captions/1/{encoding}", key=32, value=_CAPTION.size)
        self.further = Kind(f"caption lines/1/{encoding}", key=40, value=32)
        self.refusals = f"refused captions/1/{encoding}"
        self._lock = threading.Lock()
        self._pending: list[tuple[bytes, list[bytes]]] = []

    def study(self, digest: bytes, content: bytes) -> bytes:
        lines = [blake3(line.encode("utf-8")).digest() for line in read_lines(content, self._encoding)]
        if len(lines) > 1:
            with self._lock:
                self._pending.append((digest, lines))
        return _CAPTION.pack(len(lines), lines[0] if lines else bytes(32), 0)

    def keep(self, memory: Memory) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        keys = [_line_key(digest, number) for digest, lines in pending for number in range(1, len(lines))]
        if keys:
            further = b"".join(line for _, lines in pending for line in lines[1:])
            memory.remember(self.further, rows_of(keys), np.frombuffer(further, np.uint8).reshape(-1, 32))

    def lines(self, digests: Bytes, facts: Bytes, memory: Memory) -> tuple[npt.NDArray[np.int64], Bytes]:
        """How many lines each file has, and the digests of all of them, one after the other.

        `LookupError` where memory has lost some of them.
        """
        counts = np.ascontiguousarray(facts[:, :4]).view("<u4").ravel().astype(np.int64)
        firsts = facts[:, 4:36]
        if (counts <= 1).all():
            return counts, firsts[counts == 1]
        ends = np.cumsum(counts)
        lines = np.zeros((int(ends[-1]), 32), np.uint8)
        some = counts > 0
        lines[(ends - counts)[some]] = firsts[some]
        more = np.maximum(counts - 1, 0)
        files = np.repeat(np.arange(len(counts)), more)
        numbers = np.arange(int(more.sum())) - np.repeat(np.cumsum(more) - more, more) + 1
        keys = np.concatenate([digests[files], numbers.astype("<u8")[:, None].view(np.uint8)], axis=1)
        known, found = memory.recall(self.further, keys)
        if not known.all():
            raise LookupError("caption lines are not remembered in full")
        lines[(ends - counts)[files] + numbers] = found
        return counts, lines


def _line_key(digest: bytes, number: int) -> bytes:
    return digest + number.to_bytes(8, "little")
