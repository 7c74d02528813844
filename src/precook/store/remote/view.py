"""The view: what a machine has listed of a bucket, and finds entries by.

It is an index like that of a store on a disk, in a file of this machine and made of leaves instead of packs: what it
says is checked against a pack's own keys, so that a stale view costs a look and never a wrong tensor. It is not asked
for in vain for long: a key that is missing in a view of some age is looked for in a new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from precook.store.index.database import ReadHeads
from precook.store.index.index import Index
from precook.store.index.schema import Names
from precook.store.remote.layout import NearLayout
from precook.store.remote.leaves import BucketHome

MAX_AGE = 60.0
"""Seconds after which a view does not say any more that something is missing, without another look."""


class View(Index):
    """What one machine sees of a bucket's index; safe to use from several threads."""

    def __init__(self, layout: NearLayout, store_id: str, heads: ReadHeads, home: BucketHome) -> None:
        super().__init__(layout, store_id, heads, read_only=False)
        self._home = home
        self._listed_at = -MAX_AGE

    def listed(self) -> set[str]:
        """The packs that are in the bucket."""
        names = self._home.names()
        self._listed_at = time.monotonic()
        return names

    def make_durable(self, names: Iterable[str]) -> None:
        """An object that is listed is durable."""

    def refresh(self, listed: set[str] | None = None) -> None:
        """Look once more which packs there are. No lock is held meanwhile: a bucket may take its time."""
        # Before the list: whoever adds a pack here has put its leaf before, so that what is known and not listed
        # after is gone indeed.
        known = self.pack_ids()
        ids = self.listed() if listed is None else listed
        new = sorted(ids - known)
        if new:
            self.add(self._read_heads(new))
        self.drop_packs(known - ids)

    def find_rows(self, keys: Sequence[bytes]) -> tuple[list[tuple[bytes, int, int]], Names]:
        """Every place of every key, in no order."""
        found = super().find_rows(keys)
        if self._is_old() and len({key for key, _, _ in found[0]}) < len(set(keys)):
            self.refresh()
            found = super().find_rows(keys)
        return found

    def present(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of the keys that have an entry."""
        found = super().present(keys)
        if self._is_old() and len(found) < len(set(keys)):
            self.refresh()
            found = super().present(keys)
        return found

    def _is_old(self) -> bool:
        return time.monotonic() - self._listed_at > MAX_AGE
