"""Eviction: the least recently used entries go until the packs fit a size."""

from __future__ import annotations

import numpy as np

from precook.report import SILENT, Reporter
from precook.store.census import Census, Numbers
from precook.store.keysets import KeySet, keyset
from precook.store.protection import Named, Protection, Protector, Roots, Young
from precook.store.removal import RemovalPlan, plan_removal
from precook.store.space import ALL_DEAD, Tally, Victims, plan_space
from precook.store.workings import Workings
from precook.units import format_duration

_ATTEMPTS = 8
_STEP = 4096
"""Bytes more that are evicted when a rewritten pack comes out larger than was thought."""


def plan_eviction(
    workings: Workings,
    max_bytes: int,
    *,
    grace: float = 0.0,
    touched: KeySet | None = None,
    report: Reporter = SILENT,
) -> RemovalPlan:
    """What has to go so that all packs together take `max_bytes` at most.

    Where protection leaves no room, `plan.size_after` is larger. The latest snapshot of each dataset, pinned ones and
    leases keep what they name; so does this run what it has `touched`.
    """
    census = Census(workings.layout, workings.index)
    protectors: list[Protector] = []
    if touched is not None:
        protectors.append(Named("used by this run", keyset([touched])))
    if grace:
        protectors.append(Young(f"younger than {format_duration(grace)}", census.now - int(grace * 1e9)))

    def limit(census: Census, tally: Tally, victims: Victims) -> Victims:
        return _first(workings, census, tally, victims, max_bytes)

    return plan_removal(
        workings,
        "evict",
        protection=Protection(workings.layout, Roots()),
        protectors=protectors,
        reason="least recently used",
        limit=limit,
        # Below the limit nothing is rewritten for the sake of it.
        thresholds=ALL_DEAD if int(census.nbytes.sum()) > max_bytes else None,
        census=census,
        report=report,
    )


def _first(workings: Workings, census: Census, tally: Tally, victims: Victims, max_bytes: int) -> Victims:
    """The least recently used of those that may go: as few as it takes."""
    total = int(census.nbytes.sum())
    if total <= max_bytes:
        return victims[:0]
    # Without a look at their heads: what a pack takes beside its dead rows.
    gone = tally.rows == 0
    base = int(np.where(gone, 0, census.nbytes - (census.payload - tally.nbytes)).sum())
    victims = victims[np.lexsort((victims["row"], victims["pack"], victims["time"]))]
    freed = np.cumsum(victims["nbytes"] + _overheads(census, tally, victims))
    wanted = base - max_bytes
    for _ in range(_ATTEMPTS):
        count = int(np.searchsorted(freed, wanted)) + 1 if wanted > 0 else 0
        chosen = victims[:count]
        size = total - plan_space(workings, census, tally, chosen, ALL_DEAD).freed
        if size <= max_bytes or count >= len(victims):
            break
        wanted += size - max_bytes + _STEP
    return chosen


def _overheads(census: Census, tally: Tally, victims: Victims) -> Numbers:
    """What a pack takes beside its rows goes with the last of them."""
    packs = victims["pack"]
    order = np.argsort(packs, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(packs[order], packs[order])
    last = rank + 1 == tally.rows[packs]
    return np.where(last, (census.nbytes - census.payload)[packs], 0)
