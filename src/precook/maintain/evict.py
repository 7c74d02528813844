"""Eviction: the least recently used entries go until the packs fit a size."""

from __future__ import annotations

import numpy as np

from precook.errors import StoreFullError
from precook.maintain.compact import drop_second_copies
from precook.maintain.protect import ProtectedAge, ProtectedKeys, Protection, Protector, Roots
from precook.maintain.remove import (
    ALL_DEAD,
    Candidates,
    Dropped,
    RemovalPlan,
    find_candidates,
    plan_packs,
    plan_removal,
)
from precook.maintain.rowset import RowSet
from precook.report import SILENT, Reporter
from precook.store.index.scan import EntryScan
from precook.store.internals import StoreInternals
from precook.store.keysets import KeySet, ManyKeys
from precook.store.store import Store
from precook.units import format_duration, format_size
from precook.values import Flags, Numbers

_ATTEMPTS = 8
"""How often more is evicted, where what was chosen frees too little."""
_STEP = 4096
"""Bytes more that are evicted when a rewritten pack comes out larger than was thought."""
_SLACK = 10
"""Where entries are evicted, so that a tenth of the store is free after: each time costs a look at all of them."""
_TRIES = 3
"""How often room is looked for."""


def make_room(internals: StoreInternals, nbytes: int, max_bytes: int, *, strict: bool = True) -> None:
    """Evict what was used least recently so that a pack of this size fits; `StoreFullError` where nothing may go.

    What this process has written or read is not touched: a run that does not fit stops before it eats itself. Where it
    is not `strict`, all that may go does, and the run goes on.
    """
    target = max_bytes - nbytes
    least = max(0, target - max_bytes // _SLACK)
    # More than once: what was to go may be spared, because others have come to need it, and they write, too.
    for _ in range(_TRIES):
        size = internals.index.pack_bytes()
        # Second copies before any entry: a run that was killed may have left some, and what is protected need not fit
        # twice.
        if size <= target or (drop_second_copies(internals) and internals.index.pack_bytes() <= target):
            return
        touched = internals.packs.touched()
        plan = plan_eviction(internals, least, touched=touched)
        if least < plan.size_after <= target:
            # The slack is not to be had: no more goes than must.
            plan = plan_eviction(internals, target, touched=touched)
        size = plan.size_after
        if size > target and strict:
            break
        plan.execute(SILENT)
        if size > target:
            return
        size = internals.index.pack_bytes()
    if size > target and strict:
        taken, asked = format_size(size), format_size(nbytes)
        message = f"max_bytes is {format_size(max_bytes)}: {taken} are protected and {asked} are to be written"
        raise StoreFullError(internals.layout.root, message)


def plan_evict(store: Store, max_bytes: int, *, grace: float = 0.0, report: Reporter = SILENT) -> RemovalPlan:
    """What has to go, least recently used first, so that the packs take `max_bytes` at most.

    The latest snapshot of each dataset, pinned snapshots and leases keep what they name. Where that leaves no room,
    `plan.size_after` is larger than what was asked for.
    """
    store.check_removable("evict")
    internals = store.internals(create=False)
    return plan_eviction(internals, max_bytes, grace=grace, touched=internals.packs.touched(), report=report)


def plan_eviction(
    internals: StoreInternals, max_bytes: int, *, grace: float = 0.0, touched: KeySet, report: Reporter = SILENT
) -> RemovalPlan:
    """The same for the parts of a store; what this run has `touched` stays."""
    scan = EntryScan(internals.layout, internals.index)
    protectors: list[Protector] = [
        ProtectedKeys("used by this run", ManyKeys(len(touched), lambda: iter([touched]))),
    ]
    if grace:
        protectors.append(ProtectedAge(f"younger than {format_duration(grace)}", scan.now - int(grace * 1e9)))
    candidates = find_candidates(scan, Protection(internals.layout, Roots()), protectors, report=report)
    too_large = int(scan.nbytes.sum()) > max_bytes
    return plan_removal(
        internals,
        "evict",
        candidates,
        _LeastRecent(candidates).choose(internals, max_bytes) if too_large else Dropped(RowSet(scan), 0, 0),
        reason="least recently used",
        # Below the limit nothing is rewritten for the sake of it.
        thresholds=ALL_DEAD if too_large else None,
    )


class _LeastRecent:
    """The places that may go in the order in which they do: groups of one pack and one time, by time, then by pack."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        scan = candidates.scan
        packs = scan.moment_packs
        times = np.maximum(np.minimum(scan.moments, scan.now), scan.born[packs])
        order = np.lexsort((packs, times))
        first = np.append(True, (np.diff(times[order]) != 0) | (np.diff(packs[order]) != 0))[: len(order)]
        self._group_of = np.empty(len(order), np.int64)
        """The group of each moment."""
        self._group_of[order] = np.cumsum(first) - 1
        self._packs = packs[order[first]]
        """The pack of each group."""
        count = len(self._packs)
        self._rows, self._nbytes, self._first_bytes = (
            np.bincount(self._group_of, by_moment, minlength=count).astype(np.int64)
            for by_moment in (candidates.moment_rows, candidates.moment_bytes, candidates.moment_first_bytes)
        )
        """What may go of each group, and the bytes of those that are the first place of their key."""
        self._sizes: tuple[int, Numbers] = (-1, self._rows)
        """A pack, and the bytes of its rows."""

    def choose(self, internals: StoreInternals, max_bytes: int) -> Dropped:
        """The first of them, as few as it takes until the packs fit."""
        candidates, scan = self._candidates, self._candidates.scan
        # Without a look at their heads: what a pack takes beside its dead rows.
        living = candidates.everything
        base = int(np.where(living.rows == 0, 0, scan.nbytes - (scan.payload - living.nbytes)).sum())
        freed = np.cumsum(self._nbytes + self._overheads())
        wanted = base - max_bytes
        # What rewritten packs will take is known only by making their heads, so more goes until it is little enough.
        for _ in range(_ATTEMPTS):
            dropped = self._first(internals, freed, wanted) if wanted > 0 else Dropped(RowSet(scan), 0, 0)
            size = int(scan.nbytes.sum()) - plan_packs(internals, candidates, dropped.places, ALL_DEAD).freed
            if size <= max_bytes or int(dropped.places.rows.sum()) == int(candidates.places.rows.sum()):
                break
            wanted += size - max_bytes + _STEP
        return dropped

    def _overheads(self) -> Numbers:
        """What a pack takes beside its rows goes with the last of them, in the last of its groups."""
        candidates, scan = self._candidates, self._candidates.scan
        used = np.flatnonzero(self._rows)
        last = np.full(scan.packs, -1)
        last[self._packs[used]] = used
        whole = (last >= 0) & (candidates.places.rows == candidates.everything.rows)
        overheads = np.zeros(len(self._packs), np.int64)
        overheads[last[whole]] = (scan.nbytes - scan.payload)[whole]
        return overheads

    def _first(self, internals: StoreInternals, freed: Numbers, wanted: int) -> Dropped:
        """The first of all that may go, until so many bytes are freed; `freed`: by each group and those before it."""
        candidates, scan = self._candidates, self._candidates.scan
        places, entries, nbytes = RowSet(scan), 0, 0
        cut = int(np.searchsorted(freed, wanted))
        """The group of which only some go."""
        whole = np.bincount(self._packs[:cut], self._nbytes[:cut], minlength=scan.packs).astype(np.int64)
        for pack in np.unique(self._packs[: cut + 1]).tolist():
            rows = candidates.places.rows_of(pack)
            groups = self._group_of[scan.moments_of(pack)[rows]]
            goes = groups < cut
            size = int(whole[pack])
            if cut < len(freed) and pack == self._packs[cut]:
                inside = np.flatnonzero(groups == cut)
                sizes = self._row_sizes(internals, pack)[rows[inside]]
                short = wanted - int(freed[cut - 1] if cut else 0)
                # The last of them takes with it what the pack takes beside its rows.
                count = min(int(np.searchsorted(np.cumsum(sizes), short)) + 1, len(inside))
                goes[inside[:count]] = True
                size += int(sizes[:count].sum())
                nbytes += int(sizes[:count][self._is_first(pack, rows[inside[:count]])].sum())
            places.add_pack(pack, rows[goes], size)
            entries += int(self._is_first(pack, rows[goes]).sum())
        return Dropped(places, entries, nbytes + int(self._first_bytes[:cut].sum()))

    def _row_sizes(self, internals: StoreInternals, pack: int) -> Numbers:
        """Bytes of the rows of a pack, as the index knows them; the pack itself may be unreadable."""
        if self._sizes[0] != pack:
            # Slow, and done for the one pack that needs it.
            scan = self._candidates.scan
            self._sizes = pack, internals.index.row_sizes(scan.ids[pack], int(scan.entries[pack]))
        return self._sizes[1]

    def _is_first(self, pack: int, rows: Numbers) -> Flags:
        """Which rows of a pack are the first place of their key."""
        return self._candidates.first.has(np.full(len(rows), pack), rows)
