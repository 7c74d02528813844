"""`precook reindex`: the index made anew from the packs."""

from __future__ import annotations

import time

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, StoreOption, open_to_write
from precook.units import format_count, format_duration


def command(*, config: ConfigOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Make the index anew from the packs."""
    started = time.monotonic()
    with open_to_write(config, store) as opened:
        entries = opened.reindex()
        packs = opened.stats().packs
    seconds = time.monotonic() - started
    if as_json:
        output.document({"entries": entries, "packs": packs, "seconds": round(seconds, 3)})
    else:
        counts = f"{format_count(entries, 'entry')} of {format_count(packs, 'pack')}"
        output.line(f"indexed {counts} in {format_duration(seconds)}")
