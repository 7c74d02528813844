"""Values of an mgds pipeline, on their way into an entry and out of it.

An entry holds a sample's split values and its aggregates. A diffusers distribution is kept as the parameters that make
it, and made again when it is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from precook.errors import EncodeError
from precook.store.leaves import has_nan, is_finite
from precook.store.tree import Parts, Tree, take_apart

_DISTRIBUTION = "DiagonalGaussianDistribution"


def entry_parts(split: Mapping[str, Any], aggregate: Mapping[str, Any]) -> Parts:
    """An entry, ready to be stored; what must not be in a cache is refused."""
    tree: dict[str, Any] = {"split": {}, "aggregate": {}, "distributions": []}
    for part, values in (("split", split), ("aggregate", aggregate)):
        for name, value in values.items():
            if value is None:
                # mgds would fall through to the modules before the cache, and ask them for another sample.
                raise EncodeError(f"{name} has no value")
            if type(value).__name__ == _DISTRIBUTION:
                tree["distributions"].append(name)
                tree[part][name] = {"parameters": value.parameters, "deterministic": bool(value.deterministic)}
            else:
                tree[part][name] = value
    parts = take_apart(tree)
    for path, leaf in zip(parts.paths, parts.leaves, strict=True):
        if not is_finite(leaf) and has_nan(leaf):  # the first test is the quicker one
            raise EncodeError(f"{path} holds numbers that are not numbers (NaN)")
    return parts


def entry_values(tree: Tree, part: str, device: Any) -> dict[str, Any]:
    """The values of one part of an entry, with their tensors on a device."""
    values: dict[str, Any] = moved(tree[part], device)
    for name in tree["distributions"]:
        if name in values:
            values[name] = _distribution(values[name])
    return values


def moved(value: Any, device: Any) -> Any:
    """A value with its tensors on a device; containers keep their types."""
    if device is None or str(device) == "cpu":
        return value
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    return value.to(device) if hasattr(value, "to") else value


def _distribution(kept: Mapping[str, Any]) -> Any:
    vae = importlib.import_module("diffusers.models.autoencoders.vae")
    return vae.DiagonalGaussianDistribution(kept["parameters"], deterministic=kept["deterministic"])
