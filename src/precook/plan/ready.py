"""Readiness: which wanted entries are in the store, which are lost, and which could not be made before.

The index is asked only where memory does not answer. An entry that was seen stays until something is removed, and the
index counts removals: so an unchanged dataset of a hundred thousand samples asks for none of its keys.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import numpy as np

from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.store.store import Store
from precook.values import Bytes, Flags

LOST = Kind("lost", key=32, value=0)
"""Keys that once had an entry and then had not."""
_COMPARED = ("readiness", b"generation")
"""The note that says at which generation of the store what was seen was last compared with it."""
_FAILURES = "failures"


def find_ready(keys: Bytes, store: Store, memory: Memory) -> Flags:
    """Which keys have an entry."""
    generation = store.generation()
    if memory.note(*_COMPARED) != generation:
        _compare_again(generation, store, memory)
    seen = _seen(generation)
    ready, _ = memory.recall(seen, keys)
    doubtful = np.flatnonzero(~ready)
    if len(doubtful):
        present = store.present(keys[doubtful])
        memory.remember(seen, keys[doubtful[present]])
        ready[doubtful] = present
    return ready


def was_lost(keys: Bytes, memory: Memory) -> Flags:
    """Which keys once had an entry that was removed."""
    return memory.recall(LOST, keys)[0]


def _seen(generation: str) -> Kind:
    """Keys that had an entry at this generation: what another process saw before a removal can never be among them."""
    return Kind(f"seen/{generation}", key=32, value=0)


def _compare_again(generation: str, store: Store, memory: Memory) -> None:
    """Something was removed: sort what was seen into what is still there and what is lost."""
    before = memory.note(*_COMPARED)
    if before is not None:
        seen, _ = memory.rows(_seen(before))
        present = store.present(seen)
        memory.forget(_seen(before))
        memory.remember(_seen(generation), seen[present])
        memory.remember(LOST, seen[~present])
    memory.write_note(*_COMPARED, generation)


def read_failures(memory: Memory) -> dict[bytes, str]:
    """Why entries could not be made, by key."""
    return {key: str(json.loads(note)["reason"]) for key, note in memory.notes(_FAILURES).items()}


def record_failure(memory: Memory, key: bytes, reason: str) -> None:
    """Remember that an entry could not be made, and why."""
    memory.write_note(_FAILURES, key, json.dumps({"reason": reason, "when": int(time.time())}))


def forget_failures(memory: Memory, keys: Iterable[bytes]) -> None:
    """These entries were made after all."""
    if memory.notes(_FAILURES):
        for key in keys:
            memory.write_note(_FAILURES, key, None)
