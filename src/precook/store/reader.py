"""Reads: from a key to its tree.

The look-up says where an entry lies, the checksum vouches for its bytes. After the first read of an entry nothing here
touches SQL or the disk.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precook.errors import DamagedEntryError, MissingEntryError
from precook.store.copy import StackedBatch, Verify
from precook.store.layout import Layout
from precook.store.lazy import lazy_leaf
from precook.store.leaves import Library, converter
from precook.store.lookup import Lookup
from precook.store.packfile import USED, RowDamagedError, TableFile, now
from precook.store.tree import Tree, read_values
from precook.values import Array, Key

_GIVEN = 1 << 30
"""Bytes handed out before private mappings are let go: a bound on what tensors that were written to keep in memory."""
_SPARES = 1000
"""Tables of which a mapping is kept then to be used again: a process may have some ten thousand mappings, no more."""
_READ_AHEAD = 64 << 20
"""Bytes announced to the system before a bulk read."""
_WHOLE = 4 << 20
"""Bytes of an entry from which on it is checked piece by piece when one lazy leaf of it is loaded."""


@dataclass(frozen=True, slots=True)
class Located:
    """One entry and where it lies."""

    key: Key
    table: TableFile
    row: int
    """Its row in the table."""
    copies: int
    """How many packs hold it."""

    @property
    def pack(self) -> Path:
        """The file that holds it."""
        return self.table.pack.path

    @property
    def pack_row(self) -> int:
        """Its row in the pack."""
        return self.table.pack.first_row(self.table) + self.row

    @property
    def created(self) -> int:
        """When its pack was written, in seconds since 1970."""
        return self.table.pack.head.created

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and plain values."""
        return int(self.table.table.row_bytes()[self.row])

    @property
    def recipe(self) -> bytes:
        """The canonical form of what made it, empty where that was not said."""
        number = int(self.table.table.recipes[self.row])
        return self.table.pack.head.recipes[number - 1] if number else b""

    @property
    def made(self) -> dict[str, str]:
        """The versions that it was made with; empty where nothing was recorded."""
        made = self.table.pack.head.made[int(self.table.table.recipes[self.row])]
        return dict(json.loads(made)) if made else {}

    @property
    def labels(self) -> bytes:
        """Its labels: a JSON object, or null."""
        return self.table.table.labels.row(self.row)


class Reader:
    """Reads entries of one store; safe to use from several threads and after a fork."""

    def __init__(self, layout: Layout, lookup: Lookup, *, verify: Verify) -> None:
        self._layout = layout
        self._lookup = lookup
        self._known = lookup.packs.known
        self._verify = verify
        self._always = verify == "always"
        self._given = 0
        self._given_from: set[TableFile] = set()

    def get_lazy(self, key: Key, tensors: Library | None) -> Tree:
        """The tree under a key, its leaves to be read later; errors as below."""
        return self._lookup.visit(key, lambda table, row: self._lazy_tree(key, table, row, tensors))

    def get(self, key: Key, tensors: Library | None) -> Tree:
        """The tree under a key; `MissingEntryError`, or `DamagedEntryError` if all copies of it are damaged."""
        place = self._known.get(key.bytes)
        if place is not None:
            # Most reads end here: without a closure, which would cost as much as all the rest.
            table, row = place
            try:
                make = table.trees.get(tensors)
                # As `is_mapped` has it, in fewer calls: each is a fiftieth of what a small entry costs.
                if (
                    make is not None
                    and table.checked[row]
                    and not self._always
                    and (now() < table.pack.look_at or table.pack.look())
                ):
                    table.used[row] = USED
                    return make(row)
                return self._tree(table, row, tensors)
            except (RowDamagedError, OSError):
                pass  # once more below, where it is looked for elsewhere
        return self._lookup.visit(key, lambda table, row: self._tree(table, row, tensors))

    def find_many(self, keys: Sequence[Key]) -> None:
        """Look up many keys that are read next, and have the system read ahead."""
        self._lookup.find_many(key.bytes for key in keys)
        if len(keys) > 1:
            self._announce(keys)

    def stack(self, keys: Sequence[Key], *, tensors: Library | None = None) -> Tree:
        """One tree for all keys: each tensor stacked along a new first dimension, each plain part a list."""
        self.find_many(keys)
        known = [place for key in keys if (place := self._known.get(key.bytes)) is not None]
        if len(known) == len(keys):
            whole = StackedBatch(*known[0], rows=len(keys), verify=self._verify)
            if whole.fill_all(known):
                for table, row in known:
                    table.used[row] = USED
                return whole.tree(tensors)
        stack: StackedBatch | None = None

        def fill(number: int, key: Key, table: TableFile, row: int) -> None:
            nonlocal stack
            stack = stack or StackedBatch(table, row, rows=len(keys), verify=self._verify)
            stack.fill(number, key, table, row)
            table.used[row] = USED

        for number, key in enumerate(keys):
            self._lookup.visit(key, functools.partial(fill, number, key))
        assert stack is not None
        return stack.tree(tensors)

    def checksum(self, key: Key) -> bytes | None:
        """The checksum of what is stored under a key, once its bytes are known to match it; None where nothing is."""

        def check(table: TableFile, row: int) -> bytes:
            table.used[row] = USED
            if not table.checked[row] or self._verify is False:
                table.read(row, check=True)
            return bytes(table.table.checksums[row])

        try:
            return self._lookup.visit(key, check)
        except (MissingEntryError, DamagedEntryError):
            return None

    def locate(self, key: Key) -> Located:
        """Where an entry lies; `MissingEntryError`, or `DamagedEntryError` if it is known to be damaged."""
        index, packs = self._lookup.index, self._lookup.packs
        place = self._lookup.find(key.bytes)
        places = index.find([key.bytes])
        if place is not None:
            return Located(key, *place, copies=len(places))
        for proposed in places:
            reason = packs.bad_packs.get(proposed.pack)
            if reason is not None:
                raise DamagedEntryError(key, self._layout.pack(proposed.pack), reason)
        for damaged, pack, reason in index.damage():
            if damaged == key.bytes:
                raise DamagedEntryError(key, self._layout.pack(pack), reason)
        raise MissingEntryError(key, hint="`precook ls` lists the entries")

    def forget_use(self, key: Key) -> None:
        """Have an entry count as one that this process has not used."""
        place = self._lookup.find(key.bytes)
        if place is not None:
            table, row = place
            table.used[row] = 0

    def _announce(self, keys: Sequence[Key]) -> None:
        """Tell the system what will be read from the disk next, so that it need not wait for each entry in turn."""
        budget = _READ_AHEAD
        for key in keys:
            place = self._known.get(key.bytes)
            if place is not None and not place[0].checked[place[1]]:
                budget -= place[0].row_bytes(place[1])
                if budget < 0:
                    return
                try:
                    place[0].announce(place[1])
                except OSError:
                    return  # reading it will say what is wrong

    def _tree(self, table: TableFile, row: int, tensors: Library | None) -> Tree:
        table.used[row] = USED
        leaves: list[Any]
        if table.checked[row] and (now() < table.pack.look_at or table.pack.look()):
            try:
                givers = table.copiers.get(tensors) or table.givers(row, tensors)
            except OSError:
                # No mappings left to give, or the pack is gone: reading it works, or says what is wrong.
                leaves = self._read(table, row, tensors)
            else:
                if self._always:
                    arrays = [give(row) for give, _ in givers]
                    table.check(row, arrays)
                    leaves = [convert(array) for (_, convert), array in zip(givers, arrays, strict=True)]
                else:
                    leaves = [convert(give(row)) for give, convert in givers]
                if table.gives_mapped:
                    self._count_given(table)
        else:
            leaves = self._read(table, row, tensors)
        return build_tree(table, row, leaves)

    def _read(self, table: TableFile, row: int, tensors: Library | None) -> list[Any]:
        """A row's leaves from the disk."""
        arrays = table.read(row, check=self._verify is not False)
        return [convert(array) for convert, array in zip(table.converters(tensors), arrays, strict=True)]

    def _lazy_tree(self, key: Key, table: TableFile, row: int, tensors: Library | None) -> Tree:
        table.used[row] = USED

        def reader(number: int) -> Callable[[int | None], Any]:
            def read(part: int | None, table: TableFile, row: int) -> Any:
                leaf = table.table.leaves[number]
                return converter(leaf.dtype, tensors or leaf.library)(self._lazy_array(table, row, number, part))

            # Where it lay when it was asked for; it may have been moved to another pack since.
            return lambda part: self._lookup.visit(key, functools.partial(read, part), place=(table, row))

        leaves = [
            lazy_leaf(leaf.row_shape(row), leaf.dtype, tensors or leaf.library, reader(number))
            for number, leaf in enumerate(table.table.leaves)
        ]
        return build_tree(table, row, leaves)

    def _lazy_array(self, table: TableFile, row: int, number: int, part: int | None) -> Array:
        """One leaf, or a part of one, in memory that goes with it: a mapping would stay, and grow with each leaf."""
        if self._verify is not False and (self._verify == "always" or not table.is_mapped(row)):
            if part is None and table.row_bytes(row) < _WHOLE:
                return table.read(row, check=True)[number]
            with table.pack.open() as descriptor:
                table.verify_large(descriptor, row)
        return table.read_one(row, number, part)

    def _count_given(self, table: TableFile) -> None:
        """Let go of private mappings from time to time: tensors over them that were written to have pages of memory."""
        self._given_from.add(table)
        self._given += table.most_bytes
        if self._given > _GIVEN:
            tables, self._given_from, self._given = self._given_from, set(), 0
            for other in tables:
                other.forget(spare=len(tables) <= _SPARES)


def build_tree(table: TableFile, row: int, leaves: list[Any]) -> Tree:
    """A row's tree around its leaves."""
    stored = table.table
    try:
        return stored.build(leaves, read_values(stored.values.row(row)) if stored.parts else [])
    except (ValueError, IndexError, TypeError, RecursionError) as error:
        raise RowDamagedError(f"its plain values cannot be read: {error}") from error
