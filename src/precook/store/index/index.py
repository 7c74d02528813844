"""The index: which pack and row hold a key. Derived from the packs, and thrown away on any doubt.

What the index says is checked against the pack's own keys when it is read, so a wrong index can cost an encode but
never a wrong tensor.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from precook.errors import NoSpaceError, StoreError
from precook.identity.versions import check_versions
from precook.memo.columns import Kind, Segment
from precook.store.format.pack import Head
from precook.store.index import memo, schema
from precook.store.index.database import Database
from precook.store.index.memo import DamagedRow
from precook.store.index.schema import Names, ReplacedPack, RowChoice
from precook.values import Bytes, Flags, Numbers

_log = logging.getLogger("precook")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry lies."""

    key: bytes
    pack: str
    row: int


class Index(Database):
    """What one process sees of the index of one store, and how it changes it; safe to use from several threads.

    Every method that changes something is one transaction under the store's lock.
    """

    def find(self, keys: Sequence[bytes]) -> list[Place]:
        """Every place of every key, in no order; a key may have none or several."""
        rows, names = self.find_rows(keys)
        return [Place(key, names.packs[pack], row) for key, pack, row in rows]

    def find_rows(self, keys: Sequence[bytes]) -> tuple[list[tuple[bytes, int, int]], Names]:
        """The same for very many keys, without an object for each: key, pack's number and row, and the names."""
        ordered, wanted = _in_order(keys)
        rows, names = self._read_named(
            lambda db: schema.places(db, ordered, wanted), lambda rows: ({pack for _, pack, _ in rows}, set())
        )
        return [row for row in rows if row[1] in names.packs and type(row[2]) is int], names

    def present(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of the keys that have an entry."""
        ordered, wanted = _in_order(keys)
        return {key for key, _, _ in self._read(lambda db: schema.places(db, ordered, wanted))}

    def page(self, after: tuple[bytes, int, int], limit: int, *, details: bool) -> tuple[schema.PageColumns, Names]:
        """Some places behind one place, in the order of keys, packs and rows; and what their numbers stand for."""
        return self._read_named(
            lambda db: schema.page(db, after, limit, details=details),
            lambda columns: (set(columns.packs.tolist()), set(columns.recipes.tolist())),
        )

    def _read_named(
        self,
        query: Callable[[sqlite3.Connection], _Result],
        numbers: Callable[[_Result], tuple[set[int], set[int]]],
    ) -> tuple[_Result, Names]:
        """The result of a query, and what its numbers of packs and recipes stand for, with all others that are known.

        By the same connection: an index that was made anew meanwhile numbers packs its own way.
        """

        def look(db: sqlite3.Connection) -> tuple[_Result, Names]:
            result = query(db)
            packs, recipes = numbers(result)
            if not (packs <= self._names.packs.keys() and recipes <= self._names.recipes.keys()):
                # Of one moment: a pack that another process merges between the two would have no name, and its
                # entries would count as missing.
                with schema.one_moment(db):
                    result = query(db)
                    self._names = schema.names(db)
            return result, self._names

        return self._read(look)

    def pack_ids(self) -> set[str]:
        """The packs whose rows are here."""
        return {name for name, _ in self.packs()}

    def packs(self) -> list[tuple[str, int]]:
        """Each pack and the size of its file."""
        return self._read(schema.packs)

    def pack_sizes(self) -> list[tuple[str, int, int, int]]:
        """Each pack, and its bytes, rows, and bytes of all rows, the living and the dead."""
        return self._read(schema.pack_sizes)

    def whole_packs(self) -> dict[int, str] | None:
        """The numbers and names of all packs if no row of any was dropped, else None."""
        return self._read(schema.whole_packs)

    def pack_bytes(self) -> int:
        """Size of all packs together."""
        return self._read(schema.pack_bytes)

    def places(self) -> int:
        """Number of places of all entries, as the packs' own rows count them."""
        return self._read(schema.count_places)

    def count(self) -> int:
        """Number of different keys."""
        return self._read(schema.count_keys)

    def totals(self) -> list[tuple[bytes, int, int, int]]:
        """For each recipe: its form, entries, bytes, and when its newest pack was made."""
        return self._read(schema.totals)

    def recipes(self) -> dict[int, bytes]:
        """The canonical form of every recipe that entries were made with, by its number in the index."""
        return self._read(schema.recipes)

    def damage(self) -> list[tuple[bytes, str, str]]:
        """Entries that were found damaged and are not to be had elsewhere: key, pack and reason."""
        return self._read(schema.damage)

    def generation(self) -> str:
        """Changes whenever entries may have been removed: what was present stays so until then."""
        return self._read(schema.generation)

    def dropped_rows(self, pack: str, rows: int) -> Flags:
        """Which of the rows of a pack were dropped."""
        return self._read(lambda db: schema.read_dropped(db, bytes.fromhex(pack), rows))

    def uses(self, pack: str, rows: int) -> Numbers:
        """When each row of a pack was last used, in nanoseconds; zeros where nobody says."""
        return self._read(lambda db: schema.read_used(db, bytes.fromhex(pack), rows))

    def row_sizes(self, pack: str, rows: int) -> Numbers:
        """Bytes of each row of a pack, zero where it does not live; slow, for nothing leads from a pack to its rows."""
        sizes = np.zeros(rows, np.int64)
        for row, nbytes in self._read(lambda db: schema.row_sizes(db, pack)):
            if 0 <= row < rows:
                sizes[row] = nbytes
        return sizes

    def living_rows(self, pack: str, keys: Bytes) -> Numbers:
        """The living rows of a pack, in order; `keys` are those of all its rows."""
        return np.flatnonzero(self._read(lambda db: schema.live_rows(db, pack, keys)))

    def row_keys(self, pack: str) -> dict[int, bytes]:
        """The living rows of a pack and their keys; as slow."""
        return self._read(lambda db: schema.row_keys(db, pack))

    def refresh(self, listed: set[str] | None = None) -> None:
        """Adopt packs that have no rows yet, and drop the rows of packs that are gone; `listed`: those on the disk."""
        ids = self.listed() if listed is None else listed
        known = self.pack_ids()
        if ids == known:
            return
        if not self.read_only:
            # On a full disk this is put off until something can be written; until then it is done in memory.
            with contextlib.suppress(NoSpaceError), self.exclusive():
                # Once more under the lock: meanwhile another process may have added what we were about to add.
                known, ids = self.pack_ids(), self.listed()
                self.make_durable(ids ^ known)
                self.add(self._read_heads(sorted(ids - known)))
                self.drop_packs(known - ids)
                return
        if known - ids or any(True for _ in self._read_heads(ids - known)):
            self._rebuild_in_memory()

    def catch_up(self) -> None:
        """Adopt what only the index in memory knew."""
        self.refresh()

    def add(self, heads: Iterable[Head]) -> None:
        """Add the rows of durable packs."""
        heads = list(heads)
        self._write(lambda db: schema.add_packs(db, heads))

    def drop_packs(self, names: Iterable[str]) -> None:
        """Forget packs that are gone or damaged."""
        names = list(names)
        if names:
            self._write(lambda db: schema.drop_packs(db, names))

    def mark_damaged(self, place: Place, reason: str) -> None:
        """Turn a damaged entry into a miss."""
        self._write(lambda db: schema.mark_damaged(db, place.key, place.pack, place.row, reason))

    def drop_rows(self, choices: Sequence[RowChoice]) -> list[tuple[Flags, Flags]]:
        """Drop rows for good, and doom packs that have lost their last one.

        For each choice which of its rows were there and are dropped now, and which stay for what the choice says.
        """
        return self._write(lambda db: schema.drop_choices(db, choices))

    def replace_packs(
        self, head: Head | None, origins: Sequence[tuple[str, Numbers]], old: Mapping[str, ReplacedPack]
    ) -> None:
        """Add a pack that is made of rows of old ones, and drop every row of those; without one, just drop them.

        `origins` says of which pack and rows the new pack is made, in its order.
        """
        self._write(lambda db: schema.replace_packs(db, head, origins, old))

    def condemn(self, pack: str, reason: str) -> int:
        """Drop all rows of a pack that cannot be read, as damaged, and doom it; how many there were."""
        return self._write(lambda db: schema.condemn(db, pack, reason))

    def doom(self, names: Sequence[str]) -> None:
        """Mark packs as doomed of which nothing is left to use."""
        self._write(lambda db: schema.doom(db, names))

    def doomed_packs(self) -> list[tuple[str, int]]:
        """Packs of which every row was dropped, with their sizes."""
        return self._read(schema.doomed_packs)

    def forget_packs(self, names: Sequence[str]) -> None:
        """Forget doomed packs whose files are gone."""
        self._write(lambda db: schema.forget_packs(db, names))

    def record_uses(self, marks: Mapping[str, Flags], now: int) -> None:
        """Record that rows of packs were used just now, in nanoseconds."""
        self._write(lambda db: schema.record_uses(db, marks, now))

    def claim(self, keys: Sequence[bytes], owner: bytes, *, seconds: float, done: Sequence[bytes] = ()) -> set[bytes]:
        """Claim keys for a builder for some time and give up those it is done with; the keys that are its own now.

        Claims are advice, not locks.
        """
        return self._write(lambda db: schema.claim(db, keys, owner, seconds=seconds, done=done))

    def keep_claims(self, owner: bytes, *, seconds: float) -> None:
        """Prolong a builder's claims."""
        self._write(lambda db: schema.keep_claims(db, owner, seconds=seconds))

    def release_claims(self, owner: bytes) -> None:
        """Give up a builder's claims."""
        self._write(lambda db: schema.release_claims(db, owner))

    def segments(self, kind: Kind) -> list[Segment]:
        """What is remembered of a kind, the newest segment last; one that is damaged is forgotten."""
        segments, damaged = self._read(lambda db: memo.read_segments(db, kind))
        self._forget(memo.forget_segments, damaged)
        return segments

    def kinds(self) -> list[str]:
        """The kinds of which something is remembered."""
        return self._read(memo.kinds)

    def notes(self, kind: str) -> dict[bytes, str]:
        """The notes of a kind; one that is damaged is forgotten."""
        notes, damaged = self._read(lambda db: memo.read_notes(db, kind))
        self._forget(memo.forget_notes, damaged)
        return notes

    def made_with(self) -> dict[bytes, list[dict[str, str]]]:
        """The versions that entries were made with, by the digest of their recipe, as the packs say."""
        made: dict[bytes, list[dict[str, str]]] = {}
        # Each text once: most packs of a recipe say the same.
        for text in dict.fromkeys(self.notes(schema.MADE).values()):
            try:
                for recipe, versions in json.loads(text):
                    known = made.setdefault(bytes.fromhex(recipe), [])
                    if check_versions(versions) not in known:
                        known.append(versions)
            except (ValueError, TypeError, RecursionError):
                continue  # somebody else wrote it; the packs are asked before anything is told
        return made

    def _forget(
        self, forget: Callable[[sqlite3.Connection, list[DamagedRow]], None], damaged: list[DamagedRow]
    ) -> None:
        """Remove damaged rows of what is remembered, as far as that is possible just now."""
        if damaged:
            _log.warning("%s: some of what was remembered is damaged and is worked out anew", self._path)
            # Nothing depends on it: where it cannot be done now, the next one who finds them will.
            with contextlib.suppress(StoreError), self.exclusive(patience=0):
                self._write(lambda db: forget(db, damaged))

    def remember(
        self,
        segments: Iterable[Segment],
        notes: Mapping[tuple[str, bytes], str | None],
        *,
        instead: Iterable[str] = (),
    ) -> None:
        """Add segments and notes; a note of None is removed, as are older segments of the kinds `instead`."""
        segments = list(segments)
        self._write(lambda db: memo.remember(db, segments, notes, instead))


def _in_order(keys: Sequence[bytes]) -> tuple[list[bytes], set[bytes]]:
    """The different ones of some keys in the order of their first bytes, which is nearly the index's; and as a set.

    Each once: the same place twice is a sign of damage. In order: neighbours share the index's pages.
    """
    wanted = set(keys)
    ordered = list(wanted)
    if len(ordered) > 1:
        first = np.frombuffer(b"".join(ordered), ">u8")[::4]
        ordered = [ordered[number] for number in np.argsort(first).tolist()]
    return ordered, wanted
