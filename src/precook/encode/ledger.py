"""The ledger: what a build has done so far, with a page for each encoder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from precook.errors import EncodeError
from precook.plan.entries import Failure, PlannedEntry
from precook.plan.failures import forget_failures, record_failure
from precook.report import Task
from precook.sources.memory import Memory
from precook.store.store import Store


class Ledger:
    """What a build has done so far, and what all its encoders share."""

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


class Page:
    """One encoder's page: counts, remembers and tells what becomes of each entry; safe to use from several threads."""

    def __init__(self, ledger: Ledger, encoder: str, memory: Memory, task: Task, *, fail_fast: bool) -> None:
        self.reasons = ledger.reasons
        self._ledger = ledger
        self._encoder = encoder
        self._memory = memory
        self._task = task
        self._fail_fast = fail_fast
        self._unmade: list[bytes] = []
        """What could not be made and others were not told of."""
        self._lock = threading.Lock()
        """Around everything above."""

    def stored(self, keys: Sequence[bytes], nbytes: int) -> None:
        """Entries were made, of so many bytes together."""
        with self._lock:
            self._ledger.encoded[self._encoder] += len(keys)
            self._ledger.nbytes += nbytes
            forget_failures(self._memory, keys)
            self._task.advance(len(keys), nbytes=nbytes)

    def reused(self, count: int) -> None:
        """So many entries are there that we did not make."""
        with self._lock:
            self._ledger.reused[self._encoder] += count
            self._task.advance(count)

    def changed(self, entry: PlannedEntry) -> None:
        """An entry's source is no longer what was planned."""
        with self._lock:
            self._ledger.changed += 1
            self._unmade.append(entry.key.bytes)
            self._task.advance()

    def failed(self, entry: PlannedEntry, reason: str, *, lasting: bool) -> None:
        """An entry could not be made; what may pass is told, and tried again by the next build."""
        with self._lock:
            self._ledger.failed.append(Failure(reason, entry.path, entry.concept, self._encoder, entry.key))
            self.reasons[entry.key.bytes] = reason
            self._unmade.append(entry.key.bytes)
            if lasting:
                record_failure(self._memory, entry.key.bytes, reason)
            self._task.advance(failed=1)
        if self._fail_fast:
            place = entry.path or "the empty prompt"
            raise EncodeError(f"{self._encoder}: {place}: {reason}", hint="without --fail-fast the others go on")

    def disclose(self, store: Store) -> list[bytes]:
        """Let others read why entries could not be made; the keys of those that they were not told of before."""
        with self._lock:
            keys, self._unmade = self._unmade, []
            if keys:
                store.remember(self._memory)
        return keys
