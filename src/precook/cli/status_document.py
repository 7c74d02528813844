"""What `precook status` tells programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from precook.cli.recipes import read_recipe
from precook.cli.status_view import View
from precook.maintain.usage import DatasetUsage, UsagePart
from precook.maintain.verify import VerifyCursor
from precook.store.snapshot import SnapshotFile
from precook.store.stats import RecipeStats
from precook.units import utc_time


def status_document(view: View) -> dict[str, Any]:
    """A view for programs."""
    usage = view.usage
    return {
        **_stats_document(view),
        "reclaimable_bytes": view.reclaimable,
        "unnamed": {"entries": usage.unnamed.entries, "bytes": usage.unnamed.nbytes},
        "datasets": [_dataset_document(one) for one in usage.datasets],
        "ages": [_part_document(part) for part in usage.ages],
        "snapshots": _snapshots(view.snapshots),
        "failures": view.failures,
        "runs": [{**asdict(run), "started": utc_time(run.started)} for run in view.runs],
        "leases": [{**asdict(holder), "since": utc_time(holder.since)} for holder in view.leases],
        "verified": _pass_document(view.verified) if view.verified else None,
    }


def _snapshots(snapshots: list[SnapshotFile]) -> list[dict[str, Any]]:
    return [
        {
            "dataset": one.dataset,
            "number": one.number,
            "id": one.id,
            "bytes": status.st_size,
            "created": utc_time(int(status.st_mtime)),
        }
        for one in snapshots
        for status in (one.path.stat(),)
    ]


def _dataset_document(one: DatasetUsage) -> dict[str, Any]:
    return {
        "dataset": one.dataset,
        "snapshot": one.snapshot.id,
        "snapshots": one.snapshots,
        "samples": one.samples,
        "entries": one.entries,
        "bytes": one.nbytes,
        "shared_bytes": one.shared,
        "resolutions": [_part_document(part) for part in one.resolutions],
    }


def _part_document(part: UsagePart) -> dict[str, Any]:
    return {"name": part.name, "entries": part.entries, "bytes": part.nbytes}


def _pass_document(done: VerifyCursor) -> dict[str, Any]:
    return {
        "began": utc_time(done.began),
        "finished": utc_time(done.finished) if done.finished is not None else None,
        "packs": done.packs,
        "damaged": done.damaged,
    }


def _stats_document(view: View) -> dict[str, Any]:
    stats = view.stats
    return {
        "path": str(stats.path.resolve()),
        "format": stats.format or None,
        "id": stats.id or None,
        "entries": stats.entries,
        "packs": stats.packs,
        "logical_bytes": stats.payload_bytes,
        "disk_bytes": stats.pack_bytes,
        "overhead_bytes": view.overhead,
        "index_bytes": stats.index_bytes,
        "recipes": [_recipe_document(recipe) for recipe in view.recipes],
        "damaged_entries": [{"key": key.hex, "reason": reason} for key, reason in stats.damaged],
        "unusable_packs": [{"pack": name, "reason": reason} for name, reason in stats.bad_packs],
    }


def _recipe_document(recipe: RecipeStats) -> dict[str, Any]:
    info = read_recipe(recipe.form)
    return {
        "kind": info.kind if info else None,
        "digest": info.hex if info else None,
        "entries": recipe.entries,
        "bytes": recipe.nbytes,
        "newest": utc_time(recipe.newest),
    }
