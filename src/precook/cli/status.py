"""`precook status`: what a store holds and what it takes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output
from precook.cli.output import Column, Line, Span
from precook.cli.projects import DEFAULT, find_config
from precook.cli.recipes import SHORT, read_recipe
from precook.cli.stores import open_to_read
from precook.store.snapshots import SnapshotFile
from precook.store.stats import RecipeStats, Stats
from precook.units import format_age, format_count, format_size, utc_time

if TYPE_CHECKING:
    from precook.plan.plan import Plan

_FEW = 10
_DIGITS = 16


def run(store: Path | None, config: Path | None, *, as_json: bool) -> None:
    """Show what the store holds and, where there is a config, how its dataset stands."""
    plan = None
    with contextlib.ExitStack() as stack:
        if config is not None or (store is None and DEFAULT.is_file()):
            from precook.project import load  # noqa: PLC0415 - only where there is a project

            project = stack.enter_context(load(find_config(config)))
            plan = project.plan(write=False, report=output.reporter())
            store = store or project.store_path
        opened = stack.enter_context(open_to_read(store))
        stats = opened.stats()
        snapshots = opened.snapshots()
    if as_json:
        output.document({**_document(stats), "snapshots": _snapshots(snapshots), **_dataset(plan)})
    else:
        _show(stats)
        _show_snapshots(snapshots)
        if plan is not None:
            output.line()
            output.lines(str(plan).splitlines())


def _dataset(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    encoders = [
        {"name": name, "ready": len(one.ready), "missing": len(one.missing), "failed": len(one.failures)}
        for name, one in plan.encoders.items()
    ]
    samples = plan.samples.count - len(plan.framed.problems)
    dataset = {"name": plan.settings.dataset, "samples": samples, "encoders": encoders, "failed": len(plan.failed)}
    return {"dataset": dataset}


def _snapshots(snapshots: list[SnapshotFile]) -> list[dict[str, Any]]:
    return [
        {"dataset": one.dataset, "number": one.number, "id": one.id, "bytes": one.path.stat().st_size}
        for one in snapshots
    ]


def _show_snapshots(snapshots: list[SnapshotFile]) -> None:
    if not snapshots:
        return
    output.line()
    rows = [
        (one.dataset, f"{one.number}", format_size(int(status.st_size)), format_age(time.time() - status.st_mtime))
        for one in snapshots
        for status in (one.path.stat(),)
    ]
    columns = [Column("snapshot of", wrap=True), *(Column(name, right=True) for name in ("number", "size", "made"))]
    output.table(columns, rows)


def _document(stats: Stats) -> dict[str, Any]:
    return {
        "path": str(stats.path.resolve()),
        "format": stats.format,
        "id": stats.id,
        "entries": stats.entries,
        "packs": stats.packs,
        "logical_bytes": stats.payload_bytes,
        "disk_bytes": stats.pack_bytes,
        "overhead_bytes": _overhead(stats),
        "index_bytes": stats.index_bytes,
        "recipes": [_recipe_document(recipe) for recipe in _by_size(stats)],
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


def _show(stats: Stats) -> None:
    output.facts(
        [
            ("store", f"{stats.path.resolve()}  (format {stats.format})"),
            ("entries", f"{stats.entries:,} in {format_count(stats.packs, 'pack')}"),
            ("logical", format_size(stats.payload_bytes)),
            ("on disk", f"{format_size(stats.pack_bytes)}{_overhead_text(stats)}"),
            ("index", format_size(stats.index_bytes) if stats.index_bytes else "none; `precook reindex` makes one"),
        ]
    )
    if stats.recipes:
        output.line()
        output.table(_RECIPE_COLUMNS, [_recipe_row(recipe, stats, time.time()) for recipe in _by_size(stats)])
    _show_damage(stats)


_RECIPE_COLUMNS = [
    Column("recipe", wrap=True),
    Column("digest"),
    Column("entries", right=True),
    Column("size", right=True),
    Column("newest", right=True),
    Column(),
]


def _recipe_row(recipe: RecipeStats, stats: Stats, now: float) -> list[Line]:
    info = read_recipe(recipe.form)
    return [
        info.kind if info else Span("no recipe", "dim"),
        Span(info.hex[:SHORT] if info else "", "dim"),
        f"{recipe.entries:,}",
        format_size(recipe.nbytes),
        format_age(now - recipe.newest),
        Span(output.share(recipe.nbytes, stats.payload_bytes), "cyan"),
    ]


def _show_damage(stats: Stats) -> None:
    packs = [(f"{name[:_DIGITS]}…", reason) for name, reason in stats.bad_packs]
    entries = [(f"{key.hex[:_DIGITS]}…", reason) for key, reason in stats.damaged]
    for title, found in (("unusable pack", packs), ("damaged entry", entries)):
        if not found:
            continue
        output.line()
        output.line(Span(format_count(len(found), title), "bold red"))
        shown = [(f"  {name}", reason) for name, reason in found[:_FEW]]
        if len(found) > _FEW:
            shown.append(("  …", f"{len(found) - _FEW:,} more"))
        output.table([Column(), Column(wrap=True)], shown)
    if packs or entries:
        output.hint(
            "`precook verify` checks every byte and names the files; what is damaged is encoded again when needed"
        )


def _by_size(stats: Stats) -> list[RecipeStats]:
    return sorted(stats.recipes, key=lambda recipe: (-recipe.nbytes, recipe.form))


def _overhead(stats: Stats) -> int:
    return max(stats.pack_bytes - stats.payload_bytes, 0)


def _overhead_text(stats: Stats) -> str:
    if not stats.entries or not stats.payload_bytes:
        return ""
    percent = 100 * _overhead(stats) / stats.payload_bytes
    each = _overhead(stats) / stats.entries
    return f"  (overhead {format_size(_overhead(stats))}, {percent:.2g}%, {each:,.0f} bytes for each entry)"
