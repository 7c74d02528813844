"""Collecting the store of an mgds cache without a pipeline: what the button "Clean Cache" of a trainer does.

A group's snapshot says where its files lay. A file that is gone, from a folder that is still there, needs its entries
no more; a start would notice that as well, but nobody starts a training to clean up. A whole folder that is not there
may be a drive that is not mounted: what came from it stays.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.integrations.mgds.cache import FOLDER
from precook.integrations.mgds.sourceless import GroupSnapshot, read_group, write_members
from precook.maintain.gc import GRACE, plan_gc
from precook.maintain.protect import ProtectedAge, ProtectedKeys, Protection, Roots
from precook.maintain.remove import Removal, RemovalPlan, find_candidates, plan_removal
from precook.open_store import open_store
from precook.report import SILENT, Reporter
from precook.store.index.scan import EntryScan
from precook.store.keysets import in_columns
from precook.store.snapshot import SnapshotFile, list_snapshots
from precook.store.store import Store
from precook.units import format_duration


@dataclass(frozen=True, slots=True)
class _Shrunk:
    """A group some of whose files are gone."""

    dataset: str
    group: GroupSnapshot
    stays: npt.NDArray[np.bool_]
    """Which members still have their file."""


def gc_preview(cache_dir: str | os.PathLike[str], *, grace: float = GRACE) -> RemovalPlan | None:
    """What a collection of a cache's store would remove; None where no store is. It changes nothing."""
    store = _open(cache_dir)
    if store is None:
        return None
    with store:
        return plan_collection(store, grace=grace)


def gc_clean(cache_dir: str | os.PathLike[str], *, grace: float = GRACE, report: Reporter = SILENT) -> Removal | None:
    """Remove that; what was written or used less than `grace` seconds ago stays, and so does what a training uses."""
    store = _open(cache_dir)
    if store is None:
        return None
    with store:
        return collect(store, grace=grace, report=report)


def _open(cache_dir: str | os.PathLike[str]) -> Store | None:
    folder = Path(cache_dir, FOLDER)
    return open_store(folder) if folder.is_dir() else None


def plan_collection(store: Store, *, grace: float = GRACE) -> RemovalPlan:
    """What a collection would remove: entries of files that are gone, and what the latest build of no group needs."""
    store.check_removable("gc")
    internals = store.internals(create=False)
    scan = EntryScan(internals.layout, internals.index)
    since = scan.now - int(grace * 1e9)
    shrunk = _shrunk(store, since)
    roots = Roots(but={group.dataset for group in shrunk}, younger_than=since)
    snapshots = list_snapshots(internals.layout)
    keep = {file.id for file in Roots(younger_than=since).of(snapshots)}
    stays = [
        ProtectedKeys(
            f"snapshot: {group.dataset}", in_columns([keys[group.stays] for keys in group.group.keys.values()])
        )
        for group in shrunk
    ]
    young = ProtectedAge(f"younger than {format_duration(grace)}", since)
    candidates = find_candidates(scan, Protection(internals.layout, roots), [*stays, young])
    return plan_removal(
        internals,
        "gc",
        candidates,
        candidates.all(),
        reason="its file is gone, or no snapshot names it",
        snapshots=[file for file in snapshots if file.id not in keep],
    )


def collect(store: Store, *, grace: float = GRACE, report: Reporter = SILENT) -> Removal:
    """Let groups go on without the files that are gone, and remove what nobody needs then."""
    internals = store.internals(create=False)
    since = EntryScan(internals.layout, internals.index).now - int(grace * 1e9)
    for group in _shrunk(store, since):
        write_members(store, group.dataset, group.stays)
    return plan_gc(store, grace=grace, report=report).execute(report)


def _shrunk(store: Store, since: int) -> list[_Shrunk]:
    """Groups whose files are gone in part; a snapshot that is young stays as it is, as in every collection."""
    latest: dict[str, SnapshotFile] = {file.dataset: file for file in store.snapshots()}
    found = []
    for dataset, file in latest.items():
        if not dataset.startswith("mgds-") or file.path.stat().st_mtime_ns > since:
            continue
        group = read_group(store, dataset)
        paths = group.paths.get(group.source or "", [])
        stays = np.array([os.path.lexists(path) or not os.path.isdir(os.path.dirname(path)) for path in paths], bool)  # noqa: PTH112, PTH120
        if not stays.all():
            found.append(_Shrunk(dataset, group, stays))
    return found
