"""`precook status`: what a store holds and what it takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.output import Column, Line, Span
from precook.cli.recipes import SHORT, read_recipe
from precook.cli.stores import open_to_read
from precook.cli.units import format_age, format_count, format_size, utc_time
from precook.store.stats import RecipeStats, Stats

_FEW = 10
_DIGITS = 16


def run(store: Path | None, *, as_json: bool) -> None:
    """Show what the store holds."""
    with open_to_read(store) as opened:
        stats = opened.stats()
    if as_json:
        output.document(_document(stats))
    else:
        _show(stats)


def _document(stats: Stats) -> dict[str, Any]:
    return {
        "path": str(stats.path.resolve()),
        "format": stats.format,
        "id": stats.id,
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


def _show(stats: Stats) -> None:
    output.facts(
        [
            ("store", f"{stats.path.resolve()}  (format {stats.format})"),
            ("entries", f"{stats.entries:,} in {format_count(stats.packs, 'pack')}"),
            ("logical", format_size(stats.payload_bytes)),
            ("on disk", f"{format_size(stats.pack_bytes)}{_overhead_text(stats)}"),
            ("index", format_size(stats.index_bytes) if stats.index_bytes else "none; `precook reindex` makes one"),
        ]
    )
    if stats.recipes:
        output.line()
        output.table(_RECIPE_COLUMNS, [_recipe_row(recipe, stats, time.time()) for recipe in _by_size(stats)])
    _show_damage(stats)


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
    return f"  (overhead {format_size(_overhead(stats))}, {percent:.2g}%, {each:,.0f} bytes for each entry)"
