"""Buffers: memory for the tensors of a batch, which numpy fills and the trainer gets."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from precook.store.dtypes import DType, load_torch
from precook.store.leaves import Library, converter
from precook.values import Array

_KEPT = 8
"""Blocks of a size that wait to be used again: two tensors of each batch that is made ahead by default."""
_LARGE = 128 << 10
"""From this size on, memory that is allocated comes from the system and goes back to it."""
_PAGE, _HUGE_PAGE = 4 << 10, 2 << 20
"""What a block's address is a multiple of: entries lie so in their packs, and a copy between places that are aligned
alike takes little more than half of the time. From the larger size on the system may map it in large pages, too."""


class Buffers:
    """Makes buffers for one library; pinned ones can be copied to a GPU while the processor does something else.

    Memory is used again once the last tensor over it is gone: the system clears each page that it hands out anew,
    which takes longer than the copy into it. Pinned memory is torch's own business, which does the same.
    """

    def __init__(self, library: Library, *, pinned: bool = False) -> None:
        self.library: Library = library
        self.pinned = pinned
        self._torch: Any = load_torch() if library == "torch" else None
        self._free: defaultdict[int, deque[_Block]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._types: dict[str, tuple[np.dtype[Any], Callable[[Array], Any], Any]] = {}

    def prepare(self, dtypes: Iterable[DType]) -> None:
        """Find out how tensors of some types are made, before the first batch needs them."""
        for dtype in dtypes:
            # A type that numpy has only with ml_dtypes is an error when it is asked for, not before.
            if self.library == "torch" or not dtype.foreign:
                self._type(dtype)

    def make(self, dtype: DType, shape: tuple[int, ...], *, fill: int | None = None) -> tuple[Array, Any]:
        """An array to fill, as `dtype.bits`, and the tensor over the same memory; `fill` sets every element."""
        bits, convert, plain = self._type(dtype)
        if self.pinned:
            # Few calls of torch: at each of them another thread may take its turn. The tensor is not made over the
            # array: torch would not know that it is pinned.
            tensor = self._torch.empty(shape, dtype=plain, pin_memory=True)
            array = tensor.numpy()
            if dtype.foreign:
                array, tensor = array.view(bits), tensor.view(dtype.torch_type())
        else:
            size = math.prod(shape) * dtype.size
            array = np.empty(shape, bits) if size < _LARGE else self._lend(size, bits, shape)
            tensor = convert(array)
        if fill == 0:
            array[...] = 0  # in every type zero is made of zero bits
        elif fill is not None:
            tensor[...] = fill
        return array, tensor

    def tensor(self, values: Array) -> Any:
        """A small array as a tensor."""
        return values if self._torch is None else self._torch.from_numpy(values)

    def _type(self, dtype: DType) -> tuple[np.dtype[Any], Callable[[Array], Any], Any]:
        """What numpy fills, what makes the tensor over it, and the torch type of that size that numpy knows.

        Kept, because asking takes as long as a small copy.
        """
        known = self._types.get(dtype.name)
        if known is None:
            plain = {1: "uint8", 2: "int16"}[dtype.size] if dtype.foreign else dtype.torch
            plain_type = None if self._torch is None else getattr(self._torch, plain)
            known = self._types[dtype.name] = (dtype.bits, converter(dtype, self.library), plain_type)
        return known

    def _lend(self, size: int, bits: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        # By powers of two: batches of other lengths find blocks that fit. Pages that nobody fills take no memory.
        rounded = 1 << (size - 1).bit_length()
        free = self._free[rounded]
        try:
            block = free.pop()
        except IndexError:
            block = _Block(rounded)
        return np.asarray(_Loan(block, free, bits, shape))


class _Block:
    """Aligned memory, and where it begins."""

    __slots__ = ("address", "memory")

    def __init__(self, size: int) -> None:
        edge = _HUGE_PAGE if size >= _HUGE_PAGE else _PAGE
        self.memory = np.empty(size + edge, np.uint8)
        self.address = -(-self.memory.ctypes.data // edge) * edge


class _Loan:
    """A block lent to a batch; when no array or tensor over it is left, it goes back to those that are free.

    No lock: this may happen in any thread and between any two steps, and a deque's steps are whole.
    """

    def __init__(self, block: _Block, free: deque[_Block], bits: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._block = block
        self._free = free
        place = (block.address, False)
        self.__array_interface__ = {"version": 3, "typestr": bits.str, "shape": shape, "data": place}

    def __del__(self) -> None:
        self._free.append(self._block)
