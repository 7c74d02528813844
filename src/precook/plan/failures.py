"""Failures: entries that could not be made, remembered by key: another input, recipe or code version is another key."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from precook.sources.memory import Memory

_KIND = "failures"


def read_failures(memory: Memory) -> dict[bytes, str]:
    """Why entries could not be made, by key."""
    return {key: str(json.loads(note)["reason"]) for key, note in memory.notes(_KIND).items()}


def record_failure(memory: Memory, key: bytes, reason: str) -> None:
    """Remember that an entry could not be made, and why."""
    memory.write_note(_KIND, key, json.dumps({"reason": reason, "when": int(time.time())}))


def forget_failures(memory: Memory, keys: Iterable[bytes]) -> None:
    """These entries were made after all."""
    if memory.notes(_KIND):
        for key in keys:
            memory.write_note(_KIND, key, None)
