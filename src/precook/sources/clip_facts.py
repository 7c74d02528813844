"""Facts about clips: when each frame is shown, read once and remembered by digest: a warm plan decodes nothing."""

from __future__ import annotations

import importlib.metadata
import struct
import threading

import numpy as np

from precook.memo.columns import Kind, rows_of
from precook.memo.memo import Memory
from precook.sources.clips import has_pyav, read_clip
from precook.sources.facts import PILLOW
from precook.sources.frame_choice import FrameTimes
from precook.values import Bytes, Flags

_CLIP = struct.Struct("<IIBBBBIIIQ3xB")
"""Width, height, orientation, alpha, audio, whether the rate is even, frames, a tick; the last byte marks a refusal."""
_FRAMES = slice(12, 16)
_TICK = slice(16, 24)
_AUDIO, _EVEN = 10, 11
_STAMPS = 32
"""Time stamps in a row of memory."""


class ClipReader:
    """Reads a clip's size, its time stamps and whether it has sound; the first bytes are those of a picture's facts.

    The time stamps of an even rate follow from their number; others are rows of their own.
    """

    task = "reading clips"
    kind = Kind("clips/1", key=32, value=_CLIP.size)
    stamps = Kind("time stamps/1", key=40, value=8 * _STAMPS)
    """By the digest of the file and the number of the row."""

    def __init__(self) -> None:
        version = importlib.metadata.version("av") if has_pyav() else "none"
        self.refusals = f"refused clips/1/{PILLOW}/{version}"
        self._lock = threading.Lock()
        self._pending: list[tuple[bytes, FrameTimes]] = []

    def read(self, digest: bytes, content: bytes) -> bytes:
        facts = read_clip(content)
        times = facts.times
        even = bool((times.ticks == np.arange(times.count)).all())
        if not even:
            with self._lock:
                self._pending.append((digest, times))
        return _CLIP.pack(
            facts.width,
            facts.height,
            facts.orientation,
            facts.alpha,
            facts.audio,
            even,
            times.count,
            times.numerator,
            times.denominator,
            0,
            0,
        )

    def remember_rest(self, memory: Memory) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        keys, values = [], []
        for digest, times in pending:
            ticks = np.zeros(-(-times.count // _STAMPS) * _STAMPS, "<u8")
            ticks[: times.count] = times.ticks
            for number, row in enumerate(ticks.reshape(-1, _STAMPS)):
                keys.append(digest + number.to_bytes(8, "little"))
                values.append(row.tobytes())
        if keys:
            memory.remember(self.stamps, rows_of(keys), rows_of(values))

    def times(self, digests: Bytes, facts: Bytes, memory: Memory) -> list[FrameTimes]:
        """The time stamps of each clip; nothing of one that was refused. `LookupError` where memory has lost some."""
        counts = np.ascontiguousarray(facts[:, _FRAMES]).view("<u4").ravel().astype(np.int64)
        base = np.ascontiguousarray(facts[:, _TICK]).view("<u4").astype(np.int64)
        even = facts[:, _EVEN].astype(bool)
        rows = np.where(even, 0, -(-counts // _STAMPS))
        ends = np.cumsum(rows)
        files = np.repeat(np.arange(len(counts)), rows)
        numbers = np.arange(len(files)) - np.repeat(ends - rows, rows)
        keys = np.concatenate([digests[files], numbers.astype("<u8")[:, None].view(np.uint8)], axis=1)
        known, values = memory.recall(self.stamps, keys)
        if not known.all():
            raise LookupError("time stamps are not remembered in full")
        ticks = np.ascontiguousarray(values).view("<u8").astype(np.int64)
        return [
            FrameTimes(
                np.arange(count) if one else ticks[end - row : end].ravel()[:count], int(numerator), int(denominator)
            )
            for count, one, row, end, (numerator, denominator) in zip(
                counts.tolist(), even.tolist(), rows.tolist(), ends.tolist(), base, strict=True
            )
        ]


def with_audio(facts: Bytes) -> Flags:
    """Which clips have sound."""
    return facts[:, _AUDIO].astype(bool)
