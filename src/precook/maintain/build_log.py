"""The build log: what the last builds did, kept in the index's memory for `precook status`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from precook.store.store import Store

KEPT = 20
"""Builds that are kept, at the most."""
_NOTES = "runs"


@dataclass(frozen=True, slots=True)
class Run:
    """One build."""

    started: int
    """Unix seconds."""
    dataset: str
    encoded: int
    reused: int
    failed: int
    nbytes: int
    """Of what was encoded."""
    seconds: float
    stopped: bool
    processes: int = 1
    """How many shared the work."""


def record_run(store: Store, run: Run) -> None:
    """Remember a build; of older ones the last few stay."""
    if store.read_only:
        return
    memory = store.memory()
    for key in sorted(memory.notes(_NOTES))[: -(KEPT - 1)]:
        memory.write_note(_NOTES, key, None)
    # By time, to the nanosecond: two builds that end at once are two.
    memory.write_note(_NOTES, time.time_ns().to_bytes(8, "big"), json.dumps(asdict(run)))
    store.remember(memory)


def read_runs(store: Store) -> list[Run]:
    """The last builds, the latest last."""
    notes = store.memory().notes(_NOTES)
    return [Run(**json.loads(notes[key])) for key in sorted(notes)]
