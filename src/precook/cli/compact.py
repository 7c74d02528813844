"""`precook compact`: the same entries in fewer and fuller packs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from precook.cli import output, progress
from precook.cli.options import ConfigOption, JsonOption, StoreOption, YesOption, open_to_read, open_to_write
from precook.cli.output import Span
from precook.cli.remove import show_unread, unread_documents
from precook.errors import SOME_FAILED
from precook.units import format_count, format_size

if TYPE_CHECKING:
    from precook.maintain.compact import Compaction, CompactPlan


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Rewrite packs with much dead space and merge small ones.

    No entry is lost. It is a preview until --yes.
    """
    from precook.maintain.compact import plan_compact

    with open_to_write(config, store) if yes else open_to_read(config, store) as opened:
        plan = plan_compact(opened, report=progress.reporter())
        if not as_json:
            _show(plan)
        compaction = plan.execute(progress.reporter()) if yes and not plan.empty else None
    if as_json:
        output.document(_document(plan, compaction))
    elif compaction is not None:
        count = format_count(compaction.packs_written, "new pack")
        output.line([f"compacted into {count}: ", Span(f"{format_size(compaction.freed)} freed", "bold green")])
    elif not plan.empty:
        output.hint("nothing was changed; the same with --yes does it")
    unread = compaction.unread if compaction is not None else plan.unread
    if not as_json:
        show_unread(unread)
    return SOME_FAILED if unread else 0


def _show(plan: CompactPlan) -> None:
    if plan.empty:
        output.line(f"nothing to compact: {format_count(plan.packs, 'pack')}, {format_size(plan.size)}")
        return
    rewritten = sum(len(group.packs) for group in plan.groups)
    output.facts(
        [
            (
                "packs",
                f"{plan.packs:,} → {plan.packs_after:,}: {rewritten:,} rewritten, {len(plan.unlink):,} removed",
            ),
            ("copies", f"{format_count(plan.copies, 'entry')} in more than one pack"),
            ("frees", f"{format_size(plan.freed)} of {format_size(plan.size)}"),
            ("needs", f"{format_size(plan.scratch)} of free space meanwhile"),
        ]
    )


def _document(plan: CompactPlan, compaction: Compaction | None) -> dict[str, Any]:
    return {
        "packs": plan.packs,
        "packs_after": plan.packs_after,
        "groups": [
            {"packs": list(group.packs), "bytes": group.nbytes, "bytes_after": group.size} for group in plan.groups
        ],
        "packs_unlinked": list(plan.unlink),
        "copies": plan.copies,
        "freed_bytes": plan.freed,
        "scratch_bytes": plan.scratch,
        "disk_bytes": plan.size,
        "unread": unread_documents(plan.unread),
        "done": None
        if compaction is None
        else {
            "copies": compaction.copies,
            "packs_unlinked": compaction.packs_unlinked,
            "packs_rewritten": compaction.packs_rewritten,
            "packs_written": compaction.packs_written,
            "freed_bytes": compaction.freed,
            "unread": unread_documents(compaction.unread),
        },
    }
