"""The session: what one opened store holds, has used, and may take.

It stands beside every commit: a lease that was broken stops it, an entry that is put again counts as used before
anybody can remove it, and room is made where the store may take only so much.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from precook.errors import StoreFullError
from precook.report import SILENT
from precook.store.eviction import plan_eviction
from precook.store.index import Index
from precook.store.layout import Layout
from precook.store.leases import Lease
from precook.store.reader import Reader
from precook.store.uses import Uses
from precook.store.workings import Workings
from precook.units import format_size

_SLACK = 10
"""Where entries are evicted, so that a tenth of the store is free after: each time costs a look at all of them."""
_ATTEMPTS = 3
"""How often room is looked for."""


class Session:
    """The leases, uses and bounds of one opened store."""

    def __init__(
        self, layout: Layout, reader: Reader, workings: Callable[[], Workings], *, max_bytes: int | None
    ) -> None:
        self._layout = layout
        self._workings = workings
        self._reader = reader
        self._uses = Uses(layout)
        self._leases: list[weakref.ref[Lease]] = []
        """Not kept alive: a lease that its holder has dropped ends."""
        self.max_bytes = max_bytes

    def lease(self, index: Index | None, purpose: str) -> Lease:
        """A lease that ends with the session at the latest."""
        lease = Lease(self._layout, index, purpose)
        self._leases = [*(other for other in self._leases if other() is not None), weakref.ref(lease)]
        return lease

    def check(self) -> None:
        """Stop where a lease of ours was broken, while this machine slept perhaps: what it protected may be gone."""
        for lease in self._held():
            if lease.protects:
                lease.check()

    def record(self, index: Index, *, now: bool = False) -> None:
        """Write down what was read since the last time, if it is time for it or must be `now`."""
        if index.read_only or not (now or self._uses.due):
            return
        marks = self._reader.take_uses()
        if not self._uses.record(index, marks):
            self._reader.give_back(marks)

    def keep(self, index: Index) -> None:
        """Make it known that what was just read is in use, or fail; the caller holds the store's lock."""
        marks = self._reader.take_uses()
        try:
            self._uses.write(index, marks)
        except BaseException:
            self._reader.give_back(marks)
            raise

    def make_room(self, nbytes: int) -> None:
        """Evict what was used least recently so that a pack of this size fits; `StoreFullError` where nothing may go.

        What this session has written or read is not touched: a run that does not fit stops before it eats itself.
        """
        if self.max_bytes is None:
            return
        workings = self._workings()
        target = self.max_bytes - nbytes
        least = max(0, target - self.max_bytes // _SLACK)
        # More than once: what was to go may be spared, because others have come to need it, and they write, too.
        for _ in range(_ATTEMPTS):
            size = workings.index.pack_bytes()
            if size <= target:
                return
            touched = self._reader.touched()
            plan = plan_eviction(workings, least, touched=touched)
            if least < plan.size_after <= target:
                # The slack is not to be had: no more goes than must.
                plan = plan_eviction(workings, target, touched=touched)
            size = plan.size_after
            if size > target:
                break
            plan.execute(SILENT)
            size = workings.index.pack_bytes()
        if size > target:
            taken, asked = format_size(size), format_size(nbytes)
            message = f"max_bytes is {format_size(self.max_bytes)}: {taken} are protected and {asked} are to be written"
            raise StoreFullError(self._layout.root, message)

    def close(self, index: Index | None) -> None:
        """Let go of the leases and write down what was used."""
        for lease in self._held():
            lease.close()
        if index is not None:
            self.record(index, now=True)

    def _held(self) -> list[Lease]:
        return [lease for one in self._leases if (lease := one()) is not None]
