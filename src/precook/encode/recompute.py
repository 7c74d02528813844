"""Recomputing: some entries made once more, and how far they are from those that are stored.

An encoder may give slightly different numbers on another device, in another batch, on compiled code or with another
library. This tells how different, and whether it is more than rounding; what is stored stays as it is.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.encode.build import BuildPlan, encode_missing
from precook.encode.run import BuildOptions
from precook.errors import MissingEntryError
from precook.plan.entries import EncoderPlan
from precook.plan.plan import Plan
from precook.report import Reporter
from precook.store.store import FLUSH_BYTES, FLUSH_SECONDS, Store
from precook.store.tree import take_apart
from precook.values import Key

_EPSILONS = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-23, "F64": 2.0**-52}
"""The step from 1.0 to the next number, for types that models compute in; whatever else is stored is not rounded."""


@dataclass(frozen=True, slots=True)
class RecomputeDifference:
    """How far the recomputed entries of one encoder are from the stored ones."""

    encoder: str
    checked: int
    equal: int
    """Entries that are the same, bit for bit."""
    rounded: int
    """Entries that differ by no more than rounding does, which adds up over the layers of a model."""
    max_abs: float
    """The largest difference of two numbers."""
    max_rel: float
    """The largest difference as a share of the larger of the two."""
    unlike: int
    """Entries of another nesting, type or shape, or with other plain values."""
    failed: int
    """Entries that could not be made again."""


def recompute(
    plan: BuildPlan, share: float, *, seed: int, devices: Sequence[str], report: Reporter
) -> list[RecomputeDifference]:
    """Encode a random part of what is ready once more, and say how far it is from what is stored, by encoder.

    At least one entry of each encoder is made; the same seed takes the same entries. What is made goes to a store that
    is gone at the end.
    """
    rng = np.random.default_rng(seed)
    encoders: dict[str, EncoderPlan] = {}
    chosen: dict[str, list[Key]] = {}
    for name, encoder in plan.encoders.items():
        ready = encoder.ready
        count = min(len(ready), max(1, math.ceil(share * len(ready)))) if len(ready) else 0
        rows = np.sort(rng.choice(ready, count, replace=False))
        chosen[name] = [Key(encoder.wants.keys[row].tobytes()) for row in rows.tolist()]
        # The plan of an encoder that lacks these rows and nothing else.
        others = np.ones(len(encoder.ready_rows), bool)
        others[rows] = False
        encoders[name] = dataclasses.replace(encoder, ready_rows=others, failures={})
    with tempfile.TemporaryDirectory(prefix="precook-recompute-") as folder, _scratch_store(folder) as scratch:
        part = Plan(plan.settings, plan.base, scratch, plan.memory, plan.samples, plan.targets, encoders)
        options = BuildOptions(devices=devices)
        encode_missing(BuildPlan(part, plan.specs), options=options, stop=threading.Event(), report=report)
        return [_compare(name, plan.store, scratch, keys) for name, keys in chosen.items()]


def _scratch_store(folder: str) -> Store:
    return Store(
        Path(folder),
        read_only=False,
        verify_reads=True,
        flush_bytes=FLUSH_BYTES,
        flush_seconds=FLUSH_SECONDS,
        max_bytes=None,
    )


def _compare(encoder: str, store: Store, scratch: Store, keys: list[Key]) -> RecomputeDifference:
    """How far entries in two stores differ."""
    equal = rounded = unlike = failed = 0
    max_abs = max_rel = 0.0
    for key in keys:
        try:
            again = scratch.get(key)
        except MissingEntryError:
            failed += 1
            continue
        stored = store.get(key)
        ours, theirs = take_apart(stored), take_apart(again)
        same_shapes = [leaf.shape for leaf in ours.leaves] == [leaf.shape for leaf in theirs.leaves]
        if ours.skeleton != theirs.skeleton or ours.values != theirs.values or not same_shapes:
            unlike += 1
        elif all(a.data.tobytes() == b.data.tobytes() for a, b in zip(ours.leaves, theirs.leaves, strict=True)):
            equal += 1
        else:
            near = []
            for leaf, before, now in zip(ours.leaves, _arrays(stored), _arrays(again), strict=True):
                absolute, relative = _distance(before, now)
                max_abs, max_rel = max(max_abs, absolute), max(max_rel, relative)
                near.append(_is_rounding(before, now, _EPSILONS.get(leaf.dtype.name, 0.0)))
            rounded += all(near)
    return RecomputeDifference(encoder, len(keys), equal, rounded, max_abs, max_rel, unlike, failed)


def _arrays(tree: Any) -> list[npt.NDArray[np.float64]]:
    """Every tensor of a tree in double precision, in order."""
    if isinstance(tree, dict):
        return [array for part in tree.values() for array in _arrays(part)]
    if isinstance(tree, list | tuple):
        return [array for part in tree for array in _arrays(part)]
    if isinstance(tree, np.ndarray):
        return [tree.astype(np.float64)]
    # A torch tensor, which nobody here needs to know by name.
    return [tree.double().numpy()] if hasattr(tree, "double") else []


def _is_rounding(before: npt.NDArray[np.float64], now: npt.NDArray[np.float64], epsilon: float) -> bool:
    """Whether two tensors of a type with this precision differ in the second half of their digits only, as a whole.

    Single numbers may differ by more: one near zero is what is left of others that were rounded.
    """
    return bool(np.linalg.norm(before - now) <= math.sqrt(epsilon) * np.linalg.norm(before))


def _distance(before: npt.NDArray[np.float64], now: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The largest difference of two numbers, and the largest as a share of the larger of the two."""
    if not before.size:
        return 0.0, 0.0
    apart = np.abs(before - now)
    size = np.maximum(np.abs(before), np.abs(now))
    share = np.divide(apart, size, out=np.zeros_like(apart), where=size > 0)
    return float(apart.max()), float(share.max())
