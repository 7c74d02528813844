"""`precook ls`: the entries of a store, chosen and sorted."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output
from precook.cli.choice import Choice, Sort
from precook.cli.entries import Listed, list_entries
from precook.cli.output import Span
from precook.cli.recipes import RecipeInfo, read_recipe
from precook.cli.stores import open_to_read
from precook.errors import PrecookError, printable
from precook.maintain.checking import named_keys
from precook.units import format_age, format_count, format_size, utc_time

if TYPE_CHECKING:
    from precook.store.store import Store

_DIGITS = 16


def run(store: Path | None, choice: Choice, *, quiet: bool, as_json: bool) -> None:
    """List the entries that were asked for."""
    now = time.time()
    with open_to_read(store) as opened:
        entries = choose(opened, choice, now=now)
        if as_json:
            output.document_of("entries", map(_document, entries))
        elif quiet:
            output.lines(entry.key.hex for entry in entries)
        else:
            _show(entries, now)


def choose(store: Store, choice: Choice, *, now: float) -> Iterator[Listed]:
    """The entries asked for, in the order asked for; by key they are read a few at a time."""
    recipes = matching_recipes(store, choice.recipe) if choice.recipe is not None else None
    keys = named_keys(store, choice.dataset) if choice.dataset is not None else None
    entries = (
        entry
        for entry in list_entries(store.entries())
        if (keys is None or entry.key.bytes in keys) and _is_chosen(entry, choice, recipes, now)
    )
    return islice(_sorted(entries, choice), choice.limit)


def _is_chosen(entry: Listed, choice: Choice, recipes: set[str] | None, now: float) -> bool:
    age = max(now - entry.created, 0)
    return (
        (recipes is None or (entry.recipe is not None and entry.recipe.hex in recipes))
        and (choice.min_size is None or entry.nbytes >= choice.min_size)
        and (choice.max_size is None or entry.nbytes <= choice.max_size)
        and (choice.older_than is None or age >= choice.older_than)
        and (choice.newer_than is None or age < choice.newer_than)
    )


def _sorted(entries: Iterator[Listed], choice: Choice) -> Iterable[Listed]:
    """Largest first, or newest first; those that are equal in order of keys."""
    if choice.sort is Sort.KEY:
        return entries

    def rank(entry: Listed) -> tuple[int, bytes]:
        return (-entry.nbytes if choice.sort is Sort.SIZE else -entry.created, entry.key.bytes)

    if choice.limit is not None:
        return heapq.nsmallest(choice.limit, entries, key=rank)
    return sorted(entries, key=rank)


def matching_recipes(store: Store, wanted: str) -> set[str]:
    """The digests of the recipes that are meant; an error that names all of them where none is."""
    known = [info for recipe in store.stats().recipes if (info := read_recipe(recipe.form)) is not None]
    matching = {info.hex for info in known if _is_meant(info, wanted)}
    if not matching:
        names = ", ".join(sorted(info.name for info in known)) or "none"
        message = f"no recipe here has the kind or digest {printable(wanted)!r}"
        raise PrecookError(message, hint=f"recipes in this store: {names}")
    return matching


def _is_meant(recipe: RecipeInfo, wanted: str) -> bool:
    return recipe.kind == wanted or (len(wanted) >= 4 and recipe.hex.startswith(wanted.lower()))  # noqa: PLR2004


def _document(entry: Listed) -> dict[str, Any]:
    return {
        "key": entry.key.hex,
        "bytes": entry.nbytes,
        "created": utc_time(entry.created),
        "recipe": entry.recipe.as_json() if entry.recipe else None,
        "packs": list(entry.packs),
    }


def _show(entries: Iterator[Listed], now: float) -> None:
    width = output.width()
    count = nbytes = 0

    def rows() -> Iterator[str]:
        nonlocal count, nbytes
        for entry in entries:
            count += 1
            nbytes += entry.nbytes
            recipe = entry.recipe.name if entry.recipe else "no recipe"
            row = _row(entry.key.hex[:_DIGITS], format_size(entry.nbytes), format_age(now - entry.created), recipe)
            yield row if len(row) <= width else f"{row[: width - 1]}…"

    listed = rows()
    first = next(listed, None)
    if first is None:
        output.tell("no entries")
        return
    output.line(Span(_row("key", "size", "written", "recipe"), "bold"))
    output.lines([first])
    output.lines(listed)
    if output.on_terminal():
        output.tell(f"{format_count(count, 'entry')}, {format_size(nbytes)}")


def _row(key: str, size: str, age: str, recipe: str) -> str:
    return f"{key:<{_DIGITS}}  {size:>10}  {age:>14}  {recipe}"
