"""History: what each file of a dataset was when the dataset was last complete, so that a change can be named.

Paths are kept as digests: the index tells nobody what lies on this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from precook.plan.samples import Samples
from precook.sources.memory import Memory
from precook.sources.pairing import Numbers
from precook.sources.segments import Bytes, Kind


@dataclass(frozen=True, slots=True)
class Former:
    """What a sample was; zeros stand for a mask that was not there."""

    image: bytes
    mask: bytes
    captions: bytes


class History:
    """The former state of a dataset's samples, by the paths of their pictures."""

    def __init__(self, dataset: str, samples: Samples, memory: Memory) -> None:
        self._samples = samples
        self._memory = memory
        self._kind = Kind(f"history/1/{dataset}", key=32, value=96)
        self._line_starts = np.cumsum(samples.line_counts) - samples.line_counts

    def recall(self, samples: Numbers) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.object_]]:
        """Which samples are remembered, and what they were."""
        known, rows = self._memory.recall(self._kind, self._paths(samples))
        former = np.empty(len(samples), object)
        for at in np.flatnonzero(known).tolist():
            raw = rows[at].tobytes()
            former[at] = Former(raw[:32], raw[32:64], raw[64:])
        return known, former

    def captions(self, sample: int) -> bytes:
        """One digest for all captions of a sample, whatever their order."""
        start = int(self._line_starts[sample])
        lines = self._samples.lines[start : start + int(self._samples.line_counts[sample])]
        digest: bytes = blake3(b"".join(sorted(line.tobytes() for line in lines))).digest()
        return digest

    def record(self, samples: Numbers) -> None:
        """Remember what these samples are now; what has not changed is not written again."""
        samples = np.asarray(samples, np.int64)
        keys = self._paths(samples)
        captions = b"".join(self.captions(sample) for sample in samples.tolist())
        values = np.concatenate(
            [
                self._samples.images[samples],
                self._samples.masks[samples],
                np.frombuffer(captions, np.uint8).reshape(-1, 32),
            ],
            axis=1,
        )
        known, before = self._memory.recall(self._kind, keys)
        changed = ~known | (before != values).any(axis=1)
        self._memory.remember(self._kind, keys[changed], values[changed])

    def _paths(self, samples: Numbers) -> Bytes:
        digests = []
        for sample in samples.tolist():
            home, number = self._samples.home(sample)
            name = home.concept.name.encode("utf-8") + b"\0" + os.fsencode(home.path(number))
            digests.append(blake3(name).digest())
        return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), 32)
