"""The build log: what the last builds and runs of fronts did, kept in the index's memory for `precook status`."""

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
    """One build, or one run of a front."""

    started: int
    """Unix seconds."""
    dataset: str
    """Or the kind of the front's entries."""
    encoded: int
    reused: int
    failed: int
    nbytes: int
    """Of what was encoded."""
    seconds: float
    stopped: bool
    processes: int = 1
    """How many shared the work."""

    @property
    def hit_rate(self) -> float:
        """Share of what was wanted that was there already; 0 where nothing was wanted."""
        wanted = self.reused + self.encoded + self.failed
        return self.reused / wanted if wanted else 0.0


def record_run(store: Store, run: Run, *, instead: bytes | None = None) -> bytes | None:
    """Remember a build, perhaps `instead` of what was remembered of it before; of older ones the last few stay.

    Returns under which key it is remembered; None where the store cannot be written to.
    """
    if store.read_only:
        return None
    memory = store.memory()
    if instead is not None and instead in memory.notes(_NOTES):
        memory.write_note(_NOTES, instead, None)
    for key in sorted(memory.notes(_NOTES))[: -(KEPT - 1)]:
        memory.write_note(_NOTES, key, None)
    # By time, to the nanosecond: two builds that end at once are two.
    key = time.time_ns().to_bytes(8, "big")
    memory.write_note(_NOTES, key, json.dumps(asdict(run)))
    store.remember(memory)
    return key


def read_runs(store: Store) -> list[Run]:
    """The last builds, the latest last."""
    notes = store.memory().notes(_NOTES)
    return [Run(**json.loads(notes[key])) for key in sorted(notes)]
