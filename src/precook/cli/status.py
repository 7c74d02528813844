"""`precook status`: what a store holds and what it takes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output
from precook.cli.output import Column, Line, Span
from precook.cli.projects import named_config, open_project
from precook.cli.recipes import SHORT, read_recipe
from precook.cli.stores import open_to_read
from precook.errors import DamagedPackError, NewerFormatError, NoStoreError, PrecookError
from precook.maintain.checking import Pass, last_full_pass, unfinished_passes
from precook.maintain.gc import plan_gc
from precook.maintain.runs import Run, read_runs
from precook.maintain.usage import DatasetUsage, Part, Usage, measure_usage
from precook.store.leases import Holder
from precook.store.snapshots import SnapshotFile
from precook.store.stats import RecipeStats, Stats
from precook.units import format_age, format_count, format_duration, format_size, utc_time

if TYPE_CHECKING:
    from precook.project import Project
    from precook.store.store import Store

_FEW = 10
_RUNS = 5
"""Builds that people see; programs see all that are remembered."""
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class View:
    """What there is to say about a store."""

    stats: Stats
    snapshots: list[SnapshotFile]
    usage: Usage
    reclaimable: int | None
    """Bytes that a collection would free now; None where nobody can say."""
    runs: list[Run]
    failures: int
    leases: list[Holder]
    verified: Pass | None
    verifying: list[Pass]


def run(config: Path | None, store: Path | None, *, as_json: bool) -> None:
    """Show what the store holds and, where there is a project, how its dataset stands.

    A store that is named by itself is shown by itself. A dataset that cannot be looked at, because a drive is not
    mounted or a model is gone, is an error that comes after the store.
    """
    if config is None and (store is not None or named_config(None) is None):
        with open_to_read(store) as opened:
            view = _look(opened)
        if as_json:
            output.document(_document(view))
        else:
            _show(view)
        return
    _run_project(config, store, as_json=as_json)


def _run_project(config: Path | None, store: Path | None, *, as_json: bool) -> None:
    with open_project(config, store) as project:
        view = _no_store(project.store_path)
        # Before the first build there is no store, and the dataset can be looked at all the same.
        with contextlib.suppress(NoStoreError), open_to_read(project.store_path) as opened:
            view = _look(opened)
        if as_json:
            _print_document(project, view)
        else:
            _show(view)
            output.line()
            output.text(str(project.plan(write=False, report=output.reporter())))


def _print_document(project: Project, view: View) -> None:
    from precook.cli.plan import counts_document  # noqa: PLC0415 - only where there is a project

    problem = None
    try:
        dataset = {**counts_document(project.plan(write=False, report=output.reporter())), "error": None}
    except PrecookError as error:
        problem, dataset = error, {"name": project.settings.dataset, "error": error.message}
    output.document({**_document(view), "dataset": dataset})
    if problem is not None:
        raise problem


def _look(store: Store) -> View:
    stats = store.stats()
    again = set(store.missing([key for key, _ in stats.damaged]))
    # What was damaged once and has been made again is no longer news.
    stats = dataclasses.replace(stats, damaged=tuple(one for one in stats.damaged if one[0] in again))
    return View(
        stats=stats,
        snapshots=store.snapshots(),
        usage=measure_usage(store),
        reclaimable=_reclaimable(store),
        runs=read_runs(store),
        failures=len(store.memory().notes("failures")),
        leases=store.leases(),
        verified=last_full_pass(store),
        verifying=unfinished_passes(store),
    )


def _reclaimable(store: Store) -> int | None:
    try:
        return plan_gc(store).freed
    except (DamagedPackError, NewerFormatError):
        return None  # a snapshot that cannot be read may name anything


def _no_store(path: Path) -> View:
    stats = Stats(
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
    return View(stats, [], Usage((), Part("", 0, 0), (), ()), 0, [], 0, [], None, [])


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


def _document(view: View) -> dict[str, Any]:
    usage = view.usage
    return {
        **_stats_document(view.stats),
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


def _part_document(part: Part) -> dict[str, Any]:
    return {"name": part.name, "entries": part.entries, "bytes": part.nbytes}


def _pass_document(done: Pass) -> dict[str, Any]:
    return {
        "began": utc_time(done.began),
        "finished": utc_time(done.finished) if done.finished is not None else None,
        "packs": done.packs,
        "damaged": done.damaged,
    }


def _stats_document(stats: Stats) -> dict[str, Any]:
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


def _show(view: View) -> None:
    stats, now = view.stats, time.time()
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
            ("gc", _reclaimable_text(view)),
            ("checked", _verified_text(view, now)),
            *([("failed", f"{view.failures:,}; `precook plan` names them")] if view.failures else []),
        ]
    )
    if stats.recipes:
        output.line()
        output.table(_RECIPE_COLUMNS, [_recipe_row(recipe, stats, now) for recipe in _by_size(stats)])
    _show_datasets(view, now)
    _show_parts("resolution", _resolutions(view.usage), stats.payload_bytes)
    ages = [part for part in view.usage.ages if part.entries]
    _show_parts("last used", ages if len(ages) > 1 else [], stats.payload_bytes)
    _show_runs(view, now)
    _show_leases(view, now)
    _show_damage(stats)


def _reclaimable_text(view: View) -> str:
    if view.reclaimable is None:
        return "unknown: a snapshot cannot be read; `precook verify` names it"
    if not view.reclaimable:
        return "nothing to collect"
    return f"would free {format_size(view.reclaimable)}; `precook gc` shows what"


def _verified_text(view: View, now: float) -> str:
    going = "; a pass is under way" if view.verifying else ""
    if view.verified is None or view.verified.finished is None:
        return f"never to the end{going}"
    verdict = format_count(view.verified.damaged, "damaged thing") if view.verified.damaged else "no damage"
    return f"{format_age(now - view.verified.finished)}: {verdict}{going}"


def _show_datasets(view: View, now: float) -> None:
    """What the latest snapshot of each dataset names."""
    usage = view.usage
    rows: list[list[Line]] = [
        [
            one.dataset,
            f"{one.samples:,}",
            f"{one.entries:,}",
            format_size(one.nbytes),
            format_size(one.shared) if one.shared else "",
            f"{one.snapshots:,}",
            f"{one.snapshot.number}{' (pinned)' if one.snapshot.pinned else ''}",
            format_age(now - one.snapshot.path.stat().st_mtime),
        ]
        for one in usage.datasets
    ]
    rows += [[file.dataset, Span("its latest snapshot cannot be read", "red"), *[""] * 6] for file in usage.unreadable]
    if not rows:
        return
    if usage.unnamed.entries:
        size = format_size(usage.unnamed.nbytes)
        rows.append([Span("no dataset", "dim"), "", f"{usage.unnamed.entries:,}", size, *[""] * 4])
    output.line()
    columns = ("samples", "entries", "size", "shared", "snapshots", "latest", "made")
    output.table([Column("dataset", wrap=True), *(Column(name, right=True) for name in columns)], rows)


def _resolutions(usage: Usage) -> list[Part]:
    """What pictures and masks take, by resolution; more than one is worth a table."""
    found = [
        Part(f"{one.dataset} {part.name}", part.entries, part.nbytes)
        for one in usage.datasets
        for part in one.resolutions
    ]
    return found if len(found) > 1 else []


def _show_parts(heading: str, parts: list[Part], whole: int) -> None:
    if not parts:
        return
    output.line()
    columns = [Column(heading, wrap=True), Column("entries", right=True), Column("size", right=True), Column()]
    rows = [
        (part.name, f"{part.entries:,}", format_size(part.nbytes), Span(output.share(part.nbytes, whole), "cyan"))
        for part in parts
    ]
    output.table(columns, rows)


def _show_runs(view: View, now: float) -> None:
    """The last builds: how much they found, and how much they made."""
    if not view.runs:
        return
    rows = [
        (
            run.dataset,
            format_age(now - run.started),
            f"{run.reused:,}",
            f"{run.encoded:,}",
            f"{run.failed:,}" if run.failed else "",
            format_duration(run.seconds),
            "stopped" if run.stopped else "",
        )
        for run in reversed(view.runs[-_RUNS:])
    ]
    output.line()
    columns = ("began", "hits", "misses", "failed", "took")
    output.table([Column("build", wrap=True), *(Column(name, right=True) for name in columns), Column()], rows)


def _show_leases(view: View, now: float) -> None:
    if not view.leases:
        return
    rows = [
        (holder.purpose, f"pid {holder.pid} on {holder.host}", format_age(now - holder.since), f"{holder.keys:,}")
        for holder in view.leases
    ]
    output.line()
    columns = [Column("lease", wrap=True), Column("holder", wrap=True), Column("since", right=True)]
    output.table([*columns, Column("entries", right=True)], rows)


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
