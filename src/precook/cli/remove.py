"""What `gc`, `evict`, `prune` and `clear` share: show what goes and what stays and why, and with --yes remove it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output, progress
from precook.cli.options import open_to_read, open_to_write
from precook.cli.output import Line, Span, TableColumn
from precook.errors import SOME_FAILED
from precook.units import format_count, format_size

if TYPE_CHECKING:
    from precook.errors import StoreReadError
    from precook.maintain.remove import Removal, RemovalPlan, RemovalShare


def plan_and_remove(
    config: Path | None, store: Path | None, planner: Callable[..., RemovalPlan], *, yes: bool, as_json: bool
) -> tuple[int, int]:
    """Plan, show, and with `yes` do it; the bytes that all packs then take, and the exit code."""
    with open_to_write(config, store) if yes else open_to_read(config, store) as opened:
        plan = planner(opened, report=progress.reporter())
        document = _document(plan)  # before the removal: it tells what was planned
        if not as_json:
            _show(plan)
        removal = plan.execute(progress.reporter()) if yes and not plan.empty else None
        if as_json:
            output.document({**document, "removed": _removal_document(removal) if removal is not None else None})
        elif removal is not None:
            _show_removal(removal)
        elif not plan.empty:
            output.hint("nothing was changed; the same with --yes does it")
        unread = removal.unread if removal is not None else plan.unread
        if not as_json:
            show_unread(unread)
        return plan.size_after, SOME_FAILED if unread else 0


def _document(plan: RemovalPlan) -> dict[str, Any]:
    return {
        "entries": plan.entries,
        "bytes": plan.nbytes,
        "goes": [_share_document(share) for share in plan.goes],
        "kept": [_share_document(share) for share in plan.kept],
        "snapshots": [{"dataset": file.dataset, "number": file.number, "id": file.id} for file in plan.snapshots],
        "packs_unlinked": list(plan.unlink),
        "packs_rewritten": list(plan.rewrite),
        "freed_bytes": plan.freed,
        "dead_bytes": plan.dead,
        "disk_bytes": plan.size,
        "unread": unread_documents(plan.unread),
    }


def _share_document(share: RemovalShare) -> dict[str, Any]:
    return {"reason": share.name, "entries": share.entries, "bytes": share.nbytes}


def _removal_document(removal: Removal) -> dict[str, Any]:
    return {
        "entries": removal.entries,
        "bytes": removal.nbytes,
        "spared": removal.spared,
        "snapshots": removal.snapshots,
        "packs_unlinked": removal.packs_unlinked,
        "packs_rewritten": removal.packs_rewritten,
        "freed_bytes": removal.freed,
        "left": removal.left or None,
        "unread": unread_documents(removal.unread),
    }


def unread_documents(unread: Sequence[StoreReadError]) -> list[dict[str, str]]:
    """Packs that the system refused to read, for programs."""
    return [{"pack": str(error.path), "reason": error.reason} for error in unread]


def show_unread(unread: Sequence[StoreReadError]) -> None:
    """Say which packs were left as they are because the system refused to read them, and what to do about it."""
    for error in unread:
        output.tell(f"left as it is: {error.message}")
    if unread:
        output.hint("nothing of it is lost; try again, and if it stays so look at the disk's health")


def _show(plan: RemovalPlan) -> None:
    rows: list[list[Line]] = []
    for word, shares, style in (("goes", plan.goes, "bold red"), ("stays", plan.kept, "bold green")):
        for share in shares:
            count = format_count(share.entries, "entry")
            rows.append([Span(word, style), count, format_size(share.nbytes), share.name])
    rows += [[Span("goes", "bold red"), "1 snapshot", "", f"{file.dataset} {file.number}"] for file in plan.snapshots]
    if rows:
        output.table([TableColumn(), TableColumn(right=True), TableColumn(right=True), TableColumn(wrap=True)], rows)
        output.line()
    if plan.empty:
        output.line(f"nothing to remove: the packs take {format_size(plan.size)}")
        return
    packs = ", ".join(
        f"{format_count(number, 'pack')} {verb}"
        for number, verb in ((len(plan.unlink), "removed"), (len(plan.rewrite), "rewritten"))
        if number
    )
    # What is freed of packs stands beside what all packs take; snapshots are not in that number.
    freed = [f"{format_size(plan.packs_freed)} of {format_size(plan.size)}: {packs}"] if packs else []
    if plan.snapshots_freed:
        freed.append(f"{format_size(plan.snapshots_freed)} of {format_count(len(plan.snapshots), 'snapshot')}")
    output.line(f"frees {', and '.join(freed) or 'nothing yet'}")
    if plan.dead:
        output.line(f"{format_size(plan.dead)} of removed entries stay in their packs until rewriting is worth it")


def _show_removal(removal: Removal) -> None:
    removed = format_count(removal.entries, "entry")
    if removal.snapshots:
        removed += f" and {format_count(removal.snapshots, 'snapshot')}"
    output.line([f"removed {removed}: ", Span(f"{format_size(removal.freed)} freed", "bold green")])
    if removal.spared:
        output.tell(f"{format_count(removal.spared, 'entry')} stayed, which somebody has come to need meanwhile")
    if removal.left:
        output.tell(f"not all packs were rewritten: {removal.left}")
