"""What `precook push` and `precook pull` say when they are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precook.cli import output
from precook.units import format_count, format_size

if TYPE_CHECKING:
    from precook.maintain.transfer import Transferred


def show_transfer(done: Transferred, verb: str, place: str, *, as_json: bool) -> None:
    """Tell what was brought, and what was there before."""
    if as_json:
        output.document(
            {
                "place": place,
                "datasets": list(done.datasets),
                "snapshots": list(done.snapshots),
                "samples": done.samples,
                "entries": done.entries,
                "new": done.new,
                "reused": done.reused,
                "packs": done.packs,
                "bytes": done.nbytes,
            }
        )
        return
    named = ", ".join(done.datasets) or "no dataset"
    reused = f", {done.reused:,} of them there before" if done.reused else ""
    counts = f"{format_count(done.samples, 'sample')}, {format_count(done.entries, 'entry')}{reused}"
    way = "to" if verb == "pushed" else "from"
    output.line(f"{verb} {named} {way} {place}: {counts}, {format_size(done.nbytes)}")
