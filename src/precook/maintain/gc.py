"""Garbage collection: entries that no snapshot and no lease needs go, once they are old enough."""

from __future__ import annotations

from collections.abc import Sequence

from precook.maintain.protect import ProtectedAge, ProtectedStore, Protection, Protector, Roots
from precook.maintain.remove import DEFAULT, RemovalPlan, Thresholds, find_candidates, plan_removal
from precook.report import SILENT, Reporter
from precook.store.index.scan import EntryScan
from precook.store.snapshot import list_snapshots
from precook.store.store import Store
from precook.units import format_duration

GRACE = 24 * 3600.0
"""Seconds for which everything written or used stays."""


def plan_gc(
    store: Store,
    *,
    grace: float = GRACE,
    absent: Sequence[str] = (),
    thresholds: Thresholds = DEFAULT,
    report: Reporter = SILENT,
) -> RemovalPlan:
    """What a collection would remove. It changes nothing.

    Kept is what the latest snapshot of each dataset names, what pinned and young snapshots name, what a living lease
    protects, and what was written or used less than `grace` seconds ago. Snapshots that are neither latest nor pinned
    nor young go with the entries that only they name. While sources are `absent`, everything stays: a drive that is
    not mounted is no reason to forget what came from it.
    """
    store.check_removable("gc")
    internals = store.internals(create=False)
    scan = EntryScan(internals.layout, internals.index)
    since = scan.now - int(grace * 1e9)
    roots = Roots(younger_than=since)
    protectors: list[Protector] = [ProtectedStore(f"not there: {root}") for root in absent]
    protectors.append(ProtectedAge(f"younger than {format_duration(grace)}", since))
    snapshots = list_snapshots(internals.layout)
    keep = {file.id for file in roots.of(snapshots)}
    candidates = find_candidates(scan, Protection(internals.layout, roots), protectors, report=report)
    return plan_removal(
        internals,
        "gc",
        candidates,
        candidates.all(),
        reason="no snapshot names it",
        snapshots=[] if absent else [file for file in snapshots if file.id not in keep],
        thresholds=thresholds,
    )
