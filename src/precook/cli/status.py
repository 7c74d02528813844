"""`precook status`: what a store holds and what it takes."""

from __future__ import annotations

import contextlib
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output
from precook.cli.output import Column, Line, Span
from precook.cli.projects import named_config, open_project
from precook.cli.recipes import SHORT, read_recipe
from precook.cli.stores import open_to_read
from precook.errors import NoStoreError, PrecookError
from precook.store.snapshots import SnapshotFile
from precook.store.stats import RecipeStats, Stats
from precook.units import format_age, format_count, format_size, utc_time

if TYPE_CHECKING:
    from precook.project import Project

_FEW = 10
_DIGITS = 16


def run(config: Path | None, store: Path | None, *, as_json: bool) -> None:
    """Show what the store holds and, where there is a project, how its dataset stands.

    A store that is named by itself is shown by itself. A dataset that cannot be looked at, because a drive is not
    mounted or a model is gone, is an error that comes after the store.
    """
    if config is None and (store is not None or named_config(None) is None):
        with open_to_read(store) as opened:
            stats, snapshots = opened.stats(), opened.snapshots()
        if as_json:
            output.document({**_document(stats), "snapshots": _snapshots(snapshots)})
        else:
            _show(stats, snapshots)
        return
    _run_project(config, store, as_json=as_json)


def _run_project(config: Path | None, store: Path | None, *, as_json: bool) -> None:
    with open_project(config, store) as project:
        stats, snapshots = _no_store(project.store_path), list[SnapshotFile]()
        # Before the first build there is no store, and the dataset can be looked at all the same.
        with contextlib.suppress(NoStoreError), open_to_read(project.store_path) as opened:
            stats, snapshots = opened.stats(), opened.snapshots()
        if as_json:
            _print_document(project, stats, snapshots)
        else:
            _show(stats, snapshots)
            output.line()
            output.text(str(project.plan(write=False, report=output.reporter())))


def _print_document(project: Project, stats: Stats, snapshots: list[SnapshotFile]) -> None:
    from precook.cli.plan import counts_document  # noqa: PLC0415 - only where there is a project

    problem = None
    try:
        dataset = {**counts_document(project.plan(write=False, report=output.reporter())), "error": None}
    except PrecookError as error:
        problem, dataset = error, {"name": project.settings.dataset, "error": error.message}
    output.document({**_document(stats), "snapshots": _snapshots(snapshots), "dataset": dataset})
    if problem is not None:
        raise problem


def _no_store(path: Path) -> Stats:
    return Stats(
        path=path,
        format=0,
        id="",
        read_only=False,
        entries=0,
        packs=0,
        payload_bytes=0,
        pack_bytes=0,
        index_bytes=0,
        recipes=(),
        damaged=(),
        bad_packs=(),
    )


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


def _show_snapshots(snapshots: list[SnapshotFile], now: float) -> None:
    """The latest one of each dataset, and what all of them take."""
    if not snapshots:
        return
    rows = []
    for dataset, group in groupby(snapshots, key=lambda snapshot: snapshot.dataset):
        kept = list(group)
        status = [snapshot.path.stat() for snapshot in kept]
        size = format_size(sum(one.st_size for one in status))
        rows.append((dataset, f"{len(kept):,}", size, f"{kept[-1].number}", format_age(now - status[-1].st_mtime)))
    output.line()
    columns = ("snapshots", "size", "latest", "made")
    output.table([Column("dataset", wrap=True), *(Column(name, right=True) for name in columns)], rows)


def _document(stats: Stats) -> dict[str, Any]:
    return {
        "path": str(stats.path.resolve()),
        "format": stats.format or None,
        "id": stats.id or None,
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


def _show(stats: Stats, snapshots: list[SnapshotFile]) -> None:
    if not stats.format:
        output.facts([("store", f"{stats.path.resolve()}  (none yet: the first build makes it)")])
        return
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
    _show_snapshots(snapshots, time.time())
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
    share = f"{percent:.2g}" if percent < 100 else f"{percent:,.0f}"  # noqa: PLR2004 - else 7e+02
    return f"  (overhead {format_size(_overhead(stats))}, {share}%, {each:,.0f} bytes for each entry)"
