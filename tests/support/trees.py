"""Trees to test with: strategies for every kind that can be stored, and equality that sees every bit."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from hypothesis import strategies as st

from precook.store.dtypes import DTYPES, DType

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None  # type: ignore[assignment]


def same(left: Any, right: Any) -> bool:
    """Whether two trees are equal bit for bit, types and order included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if torch is not None and isinstance(left, torch.Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return bytes(_bytes(left)) == bytes(_bytes(right))
    return bool(left == right)


def _bytes(tensor: Any) -> Any:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy()


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("d", raw)[0]),
    texts,
    st.binary(max_size=8),
)


def bits(dtype: DType, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Arrays of any bit patterns this type allows."""
    size = math.prod(shape) * dtype.size
    raw = st.binary(min_size=size, max_size=size)
    if dtype.name == "BOOL":
        raw = raw.map(lambda data: bytes(byte & 1 for byte in data))
    return raw.map(lambda data: np.frombuffer(data, dtype.bits).reshape(shape).copy())


@st.composite
def arrays(draw: Any) -> np.ndarray[Any, Any]:
    """Numpy arrays of every type, contiguous or not."""
    dtype = draw(st.sampled_from([d for d in DTYPES.values() if not d.foreign or (ml_dtypes and d.lanes == 1)]))
    array = draw(bits(dtype, draw(shapes)))
    array = array.view(dtype.numpy_type()) if dtype.foreign else array
    return array.T if draw(st.booleans()) else array


@st.composite
def tensors(draw: Any) -> Any:
    """Torch tensors of every type, contiguous or not."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    tensor = torch.from_numpy(draw(bits(dtype, draw(shapes))))
    tensor = tensor.view(getattr(torch, dtype.torch)) if dtype.foreign else tensor
    return tensor.permute(tuple(reversed(range(tensor.dim())))) if draw(st.booleans()) else tensor


leaves = arrays() if torch is None else st.one_of(arrays(), tensors())
keys = st.one_of(texts, st.integers(), st.sampled_from(["$tuple", "$tensor", "$dict", ""]))
trees = st.recursive(
    st.one_of(plain, leaves),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=8,
)
