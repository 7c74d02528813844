"""`precook status`: what a store holds and what it takes, and how the dataset stands."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output, progress
from precook.cli.options import (
    ConfigOption,
    JsonOption,
    NoCodeOption,
    StoreOption,
    named_config,
    open_project,
    open_to_read,
)
from precook.cli.output import Line, Span, TableColumn
from precook.errors import DamagedPackError, NewerFormatError, NoStoreError, PrecookError, StoreReadError
from precook.units import format_age, format_count, format_duration, format_size, utc_time

if TYPE_CHECKING:
    import os

    from precook.maintain.build_log import Run
    from precook.maintain.usage import Usage, UsagePart
    from precook.maintain.verify import VerifyCursor
    from precook.project import Project
    from precook.store.internals import RecipeStats, Stats
    from precook.store.lease import Holder
    from precook.store.remote.url import StoreUrl
    from precook.store.snapshot import SnapshotFile
    from precook.store.store import Store

_MOST_DAMAGE = 10
_MOST_RUNS = 5
"""Builds that people see; programs see all that are remembered."""
_NAME_DIGITS = 16


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    no_code: NoCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a store holds and how the dataset stands.

    With a config the dataset is planned, too, and nothing is written; with --store alone only the store is shown.
    """
    if config is None and (store is not None or named_config(None) is None):
        with open_to_read(None, store) as opened:
            view = look_at(opened)
        if as_json:
            output.document(_document(view))
        else:
            _show(view)
        return
    with open_project(config, store, code=not no_code) as project:
        view = _no_store(project.store_path)
        # Before the first build there is no store, and the dataset can be looked at all the same.
        with contextlib.suppress(NoStoreError), open_to_read(None, project.store_path) as opened:
            view = look_at(opened)
        # The dataset comes after the store: where it cannot be planned, because a drive is not mounted or a model is
        # gone, that is an error, and the store was shown before it.
        if as_json:
            _print_with_dataset(project, _document(view))
        else:
            _show(view)
            output.line()
            output.text(str(project.plan(write=False, report=progress.reporter())))


def _print_with_dataset(project: Project, document: dict[str, Any]) -> None:
    from precook.cli.plan import counts_document

    problem = None
    try:
        dataset = {**counts_document(project.plan(write=False, report=progress.reporter())), "error": None}
    except PrecookError as error:
        problem, dataset = error, {"name": project.settings.dataset, "error": error.message}
    output.document({**document, "dataset": dataset})
    if problem is not None:
        raise problem


@dataclass(frozen=True, slots=True)
class StoreView:
    """What there is to say about a store."""

    stats: Stats
    snapshots: list[SnapshotFile]
    usage: Usage
    reclaimable: int | None
    """Bytes that a collection would free now; None where nobody can say."""
    runs: list[Run]
    failures: int
    leases: list[Holder]
    verified: VerifyCursor | None
    """The last verification that looked at everything."""
    verifying: list[VerifyCursor]
    """Verifications that were cut short and go on with the next run."""

    @property
    def recipes(self) -> list[RecipeStats]:
        """What the recipes made, the largest part first."""
        return sorted(self.stats.recipes, key=lambda recipe: (-recipe.nbytes, recipe.form))

    @property
    def overhead(self) -> int:
        """Bytes that packs take beside the entries."""
        return max(self.stats.pack_bytes - self.stats.payload_bytes, 0)


def look_at(store: Store) -> StoreView:
    """Look at a store; nothing of it is changed."""
    from precook.maintain.build_log import read_runs
    from precook.maintain.gc import plan_gc
    from precook.maintain.usage import measure_usage
    from precook.maintain.verify import last_full_verification, unfinished_verifications

    stats = store.stats()
    still_missing = set(store.missing([key for key, _ in stats.damaged]))
    # What was damaged once and has been made again is no longer news.
    damaged = tuple((key, reason) for key, reason in stats.damaged if key in still_missing)
    reclaimable = None
    # A snapshot that cannot be read may name anything: nobody can say what would go.
    with contextlib.suppress(DamagedPackError, StoreReadError, NewerFormatError):
        reclaimable = plan_gc(store).freed if store.location == store.path else None
    return StoreView(
        stats=dataclasses.replace(stats, damaged=damaged),
        snapshots=store.snapshots(),
        usage=measure_usage(store),
        reclaimable=reclaimable,
        runs=read_runs(store),
        failures=len(store.memory().notes("failures")),
        leases=store.leases(),
        verified=last_full_verification(store),
        verifying=unfinished_verifications(store),
    )


def _place(stats: Stats) -> str:
    return stats.path if isinstance(stats.path, str) else str(stats.path.resolve())


def _no_store(place: Path | StoreUrl) -> StoreView:
    """The view of a store that no build has made yet."""
    from precook.maintain.usage import Usage, UsagePart
    from precook.store.internals import Stats

    path = place if isinstance(place, Path) else str(place)
    return StoreView(Stats(path), [], Usage((), UsagePart("", 0, 0), (), ()), 0, [], 0, [], None, [])


def _document(view: StoreView) -> dict[str, Any]:
    stats, usage, verified = view.stats, view.usage, view.verified
    return {
        "path": _place(stats),
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
        "reclaimable_bytes": view.reclaimable,
        "unnamed": {"entries": usage.unnamed.entries, "bytes": usage.unnamed.nbytes},
        "datasets": [
            {
                "dataset": dataset.dataset,
                "snapshot": dataset.snapshot.id,
                "snapshots": dataset.snapshots,
                "samples": dataset.samples,
                "entries": dataset.entries,
                "bytes": dataset.nbytes,
                "shared_bytes": dataset.shared,
                "resolutions": [_part_document(part) for part in dataset.resolutions],
            }
            for dataset in usage.datasets
        ],
        "ages": [_part_document(part) for part in usage.ages],
        "snapshots": [
            _snapshot_document(snapshot, status)
            for snapshot in view.snapshots
            if (status := snapshot.status()) is not None
        ],
        "failures": view.failures,
        "runs": [{**asdict(run), "started": utc_time(run.started), "hit_rate": run.hit_rate} for run in view.runs],
        "leases": [{**asdict(holder), "since": utc_time(holder.since)} for holder in view.leases],
        "verified": None
        if verified is None
        else {
            "began": utc_time(verified.began),
            "finished": utc_time(verified.finished) if verified.finished is not None else None,
            "packs": verified.packs,
            "damaged": verified.damaged,
        },
    }


def _recipe_document(recipe: RecipeStats) -> dict[str, Any]:
    from precook.cli.entries import read_recipe

    info = read_recipe(recipe.form)
    return {
        "kind": info.kind if info else None,
        "digest": info.hex if info else None,
        "entries": recipe.entries,
        "bytes": recipe.nbytes,
        "newest": utc_time(recipe.newest),
    }


def _part_document(part: UsagePart) -> dict[str, Any]:
    return {"name": part.name, "entries": part.entries, "bytes": part.nbytes}


def _snapshot_document(snapshot: SnapshotFile, file: os.stat_result) -> dict[str, Any]:
    return {
        "dataset": snapshot.dataset,
        "number": snapshot.number,
        "id": snapshot.id,
        "bytes": file.st_size,
        "created": utc_time(int(file.st_mtime)),
    }


def _show(view: StoreView) -> None:
    """Facts, then a table for each thing of which there are several."""
    stats, now = view.stats, time.time()
    if not stats.format:
        output.facts([("store", f"{_place(stats)}  (none yet: the first build makes it)")])
        return
    output.facts(
        [
            ("store", f"{_place(stats)}  (format {stats.format})"),
            ("entries", f"{stats.entries:,} in {format_count(stats.packs, 'pack')}"),
            ("logical", format_size(stats.payload_bytes)),
            ("on disk", f"{format_size(stats.pack_bytes)}{_overhead_text(view)}"),
            ("index", format_size(stats.index_bytes) if stats.index_bytes else "none; `precook reindex` makes one"),
            ("gc", _reclaimable_text(view)),
            ("checked", _verified_text(view, now)),
            *([("failed", f"{view.failures:,}; `precook plan` names them")] if view.failures else []),
        ]
    )
    _show_recipes(view, now)
    _show_datasets(view.usage, now)
    resolutions = [
        dataclasses.replace(part, name=f"{dataset.dataset} {part.name}")
        for dataset in view.usage.datasets
        for part in dataset.resolutions
    ]
    _show_parts("resolution", resolutions, stats.payload_bytes)
    _show_parts("last used", [part for part in view.usage.ages if part.entries], stats.payload_bytes)
    _show_runs(view.runs, now)
    _show_leases(view.leases, now)
    _show_damage(stats)


def _overhead_text(view: StoreView) -> str:
    stats = view.stats
    if not stats.entries or not stats.payload_bytes:
        return ""
    percent = 100 * view.overhead / stats.payload_bytes
    each = view.overhead / stats.entries
    share = f"{percent:.2g}" if percent < 100 else f"{percent:,.0f}"  # noqa: PLR2004 - else 7e+02
    return f"  (overhead {format_size(view.overhead)}, {share}%, {each:,.0f} bytes for each entry)"


def _reclaimable_text(view: StoreView) -> str:
    if isinstance(view.stats.path, str):
        return "nothing is removed from a bucket yet"
    if view.reclaimable is None:
        return "unknown: a snapshot cannot be read; `precook verify` names it"
    if not view.reclaimable:
        return "nothing to collect"
    return f"would free {format_size(view.reclaimable)}; `precook gc` shows what"


def _verified_text(view: StoreView, now: float) -> str:
    under_way = "; a pass is under way" if view.verifying else ""
    if view.verified is None or view.verified.finished is None:
        return f"never to the end{under_way}"
    verdict = format_count(view.verified.damaged, "damaged thing") if view.verified.damaged else "no damage"
    return f"{format_age(now - view.verified.finished)}: {verdict}{under_way}"


def _show_table(first: str, numbers: tuple[str, ...], rows: list[list[Line]], *, last: bool = False) -> None:
    """A table below an empty line: names that may wrap, numbers to the right, and perhaps a `last` column for notes."""
    if not rows:
        return
    columns = [TableColumn(first, wrap=True), *(TableColumn(name, right=True) for name in numbers)]
    output.line()
    output.table([*columns, TableColumn()] if last else columns, rows)


def _show_recipes(view: StoreView, now: float) -> None:
    from precook.cli.entries import SHORT_DIGEST, read_recipe

    if not view.recipes:
        return
    rows: list[list[Line]] = []
    for recipe in view.recipes:
        info = read_recipe(recipe.form)
        rows.append(
            [
                info.kind if info else Span("no recipe", "dim"),
                Span(info.hex[:SHORT_DIGEST] if info else "", "dim"),
                f"{recipe.entries:,}",
                format_size(recipe.nbytes),
                format_age(now - recipe.newest),
                Span(output.share(recipe.nbytes, view.stats.payload_bytes), "cyan"),
            ]
        )
    numbers = [TableColumn(name, right=True) for name in ("entries", "size", "newest")]
    output.line()
    output.table([TableColumn("recipe", wrap=True), TableColumn("digest"), *numbers, TableColumn()], rows)


def _show_datasets(usage: Usage, now: float) -> None:
    """What the latest snapshot of each dataset names."""
    rows: list[list[Line]] = [
        [
            dataset.dataset,
            f"{dataset.samples:,}",
            f"{dataset.entries:,}",
            format_size(dataset.nbytes),
            format_size(dataset.shared) if dataset.shared else "",
            f"{dataset.snapshots:,}",
            f"{dataset.snapshot.number}{' (pinned)' if dataset.snapshot.pinned else ''}",
            format_age(now - status.st_mtime) if (status := dataset.snapshot.status()) is not None else "removed",
        ]
        for dataset in usage.datasets
    ]
    rows += [[file.dataset, Span("its latest snapshot cannot be read", "red"), *[""] * 6] for file in usage.unreadable]
    if rows and usage.unnamed.entries:
        size = format_size(usage.unnamed.nbytes)
        rows.append([Span("no dataset", "dim"), "", f"{usage.unnamed.entries:,}", size, *[""] * 4])
    _show_table("dataset", ("samples", "entries", "size", "shared", "snapshots", "latest", "made"), rows)


def _show_parts(heading: str, parts: list[UsagePart], whole: int) -> None:
    """What each part takes of the whole; one part alone needs no table."""
    rows: list[list[Line]] = [
        [part.name, f"{part.entries:,}", format_size(part.nbytes), Span(output.share(part.nbytes, whole), "cyan")]
        for part in parts
    ]
    _show_table(heading, ("entries", "size"), rows if len(rows) > 1 else [], last=True)


def _show_runs(runs: list[Run], now: float) -> None:
    """The last builds and runs of fronts: how much they found, and how much they made."""
    rows: list[list[Line]] = []
    for run in reversed(runs[-_MOST_RUNS:]):
        processes = f"{run.processes:,} processes" if run.processes > 1 else ""
        rows.append(
            [
                run.dataset,
                format_age(now - run.started),
                f"{run.reused:,}",
                f"{run.encoded:,}",
                f"{run.hit_rate:.1%}",
                f"{run.failed:,}" if run.failed else "",
                format_duration(run.seconds),
                ", ".join(note for note in (processes, "stopped" if run.stopped else "") if note),
            ]
        )
    _show_table("build", ("began", "hits", "misses", "hit rate", "failed", "took"), rows, last=True)


def _show_leases(leases: list[Holder], now: float) -> None:
    """Who holds leases; processes of one machine that do the same, as those of one build, stand together."""
    if not leases:
        return
    together: dict[tuple[str, str], list[Holder]] = {}
    for holder in leases:
        together.setdefault((holder.purpose, holder.host), []).append(holder)
    rows = []
    for (purpose, host), holders in together.items():
        processes = {holder.pid for holder in holders}
        who = f"pid {holders[0].pid}" if len(processes) == 1 else f"{len(processes):,} processes"
        since, keys = min(holder.since for holder in holders), max(holder.keys for holder in holders)
        rows.append((purpose, f"{who} on {host}", format_age(now - since), f"{keys:,}"))
    output.line()
    columns = [TableColumn("lease", wrap=True), TableColumn("holder", wrap=True), TableColumn("since", right=True)]
    output.table([*columns, TableColumn("entries", right=True)], rows)


def _show_damage(stats: Stats) -> None:
    packs = [(f"{name[:_NAME_DIGITS]}…", reason) for name, reason in stats.bad_packs]
    entries = [(f"{key.hex[:_NAME_DIGITS]}…", reason) for key, reason in stats.damaged]
    for noun, damaged in (("unusable pack", packs), ("damaged entry", entries)):
        if not damaged:
            continue
        output.line()
        output.line(Span(format_count(len(damaged), noun), "bold red"))
        rows = [(f"  {name}", reason) for name, reason in damaged[:_MOST_DAMAGE]]
        if len(damaged) > _MOST_DAMAGE:
            rows.append(("  …", f"{len(damaged) - _MOST_DAMAGE:,} more"))
        output.table([TableColumn(), TableColumn(wrap=True)], rows)
    if packs or entries:
        output.hint(
            "`precook verify` checks every byte and names the files; what is damaged is encoded again when needed"
        )
