"""Entries known by number: their keys, their trees, and whether what came back is what went in."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.ma  # numpy imports these two when first used: here, in place of once in every forked child
from numpy.random import default_rng

import precook

if TYPE_CHECKING:
    from collections.abc import Collection

    from precook.values import Key

CROWD = range(1_000_000, 1_000_400)
"""Entries that are next to nothing, and many: enough to give the index more than a page or two."""

_READ_OF_CROWD = 16
"""Of these, every so-manieth is read; the others are only looked up."""

RECIPE = precook.Recipe("test", {"harness": "faults"})


@functools.cache
def key_of(number: int) -> Key:
    """The key of entry `number`."""
    return RECIPE.key(number)


@functools.cache
def tree_of(number: int) -> Any:
    """What entry `number` holds: four kinds of trees, so that packs get several tables; some take more than a page."""
    if number >= CROWD.start:
        return {"number": number}
    rng = default_rng(number)
    kind = number % 4
    if kind == 0:
        latent = rng.standard_normal((4, 8 + number % 5, 16)).astype(np.float32)
        return {"latent": latent, "crop": (number, 48), "flip": number % 8 == 0}
    if kind == 1:
        return [
            rng.integers(-(2**60), 2**60, 3 + number % 7),
            f"caption {number} \u00e4\u732b",
            None,
            {"weight": number / 7},
        ]
    if kind == 2:
        hidden = rng.standard_normal((5, 7)).astype(np.float16)
        mask = rng.random(11) < 0.5
        return {
            "hidden": hidden,
            "more": {"mask": mask, "empty": np.zeros((0, 3), np.uint8)},
            "raw": bytes([number % 256]),
        }
    return rng.integers(0, 256, 9000, dtype=np.uint8)


def same(one: Any, other: Any) -> bool:
    """Equal bit for bit, types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def check_entries(  # noqa: C901 - one list of all that is checked
    store: precook.Store,
    numbers: Collection[int],
    acked: frozenset[int],
    *,
    may_be_damaged: frozenset[int] = frozenset(),
) -> list[str]:
    """What is wrong with entries `numbers`, of which those in `acked` must be there and the others may be."""
    problems = []
    listed = set(store.missing([key_of(number) for number in numbers]))
    for number in numbers:
        key = key_of(number)
        if number >= CROWD.start and number % _READ_OF_CROWD:
            if key in listed and number in acked and number not in may_be_damaged:
                problems.append(f"entry {number} was acknowledged and is listed as missing")
            continue
        try:
            found = store.get(key)
        except precook.DamagedEntryError as error:
            if number not in may_be_damaged:
                problems.append(f"entry {number} is damaged: {error}")
        except precook.MissingEntryError:
            if number in acked and number not in may_be_damaged:
                problems.append(f"entry {number} was acknowledged and is lost")
            if key not in listed and number not in may_be_damaged:
                problems.append(f"entry {number} is neither found nor listed as missing")
        else:
            if not same(found, tree_of(number)):
                problems.append(f"entry {number} has wrong bytes")
            # Only a disk that lies leaves a torn index behind. A tear may hide a key until another search meets it and
            # the index is made anew; that costs an encode. From then on, both must say the same.
            if key in listed and (number not in may_be_damaged or key in store.missing([key])):
                problems.append(f"entry {number} is there and listed as missing")
    return problems
