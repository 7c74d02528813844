"""`precook verify`: every byte of every pack against what the store promised."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.output import Line, Span
from precook.cli.stores import open_to_read
from precook.store.verify import Damage, Verification
from precook.units import format_count, format_duration, format_size

DAMAGED = 4
"""Exit code when damage is found."""


def run(store: Path | None, *, subset: tuple[int, int], max_seconds: float | None, as_json: bool) -> int:
    """Check the packs and show what is wrong with them; the exit code."""
    with open_to_read(store) as opened:
        found = opened.verify(subset=subset, max_seconds=max_seconds, report=output.reporter())
        root = opened.path
    if as_json:
        output.document(_document(found, subset))
    else:
        _show(found, root, subset)
    return 0 if found.clean else DAMAGED


def _document(found: Verification, subset: tuple[int, int]) -> dict[str, Any]:
    return {
        "clean": found.clean,
        "complete": found.complete,
        "subset": "{}/{}".format(*subset),
        "packs": found.packs,
        "packs_in_store": found.packs_in_store,
        "entries": found.entries,
        "bytes": found.nbytes,
        "seconds": round(found.seconds, 3),
        "damage": [
            {
                "pack": str(damage.pack),
                "key": damage.key.hex if damage.key else None,
                "offset": damage.offset,
                "reason": damage.reason,
            }
            for damage in found.damage
        ],
    }


def _show(found: Verification, root: Path, subset: tuple[int, int]) -> None:
    packs = format_count(found.packs, "pack")
    if not found.complete:
        packs = f"{found.packs:,} of {format_count(found.packs_in_store, 'pack')}"
    rate = f" ({format_size(int(found.nbytes / found.seconds))}/s)" if found.seconds > 1 else ""
    took = f"{format_size(found.nbytes)} in {format_duration(found.seconds)}{rate}"
    verdict = Span("no damage", "bold green") if found.clean else Span(_count(found), "bold red")
    _show_damage(found, root)
    output.line([f"checked {packs}, {format_count(found.entries, 'entry')}, {took}: ", verdict])
    if not found.clean:
        output.hint(
            "look at the disk's health first; nothing was changed here: an entry that is damaged becomes a miss when it"
            " is next read, and is then encoded again"
        )
    elif not found.complete:
        output.hint(_next_part(subset))


def _show_damage(found: Verification, root: Path) -> None:
    """Damage under the pack it was found in."""
    for pack, group in groupby(found.damage, key=lambda damage: damage.pack):
        output.line(Span(str(pack.relative_to(root) if pack.is_relative_to(root) else pack), "bold"), whole=True)
        for damage in group:
            output.line(_damage_line(damage))
        output.line()


def _damage_line(damage: Damage) -> Line:
    what = f"entry {damage.key.hex[:16]}" if damage.key else "whole pack"
    where = f"  at byte {damage.offset:,}" if damage.offset is not None else ""
    return [f"  {what}{where}  ", Span(damage.reason, "red")]


def _count(found: Verification) -> str:
    entries = sum(damage.key is not None for damage in found.damage)
    packs = len({damage.pack for damage in found.damage if damage.key is None})
    counts = ((packs, "damaged pack"), (entries, "damaged entry"))
    return ", ".join(format_count(number, noun) for number, noun in counts if number)


def _next_part(subset: tuple[int, int]) -> str:
    part, parts = subset
    if parts == 1:
        return "not all packs were looked at; each run with --max-time begins at another pack"
    return f"this was one part; `precook verify --subset {part % parts + 1}/{parts}` checks the next"
