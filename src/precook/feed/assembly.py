"""Assembly: from the items of a batch to the batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np

from precook.errors import DamagedEntryError, FeedError, MissingEntryError
from precook.feed.buffers import Buffers
from precook.feed.collate import Collator
from precook.feed.content import Column, Content, Numbers
from precook.feed.moments import has_moments, sample
from precook.feed.padding import Pad
from precook.feed.sampler import Items
from precook.store.leaves import Library
from precook.store.packfile import LARGE
from precook.store.places import Places, ReshapedError
from precook.store.store import Store
from precook.values import Key

_log = logging.getLogger("precook")

OnMissing = Literal["error", "encode", "skip"]
HINT = 'run `precook build`, feed with on_missing="skip", or feed the project with on_missing="encode"'
_SHOWN = 5
_ATTEMPTS = 3
"""How often a batch is begun anew because an entry has changed its shape meanwhile."""


class Maker(Protocol):
    """Makes entries that are missing."""

    def make(self, encoder: str, keys: list[Key]) -> dict[Key, str]:
        """Encode and store entries; why some could not be made."""


class Assembly:
    """Makes batches of what a store holds; safe to use from several threads.

    What is missing or damaged ends the feed, is left out of its batch, or is made there and then. Each is named once.
    """

    def __init__(
        self,
        store: Store,
        content: Content,
        *,
        seed: int,
        pad: Mapping[str, Pad],
        tensors: Library,
        on_missing: OnMissing,
        maker: Maker | None,
    ) -> None:
        self.content = content
        self._seed = seed
        self._tensors: Library = tensors
        self._buffers = Buffers(tensors)
        self._pinned_buffers = Buffers(tensors, pinned=True)
        self._on_missing = on_missing
        self._maker = maker
        self._lock = threading.Lock()
        self._named: set[bytes] = set()
        self._given_up: dict[bytes, str] = {}
        """Entries that cannot be had, whatever is tried, and why."""
        self._collators: dict[str, Collator] = {}
        _, buckets = np.unique(content.sizes[:, 0] << 32 | content.sizes[:, 1], return_inverse=True)
        found = store.places_of([column.keys for column in content.columns])
        assert found is not None, "a lease was taken, so there is a store"
        for column, places in zip(content.columns, found, strict=True):
            alike = np.zeros(len(column.keys), np.int64) if column.of_text else buckets
            self._collators[column.name] = Collator(column, places, alike, pad=pad.get(column.name, "longest"))

    @property
    def missing(self) -> dict[str, Numbers]:
        """Rows without an entry, by encoder."""
        found = {name: _missing(one.places) for name, one in self._collators.items()}
        return {name: rows for name, rows in found.items() if len(rows)}

    def make(self, items: Items, members: Numbers, *, pinned: bool = False) -> dict[str, Any] | None:
        """The batch of some items; None where none of them can be had."""
        members = self._obtain(items, members)
        reshaped = 0
        while len(members):
            try:
                return self._batch(items, members, self._pinned_buffers if pinned else self._buffers)
            except (MissingEntryError, DamagedEntryError) as error:
                # Found only now: damaged, or gone since it was looked up.
                self._tell(error)
                members = self._obtain(items, members)
            except ReshapedError as error:
                # Once more, with all their shapes as they are now.
                for collator in self._collators.values():
                    collator.places.look_again(_rows(collator.column, items, members))
                    collator.look()
                reshaped += 1
                if reshaped == _ATTEMPTS:
                    raise FeedError(str(error), hint="feed with batches of the feed's own `batch_sampler`") from error
        return None

    def places(self, encoder: str) -> Places:
        """Where an encoder's entries lie."""
        return self._collators[encoder].places

    @property
    def unread(self) -> bool:
        """Whether something was not read from the disk yet."""
        return any(collator.places.unread for collator in self._collators.values())

    @property
    def small(self) -> bool:
        """Whether all entries are so small that a batch is work for Python more than for memory or disk."""
        return all(collator.places.most_bytes < LARGE for collator in self._collators.values())

    def announce(self, items: Items, members: Numbers) -> None:
        """Have the system read what a batch will need."""
        for collator in self._collators.values():
            rows = _rows(collator.column, items, members)
            collator.places.announce(rows)

    def _batch(self, items: Items, members: Numbers, buffers: Buffers) -> dict[str, Any]:
        content = self.content
        samples, cuts, lines = items.samples[members], items.cuts[members], items.lines[members]
        height, width = content.sizes[cuts[0]].tolist()
        batch: dict[str, Any] = {}
        for collator in self._collators.values():
            column = collator.column
            made = collator.collate(_rows(column, items, members), (height, width), buffers)
            if has_moments(column):
                images = content.images[samples]
                made = {column.name: sample(made[column.name], images, items.draws[members], self._seed, self._tensors)}
            batch.update(made)
        concepts = content.concepts[samples].tolist()
        batch["sample"] = content.sample_ids(samples)
        batch["concept"] = [content.names[number] for number in concepts]
        if content.captions is not None:
            batch["caption"] = content.captions.take(lines)
        batch["loss_weight"] = buffers.tensor(content.loss_weights[concepts])
        if content.pictures:
            batch["size"] = (height, width)
        return batch

    def _obtain(self, items: Items, members: Numbers) -> Numbers:
        """The members whose entries are all there, after what may be made was made."""
        for collator in self._collators.values():
            column, places = collator.column, collator.places
            rows = _rows(column, items, members)
            there = places.there(rows)
            if there.all():
                continue
            # Zeros stand for a mask that nobody has, and for nothing else.
            needed = places.keys[rows].any(axis=1) | column.of_text
            lacking = rows[~there & needed]
            if not len(lacking):
                continue
            if self._on_missing == "error":
                self._refuse({column.name: lacking})
            if self._on_missing == "encode":
                self._encode(collator, lacking)
            there = places.there(rows) | ~needed
            for member, row in zip(members[~there].tolist(), rows[~there].tolist(), strict=True):
                reason = self._given_up.get(places.keys[row].tobytes(), "it is not in the store")
                self._leave_out(int(items.samples[member]), f"{column.name}: {reason}")
            members = members[there]
        return members

    def _encode(self, collator: Collator, rows: Numbers) -> None:
        """Make entries that are missing; one batch at a time, because encoders are loaded once."""
        assert self._maker is not None
        column, places = collator.column, collator.places
        if column.empty >= 0:
            # The shortest text there is: beside it, whether lengths differ shows in the very first batch.
            rows = np.append(rows, column.empty)
        with self._lock:
            # Once more: another batch may have needed the same.
            places.look_again(rows[~places.there(rows)])
            wanted = {places.keys[row].tobytes(): row for row in rows[~places.there(rows)].tolist()}
            keys = [Key(key) for key in wanted if key not in self._given_up]
            failed = self._maker.make(column.name, keys) if keys else {}
            self._given_up |= {key.bytes: reason for key, reason in failed.items()}
            places.look_again(np.array(list(wanted.values()), np.int64))
            collator.look()

    def _leave_out(self, sample: int, reason: str) -> None:
        name = self.content.ids[sample].tobytes()
        with self._lock:
            known = name in self._named
            self._named.add(name)
        if not known:
            _log.warning("sample %s is left out: %s", self.content.sample_id(sample), reason)

    def _tell(self, error: MissingEntryError) -> None:
        with self._lock:
            known = error.key.bytes in self._named
            self._named.add(error.key.bytes)
        if self._on_missing == "error":
            raise FeedError(error.message, hint=HINT) from error
        if not known:
            _log.warning("%s", error.message)

    def check(self) -> None:
        """Refuse to begin where entries are missing, with a list of them."""
        if self._on_missing == "error" and (missing := self.missing):
            self._refuse(missing)

    def _refuse(self, missing: dict[str, Numbers]) -> None:
        told = []
        for name, rows in missing.items():
            keys = self._collators[name].places.keys[rows[:_SHOWN]]
            shown = ", ".join(Key(key.tobytes()).hex[:16] for key in keys)
            told.append(f"{len(rows):,} of {name} ({shown}{', …' if len(rows) > _SHOWN else ''})")
        raise FeedError(f"{self.content.dataset}: entries are missing or damaged: {'; '.join(told)}", hint=HINT)


def _rows(column: Column, items: Items, members: Numbers) -> Numbers:
    """Which of a column's entries some items need."""
    if not column.of_text:
        return items.cuts[members]
    lines = items.lines[members]
    if (lines >= 0).all():
        return lines
    if column.empty < 0:
        hint = "set text.empty_prompt in the config and build, or feed without caption_dropout"
        raise FeedError(f"{column.name}: the empty prompt is not among the entries", hint=hint)
    return np.where(lines < 0, column.empty, lines)


def _missing(places: Places) -> Numbers:
    missing = places.missing
    return missing[places.keys[missing].any(axis=1)]
