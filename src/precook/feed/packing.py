"""Packing: texts of token ids, laid into rows of one length, so that hardly anything of a batch is padding.

Rows are filled as TRL fills them: the longest text first, each into the row with the least room that holds it. A text
is never split and no two are mixed: positions begin anew with each, and its first token counts in no loss, for it would
be told by the last token of another one.
"""

from __future__ import annotations

import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from precook.encode.tokens import NO_LABEL
from precook.errors import FeedError
from precook.feed.buffers import Buffers
from precook.feed.content import EntryColumn
from precook.plan.freeze import TOKENS
from precook.store.dtypes import DTYPES
from precook.store.entry_table import EntryTable
from precook.values import Array, Numbers

_WINDOW = 8192
"""Texts that are packed together: enough to fill rows nearly to the end, and others side by side in every epoch."""
_PADDING = -1


def choose_column(columns: Sequence[EntryColumn], dataset: str) -> EntryColumn:
    """The encoder whose token ids are packed; `FeedError` where others would have to be packed along."""
    if len(columns) != 1 or columns[0].kind != TOKENS:
        names = ", ".join(column.name for column in columns)
        hint = "pack a dataset whose only encoder is transformers-tokens"
        raise FeedError(f"{dataset}: only token ids are packed, and it has {names}", hint=hint)
    return columns[0]


def pack(lengths: Numbers, size: int) -> list[list[int]]:
    """Rows of texts, by their numbers, that have at most `size` tokens together; longer ones stand alone.

    Best fit, decreasing. Texts of equal length keep their order.

    >>> import numpy
    >>> pack(numpy.array([3, 5, 2, 4, 9]), 6)
    [[4], [1], [3, 2], [0]]
    """
    rows: list[list[int]] = []
    room: list[int] = []
    """Each amount of room that some row has, once, in order."""
    with_room: defaultdict[int, deque[int]] = defaultdict(deque)
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = min(int(lengths[number]), size)
        place = bisect.bisect_left(room, length)
        if place < len(room):
            space = room[place]
            row = with_room[space].popleft()
            if not with_room[space]:
                del room[place]
        else:
            space, row = size, len(rows)
            rows.append([])
        rows[row].append(number)
        left = space - length
        if left > 0:
            if not with_room[left]:
                bisect.insort(room, left)
            with_room[left].append(row)
    return rows


def pack_all(order: Numbers, lengths: Numbers, size: int) -> list[Numbers]:
    """The rows of an epoch whose items come in this order; the rows come in an order of their own."""
    rows = []
    for begin in range(0, len(order), _WINDOW):
        window = order[begin : begin + _WINDOW]
        rows += [window[row] for row in pack(lengths[window], size)]
    return rows


def split_rows(members: Numbers, rows: Numbers) -> Numbers:
    """Where each row of a batch begins among its members, and the end; `rows` has the row of each.

    A row may stand in a batch twice in a row: then it begins with the same member again.
    """
    starts = [0]
    for place in range(1, len(members)):
        if rows[place] != rows[place - 1] or members[place] == members[starts[-1]]:
            starts.append(place)
    return np.array([*starts, len(members)], np.int64)


def collate_packed(
    column: EntryColumn,
    entries: EntryTable,
    numbers: Numbers,
    starts: Numbers,
    size: int,
    buffers: Buffers,
    copies: list[Callable[[], None]],
) -> dict[str, Any]:
    """Entries of token ids as rows of one length; it holds them once the calls are made that are added to `copies`.

    `starts` says where each row begins among the entries.
    """
    found = entries.place_all(numbers)
    first = found.distinct[0].table
    names = first.build(list(range(len(first.leaves))), [None] * first.parts)
    if any(table.table.skeleton != first.skeleton for table in found.distinct):
        hint = "set labels: completion for the encoder, so that all of them have labels"
        raise FeedError(f"{column.name}: some texts have labels and others have none", hint=hint)
    if not isinstance(names, dict) or "input_ids" not in names or any(leaf.rank != 1 for leaf in first.leaves):
        raise FeedError(f"{column.name}: its entries are no rows of input_ids")
    whole = [table.table.leaves[0].row_shape(row)[0] for table, row in zip(found.tables, found.rows, strict=True)]
    lengths = np.minimum(whole, size)
    count = len(starts) - 1
    row_of = np.repeat(np.arange(count), np.diff(starts))
    before = np.cumsum(lengths) - lengths
    offsets = before - before[starts[row_of]]
    shape = (count, size)
    ids, ids_tensor = buffers.make(DTYPES["I64"], shape, fill=column.pad or 0)
    labels, labels_tensor = buffers.make(DTYPES["I64"], shape, fill=NO_LABEL)
    positions, positions_tensor = buffers.make(DTYPES["I64"], shape)
    documents, documents_tensor = buffers.make(DTYPES["I32"], shape, fill=_PADDING)
    targets = {names["input_ids"]: ids, names.get("labels", _PADDING): labels}
    places: list[list[Array]] = []
    cut: list[tuple[Array, Array]] = []
    for number, leaf in enumerate(first.leaves):
        parts = []
        for entry, (row, offset, length) in enumerate(
            zip(row_of.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
        ):
            target = targets[number][row, offset : offset + length] if number in targets else None
            if target is None or whole[entry] > size:
                # What is not kept, or not as a whole, is read all the same, and checked with the rest.
                parts.append(np.empty(whole[entry], leaf.dtype.bits))
                if target is not None:
                    cut.append((target, parts[-1]))
            else:
                parts.append(target)
        places.append(parts)
    edges = [0]
    for row in range(count):
        for entry in range(int(starts[row]), int(starts[row + 1])):
            begin, end = int(offsets[entry]), int(offsets[entry] + lengths[entry])
            positions[row, begin:end] = np.arange(end - begin)
            documents[row, begin:end] = entry
            edges.append(row * size + end)
        if edges[-1] < (row + 1) * size:
            # The padding is a text of its own, so that nothing looks back from it, or at it.
            begin = edges[-1] - row * size
            positions[row, begin:] = np.arange(size - begin)
            edges.append((row + 1) * size)
    copies.append(partial(entries.copy_all, found, places))
    copies.append(partial(_finish, ids, labels, positions, documents, cut, labelled="labels" in names))
    tensors = {
        "input_ids": ids_tensor,
        "labels": labels_tensor,
        "position_ids": positions_tensor,
        "documents": documents_tensor,
        "cu_seqlens": buffers.tensor(np.array(edges, np.int32)),
        "max_seqlen": int(np.diff(edges).max()),
    }
    return {column.name: tensors}


def _finish(
    ids: Array,
    labels: Array,
    positions: Array,
    documents: Array,
    cut: Sequence[tuple[Array, Array]],
    *,
    labelled: bool,
) -> None:
    """What can be done only when the entries are there: long ones are cut, and labels are set."""
    for target, whole in cut:
        target[...] = whole[: len(target)]
    if not labelled:
        np.copyto(labels, ids, where=documents != _PADDING)
    labels[positions == 0] = NO_LABEL
