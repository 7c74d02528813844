"""Entries by key: all of them, or the one that begins with some digits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from precook.cli.recipes import RecipeInfo, read_recipe
from precook.errors import PrecookError
from precook.values import Key

if TYPE_CHECKING:
    from precook.store.index.scan import EntryRow
    from precook.store.store import Store

_ALL = 64
_FEW = 5
_SHOWN = 16


@dataclass(frozen=True, slots=True)
class EntryLine:
    """An entry as the index knows it, once for each key, however many packs hold it."""

    key: Key
    nbytes: int
    created: int
    """When it was last written, in seconds since 1970."""
    recipe: RecipeInfo | None
    packs: tuple[str, ...]


def list_entries(rows: Iterable[EntryRow]) -> Iterator[EntryLine]:
    """Entries in order of keys, each once: a key that two builders wrote lies in two packs."""
    for key, group in groupby(rows, key=lambda row: row.key):
        places = list(group)
        newest = max(places, key=lambda row: row.created)
        packs = tuple(place.pack for place in places)
        yield EntryLine(Key(key), newest.nbytes, newest.created, read_recipe(newest.recipe), packs)


def find_key(store: Store, digits: str) -> Key:
    """The one key that begins with these digits; an error where there is none, or more than one."""
    if len(digits) == _ALL:
        return Key.from_hex(digits)
    found = _keys_from(store, digits)
    if len(found) > 1:
        few = ", ".join(f"{key.hex[:_SHOWN]}…" for key in found[:_FEW])
        more = " and more" if len(found) > _FEW else ""
        message = f"more than one entry begins with {digits}"
        raise PrecookError(message, hint=f"give more digits: {few}{more}")
    if found:
        return found[0]
    damaged = [key for key, _ in store.stats().damaged if key.hex.startswith(digits)]
    if damaged:
        return damaged[0]
    message = f"no entry begins with {digits}"
    raise PrecookError(message, hint="`precook ls` lists the entries")


def _keys_from(store: Store, digits: str) -> list[Key]:
    """Keys that begin with these digits: a few more than will be shown, at most."""
    first = bytes.fromhex(digits.ljust(_ALL, "0"))
    last = bytes.fromhex(digits.ljust(_ALL, "f"))
    found: dict[bytes, None] = {}
    # Shorter than any key that begins with it, and so before all of them.
    for row in store.entries(after=first[: len(digits) // 2]):
        if row.key > last or len(found) > _FEW:
            break
        if row.key >= first:
            found[row.key] = None
    return [Key(key) for key in found]
