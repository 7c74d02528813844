"""Trees to test with: one for every kind that can be stored, and equality that sees every bit."""

from __future__ import annotations

import importlib.util
import struct
from typing import Any

import numpy as np

from precook.store.dtypes import DTYPES, DType, load_torch, loaded_torch


def same(left: Any, right: Any) -> bool:  # noqa: PLR0911 - one return for each kind of value
    """Whether two trees are equal bit for bit, types and the order of dicts included.

    >>> same({"a": 1}, {"a": 1.0}), same([float("nan")], [float("nan")]), same(0.0, -0.0)
    (False, True, False)
    """
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, np.ndarray):
        return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())
    torch = loaded_torch()
    if torch is not None and isinstance(left, torch.Tensor):
        return bool(left.dtype == right.dtype and left.shape == right.shape and _bytes(left) == _bytes(right))
    return bool(left == right)


def _bytes(tensor: Any) -> bytes:
    """The bytes of a torch tensor in row order, whatever its type: numpy has no bfloat16."""
    torch = load_torch()
    flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).numpy())


def example_trees() -> dict[str, Any]:
    """Trees that every store must keep, by a name that says what is special about each.

    There is one for each element type that numpy has, and, where torch is installed, that torch has.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    trees = dict(_PLAIN)
    for dtype in DTYPES.values():
        if not dtype.foreign:
            trees[f"numpy {dtype.numpy}"] = {"x": _pattern(dtype)}
        if has_torch:
            trees[f"torch {dtype.torch}"] = {"x": _tensor(dtype)}
    grid = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    trees["array without dimensions"] = np.array(1.5)
    trees["array without elements"] = {"none": np.zeros((0, 3)), "no columns": np.zeros((3, 0), np.int8)}
    trees["array that is not contiguous"] = {"turned": grid.T, "every other": grid[:, ::2], "backwards": grid[::-1]}
    trees["nested arrays beside plain values"] = {"a": [grid, {"b": (grid[0], "text", None)}], 7: {"c": grid[1]}}
    if has_torch:
        tensor = load_torch().arange(24).reshape(2, 3, 4)
        trees["tensor that is not contiguous"] = {"turned": tensor.permute(2, 0, 1), "every other": tensor[:, ::2]}
        trees["arrays beside tensors"] = [grid, tensor, tensor[0, 0, 0]]
    return trees


def _pattern(dtype: DType) -> np.ndarray[Any, Any]:
    """Two rows of bit patterns that no conversion would leave as they are."""
    if dtype.name == "BOOL":
        return np.array([[True, False, False], [True, False, True]])
    data = bytes((37 * position + 5) % 256 for position in range(6 * dtype.size))
    return np.frombuffer(data, dtype.bits).reshape(2, 3).copy()


def _tensor(dtype: DType) -> Any:
    tensor = load_torch().from_numpy(_pattern(dtype))
    return tensor.view(dtype.torch_type()) if dtype.foreign else tensor


_PLAIN: dict[str, Any] = {
    "None": None,
    "booleans": [True, False],
    "whole numbers": [0, -1, 2**63 - 1, -(2**63), 2**200],
    "floats": [0.0, -0.0, 0.1, 5e-324, float("inf"), float("-inf"), float("nan")],
    "texts": ["", "a cat", "caf\u00e9", "cafe\u0301", "\U0001f408", "half a pair \ud83d", "nul \0", "$tensor"],
    "bytes": [b"", bytes(range(256))],
    "empty containers": [{}, [], (), {"a": {}}, [[]], ((),)],
    "list or tuple": {"list": [1, 2], "tuple": (1, 2), "both": [(1,), [2]]},
    "order of a dict": {"b": 1, "a": 2, "c": {"z": 1, "y": 2}},
    "keys that are numbers": {1: "number", "1": "text", -5: None},
    "keys that look like ours": {"$tuple": [1], "$tensor": 0, "$dict": [], "": "no name", "a/b": 1},
    "deep nesting": [[[[[[[[[[{"a": (((1,),),)}]]]]]]]]]],
}
