"""Progress: what a build has done so far, for each encoder and in all, and when that is to be made durable."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

from precook.encode.stages import StageTimes
from precook.errors import EncodeError
from precook.memo.memo import Memory
from precook.plan.entries import Failure, PlannedEntry
from precook.plan.ready import forget_failures, record_failure
from precook.report import Task
from precook.store.store import Store

_AT_RISK = 20
"""One batch in so many may be encoded and not yet durable."""
_CHEAP = 0.00005
"""Seconds: no encoder that computes anything is done with a batch so soon."""
_RECENT = 8
"""Batches of which the quickest says what an encoder costs: other threads hold up some of them, but not all."""


class FlushPolicy:
    """Says when what was encoded is to be made durable; safe to use from several threads.

    The first batches are made durable one by one, later ones when they are a small part of all there were: so there are
    few packs, and a kill costs little. What costs next to nothing to encode is sooner made again than waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = self._durable = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def is_due(self, seconds: float) -> bool:
        """Note a batch that took so long to encode; whether everything so far is to be made durable now."""
        with self._lock:
            self._batches += 1
            self._recent.append(seconds)
            due = min(self._recent) >= _CHEAP and self._batches - self._durable > self._batches // _AT_RISK
            if due:
                self._durable = self._batches
            return due


class BuildProgress:
    """What a build has done so far, and what all its encoders share."""

    def __init__(self, memory: Memory) -> None:
        self.lock = threading.RLock()
        """Around everything else."""
        self.memory = memory
        """Where failures are remembered, and how quick encoders are."""
        self.encoded: Counter[str] = Counter()
        self.reused: Counter[str] = Counter()
        """Entries that somebody else made meanwhile."""
        self.truncated: Counter[str] = Counter()
        self.failed: list[Failure] = []
        self.reasons: dict[bytes, str] = {}
        """Why entries failed, by key: two encoders with one recipe share their failures too."""
        self.changed = 0
        self.times = StageTimes({})
        """How busy reading, decoding, devices and the disk are, of all encoders."""
        self.nbytes_by: Counter[str] = Counter()
        """Of the new entries, by encoder."""


class EncoderProgress:
    """Counts, remembers and tells what becomes of each entry of one encoder; safe to use from several threads."""

    def __init__(
        self,
        build: BuildProgress,
        encoder: str,
        task: Task,
        *,
        fail_fast: bool,
        busy: Callable[[], dict[str, float]],
    ) -> None:
        self.reasons = build.reasons
        self._build = build
        self._encoder = encoder
        self._memory = build.memory
        self._task = task
        self._tell_busy: Callable[[dict[str, float]], None] | None = getattr(task, "busy", None)
        """Not every task has it: it came later than the others."""
        self._busy = busy
        self._fail_fast = fail_fast
        self.unmade: set[bytes] = set()
        """Keys of what failed or changed."""
        self._undisclosed: list[bytes] = []
        """Keys of what could not be made, as far as other builders were not told."""
        # Of all encoders: they share what is remembered.
        self._lock = build.lock

    def stored(self, keys: Sequence[bytes], nbytes: int) -> None:
        """Entries were made, of so many bytes together."""
        with self._lock:
            self._build.encoded[self._encoder] += len(keys)
            self._build.nbytes_by[self._encoder] += nbytes
            forget_failures(self._memory, keys)
            if self._tell_busy is not None:
                self._tell_busy(self._busy())
            self._task.advance(len(keys), nbytes=nbytes)

    def reused(self, count: int) -> None:
        """So many entries are there that we did not make."""
        with self._lock:
            self._build.reused[self._encoder] += count
            self._task.advance(count)

    def changed(self, entry: PlannedEntry) -> None:
        """An entry's source is no longer what was planned."""
        with self._lock:
            self._build.changed += 1
            self._note_unmade(entry)
            self._task.advance()

    def failed(self, entry: PlannedEntry, reason: str, *, lasting: bool) -> None:
        """An entry could not be made; what is not `lasting` is tried again by the next build."""
        with self._lock:
            self._build.failed.append(Failure(reason, entry.path, entry.concept, self._encoder, entry.key))
            self.reasons[entry.key.bytes] = reason
            self._note_unmade(entry)
            if lasting:
                record_failure(self._memory, entry.key.bytes, reason)
            self._task.advance(failed=1)
        if self._fail_fast:
            place = entry.path or "the empty prompt"
            raise EncodeError(f"{self._encoder}: {place}: {reason}", hint="without --fail-fast the others go on")

    def _note_unmade(self, entry: PlannedEntry) -> None:
        self.unmade.add(entry.key.bytes)
        self._undisclosed.append(entry.key.bytes)

    def disclose(self, store: Store) -> list[bytes]:
        """Let other builders read why entries could not be made; the keys of those that are new to them."""
        with self._lock:
            keys, self._undisclosed = self._undisclosed, []
            if keys:
                store.remember(self._memory)
        return keys
