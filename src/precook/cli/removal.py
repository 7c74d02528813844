"""`precook gc`, `evict`, `prune` and `clear`: what goes, what stays and why, and with --yes the deed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.output import Column, Line, Span
from precook.cli.projects import named_config
from precook.cli.stores import open_to_read, open_to_write
from precook.maintain.evict import plan_clear, plan_evict, plan_prune
from precook.maintain.gc import plan_gc
from precook.report import Reporter
from precook.store.removal import Removal, RemovalPlan, Share
from precook.store.store import Store
from precook.units import format_count, format_size

NO_SPACE = 14
"""Exit code when a size cannot be reached."""

Planner = Callable[[Store, Reporter], RemovalPlan]


def run_gc(place: Path | None, absent: Sequence[str], *, grace: float, yes: bool, as_json: bool) -> None:
    """Collect what no snapshot and no lease needs; `absent` sources keep everything."""

    def planner(opened: Store, report: Reporter) -> RemovalPlan:
        return plan_gc(opened, grace=grace, absent=absent, report=report)

    with open_to_read(place) as opened:
        bare = not opened.snapshots()
    if bare and not as_json:
        output.tell("no dataset was frozen in this store: only age and leases keep an entry")
    _run(place, planner, yes=yes, as_json=as_json)
    if absent and not as_json:
        output.hint("mount the drive; or name the store alone, with --store DIR, to go by its snapshots")


def run_evict(place: Path | None, *, max_size: int, grace: float, yes: bool, as_json: bool) -> int:
    """Evict the least recently used entries down to a size; exit code 14 where protection leaves no room."""

    def planner(opened: Store, report: Reporter) -> RemovalPlan:
        return plan_evict(opened, max_size, grace=grace, report=report)

    size = _run(place, planner, yes=yes, as_json=as_json)
    if size <= max_size:
        return 0
    if not as_json:
        output.tell(f"{format_size(size)} stay, which is more than {format_size(max_size)}: the rest is protected")
        output.hint("end what holds leases, or let go of snapshots; `precook leases` and `precook status` show them")
    return NO_SPACE


def run_prune(place: Path | None, *, older_than: float, yes: bool, as_json: bool) -> None:
    """Remove what nobody has used for so long."""
    _run(place, lambda opened, report: plan_prune(opened, older_than, report=report), yes=yes, as_json=as_json)


def run_clear(
    place: Path | None, *, recipe: str | None, dataset: str | None, everything: bool, yes: bool, as_json: bool
) -> None:
    """Remove what somebody wants to be rid of."""

    def planner(opened: Store, report: Reporter) -> RemovalPlan:
        return plan_clear(opened, recipe=recipe, dataset=dataset, everything=everything, report=report)

    _run(place, planner, yes=yes, as_json=as_json)


def absent_sources(config: Path | None) -> list[str]:
    """The concepts of a config whose folder or table is not there; an empty folder may be where a drive belongs."""
    path = named_config(config)
    if path is None:
        return []
    from precook.config.read import read_config  # noqa: PLC0415 - only where there is a config

    places = [(concept, path.parent / concept.path) for concept in read_config(path)[0].concepts]
    return [
        f"{concept.name} ({concept.path})"
        for concept, place in places
        if not place.exists() or (place.is_dir() and not any(place.iterdir()))
    ]


def _run(place: Path | None, planner: Planner, *, yes: bool, as_json: bool) -> int:
    """Plan, show, and with `yes` do it; the bytes that all packs then take."""
    with open_to_write(place) if yes else open_to_read(place) as opened:
        plan = planner(opened, output.reporter())
        document = _document(plan)
        if not as_json:
            _show(plan)
        done = plan.execute(output.reporter()) if yes and not plan.empty else None
        if as_json:
            output.document({**document, "removed": _removed(done) if done is not None else None})
        elif done is not None:
            _show_done(done)
        elif not plan.empty:
            output.hint("nothing was changed; the same with --yes does it")
        return plan.size_after


def _document(plan: RemovalPlan) -> dict[str, Any]:
    return {
        "entries": plan.entries,
        "bytes": plan.nbytes,
        "goes": [_share(share) for share in plan.goes],
        "kept": [_share(share) for share in plan.kept],
        "snapshots": [{"dataset": file.dataset, "number": file.number, "id": file.id} for file in plan.snapshots],
        "packs_unlinked": list(plan.unlink),
        "packs_rewritten": list(plan.rewrite),
        "freed_bytes": plan.freed,
        "dead_bytes": plan.dead,
        "disk_bytes": plan.size,
    }


def _share(share: Share) -> dict[str, Any]:
    return {"reason": share.name, "entries": share.entries, "bytes": share.nbytes}


def _removed(done: Removal) -> dict[str, Any]:
    return {
        "entries": done.entries,
        "bytes": done.nbytes,
        "spared": done.spared,
        "snapshots": done.snapshots,
        "packs_unlinked": done.packs_unlinked,
        "packs_rewritten": done.packs_rewritten,
        "freed_bytes": done.freed,
        "left": done.left or None,
    }


def _show(plan: RemovalPlan) -> None:
    rows: list[list[Line]] = []
    for word, shares, style in (("goes", plan.goes, "bold red"), ("stays", plan.kept, "bold green")):
        for share in shares:
            count = format_count(share.entries, "entry")
            rows.append([Span(word, style), count, format_size(share.nbytes), share.name])
    rows += [[Span("goes", "bold red"), "1 snapshot", "", f"{file.dataset} {file.number}"] for file in plan.snapshots]
    if rows:
        output.table([Column(), Column(right=True), Column(right=True), Column(wrap=True)], rows)
        output.line()
    if plan.empty:
        output.line(f"nothing to remove: the packs take {format_size(plan.size)}")
        return
    packs = ", ".join(
        f"{format_count(number, 'pack')} {verb}"
        for number, verb in ((len(plan.unlink), "removed"), (len(plan.rewrite), "rewritten"))
        if number
    )
    output.line(f"frees {format_size(plan.freed)} of {format_size(plan.size)}{f': {packs}' if packs else ''}")
    if plan.dead:
        output.line(f"{format_size(plan.dead)} of removed entries stay in their packs until rewriting is worth it")


def _show_done(done: Removal) -> None:
    what = format_count(done.entries, "entry")
    if done.snapshots:
        what += f" and {format_count(done.snapshots, 'snapshot')}"
    output.line([f"removed {what}: ", Span(f"{format_size(done.freed)} freed", "bold green")])
    if done.spared:
        output.tell(f"{format_count(done.spared, 'entry')} stayed, which somebody has come to need meanwhile")
    if done.left:
        output.tell(f"not all packs were rewritten: {done.left}")
