"""Lazy leaves: known by shape and type, read when they are used, and let go again."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from precook.errors import MissingTorchError
from precook.store.dtypes import DType, load_torch
from precook.store.leaves import Library
from precook.values import Array

_WORTH_PARTS = 1 << 20


class LazyTensor:
    """A leaf whose shape and type are known and whose bytes are still in the store.

    `load()` reads it anew each time; the first load of any leaf of an entry checks the whole entry. Nothing that was
    read is held on to. A leaf that went in as a torch tensor is a `torch.Tensor` here too: used like any other, it is
    read for the call and let go after it. One that went in as a numpy array is taken by numpy's functions.
    """

    __slots__ = ()

    shape: Any
    """As the loaded tensor will have it."""
    dtype: Any
    """The type the loaded tensor will have: torch's, or numpy's."""
    nbytes: Any
    """Bytes of the tensor."""

    def load(self) -> Any:
        """The tensor, torch or numpy as it was put, in memory that may be written to."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class LazyArray(LazyTensor):
    """A lazy leaf that loads as a numpy array, or that cannot load because torch is not installed."""

    shape: tuple[int, ...]
    _type: DType = field(repr=False)
    _library: Library = field(repr=False)
    _read: Callable[[int | None], Any] = field(repr=False)

    @property
    def dtype(self) -> Any:
        """The type the loaded tensor will have."""
        return self._type.torch_type() if self._library == "torch" else self._type.numpy_type()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self._type.size

    def load(self) -> Any:
        """The array, in memory that may be written to."""
        return self._read(None)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        # It is read for whoever asks, so it is a copy already: `copy=False` would ask for memory that is not there.
        if copy is False:
            message = "a lazy tensor has no array without a copy"
            raise ValueError(message)
        array: Array = np.asarray(self.load())
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"LazyTensor(shape={self.shape}, dtype={self._type.name})"


def lazy_leaf(shape: tuple[int, ...], dtype: DType, library: Library, read: Callable[[int | None], Any]) -> LazyTensor:
    """A leaf that `read` reads, or, given a number, one of its parts along the first dimension.

    Where it will be a torch tensor and torch is installed, it is one already.
    """
    if library == "torch":
        try:
            load_torch()
        except MissingTorchError:
            return LazyArray(shape, dtype, library, read)  # whoever loads it is told that torch is missing
        # Parts of what is small are not worth a read of their own.
        row = read if shape and math.prod(shape) * dtype.size >= _WORTH_PARTS else None
        module = importlib.import_module("precook.store.lazy_torch")
        made: LazyTensor = module.LazyTorchTensor(shape, dtype.torch_type(), functools.partial(read, None), row=row)
        return made
    return LazyArray(shape, dtype, library, read)
