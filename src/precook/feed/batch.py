"""Assembly: from the items of a batch to the batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np

from precook.errors import DamagedEntryError, FeedError, MissingEntryError
from precook.feed.buffers import Buffers
from precook.feed.content import EntryColumn, FeedContent
from precook.feed.padding import Pad, Padded, find_axes, with_masks
from precook.feed.posterior import has_moments, sample
from precook.feed.sampler import Items
from precook.store.dtypes import DTYPES
from precook.store.format.pack import LeafColumn, Table
from precook.store.leaves import Library
from precook.store.lookup import EntryTable, FoundRows, ReshapedError
from precook.store.packfile import LARGE
from precook.store.store import Store
from precook.store.tree import read_values
from precook.values import Array, Key, Numbers

_MASK = "mask"
"""The kind of the mask encoder, whose white we know how to write."""


class Collator:
    """Makes one encoder's part of any batch; safe to use from several threads."""

    def __init__(self, column: EntryColumn, places: EntryTable, buckets: Numbers, *, pad: Pad) -> None:
        self.column = column
        self.places = places
        self._pad = pad
        self._buckets = buckets
        self._axes: dict[bytes, list[int | None]] = {}
        self.look()
        found = [axis for axes in self._axes.values() for axis in axes]
        if isinstance(pad, int) and found and all(axis is None for axis in found):
            told = f"pad is {pad}, but those of a batch have one shape: nothing to pad"
            raise FeedError(f"{column.name}: {told}", hint="leave pad out for this encoder")
        self._white = not places.keys.any(axis=1).all() if not column.of_text else False
        if self._white and column.kind != _MASK:
            hint = "give every concept masks, or leave this encoder out of the config"
            raise FeedError(f"{column.name}: some concepts have no masks, and only `uses: mask` knows white", hint=hint)

    def look(self) -> None:
        """See which dimensions differ between the entries that are there."""
        if self._pad != "list":
            self._axes = find_axes(self.column, self.places, self._buckets)

    def collate(self, rows: Numbers, size: tuple[int, int], buffers: Buffers) -> dict[str, Any]:
        """The entries of some rows as they stand in a batch: one tree under the encoder's name, perhaps with a mask."""
        name = self.column.name
        if self._white and not self.places.keys[rows].any(axis=1).all():
            return {name: self._with_white(rows, size, buffers)}
        found = self.places.place_all(rows)
        tables = [table.table for table in found.distinct]
        first = tables[0]
        if any(table.skeleton != first.skeleton for table in tables):
            hint = "make them alike, or feed with batch_size=1"
            raise FeedError(f"{name}: entries of one batch differ in nesting or type", hint=hint)
        axes = self._axes.get(first.skeleton) or [None] * len(first.leaves)
        leaves: list[Any] = []
        arrays: list[list[Array]] = []
        for number, leaf in enumerate(first.leaves):
            shapes = _shapes(found, [table.leaves[number] for table in tables], number)
            if self._pad == "list":
                made = [buffers.make(leaf.dtype, shape) for shape in shapes]
                leaves.append([tensor for _, tensor in made])
                arrays.append([array for array, _ in made])
            else:
                tensor, places = self._leaf(number, leaf, shapes, axes[number], buffers)
                leaves.append(tensor)
                arrays.append(places)
        self.places.copy_all(found, arrays)
        return self._named(first.build(leaves, _values(found, tables)))

    def _leaf(
        self, number: int, leaf: LeafColumn, shapes: list[tuple[int, ...]], axis: int | None, buffers: Buffers
    ) -> tuple[Any, list[Array]]:
        """A leaf of the whole batch, and where each entry's part goes."""
        name = self.column.name
        if axis is None:
            if shapes.count(shapes[0]) < len(shapes):
                hint = f'ask for them as they are: pad={{"{name}": "list"}}'
                raise FeedError(f"{name}: entries of one batch have shapes {sorted(set(shapes))}", hint=hint)
            array, tensor = buffers.make(leaf.dtype, (len(shapes), *shapes[0]))
            return tensor, list(array) if leaf.rank else [array[i : i + 1].reshape(()) for i in range(len(shapes))]
        lengths = tuple(shape[axis] for shape in shapes)
        longest = max(lengths)
        if isinstance(self._pad, int):
            if longest > self._pad:
                hint = "raise it, or pad to the longest of each batch"
                raise FeedError(f"{name}: an entry is {longest} long, and pad is {self._pad}", hint=hint)
            longest = self._pad
        shape = (*shapes[0][:axis], longest, *shapes[0][axis + 1 :])
        fill = self._filler(number) if min(lengths) < longest else None
        array, tensor = buffers.make(leaf.dtype, (len(shapes), *shape), fill=fill)
        mask, mask_tensor = buffers.make(DTYPES["BOOL"], (len(shapes), longest))
        mask[...] = np.arange(longest) < np.array(lengths)[:, None]
        before = (slice(None),) * axis
        places = [one[(*before, slice(length))] for one, length in zip(array, lengths, strict=True)]
        return Padded(tensor, lengths, mask_tensor), places

    def _filler(self, number: int) -> int:
        """What stands where there is no token: the tokenizer's own choice for ids, nothing elsewhere."""
        if self.column.kind != "transformers-tokens" or number:
            return 0
        if self.column.pad is None:
            # Or transformers was not there to tell when the samples were frozen.
            hint = (
                "give its tokenizer a pad token and build where transformers is installed, "
                f'or ask for them as they are: pad={{"{self.column.name}": "list"}}'
            )
            raise FeedError(f"{self.column.name}: the tokenizer has no pad token that is known", hint=hint)
        return self.column.pad

    def _named(self, tree: Any) -> dict[str, Any]:
        name = self.column.name
        if isinstance(tree, Padded):
            return {name: tree.tensor, f"{name}_mask": tree.mask}
        return {name: with_masks(tree, name)}

    def _with_white(self, rows: Numbers, size: tuple[int, int], buffers: Buffers) -> Any:
        """Masks of a batch in which some samples have none: all of such a picture counts."""
        factor = int(self.column.settings["factor"])
        array, tensor = buffers.make(DTYPES["F32"], (len(rows), 1, size[0] // factor, size[1] // factor))
        for at, row in enumerate(rows.tolist()):
            if self.places.keys[row].any():
                self.places.copy(row, [array[at]])
            else:
                array[at] = 1
        return tensor


def _shapes(found: FoundRows, columns: list[LeafColumn], number: int) -> list[tuple[int, ...]]:
    """The shape of one leaf of each entry."""
    shapes = {column.shape for column in columns}
    if len(shapes) == 1 and (shape := shapes.pop()) is not None:
        return [shape] * len(found.rows)
    return [table.table.leaves[number].row_shape(row) for table, row in zip(found.tables, found.rows, strict=True)]


def _values(found: FoundRows, tables: list[Table]) -> list[list[Any]]:
    """The parts of a batch without tensors, each a list of what the entries have there."""
    if all(table.values.offsets is None for table in tables) and len({table.values.text for table in tables}) == 1:
        return [[value] * len(found.rows) for value in read_values(tables[0].values.text)]
    texts = [table.table.values.row(row) for table, row in zip(found.tables, found.rows, strict=True)]
    return [list(parts) for parts in zip(*read_values(b"[" + b",".join(texts) + b"]"), strict=True)]


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
        content: FeedContent,
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

    def places(self, encoder: str) -> EntryTable:
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


def _rows(column: EntryColumn, items: Items, members: Numbers) -> Numbers:
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


def _missing(places: EntryTable) -> Numbers:
    missing = places.missing
    return missing[places.keys[missing].any(axis=1)]
