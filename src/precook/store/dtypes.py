"""The element types a pack can hold: every safetensors type that numpy or torch can represent."""

from __future__ import annotations

import functools
import importlib
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from precook.errors import MissingTorchError, PrecookError


@dataclass(frozen=True, slots=True)
class DType:
    """One element type, under its safetensors name."""

    name: str
    size: int
    """Bytes per element, as numpy and torch count elements."""
    numpy: str
    """Name of the numpy type; `foreign` ones come from ml_dtypes."""
    torch: str
    """Name of the torch type."""
    foreign: bool = False
    """Whether numpy needs ml_dtypes for it (it then travels as plain bits of the same size)."""
    lanes: int = 1
    """safetensors elements in one of ours: torch packs two F4 values into one byte."""

    bits: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """The numpy type the bytes travel in: itself, or unsigned integers of its size."""

    def __post_init__(self) -> None:
        # Once, not at each row that is read.
        object.__setattr__(self, "bits", np.dtype(f"u{self.size}" if self.foreign else self.numpy))

    def numpy_type(self) -> np.dtype[Any]:
        """The numpy type of a leaf."""
        if not self.foreign:
            return np.dtype(self.numpy)
        if self.lanes > 1:
            message = f"numpy has no packed {self.torch}"
            raise PrecookError(message, hint='read it with tensors="torch"')
        try:
            found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), self.numpy))
        except ImportError as error:
            message = f"numpy has no {self.numpy} of its own"
            raise PrecookError(message, hint='install ml_dtypes, or read with tensors="torch"') from error
        return found

    def torch_type(self) -> Any:
        """The torch type of a leaf."""
        return getattr(load_torch(), self.torch)


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("BOOL", 1, "bool", "bool"),
        DType("U8", 1, "uint8", "uint8"),
        DType("I8", 1, "int8", "int8"),
        DType("U16", 2, "uint16", "uint16"),
        DType("I16", 2, "int16", "int16"),
        DType("U32", 4, "uint32", "uint32"),
        DType("I32", 4, "int32", "int32"),
        DType("U64", 8, "uint64", "uint64"),
        DType("I64", 8, "int64", "int64"),
        DType("F16", 2, "float16", "float16"),
        DType("F32", 4, "float32", "float32"),
        DType("F64", 8, "float64", "float64"),
        DType("C64", 8, "complex64", "complex64"),
        DType("BF16", 2, "bfloat16", "bfloat16", foreign=True),
        DType("F8_E4M3", 1, "float8_e4m3fn", "float8_e4m3fn", foreign=True),
        DType("F8_E5M2", 1, "float8_e5m2", "float8_e5m2", foreign=True),
        DType("F8_E8M0", 1, "float8_e8m0fnu", "float8_e8m0fnu", foreign=True),
        DType("F8_E4M3FNUZ", 1, "float8_e4m3fnuz", "float8_e4m3fnuz", foreign=True),
        DType("F8_E5M2FNUZ", 1, "float8_e5m2fnuz", "float8_e5m2fnuz", foreign=True),
        DType("F4", 1, "float4_e2m1fn_x2", "float4_e2m1fn_x2", foreign=True, lanes=2),
    )
}

_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype.lanes == 1}
_BY_TORCH = {f"torch.{dtype.torch}": dtype for dtype in DTYPES.values()}


@functools.lru_cache(maxsize=128)
def from_numpy_type(dtype: np.dtype[Any]) -> DType | None:
    """Ours for a numpy type, if there is one; types of other byte order are not the same type."""
    candidate = _BY_NUMPY.get(dtype.name)
    if candidate is None or not dtype.isnative:
        return None
    known = dtype.type.__module__ == "ml_dtypes" if candidate.foreign else dtype == np.dtype(candidate.numpy)
    return candidate if known else None


@functools.lru_cache(maxsize=128)
def from_torch_type(dtype: object) -> DType | None:
    """Ours for a torch type, if there is one."""
    return _BY_TORCH.get(str(dtype))


def loaded_torch() -> ModuleType | None:
    """Torch, if this process has imported it: without, no object can be a torch tensor."""
    return sys.modules.get("torch")


def load_torch() -> ModuleType:
    """Torch, imported now if need be: the one place below `encode` that may."""
    loaded = loaded_torch()
    # While another thread imports it there is half of it: then the import below waits for that thread.
    if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
        return loaded
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingTorchError from error
