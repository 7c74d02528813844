"""Uses: when each entry was last read, recorded in bulk.

A read marks a byte in memory and nothing else. Now and then, and when the store is closed, all marks are written in one
transaction: for each pack a column of times. What a killed process had not written is lost, and its entries look unused
a little longer than they are.
"""

from __future__ import annotations

import contextlib
import logging
import time

import numpy as np
import numpy.typing as npt

from precook.errors import LockedError, StoreError
from precook.fs.trust import file_system_time
from precook.store.index.index import Index
from precook.store.layout import Layout

_log = logging.getLogger("precook")

PERIOD = 300.0
"""Seconds between two records of a store that stays open."""
_PATIENCE = 5.0
"""Seconds to wait for the lock: a record may be late."""

Marks = dict[str, npt.NDArray[np.bool_]]
"""Rows that were used, by pack."""


class Uses:
    """What one process has used of a store."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._recorded = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time for a record."""
        return time.monotonic() - self._recorded > PERIOD

    def record(self, index: Index, marks: Marks) -> bool:
        """Record that these rows were used just now; whether that could be done."""
        # Also where it cannot: who reads must not wait for the lock at every step.
        self._recorded = time.monotonic()
        try:
            with index.exclusive(patience=_PATIENCE) if marks else contextlib.nullcontext():
                self.write(index, marks)
        except LockedError:
            return False
        except StoreError as error:
            # A full disk, say: reading must go on, and the order of eviction is all that suffers.
            _log.debug("uses could not be recorded: %s", error)
            return False
        return True

    def write(self, index: Index, marks: Marks) -> None:
        """The same, or an error."""
        self._recorded = time.monotonic()
        if marks:
            index.record_uses(marks, file_system_time(self._layout.root))
