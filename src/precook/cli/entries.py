"""Entries by key: one from its first digits, and everything its pack says about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli.recipes import RecipeInfo, read_recipe
from precook.errors import DamagedEntryError, DamagedPackError, MissingEntryError, PrecookError, printable
from precook.store.packfile import RowDamagedError, TableFile
from precook.values import Key

if TYPE_CHECKING:
    from precook.store.index import EntryRow
    from precook.store.store import Store

_DIGITS = re.compile(r"[0-9a-f]{4,64}")
_ALL = 64
_FEW = 5
_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry as the index knows it, once for each key, however many packs hold it."""

    key: Key
    nbytes: int
    created: int
    """When it was last written, in seconds since 1970."""
    recipe: RecipeInfo | None
    packs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """One entry and where it lies."""

    key: Key
    table: TableFile
    row: int
    """Its row in the table."""
    pack_row: int
    """Its row in the pack."""
    copies: int
    """How many packs hold it."""

    @property
    def pack(self) -> Path:
        """The file that holds it."""
        return self.table.pack.path

    @property
    def created(self) -> int:
        """When its pack was written, in seconds since 1970."""
        return self.table.pack.head.created

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and plain values."""
        return int(self.table.table.row_bytes()[self.row])

    @property
    def recipe(self) -> RecipeInfo | None:
        """What made it."""
        number = int(self.table.table.recipes[self.row])
        return read_recipe(self.table.pack.head.recipes[number - 1]) if number else None

    @property
    def labels(self) -> Any:
        """Its labels in canonical form, None where it has none."""
        try:
            return json.loads(self.table.table.labels.row(self.row))
        except (ValueError, RecursionError):
            return "unreadable"


def is_key(text: str) -> bool:
    """Whether a text is a key or the beginning of one."""
    return _DIGITS.fullmatch(text) is not None


def list_entries(rows: Iterable[EntryRow]) -> Iterator[Listed]:
    """Entries in order of keys, each once: a key that two builders wrote lies in two packs."""
    for key, group in groupby(rows, key=lambda row: row.key):
        places = list(group)
        newest = max(places, key=lambda row: row.created)
        packs = tuple(place.pack for place in places)
        yield Listed(Key(key), newest.nbytes, newest.created, read_recipe(newest.recipe), packs)


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


def look_up(store: Store, key: Key) -> Found:
    """Where an entry lies; `MissingEntryError`, or `DamagedEntryError` for one that is known to be damaged."""
    # Through the store's own parts: the public interface does not tell where an entry lies yet.
    index, reader = store._existing(key), store._reader  # noqa: SLF001
    places = index.find([key.bytes])
    problem: Exception | None = None
    for place in places:
        try:
            table, row = reader.pack(place.pack).locate(place.row)
        except (DamagedPackError, RowDamagedError, OSError) as error:
            problem = error
            continue
        if table.key(row) == key.bytes:
            return Found(key, table, row, place.row, len(places))
    if problem is not None:
        raise DamagedEntryError(key, store.path, printable(problem))
    for damaged, reason in store.stats().damaged:
        if damaged == key:
            raise DamagedEntryError(key, store.path, reason)
    raise MissingEntryError(key, hint="`precook ls` lists the entries")


def _keys_from(store: Store, digits: str) -> list[Key]:
    """Keys that begin with these digits: a few more than will be shown, at most."""
    first = bytes.fromhex(digits.ljust(_ALL, "0"))
    last = bytes.fromhex(digits.ljust(_ALL, "f"))
    found: dict[bytes, None] = {}
    for row in store.entries():
        if row.key > last or len(found) > _FEW:
            break
        if row.key >= first:
            found[row.key] = None
    return [Key(key) for key in found]
