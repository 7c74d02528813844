"""The tally: what a build has done so far, and what all its lines share."""

from __future__ import annotations

from collections import Counter

from precook.plan.entries import Failure


class Tally:
    """What a build has done so far, and what all its lines share."""

    def __init__(self) -> None:
        self.encoded: Counter[str] = Counter()
        self.reused: Counter[str] = Counter()
        """Entries that somebody else made meanwhile."""
        self.truncated: Counter[str] = Counter()
        self.failed: list[Failure] = []
        self.reasons: dict[bytes, str] = {}
        """Why entries failed, by key: two encoders with one recipe share their failures too."""
        self.changed = 0
        self.nbytes = 0
