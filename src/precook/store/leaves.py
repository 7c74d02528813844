"""Leaves: the tensors of a tree, on their way in and out.

On the way in a leaf is copied once, so that its owner may go on using it. On the way out it is given the type it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from precook.errors import TreeError
from precook.store.dtypes import DType, from_numpy_type, from_torch_type, load_torch, loaded_torch
from precook.values import Array, Bytes, Flags

Library = Literal["numpy", "torch"]

MAX_RANK = 15
MAX_DIM = 2**32 - 1
MAX_BYTES = 2**40


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor as bytes: contiguous, in C order, owned by nobody else."""

    dtype: DType
    library: Library
    shape: tuple[int, ...]
    data: Bytes


def is_tensor(value: object) -> bool:
    """Whether `value` is a leaf that holds numbers."""
    torch = loaded_torch()
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def read_leaf(value: Any, where: str, *, copy: bool = True) -> Leaf:
    """A copy of a tensor, or a `TreeError` that says why it cannot be stored.

    Without `copy` it may share the tensor's memory, which then must not be written to any more.
    """
    return LeafReader(copy=copy).read(value, where)


class LeafReader:
    """Reads the tensors of one tree or of many, as `read_leaf` does; for one thread, and not for long.

    What encoders return are rows of a batch, in one piece of memory: it is looked at once, and each row is then a piece
    of what was seen. While the reader lives, so does that memory.
    """

    def __init__(self, *, copy: bool = True) -> None:
        self._copy = copy
        self._memory: dict[tuple[int, int], Bytes] = {}
        """What tensors lie in, by its address and size."""

    def read(self, value: Any, where: str) -> Leaf:
        """A tensor as a leaf, or a `TreeError` that says why it cannot be stored."""
        # First: torch has tensors of more dimensions than numpy knows.
        if value.ndim > MAX_RANK:
            raise TreeError(where, f"a tensor of {value.ndim} dimensions; at most {MAX_RANK} can be stored")
        leaf = self._from_numpy(value, where) if isinstance(value, np.ndarray) else self._from_torch(value, where)
        # What takes some bytes, and not more than these, has no side that is too long.
        if not 0 < leaf.data.nbytes <= MAX_DIM:
            size = leaf.dtype.size
            for dim in leaf.shape:
                # Counted without the zeros: an empty tensor must not claim a huge shape either.
                size *= max(dim, 1)
                if dim > MAX_DIM or size > MAX_BYTES:
                    raise TreeError(where, f"a tensor of shape {leaf.shape} is too large to store")
        return leaf

    def _from_numpy(self, array: Array, where: str) -> Leaf:
        if type(array) is not np.ndarray:
            name = type(array).__qualname__
            raise TreeError(where, f"a numpy {name} would come back as an ndarray", hint="give numpy.asarray(it)")
        dtype = from_numpy_type(array.dtype)
        if dtype is None:
            raise TreeError(
                where, f"numpy arrays of type {array.dtype} cannot be stored", hint="convert it with .astype(...)"
            )
        return Leaf(dtype, "numpy", array.shape, self._flat(array))

    def _from_torch(self, tensor: Any, where: str) -> Leaf:
        torch = load_torch()
        if type(tensor) is not torch.Tensor:
            name = type(tensor).__qualname__
            raise TreeError(where, f"a torch {name} would come back as a plain tensor", hint="give it.detach()")
        if tensor.requires_grad:
            raise TreeError(where, "the tensor requires grad, which cannot be stored", hint="give it.detach()")
        if tensor.layout is not torch.strided or tensor.is_meta:
            raise TreeError(where, f"a {tensor.layout} tensor on {tensor.device} has no plain bytes to store")
        dtype = from_torch_type(tensor.dtype)
        if dtype is None:
            raise TreeError(where, f"tensors of type {tensor.dtype} cannot be stored", hint="convert it with .to(...)")
        shape = tuple(tensor.shape)
        if tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj()):
            return Leaf(dtype, "torch", shape, self._piece(tensor, dtype.size))
        host = tensor if tensor.is_cpu else tensor.cpu()
        if dtype.foreign:
            host = host.view(torch.uint8 if dtype.size == 1 else torch.int16)
        # Copied by numpy, in this thread: torch shares the work out to threads that then wait for each other.
        return Leaf(dtype, "torch", shape, self._flat(host.numpy(force=True)))

    def _piece(self, tensor: Any, size: int) -> Bytes:
        """The bytes of a tensor that lies in one piece, with elements of so many."""
        # Nothing but look-ups for a row of memory that is known: each operation of torch's lets another thread take its
        # turn, and beside busy threads that costs more than a copy.
        storage = tensor.untyped_storage()
        place = storage.data_ptr(), storage.nbytes()
        memory = self._memory.get(place)
        if memory is None:
            torch = load_torch()
            # Not of another device, whatever is the default here.
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
            self._memory[place] = memory
        start = tensor.storage_offset() * size
        piece = memory[start : start + tensor.numel() * size]
        return piece.copy() if self._copy else piece

    def _flat(self, array: Array) -> Bytes:
        whole = np.array(array, order="C", copy=True) if self._copy else np.ascontiguousarray(array)
        return whole.reshape(-1).view(np.uint8)


def converter(dtype: DType, library: Library) -> Callable[[Array], Any]:
    """What makes a tensor of this type and library over an array that holds its elements as `dtype.bits`."""
    if library == "torch":
        torch = load_torch()
        if not dtype.foreign:
            from_numpy: Callable[[Array], Any] = torch.from_numpy
            return from_numpy
        torch_type = getattr(torch, dtype.torch)
        return lambda array: torch.from_numpy(array).view(torch_type)
    if library != "numpy":
        message = f'tensors come as "numpy" or "torch", not {library!r}'
        raise ValueError(message)
    if not dtype.foreign:
        return lambda array: array
    numpy_type = dtype.numpy_type()
    return lambda array: array.view(numpy_type)


def has_nan(leaf: Leaf) -> bool:
    """Whether a leaf holds a NaN, in any type that has one."""
    # The other test is quicker, and nearly always enough.
    if is_finite(leaf):
        return False
    array = leaf.data.view(leaf.dtype.bits)
    return bool((is_nan(leaf.dtype, array) if leaf.dtype.foreign else np.isnan(array)).any())


def is_finite(leaf: Leaf) -> bool:
    """Whether a leaf holds neither NaN nor infinity, in any type; the one such test for what is stored."""
    if leaf.dtype.name in _FIRST_NOT_FINITE:
        # The largest positive and the largest negative pattern: ten times as fast as numpy's own test for halves, and
        # latents are halves.
        first = _FIRST_NOT_FINITE[leaf.dtype.name]
        signed = leaf.data.view(np.int16)
        return not signed.size or bool(signed.max() < first and signed.view(np.uint16).max() < first + _SIGN)
    array = leaf.data.view(leaf.dtype.bits)
    if not leaf.dtype.foreign:
        return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
    infinity = _INFINITY_BITS.get(leaf.dtype.name)
    # Where there is an infinity, NaN lies above it: one pass over the bits sees both.
    if infinity is not None:
        return bool(_magnitude(leaf.dtype, array).max(initial=0) < infinity)
    return not is_nan(leaf.dtype, array).any()


def is_nan(dtype: DType, bits: Array) -> Flags:
    """Which elements of a type that numpy does not have are NaN, by their bits."""
    low, high = _NAN_BITS[dtype.name]
    magnitude = _magnitude(dtype, bits)
    return (magnitude >= low) & (magnitude <= high)


def is_infinite(dtype: DType, bits: Array) -> Flags:
    """Likewise which of them are infinite, of either sign."""
    infinity = _INFINITY_BITS.get(dtype.name)
    return np.zeros(bits.shape, bool) if infinity is None else _magnitude(dtype, bits) == infinity


def _magnitude(dtype: DType, bits: Array) -> Array:
    """The bits without the sign, where the sign is not part of what means NaN."""
    most = np.iinfo(bits.dtype).max
    return bits & (most if dtype.name in _UNSIGNED_NAN else most >> 1)


_NAN_BITS = {
    "BF16": (0x7F81, 0x7FFF),
    "F8_E4M3": (0x7F, 0x7F),
    "F8_E5M2": (0x7D, 0x7F),
    "F8_E8M0": (0xFF, 0xFF),
    "F8_E4M3FNUZ": (0x80, 0x80),
    "F8_E5M2FNUZ": (0x80, 0x80),
    "F4": (0x100, 0x100),
}
"""The bit patterns that mean NaN, without the sign; F4 has none."""
_INFINITY_BITS = {"BF16": 0x7F80, "F8_E5M2": 0x7C}
"""Likewise infinity; the other types have none."""
_FIRST_NOT_FINITE = {"F16": 0x7C00, "BF16": 0x7F80}
"""Patterns from this on mean infinity and then NaN, with the sign or without."""
_SIGN = 0x8000
_UNSIGNED_NAN = {"F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
"""Types whose NaN is one pattern of all bits, the sign included."""
