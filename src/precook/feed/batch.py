"""Batches: the items of a batch become one dict of tensors, after what is missing was made, left out or refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from precook.errors import DamagedEntryError, FeedError, MissingEntryError, PrecookError, ReadOnlyError
from precook.feed.buffers import Buffers
from precook.feed.collate import Collator, Copies, find_lengths
from precook.feed.content import EntryColumn, FeedContent
from precook.feed.options import FeedOptions
from precook.feed.packing import collate_packed, split_rows
from precook.feed.posterior import draw_latents, has_moments
from precook.feed.sampler import Items
from precook.identity.digest import digest
from precook.store.dtypes import DTYPES
from precook.store.entry_table import EntryTable, ReshapedError
from precook.store.packfile import LARGE
from precook.store.store import Store
from precook.values import Bytes, Key, Numbers

_log = logging.getLogger("precook")

HINT = 'run `precook build`, feed with on_missing="skip", or feed the project with on_missing="encode"'
_SHOWN = 5
_ATTEMPTS = 3
"""How often a batch is begun anew because an entry has changed its shape meanwhile."""


class EntryMaker(Protocol):
    """Makes entries that are missing."""

    def make(self, encoder: str, keys: list[Key]) -> dict[Key, str]:
        """Encode and store entries; why some could not be made."""

    def close(self) -> None:
        """Let go of what making them has loaded."""


class BatchMaker:
    """Makes batches of what a store holds; safe to use from several threads.

    What is missing or damaged ends the feed, is left out of its batch, or is made there and then. Each is named once.
    """

    def __init__(
        self, store: Store, content: FeedContent, options: FeedOptions, *, maker: EntryMaker | None = None
    ) -> None:
        self.content = content
        self._store = store
        self._seed = options.seed
        self._tensors = options.tensors
        self._on_missing = options.on_missing
        self._pack = options.pack
        self._maker = maker
        self._lock = threading.Lock()
        self._named: set[bytes] = set()
        """Samples and entries that were warned about."""
        self._given_up: dict[bytes, str] = {}
        """Entries that cannot be had, whatever is tried, and why."""
        self._lacking = False
        """Whether an entry was not there at some time; while all are, no batch has to ask."""
        tables = store.places_of([column.keys for column in content.columns])
        assert tables is not None, "a lease was taken, so there is a store"
        self.buckets = content.buckets(options.pad)
        """What all cuts of a batch share, as a number: their sizes, where these need to be the same."""
        self._free = content.free(options.pad)
        # Pictures and masks meet in a batch where their cuts have one size or are free of it, texts always.
        _, shapes = np.unique(self.buckets, return_inverse=True)
        buckets_of = {"line": None, "cut": shapes, "pair": shapes[content.pairs.cuts]}
        self._collators: dict[str, Collator] = {}
        for column, entries in zip(content.columns, tables, strict=True):
            rows = buckets_of[column.per]
            buckets = np.broadcast_to(np.int64(0), len(column.keys)) if rows is None else rows
            pad = (options.pad or {}).get(column.name)
            self._collators[column.name] = Collator(column, entries, buckets, pad=pad)
            self._lacking |= bool(len(entries.missing))
        self._moments = {column.name for column in content.columns if has_moments(column)}
        self._buffers = Buffers(options.tensors)
        self._pinned_buffers = Buffers(options.tensors, pinned=True)
        types = {leaf.dtype for entries in tables for table in entries.tables.values() for leaf in table.table.leaves}
        for buffers in (self._buffers, self._pinned_buffers):
            buffers.prepare({*types, DTYPES["BOOL"], DTYPES["F32"], DTYPES["I32"]})

    @property
    def missing(self) -> dict[str, Numbers]:
        """Rows without an entry, by encoder."""
        missing = {}
        for name, collator in self._collators.items():
            rows = collator.entries.missing
            # Zeros stand for a mask or a picture that a sample does not have, and for nothing that is missing.
            rows = rows[collator.entries.keys[rows].any(axis=1)]
            if len(rows):
                missing[name] = rows
        return missing

    @property
    def unread(self) -> bool:
        """Whether something was not read from the disk yet."""
        return any(collator.entries.unread for collator in self._collators.values())

    @property
    def small(self) -> bool:
        """Whether all entries are so small that a batch is work for Python more than for memory or disk."""
        return all(collator.entries.most_bytes < LARGE for collator in self._collators.values())

    @property
    def joined(self) -> set[str]:
        """Encoders whose entries lie end to end in a batch."""
        return {name for name, collator in self._collators.items() if collator.joins}

    def lengths(self, encoder: str) -> Numbers:
        """How many tokens each text has, by the rows of its encoder's column; 0 where that is not known."""
        collator = self._collators[encoder]
        return find_lengths(collator.column, collator.entries)

    def entries(self, encoder: str) -> EntryTable:
        """Where an encoder's entries lie."""
        return self._collators[encoder].entries

    def check(self) -> None:
        """Refuse to begin where entries are missing and shall not be, with a list of them, or cannot be made."""
        if self._on_missing == "error" and (missing := self.missing):
            self._refuse(missing)
        if self._on_missing == "encode" and self._store.read_only and self.missing:
            raise ReadOnlyError(self._store.path, "entries are missing and cannot be stored here")

    def announce(self, items: Items, members: Numbers) -> None:
        """Have the system read what a batch will need."""
        for collator in self._collators.values():
            collator.entries.announce(self._rows(collator.column, items, members))

    def make(self, items: Items, members: Numbers, *, pinned: bool = False) -> dict[str, Any] | None:
        """The batch of some items; None where none of them can be had."""
        return self.prepare(items, members, pinned=pinned)()

    def prepare(self, items: Items, members: Numbers, *, pinned: bool = False) -> Callable[[], dict[str, Any] | None]:
        """All of a batch but the bytes of its entries; what is returned copies them, in any thread, and gives it.

        So one thread does what Python has to do for every batch, and the others do next to nothing but copy. Threads
        that do both wait for each other: however many there were, they made 11,000 samples of 393 kB a second.
        Whatever takes long, or goes wrong, comes with the copy.
        """
        buffers = self._pinned_buffers if pinned else self._buffers
        if self._lacking:
            return lambda: self._finish(items, self._obtain(items, members), buffers)
        try:
            prepared = self._collate(items, members, buffers)
        except PrecookError:
            return partial(self._finish, items, members, buffers)
        return partial(self._finish, items, members, buffers, prepared)

    def _finish(
        self, items: Items, members: Numbers, buffers: Buffers, prepared: tuple[dict[str, Any], Copies] | None = None
    ) -> dict[str, Any] | None:
        reshaped = 0
        while len(members):
            try:
                batch, copies = prepared or self._collate(items, members, buffers)
                prepared = None
                for copy in copies:
                    copy()
            except (MissingEntryError, DamagedEntryError) as error:
                # Found only now: damaged, or gone since it was looked up.
                self._lacking = True
                if self._on_missing == "error":
                    raise FeedError(error.message, hint=HINT) from error
                self._warn_once(error.key.bytes, error.message)
                members = self._obtain(items, members)
            except ReshapedError as error:
                # Once more, with all their shapes as they are now.
                for collator in self._collators.values():
                    collator.entries.look_again(self._rows(collator.column, items, members))
                    collator.look()
                reshaped += 1
                if reshaped == _ATTEMPTS:
                    raise FeedError(str(error), hint="feed with batches of the feed's own `batch_sampler`") from error
            else:
                return batch
        return None

    def _collate(self, items: Items, members: Numbers, buffers: Buffers) -> tuple[dict[str, Any], Copies]:
        """A batch, and what has to be done before it holds its entries."""
        content = self.content
        samples, cuts, lines = items.samples[members], items.cuts[members], items.lines[members]
        sizes = content.sizes[cuts] if content.has_pictures else np.zeros((len(cuts), 2), np.int64)
        batch: dict[str, Any] = {}
        copies: Copies = []
        for name, collator in self._collators.items():
            rows = self._rows(collator.column, items, members)
            if self._pack is not None and items.rows is not None:
                starts = split_rows(members, items.rows[members])
                entries = collator.entries
                batch.update(collate_packed(collator.column, entries, rows, starts, self._pack, buffers, copies))
                continue
            batch.update(collator.collate(rows, sizes, buffers, copies))
            if name in self._moments and batch[name] is not None:
                images = content.images[samples]
                if collator.column.of_further:
                    # Noise of its own: by the sample's picture alone, a further one would have the same.
                    images = images ^ np.frombuffer(digest(collator.column.input).bytes, np.uint8)
                copies.append(partial(self._draw, batch, name, images, items.draws[members]))
        concepts = content.concepts[samples]
        digits = content.ids.take(samples, axis=0).tobytes().hex()
        batch["sample"] = [digits[begin : begin + 64] for begin in range(0, len(digits), 64)]
        batch["concept"] = [content.names[number] for number in concepts.tolist()]
        if content.paths is not None:
            batch["path"] = [content.paths[sample].decode("utf-8", "surrogateescape") for sample in samples.tolist()]
        if content.captions is not None:
            text, edges = content.captions
            spans = zip(lines.tolist(), edges[lines].tolist(), edges[lines + 1].tolist(), strict=True)
            try:
                # A negative number stands for the empty prompt.
                batch["caption"] = [text[begin:end].decode("utf-8") if line >= 0 else "" for line, begin, end in spans]
            except UnicodeDecodeError as error:
                hint = "build or import the dataset again"
                raise FeedError(f"{content.dataset}: a caption in its snapshot is not text", hint=hint) from error
        batch["loss_weight"] = buffers.tensor(content.loss_weights[concepts])
        if content.has_pictures:
            # Of pictures at their own size it is none, also where those of a batch happen to have the same.
            frames = () if content.frames is None else (int(content.frames[cuts[0]]),)
            batch["size"] = None if self._free[cuts[0]] else (*frames, *sizes[0].tolist())
            if content.originals is not None and content.crops is not None:
                batch["original_size"] = buffers.tensor(content.originals[cuts].astype(np.int64))
                batch["crop"] = buffers.tensor(content.crops[cuts].astype(np.int64))
                batch["target_size"] = buffers.tensor(sizes)
        return batch, copies

    def _rows(self, column: EntryColumn, items: Items, members: Numbers) -> Numbers:
        """Which of a column's entries some items need."""
        return self.content.rows(column, items.cuts[members], items.lines[members])

    def _draw(self, batch: dict[str, Any], name: str, images: Bytes, draws: Numbers) -> None:
        batch[name] = draw_latents(batch[name], images, draws, self._seed, self._tensors)

    def _obtain(self, items: Items, members: Numbers) -> Numbers:
        """The members whose entries are all there, after what may be made was made."""
        for collator in self._collators.values():
            column, entries = collator.column, collator.entries
            rows = self._rows(column, items, members)
            there = entries.there(rows)
            if there.all():
                continue
            # Zeros stand for a mask or a further picture that a sample does not have, and for nothing else.
            needed = entries.keys[rows].any(axis=1) | column.of_text
            lacking = rows[~there & needed]
            if not len(lacking):
                continue
            if self._on_missing == "error":
                self._refuse({column.name: lacking})
            if self._on_missing == "encode":
                self._encode(collator, lacking)
            there = entries.there(rows) | ~needed
            for member, row in zip(members[~there].tolist(), rows[~there].tolist(), strict=True):
                reason = self._given_up.get(entries.keys[row].tobytes(), "it is not in the store")
                sample = self.content.ids[items.samples[member]].tobytes()
                self._warn_once(sample, f"sample {sample.hex()} is left out: {column.name}: {reason}")
            members = members[there]
        return members

    def _encode(self, collator: Collator, rows: Numbers) -> None:
        """Make entries that are missing; one batch at a time, because encoders are loaded once."""
        assert self._maker is not None
        column, entries = collator.column, collator.entries
        if column.empty >= 0:
            # The shortest text there is: beside it, whether lengths differ shows in the very first batch.
            rows = np.append(rows, column.empty)
        with self._lock:
            # Once more: another batch may have needed the same.
            entries.look_again(rows[~entries.there(rows)])
            lacking = rows[~entries.there(rows)]
            # Each once: equal pictures or captions of several samples are one entry.
            wanted = dict.fromkeys(entries.keys[row].tobytes() for row in lacking.tolist())
            keys = [Key(key) for key in wanted if key not in self._given_up]
            failed = self._maker.make(column.name, keys) if keys else {}
            self._given_up |= {key.bytes: reason for key, reason in failed.items()}
            entries.look_again(lacking)
            collator.look()

    def _warn_once(self, name: bytes, message: str) -> None:
        with self._lock:
            known = name in self._named
            self._named.add(name)
        if not known:
            _log.warning("%s", message)

    def _refuse(self, missing: dict[str, Numbers]) -> None:
        parts = []
        for name, rows in missing.items():
            keys = self._collators[name].entries.keys[rows[:_SHOWN]]
            shown = ", ".join(Key(key.tobytes()).hex[:16] for key in keys)
            parts.append(f"{len(rows):,} of {name} ({shown}{', …' if len(rows) > _SHOWN else ''})")
        raise FeedError(f"{self.content.dataset}: entries are missing or damaged: {'; '.join(parts)}", hint=HINT)
