"""The Encoder protocol: what an encoder is to precook, ours or a user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from precook.plan.wanted import Input


@dataclass(frozen=True, slots=True)
class Item:
    """What an encoder gets of one sample: the part that its `input` names, the others are None."""

    image: npt.NDArray[np.uint8] | None = None
    """H x W x 3, cut to the geometry."""
    mask: npt.NDArray[np.uint8] | None = None
    """H x W, cut like its picture."""
    text: str | None = None


@runtime_checkable
class Encoder(Protocol):
    """Turns items into trees."""

    input: Input

    def identity(self) -> object:
        """Plain data: everything that decides the output. Cheap, and called before `load`."""

    def load(self, device: str) -> None:
        """Called before the first batch, never when nothing is missing."""

    def encode(self, batch: list[Item]) -> list[Any]:
        """One tree for each item."""

    def unload(self) -> None:
        """Let go of the device."""
