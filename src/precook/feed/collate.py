"""One encoder's part of a batch: its entries stacked, padded where they differ in length, with masks beside them.

Entries of a processor that has laid a picture's patches in a row lie end to end, as its model takes them: `cu_seqlens`
says where each begins.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precook.encode.prompt_leaves import COMMON, LeafForm, read_forms
from precook.encode.tokens import NO_LABEL
from precook.errors import FeedError, printable
from precook.feed.buffers import Buffers
from precook.feed.content import PROCESSOR, EntryColumn
from precook.feed.options import Pad
from precook.store.copy import Places
from precook.store.dtypes import DTYPES
from precook.store.entry_table import EntryTable, FoundRows
from precook.store.format.pack import LeafColumn, Table
from precook.store.tree import read_values
from precook.values import Numbers

_MASK = "mask"
"""The kind of the mask encoder, whose white we know how to write."""
_MASK_PIXELS = 1 << 26
"""Most pixels of a mask that is made here: as many as 8192 x 8192."""
_LABELS = 2
"""The number of the leaf that has the labels of token ids."""
_PROMPT = "diffusers-prompt"
"""The kind of encoder whose leaves stand in a batch as its pipeline has them."""
_EVERY = -1
"""Stands for all dimensions where those of a leaf that are padded are more than one."""
_GRID = re.compile(r"(?:.*_)?grid_(?:thw|hws?)")
"""What processors call the leaf with a line for each picture that says how many patches it has in each direction.

Those that have it lay the patches of all pictures of a batch end to end: Qwen-VL, GLM-V, Kimi-VL, PaddleOCR-VL."""

Copies = list[Callable[[], None]]
"""What fills the tensors of a batch, in this order."""


class Collator:
    """Makes one encoder's part of any batch; safe to use from several threads."""

    def __init__(self, column: EntryColumn, entries: EntryTable, buckets: Numbers, *, pad: Pad | None) -> None:
        self.column = column
        self.entries = entries
        self._pad = pad
        self._buckets = buckets
        self._axes: dict[bytes, list[int | None]] = {}
        self._forms: dict[bytes, list[LeafForm]] = {}
        """How the leaves of each skeleton stand in a batch."""
        self._joined: dict[bytes, bool] = {}
        """Whether entries of each skeleton lie end to end."""
        self.look()
        axes = [axis for leaves in self._axes.values() for axis in leaves]
        if isinstance(pad, int) and axes and all(axis is None for axis in axes):
            reason = f"pad is {pad}, but those of a batch have one shape: nothing to pad"
            raise FeedError(f"{column.name}: {reason}", hint="leave pad out for this encoder")
        self._white = column.per == "cut" and not entries.keys.any(axis=1).all()
        """Whether some samples have no mask, or no picture of its name."""
        if self._white and not column.of_further and column.kind != _MASK:
            hint = "give every concept masks, or leave this encoder out of the config"
            raise FeedError(f"{column.name}: some concepts have no masks, and only `uses: mask` knows white", hint=hint)

    def look(self) -> None:
        """See which dimensions differ between the entries that are there."""
        if self._pad != "list":
            self._axes = find_axes(self.column, self.entries, self._buckets, joins=self._joins)

    @property
    def joins(self) -> bool:
        """Whether its entries lie end to end in a batch, as far as it has seen any."""
        return self._pad == "join" or any(self._joined.values())

    def _joins(self, table: Table) -> bool:
        """Whether the entries of a table lie end to end in a batch: where that is asked for, or they are made so."""
        joined = self._joined.get(table.skeleton)
        if joined is None:
            joined = self._pad == "join" or (self._pad is None and _is_in_a_row(self.column, table))
            self._joined[table.skeleton] = joined
        return joined

    def collate(self, rows: Numbers, sizes: Numbers, buffers: Buffers, copies: Copies) -> dict[str, Any]:
        """The entries of some rows as they stand in a batch: one tree under the encoder's name, perhaps with a mask.

        `sizes` are the heights and widths of their cuts. Its tensors hold the entries once the calls are made that are
        added to `copies`.
        """
        name = self.column.name
        if self._white and not self.entries.keys[rows].any(axis=1).all():
            if self.column.of_further:
                return {name: None}  # none of them has one: those that have stand in other batches
            masks, made = self._make_masks(sizes, buffers)
            copies.append(partial(self._copy_masks, masks, rows))
            return {name: made}
        batch = self.entries.place_all(rows)
        tables = [table.table for table in batch.distinct]
        first = tables[0]
        # One text for nesting, types and shapes, and the same object for equal ones: nearly always that is all to ask.
        alike = len({table.signature for table in batch.distinct}) == 1 and batch.distinct[0].signature is not None
        if not alike and any(table.skeleton != first.skeleton for table in tables):
            hint = "make them alike, or feed with batch_size=1"
            raise FeedError(f"{name}: entries of one batch differ in nesting or type", hint=hint)
        axes = self._axes.get(first.skeleton) or [None] * len(first.leaves)
        forms = self._forms.get(first.skeleton)
        if forms is None:
            forms = self._forms[first.skeleton] = _leaf_forms(self.column, first)
        make = self._in_a_row if self._joins(first) else self._leaf
        leaves: list[Any] = []
        arrays: list[Places] = []
        for number, leaf in enumerate(first.leaves):
            shapes = [leaf.shape] * len(rows) if alike and leaf.shape is not None else _batch_shapes(batch, number)
            tensor, places = make(number, leaf, shapes, axes[number], forms[number], buffers)
            leaves.append(tensor)
            arrays.append(places)
        if buffers.pinned:
            copies.append(self.entries.prepare_copy(batch, arrays))
        else:
            copies.append(partial(self.entries.copy_all, batch, arrays))
        try:
            tree = first.build(leaves, _batch_values(batch, tables))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            # An entry is not what was put: its check says which.
            self.entries.copy_all(batch, arrays)
            raise FeedError(f"{name}: plain values of an entry are none: {error}") from error
        return {name: tree} if _BESIDE.isdisjoint(map(type, leaves)) else _beside(tree, name)

    def _leaf(
        self,
        number: int,
        leaf: LeafColumn,
        shapes: list[tuple[int, ...]],
        axis: int | None,
        form: LeafForm,
        buffers: Buffers,
    ) -> tuple[Any, Places]:
        """A leaf of the whole batch, and where each entry's part goes."""
        if self._pad == "list" or form.listed:
            made = [buffers.make(leaf.dtype, shape) for shape in shapes]
            return [tensor for _, tensor in made], [array for array, _ in made]
        if axis is None and form.pad_to is None:
            return self._stacked(leaf, shapes, form, buffers)
        if axis == _EVERY:
            largest = tuple(int(side) for side in np.max(shapes, axis=0))
            array, tensor = buffers.make(leaf.dtype, (len(shapes), *largest), fill=0)
            return tensor, [entry[tuple(map(slice, shape))] for entry, shape in zip(array, shapes, strict=True)]
        axis = axis or 0
        _check_others(shapes, axis, self.column.name)
        lengths = tuple(shape[axis] for shape in shapes)
        longest = self._longest(lengths, form)
        shape = (*shapes[0][:axis], longest, *shapes[0][axis + 1 :])
        filler = self._filler(number) if min(lengths) < longest else None
        if filler and leaf.dtype.bits.kind in "iu" and not leaf.dtype.foreign:
            limits = np.iinfo(leaf.dtype.bits)
            if not limits.min <= filler <= limits.max:
                name = self.column.name
                raise FeedError(f"{name}: {filler} does not fit among its numbers, and shorter ones are padded with it")
        array, tensor = buffers.make(leaf.dtype, (len(shapes), *shape), fill=filler)
        before = (slice(None),) * axis
        places: Places = array
        if min(lengths) < longest:
            places = [entry[(*before, slice(length))] for entry, length in zip(array, lengths, strict=True)]
        if form.pad_to is not None:
            return tensor, places
        mask, mask_tensor = buffers.make(DTYPES["BOOL" if form.mask is None else "I64"], (len(shapes), longest))
        mask[...] = np.arange(longest) < np.array(lengths)[:, None]
        return _Padded(tensor, lengths, mask_tensor, form.mask), places

    def _in_a_row(
        self,
        number: int,
        leaf: LeafColumn,
        shapes: list[tuple[int, ...]],
        axis: int | None,
        form: LeafForm,
        buffers: Buffers,
    ) -> tuple[Any, Places]:
        """A leaf of the whole batch in which the entries lie end to end, and where each goes."""
        if not leaf.rank:
            return self._leaf(number, leaf, shapes, None, form, buffers)
        _check_others(shapes, 0, self.column.name)
        edges = np.append(0, np.cumsum([shape[0] for shape in shapes], dtype=np.int64))
        array, tensor = buffers.make(leaf.dtype, (int(edges[-1]), *shapes[0][1:]))
        places: Places = [array[begin:end] for begin, end in itertools.pairwise(edges.tolist())]
        if axis is None:
            return tensor, places
        # As 32 bits: so the kernels of attention take them.
        begins, begins_tensor = buffers.make(DTYPES["I32"], (len(edges),))
        begins[...] = edges
        return _Joined(tensor, begins_tensor), places

    def _stacked(
        self, leaf: LeafColumn, shapes: list[tuple[int, ...]], form: LeafForm, buffers: Buffers
    ) -> tuple[Any, Places]:
        """A leaf of entries that are all of one shape."""
        name, shape = self.column.name, shapes[0]
        if shapes.count(shape) < len(shapes):
            hint = _as_they_are(name)
            raise FeedError(f"{name}: entries of one batch have shapes {sorted(set(shapes))}", hint=hint)
        if form.shared:
            array, tensor = buffers.make(leaf.dtype, shape)
            return tensor, [array] * len(shapes)
        array, tensor = buffers.make(leaf.dtype, (*shape[: form.axis], len(shapes), *shape[form.axis :]))
        if not leaf.rank:
            return tensor, [array[i : i + 1].reshape(()) for i in range(len(shapes))]
        return tensor, list(np.moveaxis(array, form.axis, 0)) if form.axis else array

    def _longest(self, lengths: tuple[int, ...], form: LeafForm) -> int:
        """How long a padded leaf of the batch is."""
        name, longest = self.column.name, max(lengths)
        if form.pad_to is not None:
            if longest > form.pad_to:
                raise FeedError(f"{name}: an entry is {longest} long, and its pipeline has {form.pad_to} places")
            return form.pad_to
        if not isinstance(self._pad, int):
            return longest
        if longest > self._pad:
            hint = "raise it, or pad to the longest of each batch"
            raise FeedError(f"{name}: an entry is {longest} long, and pad is {self._pad}", hint=hint)
        return self._pad

    def _filler(self, number: int) -> int:
        """What stands where there is no token: the tokenizer's own choice for ids, nothing elsewhere."""
        if self.column.kind != "transformers-tokens" or number:
            # Ids, their mask, and labels: what is padded counts in no loss.
            return NO_LABEL if self.column.kind == "transformers-tokens" and number == _LABELS else 0
        if self.column.pad is None:
            # Or transformers was not there to tell when the samples were frozen.
            hint = (
                "give its tokenizer a pad token and build where transformers is installed, "
                f'or ask for them as they are: pad={{"{self.column.name}": "list"}}'
            )
            raise FeedError(f"{self.column.name}: the tokenizer has no pad token that is known", hint=hint)
        return self.column.pad

    def _make_masks(self, sizes: Numbers, buffers: Buffers) -> tuple[Places, Any]:
        """Room for the masks of a batch in which some samples have none."""
        factor, name = self.column.settings.get("factor"), self.column.name
        for height, width in sizes.tolist():
            if type(factor) is not int or factor < 1 or height * width > _MASK_PIXELS * factor**2:
                raise FeedError(f"{name}: a mask for {height} x {width} pixels cannot be made")
        shapes = [(1, height // factor, width // factor) for height, width in sizes.tolist()]
        if self._pad == "list":
            made = [buffers.make(DTYPES["F32"], shape) for shape in shapes]
            return [array for array, _ in made], [tensor for _, tensor in made]
        if len(set(shapes)) > 1:
            hint = _as_they_are(name)
            raise FeedError(f"{name}: masks of one batch have shapes {sorted(set(shapes))}", hint=hint)
        if self._pad == "join":
            array, tensor = buffers.make(DTYPES["F32"], (len(shapes), *shapes[0][1:]))
            return list(array[:, None]), tensor
        return buffers.make(DTYPES["F32"], (len(shapes), *shapes[0]))

    def _copy_masks(self, masks: Places, rows: Numbers) -> None:
        """Fill it: where a sample has no mask, all of its picture counts."""
        for mask, row in zip(masks, rows.tolist(), strict=True):
            if self.entries.keys[row].any():
                self.entries.copy(row, [mask])
            else:
                mask[...] = 1


def _batch_shapes(batch: FoundRows, number: int) -> list[tuple[int, ...]]:
    """The shape of one leaf of each entry of a batch."""
    return [table.table.leaves[number].row_shape(row) for table, row in zip(batch.tables, batch.rows, strict=True)]


def _batch_values(batch: FoundRows, tables: list[Table]) -> list[list[Any]]:
    """The parts of a batch without tensors, each a list of what the entries have there."""
    if not tables[0].parts:
        return []
    if all(table.values.offsets is None for table in tables) and len({table.values.text for table in tables}) == 1:
        return [[value] * len(batch.rows) for value in read_values(tables[0].values.text)]
    texts = [table.table.values.row(row) for table, row in zip(batch.tables, batch.rows, strict=True)]
    return [list(parts) for parts in zip(*read_values(b"[" + b",".join(texts) + b"]"), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class _Padded:
    """A leaf that was padded, on its way into the tree."""

    tensor: Any
    lengths: tuple[int, ...]
    mask: Any
    """Which of its places are real."""
    mask_name: str | None
    """What the mask is called, where a pipeline says so."""


def _as_they_are(encoder: str) -> str:
    """What to do where the entries of an encoder have no place in one tensor."""
    return f'ask for them as they are: pad={{"{encoder}": "list"}}'


def _check_others(shapes: list[tuple[int, ...]], axis: int, encoder: str) -> None:
    """Refuse entries that differ in another dimension than one."""
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1:
        message = f"{encoder}: entries of one batch differ in more than length: {sorted(set(shapes))}"
        raise FeedError(message, hint=_as_they_are(encoder))


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """A leaf in which entries lie end to end, on its way into the tree."""

    tensor: Any
    edges: Any
    """Where each begins, and where the last one ends."""


_BESIDE = {_Padded, _Joined}
"""Leaves that have something beside them in a batch."""


def _beside(tree: Any, name: str) -> dict[str, Any]:
    """An encoder's part of a batch, with masks and edges beside the leaves that they belong to."""
    if isinstance(tree, _Padded):
        return {name: tree.tensor, f"{name}_mask": tree.mask}
    if isinstance(tree, _Joined):
        return {name: tree.tensor, f"{name}_cu_seqlens": tree.edges}
    return {name: _with_edges(_with_masks(tree, name), name)}


def _with_edges(tree: Any, where: str) -> Any:
    """The tree with each joined leaf in its place and `cu_seqlens` beside it, or one for each where there are more."""
    if isinstance(tree, (list, tuple)):
        if any(isinstance(part, _Joined) for part in tree):
            hint = _as_they_are(where.partition(".")[0])
            raise FeedError(f"{where}: a list has no place for the lengths of what lies end to end", hint=hint)
        return type(tree)(_with_edges(part, f"{where}.{number}") for number, part in enumerate(tree))
    if not isinstance(tree, dict):
        return tree
    joined = {name: part for name, part in tree.items() if isinstance(part, _Joined)}
    alone = len(joined) == 1 and "cu_seqlens" not in tree
    made = {
        name: part.tensor if isinstance(part, _Joined) else _with_edges(part, f"{where}.{name}")
        for name, part in tree.items()
    }
    return made | {"cu_seqlens" if alone else f"{name}_cu_seqlens": part.edges for name, part in joined.items()}


def _is_in_a_row(column: EntryColumn, table: Table) -> bool:
    """Whether a processor has laid the patches of a picture in a row, and its model takes those of all pictures so."""
    if column.kind != PROCESSOR:
        return False
    tree = table.build(list(range(len(table.leaves))), [None] * table.parts)
    return isinstance(tree, dict) and any(
        isinstance(name, str) and _GRID.fullmatch(name) and type(number) is int and table.leaves[number].rank == 2  # noqa: PLR2004
        for name, number in tree.items()
    )


def _with_masks(tree: Any, where: str) -> Any:
    """The tree with each padded leaf in its place and a mask beside it: `mask`, or one of its own where they differ."""
    if not isinstance(tree, dict):
        parts = tree if isinstance(tree, (list, tuple)) else [tree]
        if any(isinstance(part, _Padded) for part in parts):
            hint = _as_they_are(where.partition(".")[0])
            raise FeedError(f"{where}: a list has no place for the mask of a padded tensor", hint=hint)
        if parts is tree:
            return type(tree)(_with_masks(part, f"{where}.{number}") for number, part in enumerate(parts))
        return tree
    padded = {name: part for name, part in tree.items() if isinstance(part, _Padded)}
    alike = len({part.lengths for part in padded.values()}) == 1 and "mask" not in tree
    names = {name: part.mask_name or ("mask" if alike else f"{name}_mask") for name, part in padded.items()}
    made = {
        name: part.tensor if isinstance(part, _Padded) else _with_masks(part, f"{where}.{name}")
        for name, part in tree.items()
    }
    return made | {names[name]: part.mask for name, part in padded.items()}


def _leaf_forms(column: EntryColumn, table: Table) -> list[LeafForm]:
    """How each leaf of a table stands in a batch: of prompts, as the recipe says it of their names."""
    forms = [COMMON] * len(table.leaves)
    if column.kind != _PROMPT:
        return forms
    try:
        named = read_forms(column.settings.get("leaves"))
    except ValueError as error:
        raise FeedError(
            f"{printable(column.name)}: its recipe does not say how a batch of it looks: {error}"
        ) from error
    tree = table.build(list(range(len(forms))), [None] * table.parts)
    for name, number in tree.items() if isinstance(tree, dict) else ():
        if name in named and isinstance(number, int):
            if named[name].axis > table.leaves[number].rank or not table.leaves[number].rank:
                raise FeedError(f"{printable(column.name)}: {printable(name)} has too few dimensions")
            forms[number] = named[name]
    return forms


def find_axes(
    column: EntryColumn,
    entries: EntryTable,
    buckets: Numbers,
    *,
    joins: Callable[[Table], bool] = lambda _: False,
) -> dict[bytes, list[int | None]]:
    """For each leaf of an encoder's entries, the dimension that is padded; None where all of a batch are alike.

    By skeleton: entries of different ones cannot meet in a batch. `buckets` says which others may: rows with the same
    number. Where `joins` says that entries lie end to end, it is the first dimension, unless each has one row.

    Of the texts that our own encoders make, the tokens are padded always, so that a batch has its mask also
    where all texts happen to be of one length.
    """
    # One look: another thread may find entries gone, or elsewhere, at any time.
    tables, rows = entries.locate(np.arange(len(entries.keys)))
    order = np.argsort(tables, kind="stable")
    order = order[np.searchsorted(tables, 0, sorter=order) :]
    edges = np.flatnonzero(np.diff(tables[order], prepend=-1)).tolist()
    by_skeleton: dict[bytes, list[tuple[Table, Numbers]]] = {}
    for begin, end in itertools.pairwise([*edges, len(order)]):
        table = entries.tables[int(tables[order[begin]])].table
        by_skeleton.setdefault(table.skeleton, []).append((table, order[begin:end]))
    axes: dict[bytes, list[int | None]] = {}
    for skeleton, members in by_skeleton.items():
        axes[skeleton] = []
        first = members[0][0]
        forms, joined = _leaf_forms(column, first), joins(first)
        for number, leaf in enumerate(first.leaves):
            columns = [(table.leaves[number], numbers) for table, numbers in members]
            form = forms[number]
            if joined:
                axis = _joined_axis(columns, rows, buckets, column)
            else:
                axis = 0 if form.mask is not None else _token_axis(column, leaf)
                if axis is None and form == COMMON:
                    axis = _padded_axis(columns, rows, buckets, column)
            axes[skeleton].append(axis)
        _check_places(column, first, axes[skeleton], forms, joined=joined)
    return axes


def _check_places(
    column: EntryColumn, table: Table, axes: list[int | None], forms: list[LeafForm], *, joined: bool
) -> None:
    """Refuse trees that have no place for what comes beside a leaf: now, and not at the first batch."""
    leaves: list[Any] = [None] * len(axes)
    for number, axis in enumerate(axes):
        form = forms[number]
        if axis is not None and joined:
            leaves[number] = _Joined(None, None)
        elif axis not in (None, _EVERY) and not form.listed and form.pad_to is None:
            leaves[number] = _Padded(None, (), None, form.mask)
    if not _BESIDE.isdisjoint(map(type, leaves)):
        _beside(table.build(leaves, [None] * table.parts), column.name)


def _joined_axis(
    columns: list[tuple[LeafColumn, Numbers]], rows: Numbers, buckets: Numbers, column: EntryColumn
) -> int | None:
    """The first dimension of a leaf that lies end to end, where it tells more than how many entries there are."""
    if set(_varying_axes(columns, rows, buckets)) - {0}:
        message = f"{column.name}: entries of one batch differ in more than length and cannot lie end to end"
        raise FeedError(message, hint=_as_they_are(column.name))
    single = all(not leaf.rank or (leaf.shape is not None and leaf.shape[0] == 1) for leaf, _ in columns)
    return None if single else 0


def find_lengths(column: EntryColumn, entries: EntryTable) -> Numbers:
    """How many tokens each entry of a text encoder has; 0 where there is none, or nothing that counts them."""
    tables, rows = entries.locate(np.arange(len(entries.keys)))
    lengths = np.zeros(len(entries.keys), np.int64)
    for number in np.unique(tables[tables >= 0]).tolist():
        chosen = np.flatnonzero(tables == number)
        for leaf in entries.tables[number].table.leaves[:1]:
            axis = _token_axis(column, leaf)
            if axis is not None:
                shapes = leaf.shapes[rows[chosen]] if leaf.shapes is not None else np.array([leaf.shape])
                lengths[chosen] = shapes[:, axis]
    return lengths


def _token_axis(column: EntryColumn, leaf: LeafColumn) -> int | None:
    if column.kind == "transformers-tokens" and leaf.rank:
        return 0
    settings = column.settings
    whole = settings.get("keep_padding") or settings.get("attention_mask") is False
    if column.kind == "transformers-text" and not whole and leaf.rank > 1:
        return leaf.rank - 2
    return None


def _padded_axis(
    columns: list[tuple[LeafColumn, Numbers]], rows: Numbers, buckets: Numbers, column: EntryColumn
) -> int | None:
    """The one dimension in which a leaf differs between entries that may meet in a batch.

    What a processor returns may differ in several: those fill up pictures with zeros themselves, and say beside them
    what is real.
    """
    axes = _varying_axes(columns, rows, buckets)
    if len(axes) > 1 and column.kind == PROCESSOR:
        return _EVERY
    if len(axes) > 1:
        hint = _as_they_are(column.name)
        reason = f"entries of one batch differ in {len(axes)} dimensions and cannot be padded"
        raise FeedError(f"{column.name}: {reason}", hint=hint)
    return axes[0] if axes else None


def _varying_axes(columns: list[tuple[LeafColumn, Numbers]], rows: Numbers, buckets: Numbers) -> list[int]:
    """The dimensions in which one leaf differs between entries that may meet in a batch.

    Of each table there is the leaf's column, and the numbers of the entries that lie in that table.
    """
    fixed = {leaf.shape for leaf, _ in columns}
    if len(fixed) == 1 and None not in fixed:
        return []
    # Of each table first: what is compared then across tables is a line for each of its buckets.
    extremes = []
    for leaf, numbers in columns:
        if leaf.shapes is not None:
            shapes = leaf.shapes[rows[numbers]].astype(np.int64)
        else:
            shapes = np.broadcast_to(np.array(leaf.shape, np.int64), (len(numbers), leaf.rank))
        extremes.append(_extremes(buckets[numbers], shapes, shapes))
    _, lowest, highest = _extremes(*(np.concatenate(parts) for parts in zip(*extremes, strict=True)))
    axes: list[int] = np.flatnonzero((lowest != highest).any(axis=0)).tolist()
    return axes


def _extremes(buckets: Numbers, lows: Numbers, highs: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Each bucket once, with the least and the greatest of what stands there for it."""
    order = np.argsort(buckets, kind="stable")
    edges = np.flatnonzero(np.diff(buckets[order], prepend=-1))
    lowest, highest = np.minimum.reduceat(lows[order], edges, axis=0), np.maximum.reduceat(highs[order], edges, axis=0)
    return buckets[order[edges]], lowest, highest
