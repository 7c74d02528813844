"""Tensors on their way into a cache: no NaN, and in half precision where that is asked for and loses no range."""

from __future__ import annotations

from typing import Any

import numpy as np

from precook.errors import EncodeError
from precook.store.leaves import has_nan, is_finite, is_tensor, read_leaf
from precook.store.tree import Tree


def checked(node: Tree, where: str, *, half: bool) -> Tree:
    """The tree as it is kept; numbers that are none, or that float16 cannot hold, are refused."""
    kind = type(node)
    if kind is dict:
        return {name: checked(item, where, half=half) for name, item in node.items()}
    if kind in (list, tuple):
        return kind(checked(item, where, half=half) for item in node)
    if not is_tensor(node):
        return node
    plain = node.detach() if hasattr(node, "detach") else node
    if has_nan(read_leaf(plain, where)):
        raise EncodeError(f"{where} holds NaN; it was not saved", hint="look at the encoder, or at its picture")
    if not half or not _is_float(plain):
        return plain
    with np.errstate(over="ignore"):  # looked at below
        smaller = plain.half() if hasattr(plain, "half") else plain.astype("float16")
    if is_finite(read_leaf(plain, where)) and not is_finite(read_leaf(smaller, where)):
        raise EncodeError(f"{where} has numbers beyond float16's; it was not saved", hint="keep it without dtype")
    return smaller


def _is_float(tensor: Any) -> bool:
    return bool(tensor.is_floating_point()) if hasattr(tensor, "is_floating_point") else tensor.dtype.kind == "f"
