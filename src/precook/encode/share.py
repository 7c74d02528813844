"""The share: which entries are this build's to make, while others may be building the same.

Claims say who makes what. Whoever looks for an entry after it has claimed it cannot miss one that was made before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from precook.encode.ledger import Page
from precook.plan.entries import entry_of
from precook.plan.failures import read_failures
from precook.plan.plan import EncoderPlan
from precook.sources.pairing import Numbers
from precook.store.claims import Claims
from precook.store.keysets import split
from precook.store.store import Store
from precook.store.writer import Writer

_log = logging.getLogger("precook")

_LOOK = 256
"""Rows of others that are looked for at a time."""
_LONG_AGO = -1
"""A group before a writer's first."""
_POLL = 0.2
"""Seconds between two looks at what another builder does."""


class Share:
    """Claims an encoder's rows, and gives up what is durable; `stored` may be called from several threads."""

    def __init__(
        self, store: Store, one: EncoderPlan, claims: Claims, writer: Writer, page: Page, stop: threading.Event
    ) -> None:
        self._store = store
        self._one = one
        self._claims = claims
        self._writer = writer
        self._page = page
        self._stop = stop
        self._name = one.wants.encoding.name
        self._postponed = np.zeros(0, np.int64)
        """Rows that another builder has claimed."""
        self._stored: deque[tuple[int, Sequence[bytes]]] = deque()
        """Keys that are still claimed, and the writer's group that makes them durable."""

    def take(self, rows: Numbers) -> Numbers:
        """Claim rows; those that are ours to make. What others have claimed is theirs until `others_work`."""
        claimed = self._claim(rows)
        # What others have made by now is told at once, not when all the rest is done.
        self._postponed = np.concatenate([self._absent(self._postponed), rows[~claimed]])
        mine = self._absent(rows[claimed])
        self.stored(self._keys(np.setdiff1d(rows[claimed], mine)), _LONG_AGO)
        return mine

    def stored(self, keys: Sequence[bytes], group: int) -> None:
        """These entries are durable when this group of the writer's is."""
        self._stored.append((group, keys))

    def others_work(self) -> Numbers:
        """What others had claimed and have given up; waits for them."""
        rows, self._postponed = self._absent(self._postponed), self._postponed[:0]
        if len(rows):
            _log.info("%s: another build has claimed %d entries; waiting for it", self._name, len(rows))
        while len(rows) and not self._stop.is_set():
            self._give_up()
            first = self._absent(rows[:_LOOK])
            rows = np.concatenate([first, rows[_LOOK:]])
            if self._claim(first[:1]).any():
                self._read_failures(rows)
                break
            if len(first):
                time.sleep(_POLL)
        return rows

    def _claim(self, rows: Numbers) -> npt.NDArray[np.bool_]:
        """Claim rows, and give up what is durable by now; which of them are ours."""
        if not len(rows):
            return np.zeros(0, bool)
        keys = self._keys(rows)
        mine = self._claims.take(keys, done=self._done())
        return np.fromiter((key in mine for key in keys), bool, len(keys))

    def _done(self) -> list[bytes]:
        done: list[bytes] = []
        while self._stored and self._stored[0][0] <= self._writer.durable:
            done += self._stored.popleft()[1]
        return done

    def _absent(self, rows: Numbers) -> Numbers:
        """The rows that are still to be made; the others are told."""
        present = self._store.present(self._one.wants.keys[rows])
        if present.any():
            self._page.reused(int(present.sum()))
            rows = rows[~present]
        if not self._page.reasons:
            return rows
        reasons = [self._page.reasons.get(key) for key in self._keys(rows)]
        for row, reason in zip(rows.tolist(), reasons, strict=True):
            if reason is not None:
                self._page.failed(entry_of(self._one, row), reason, lasting=False)
        return rows[[reason is None for reason in reasons]]

    def _give_up(self) -> None:
        """Let others see what we could not make: two that wait for each other's would wait for ever."""
        # Failures before claims: whoever waits for our claims reads why there is nothing to wait for.
        keys = self._page.disclose(self._store)
        if keys:
            self._claims.take([], done=keys)

    def _read_failures(self, rows: Numbers) -> None:
        """What another builder could not make either, since the plan was made, need not be tried again."""
        found = read_failures(self._store.memory())
        for row, key in zip(rows.tolist(), self._keys(rows), strict=True):
            if key in found and row not in self._one.failures:
                self._page.reasons[key] = found[key]

    def _keys(self, rows: Numbers) -> list[bytes]:
        return split(self._one.wants.keys[rows])
