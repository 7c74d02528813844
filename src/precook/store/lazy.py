"""Tensors that are known but not read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from precook.store.dtypes import DType
from precook.store.leaves import Library


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A leaf whose shape and type are known and whose bytes are still in the store.

    `load()` reads it anew each time; the first load of any leaf of an entry checks the whole entry.
    """

    shape: tuple[int, ...]
    _type: DType = field(repr=False)
    _library: Library = field(repr=False)
    _load: Callable[[], Any] = field(repr=False)

    @property
    def dtype(self) -> Any:
        """The type the loaded tensor will have: torch's, or numpy's."""
        return self._type.torch_type() if self._library == "torch" else self._type.numpy_type()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self._type.size

    def load(self) -> Any:
        """The tensor, torch or numpy as it was put, in memory that may be written to."""
        return self._load()

    def __repr__(self) -> str:
        return f"LazyTensor(shape={self.shape}, dtype={self._type.name})"
