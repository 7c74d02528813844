"""`precook leases`: who uses a store right now, and what it keeps for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, StoreOption, YesOption, open_to_read, open_to_write
from precook.cli.output import TableColumn
from precook.units import format_age, utc_time

if TYPE_CHECKING:
    from precook.store.lease import Holder

_SHORT_ID = 8


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    break_id: Annotated[
        str | None,
        typer.Option("--break", metavar="ID", help="Take this lease from its holder, by its first digits."),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show who uses the store right now, and what it keeps for them."""
    if break_id is not None and yes:
        with open_to_write(config, store) as opened:
            broken = [opened.break_lease(break_id)]
    else:
        with open_to_read(config, store) as opened:
            broken, holders = [], opened.leases()
            if break_id is not None:
                holders = [holder for holder in holders if holder.id.startswith(break_id)]
    shown = broken or holders
    if as_json:
        output.document({"leases": [_document(holder) for holder in shown], "broken": bool(broken)})
        return
    if not shown:
        output.line("no leases" if break_id is None else f"no lease begins with {break_id!r}")
        return
    now = time.time()
    rows = [
        (
            holder.id[:_SHORT_ID],
            holder.purpose,
            f"{holder.keys:,}",
            f"{holder.pid}",
            holder.host,
            format_age(now - holder.since),
        )
        for holder in shown
    ]
    columns = [
        TableColumn("lease"),
        TableColumn("purpose", wrap=True),
        TableColumn("entries", right=True),
        TableColumn("pid", right=True),
    ]
    output.table([*columns, TableColumn("host"), TableColumn("since", right=True)], rows)
    if broken:
        output.line()
        output.line("broken: its holder stops at its next step")
    elif break_id is not None:
        output.hint("its holder would stop, and what it needs could go; the same with --yes breaks it")


def _document(holder: Holder) -> dict[str, object]:
    return {
        "id": holder.id,
        "purpose": holder.purpose,
        "entries": holder.keys,
        "pid": holder.pid,
        "host": holder.host,
        "since": utc_time(holder.since),
    }
