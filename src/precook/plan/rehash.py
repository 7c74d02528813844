"""Rehashing: with a memory that does not trust stamps every source is read again, and compared with what was known.

A file can be edited without a new stamp, through a mapping that was written to before. Nothing but reading it tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precook.fs.stamps import FILES
from precook.memo.columns import Kind
from precook.memo.memo import Keeper, Memory
from precook.plan.plan import Plan
from precook.values import Bytes, Flags


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """What reading every source again has shown."""

    files: int
    """Files that were remembered and read again."""
    changed: tuple[str, ...]
    """Pictures of samples that are not what was remembered of them: picture, mask or captions."""
    encoders: tuple[str, ...]
    """Encoders whose model is not what was remembered of it."""

    @property
    def clean(self) -> bool:
        """Whether everything was as remembered."""
        return not self.changed and not self.encoders


class UntrustedStamps(Memory):
    """A memory that knows no file by its stamp; all else it remembers."""

    def __init__(self, keeper: Keeper | None) -> None:
        super().__init__(keeper)
        self._asked: set[bytes] = set()
        self._fresh: list[tuple[Bytes, Bytes]] = []
        self.files = 0
        """Files that were asked for and would have been known."""

    def recall(self, kind: Kind, keys: Bytes) -> tuple[Flags, Bytes]:
        """Nothing about files; about anything else what is remembered."""
        known, values = super().recall(kind, keys)
        if kind.name != FILES.name:
            return known, values
        for key in keys[known]:
            self.files += key.tobytes() not in self._asked
            self._asked.add(key.tobytes())
        return np.zeros(len(keys), bool), np.zeros_like(values)

    def remember(self, kind: Kind, keys: Bytes, values: Bytes | None = None) -> None:
        """Remember as ever; what is learnt about files is also kept aside for `settle`."""
        if kind.name == FILES.name and values is not None:
            self._fresh.append((keys, values))
        super().remember(kind, keys, values)

    def settle(self) -> None:
        """Forget what was remembered about files that were asked for, but for what was read of them just now."""
        keys, values = self.rows(FILES)
        others = np.array([key.tobytes() not in self._asked for key in keys], bool)
        self.forget(FILES)
        for files, contents in ((keys[others], values[others]), *self._fresh):
            if len(files):
                super().remember(FILES, files, contents)


def compare_plans(before: Plan, after: Plan, memory: UntrustedStamps) -> SourceCheck:
    """What differs between what was remembered of the sources and what was read of them, by a plan with this memory.

    What was remembered wrongly is forgotten.
    """
    memory.settle()
    after.store.remember(memory)
    old, new = _contents(before), _contents(after)
    return SourceCheck(
        files=memory.files,
        changed=tuple(sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))),
        encoders=tuple(
            name
            for name, encoder in before.encoders.items()
            if encoder.wants.encoding.recipe != after.encoders[name].wants.encoding.recipe
        ),
    )


def _contents(plan: Plan) -> dict[str, tuple[bytes, bytes, bytes]]:
    """Digests of picture, mask and captions of every sample, by its picture's path."""
    samples = plan.samples
    ends = np.cumsum(samples.line_counts)
    return {
        samples.path(sample): (
            samples.images[sample].tobytes(),
            samples.masks[sample].tobytes(),
            samples.lines[int(ends[sample] - samples.line_counts[sample]) : int(ends[sample])].tobytes(),
        )
        for sample in range(samples.count)
    }
