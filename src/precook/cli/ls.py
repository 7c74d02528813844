"""`precook ls`: the entries of a store, chosen and sorted."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, StoreOption, duration_option, open_to_read, size_option
from precook.cli.output import Span
from precook.units import format_age, format_count, format_size, utc_time

if TYPE_CHECKING:
    from precook.cli.entries import RecipeInfo
    from precook.store.index.scan import EntryScan
    from precook.store.store import Store
    from precook.values import Key

_KEY_DIGITS = 16
_SECOND = 10**9
"""In nanoseconds."""


class Sort(str, Enum):
    """What entries are sorted by."""

    KEY = "key"
    SIZE = "size"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which entries are asked for, and in which order."""

    recipe: str | None
    """A kind, or the first digits of a digest."""
    dataset: str | None
    """What its snapshots name."""
    min_size: int | None
    max_size: int | None
    older_than: float | None
    """Seconds since they were last written or used, as `precook prune` counts them."""
    newer_than: float | None
    sort: Sort
    limit: int | None


@dataclass(frozen=True, slots=True)
class EntryLine:
    """An entry as the index knows it, once for each key, however many packs hold it."""

    key: Key
    nbytes: int
    written: int
    """When its pack was written, in nanoseconds since 1970."""
    used: int
    """When it was last written or used: what its age is counted from."""
    recipe: RecipeInfo | None
    packs: tuple[str, ...]


def command(  # noqa: PLR0913 - each parameter is an option of the command
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="Only what this recipe made: its kind, or the first digits of its digest."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what the snapshots of this dataset name.")
    ] = None,
    min_size: Annotated[int | None, size_option("Only entries of this size or more, such as 1MiB.")] = None,
    max_size: Annotated[int | None, size_option("Only entries of this size or less.")] = None,
    older_than: Annotated[
        float | None, duration_option("Only what was not written or used for so long, such as 7d.")
    ] = None,
    newer_than: Annotated[float | None, duration_option("Only what was written or used since, such as 1h.")] = None,
    sort: Annotated[Sort, typer.Option(help="By key, by size (largest first) or by age (last used first).")] = Sort.KEY,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many, the first ones.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only keys, whole and one per line.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the entries of a store."""
    from precook.store.index.scan import EntryScan

    choice = Choice(recipe, dataset, min_size, max_size, older_than, newer_than, sort, limit)
    with open_to_read(config, store) as opened:
        internals = opened.internals(create=False)
        scan = EntryScan(internals.layout, internals.index)
        entries = _choose(opened, scan, choice)
        if as_json:
            output.document_of("entries", map(_document, entries))
        elif quiet:
            output.lines(entry.key.hex for entry in entries)
        else:
            _show(entries, scan.now)


def _choose(store: Store, scan: EntryScan, choice: Choice) -> Iterator[EntryLine]:
    """The entries asked for, in the order asked for; by key they are read a few at a time."""
    from precook.cli.entries import matching_recipes
    from precook.maintain.owners import dataset_keys

    recipes = matching_recipes(store, choice.recipe) if choice.recipe is not None else None
    keys = dataset_keys(store, choice.dataset) if choice.dataset is not None else None
    entries = (
        entry
        for entry in _list(scan)
        if (keys is None or entry.key.bytes in keys) and _is_chosen(entry, choice, recipes, scan.now)
    )
    return islice(_sorted(entries, choice), choice.limit)


def _list(scan: EntryScan) -> Iterator[EntryLine]:
    """Entries in order of keys, each once: a key that two builders wrote lies in two packs."""
    from precook.cli.entries import read_recipe
    from precook.values import Key

    for key, group in groupby(scan.rows(), key=lambda row: row.key):
        rows = list(group)
        newest = max(rows, key=lambda row: row.born)
        used = max(row.touched for row in rows)
        packs = tuple(row.pack for row in rows)
        yield EntryLine(Key(key), newest.nbytes, newest.born, used, read_recipe(newest.recipe), packs)


def _is_chosen(entry: EntryLine, choice: Choice, recipes: set[str] | None, now: int) -> bool:
    age = now - entry.used
    return (
        (recipes is None or (entry.recipe is not None and entry.recipe.hex in recipes))
        and (choice.min_size is None or entry.nbytes >= choice.min_size)
        and (choice.max_size is None or entry.nbytes <= choice.max_size)
        and (choice.older_than is None or age >= int(choice.older_than * 1e9))
        and (choice.newer_than is None or age < int(choice.newer_than * 1e9))
    )


def _sorted(entries: Iterator[EntryLine], choice: Choice) -> Iterable[EntryLine]:
    """Largest first, or last used first; those that are equal in order of keys."""
    if choice.sort is Sort.KEY:
        return entries

    def rank(entry: EntryLine) -> tuple[int, bytes]:
        return (-entry.nbytes if choice.sort is Sort.SIZE else -entry.used, entry.key.bytes)

    if choice.limit is not None:
        return heapq.nsmallest(choice.limit, entries, key=rank)
    return sorted(entries, key=rank)


def _document(entry: EntryLine) -> dict[str, Any]:
    return {
        "key": entry.key.hex,
        "bytes": entry.nbytes,
        "created": utc_time(entry.written // _SECOND),
        "used": utc_time(entry.used // _SECOND),
        "recipe": entry.recipe.as_json() if entry.recipe else None,
        "packs": list(entry.packs),
    }


def _show(entries: Iterator[EntryLine], now: int) -> None:
    width = output.width()
    count = nbytes = 0

    def rows() -> Iterator[str]:
        nonlocal count, nbytes
        for entry in entries:
            count += 1
            nbytes += entry.nbytes
            recipe = entry.recipe.name if entry.recipe else "no recipe"
            age = format_age((now - entry.used) / _SECOND)
            row = _row(entry.key.hex[:_KEY_DIGITS], format_size(entry.nbytes), age, recipe)
            yield row if len(row) <= width else f"{row[: width - 1]}…"

    listed = rows()
    # The heading waits for the first entry: it is not printed above nothing, or before an error.
    first = next(listed, None)
    if first is None:
        output.tell("no entries")
        return
    output.line(Span(_row("key", "size", "last used", "recipe"), "bold"))
    output.lines([first])
    output.lines(listed)
    if output.on_terminal():
        output.tell(f"{format_count(count, 'entry')}, {format_size(nbytes)}")


def _row(key: str, size: str, age: str, recipe: str) -> str:
    return f"{key:<{_KEY_DIGITS}}  {size:>10}  {age:>14}  {recipe}"
