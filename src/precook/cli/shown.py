"""One entry as `precook show` shows it: with its tree, its numbers and where it comes from."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from precook.cli import output
from precook.cli.output import Line, Span
from precook.cli.recipes import RecipeInfo, outline, read_recipe
from precook.cli.trees import Tensor, count_tensors, tree_document, tree_lines
from precook.errors import DamagedEntryError
from precook.store.packfile import RowDamagedError, damage_reason
from precook.store.reader import Located
from precook.store.tree import read_values
from precook.units import format_age, format_count, format_size, local_time, utc_time
from precook.values import Array


@dataclass(frozen=True, slots=True)
class Shown:
    """One entry with all there is to say about it."""

    entry: Located
    tree: Any
    damage: str | None
    """Why its bytes cannot be trusted, None where they match their checksum."""

    @property
    def recipe(self) -> RecipeInfo | None:
        """What made it."""
        return read_recipe(self.entry.recipe)

    @property
    def labels(self) -> Any:
        """Its labels in canonical form, None where it has none."""
        try:
            return json.loads(self.entry.labels)
        except (ValueError, RecursionError):
            return "unreadable"


def read(entry: Located) -> Shown:
    """Read an entry and check it; of a damaged one only nesting and shapes, which its pack's head vouches for."""
    table = entry.table.table
    arrays: list[Array | None] = [None] * len(table.leaves)
    damage = None
    try:
        arrays = [*entry.table.read(entry.row, check=True)]
    except (RowDamagedError, OSError) as error:
        damage = damage_reason(error, entry.pack)
    tensors = [
        Tensor(leaf.dtype, leaf.library, leaf.row_shape(entry.row), array)
        for leaf, array in zip(table.leaves, arrays, strict=True)
    ]
    try:
        tree = table.build(tensors, read_values(table.values.row(entry.row)))
    except (ValueError, RecursionError) as error:
        raise DamagedEntryError(entry.key, entry.pack, f"its plain values cannot be read: {error}") from error
    return Shown(entry, tree, damage)


def document(shown: Shown) -> dict[str, Any]:
    """For programs."""
    entry = shown.entry
    recipe = shown.recipe
    return {
        "key": entry.key.hex,
        "bytes": entry.nbytes,
        "created": utc_time(entry.created),
        "recipe": {**recipe.as_json(), "data": recipe.data} if recipe else None,
        "labels": shown.labels,
        "pack": str(entry.pack),
        "row": entry.pack_row,
        "copies": entry.copies,
        "checksum": "ok" if shown.damage is None else "damaged",
        "damage": shown.damage,
        "tree": tree_document(shown.tree),
    }


def show(shown: Shown) -> None:
    """For people."""
    output.facts(_facts(shown))
    output.line()
    for line in tree_lines(shown.tree):
        output.line(line)


def _facts(shown: Shown) -> Iterator[tuple[str, Line]]:
    entry = shown.entry
    tensors = count_tensors(shown.tree)
    yield "entry", entry.key.hex
    yield from _outlined("recipe", shown.recipe.name if shown.recipe else "none", shown.recipe and shown.recipe.data)
    yield from _outlined("labels", "" if shown.labels else "none", shown.labels)
    yield "size", f"{format_size(entry.nbytes)}, {format_count(tensors, 'tensor')}"
    yield "written", f"{format_age(time.time() - entry.created)}, {local_time(entry.created)}"
    yield "pack", str(entry.pack)
    yield "row", f"{entry.pack_row:,}"
    if entry.copies > 1:
        yield "copies", f"in {entry.copies} packs"
    if shown.damage is None:
        yield "checksum", Span("ok", "green")
    else:
        yield "checksum", Span(f"damaged: {shown.damage}", "bold red")


def _outlined(name: str, first: str, form: Any) -> Iterator[tuple[str, Line]]:
    """A name with an outline of plain data beside it."""
    lines: list[Line] = [first] if first else []
    for item in outline(form) if form else ():
        label = f"{item.name}: " if item.name and item.text else item.name and f"{item.name}:"
        lines.append(["  " * (item.depth + bool(first)), Span(label, "dim"), item.text])
    for line in lines:
        yield name, line
        name = ""
