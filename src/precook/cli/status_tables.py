"""What `precook status` shows people: facts, then a table for each thing of which there are several."""

from __future__ import annotations

import time

from precook.cli import output
from precook.cli.output import Line, Span, TableColumn
from precook.cli.recipes import SHORT, read_recipe
from precook.cli.status_view import View
from precook.maintain.build_log import Run
from precook.maintain.usage import Usage, UsagePart
from precook.store.lease import Holder
from precook.store.stats import RecipeStats, Stats
from precook.units import format_age, format_count, format_duration, format_size

_FEW = 10
_RUNS = 5
"""Builds that people see; programs see all that are remembered."""
_DIGITS = 16
_RECIPE_COLUMNS = [
    TableColumn("recipe", wrap=True),
    TableColumn("digest"),
    TableColumn("entries", right=True),
    TableColumn("size", right=True),
    TableColumn("newest", right=True),
    TableColumn(),
]


def show_status(view: View) -> None:
    """A view for people."""
    stats, now = view.stats, time.time()
    if not stats.format:
        output.facts([("store", f"{stats.path.resolve()}  (none yet: the first build makes it)")])
        return
    output.facts(
        [
            ("store", f"{stats.path.resolve()}  (format {stats.format})"),
            ("entries", f"{stats.entries:,} in {format_count(stats.packs, 'pack')}"),
            ("logical", format_size(stats.payload_bytes)),
            ("on disk", f"{format_size(stats.pack_bytes)}{_overhead_text(view)}"),
            ("index", format_size(stats.index_bytes) if stats.index_bytes else "none; `precook reindex` makes one"),
            ("gc", _reclaimable_text(view)),
            ("checked", _verified_text(view, now)),
            *([("failed", f"{view.failures:,}; `precook plan` names them")] if view.failures else []),
        ]
    )
    if stats.recipes:
        output.line()
        output.table(_RECIPE_COLUMNS, [_recipe_row(recipe, stats, now) for recipe in view.recipes])
    _show_datasets(view, now)
    _show_parts("resolution", _resolutions(view.usage), stats.payload_bytes)
    ages = [part for part in view.usage.ages if part.entries]
    _show_parts("last used", ages if len(ages) > 1 else [], stats.payload_bytes)
    _show_runs(view, now)
    _show_leases(view, now)
    _show_damage(stats)


def _overhead_text(view: View) -> str:
    stats = view.stats
    if not stats.entries or not stats.payload_bytes:
        return ""
    percent = 100 * view.overhead / stats.payload_bytes
    each = view.overhead / stats.entries
    share = f"{percent:.2g}" if percent < 100 else f"{percent:,.0f}"  # noqa: PLR2004 - else 7e+02
    return f"  (overhead {format_size(view.overhead)}, {share}%, {each:,.0f} bytes for each entry)"


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
    output.table([TableColumn("dataset", wrap=True), *(TableColumn(name, right=True) for name in columns)], rows)


def _resolutions(usage: Usage) -> list[UsagePart]:
    """What pictures and masks take, by resolution; more than one is worth a table."""
    found = [
        UsagePart(f"{one.dataset} {part.name}", part.entries, part.nbytes)
        for one in usage.datasets
        for part in one.resolutions
    ]
    return found if len(found) > 1 else []


def _show_parts(heading: str, parts: list[UsagePart], whole: int) -> None:
    if not parts:
        return
    output.line()
    columns = [
        TableColumn(heading, wrap=True),
        TableColumn("entries", right=True),
        TableColumn("size", right=True),
        TableColumn(),
    ]
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
            _run_notes(run),
        )
        for run in reversed(view.runs[-_RUNS:])
    ]
    output.line()
    columns = ("began", "hits", "misses", "failed", "took")
    output.table(
        [TableColumn("build", wrap=True), *(TableColumn(name, right=True) for name in columns), TableColumn()], rows
    )


def _run_notes(run: Run) -> str:
    shared = f"{run.processes:,} processes" if run.processes > 1 else ""
    return ", ".join(note for note in (shared, "stopped" if run.stopped else "") if note)


def _show_leases(view: View, now: float) -> None:
    """Who holds leases; processes of one machine that do the same, as those of one build, stand together."""
    if not view.leases:
        return
    together: dict[tuple[str, str], list[Holder]] = {}
    for holder in view.leases:
        together.setdefault((holder.purpose, holder.host), []).append(holder)
    rows = []
    for (purpose, host), holders in together.items():
        processes = {one.pid for one in holders}
        who = f"pid {holders[0].pid}" if len(processes) == 1 else f"{len(processes):,} processes"
        since, keys = min(one.since for one in holders), max(one.keys for one in holders)
        rows.append((purpose, f"{who} on {host}", format_age(now - since), f"{keys:,}"))
    output.line()
    columns = [TableColumn("lease", wrap=True), TableColumn("holder", wrap=True), TableColumn("since", right=True)]
    output.table([*columns, TableColumn("entries", right=True)], rows)


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
        output.table([TableColumn(), TableColumn(wrap=True)], shown)
    if packs or entries:
        output.hint(
            "`precook verify` checks every byte and names the files; what is damaged is encoded again when needed"
        )
