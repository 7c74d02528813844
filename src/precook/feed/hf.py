"""Tokens for Hugging Face: the entries of a token encoder as a `datasets.Dataset`."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from precook.errors import DamagedEntryError, FeedError, MissingEntryError
from precook.feed.content import EntryColumn
from precook.plan.freeze import TOKENS
from precook.store.entry_table import EntryTable
from precook.store.packfile import RowDamagedError
from precook.store.reader import build_tree
from precook.store.snapshot_content import FrozenEos
from precook.values import Array

if TYPE_CHECKING:
    from types import FrameType

    from precook.feed.feed import Feed

_log = logging.getLogger("precook")


def hf_dataset(feed: Feed, encoder: str | None, *, eos: bool) -> Any:
    """A row for each caption, in the order of the sources: whatever the encoder keeps, unpadded.

    With `eos` token ids are those that TRL makes of the same captions where it cuts at the encoder's `max_length`.
    A snapshot that does not know the order of its sources has its own, that of the samples.
    """
    column = _choose(feed, encoder)
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise FeedError("datasets is not installed", hint="pip install datasets") from error
    end = _eos(column) if eos and column.kind == TOKENS and column.settings.get("eos") != "on" else None
    entries = feed.batches.entries(column.name)
    order = feed.content.line_order
    count = len(column.keys) - (column.empty >= 0)
    arrays: dict[str, list[Any]] = {}
    lacking = 0
    for number in range(count) if order is None else np.argsort(order, kind="stable").tolist():
        try:
            row = _read(entries, number, column.name)
        except (MissingEntryError, DamagedEntryError) as error:
            if feed.options.on_missing != "skip":
                hint = 'run `precook build` first, or feed with on_missing="skip"'
                raise FeedError(f"{column.name}: {error.message}", hint=hint) from error
            lacking += 1
            continue
        # What has labels is as TRL makes it; so is what was to be ended.
        if end is not None and "labels" not in row:
            row = _ended(row, end, column.name)
        for name, array in row.items():
            arrays.setdefault(name, []).append(array)
    if lacking:
        dataset = feed.content.dataset
        _log.warning("%s: %s of %s are left out: their entries are missing or damaged", dataset, lacking, column.name)
    return datasets.Dataset.from_dict(arrays)


def _read(entries: EntryTable, number: int, encoder: str) -> dict[str, Any]:
    """An entry as a row: arrays and plain values by name."""
    table, row, leaves = entries.read(number)
    for leaf in table.table.leaves:
        if leaf.dtype.foreign:
            hint = "feed.epoch gives them as torch tensors"
            raise FeedError(f"{encoder}: datasets has no numbers of type {leaf.dtype.name}", hint=hint)
    try:
        tree = build_tree(table, row, leaves)
    except RowDamagedError as error:
        raise FeedError(f"{encoder}: {error}", hint="run `precook verify` to list damaged entries") from error
    if not isinstance(tree, dict):
        raise FeedError(f"{encoder}: its entries are no dict of tensors")
    return tree


def refuse_trainer(dataset: object, frame: FrameType | None) -> None:
    """Refuse to give a batch to a collate function of transformers or TRL, which would take it for a list of samples.

    What a DataLoader is going to do with a batch is known to whoever calls the dataset, and to nobody else: `frame` is
    where the dataset is asked.
    """
    while frame is not None and frame.f_locals.get("self") is dataset:
        frame = frame.f_back
    caller = None if frame is None else frame.f_locals.get("self")
    module = getattr(getattr(caller, "collate_fn", None), "__module__", None) or ""
    if module.partition(".")[0] in ("transformers", "trl"):
        hint = (
            "override get_train_dataloader of your Trainer and let it return feed.loader(); for token ids, "
            "train_dataset=feed.as_hf_dataset(encoder)"
        )
        raise FeedError("a Trainer draws and stacks single samples, and a feed gives whole batches", hint=hint)


def _choose(feed: Feed, encoder: str | None) -> EntryColumn:
    columns = [column for column in feed.content.columns if column.of_text]
    chosen = [column for column in columns if column.name == encoder] if encoder is not None else columns
    if len(chosen) != 1:
        names = ", ".join(column.name for column in columns) or "none"
        raise FeedError("name the text encoder whose entries you want", hint=f"there are: {names}")
    return chosen[0]


def _eos(column: EntryColumn) -> FrozenEos:
    if column.eos is None:
        message = (
            f"{column.name}: which token ends its texts is not known: its tokenizer has none, or puts others behind "
            "it, or the snapshot is of"
        )
        hint = "build again where transformers is installed (nothing is encoded anew), or ask for eos=False"
        raise FeedError(f"{message} an older precook", hint=hint)
    return column.eos


def _ended(row: dict[str, Any], eos: FrozenEos, encoder: str) -> dict[str, Any]:
    """A row of token ids with what TRL puts behind its text."""
    if "input_ids" not in row or not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in row.values()):
        raise FeedError(f"{encoder}: its entries are no rows of input_ids", hint="ask for eos=False")
    if not _lacks(row["input_ids"], eos):
        return row
    return {name: np.append(array, eos.id if name == "input_ids" else 1) for name, array in row.items()}


def _lacks(ids: Array, eos: FrozenEos) -> bool:
    """Whether TRL would put the token behind the text of these ids, and its limit would let it stand there.

    It leaves out what the text ends with already. A text that was cut has all the tokens that it may have.
    """
    if eos.limit is not None and len(ids) >= eos.limit:
        return False
    text = ids[eos.before : len(ids) - eos.after]
    return not len(text) or bool(text[-1] != eos.id)
