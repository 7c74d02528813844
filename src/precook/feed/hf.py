"""Tokens for Hugging Face: the entries of a token encoder as a `datasets.Dataset`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from precook.errors import FeedError

if TYPE_CHECKING:
    from precook.feed.feed import Feed


def hf_dataset(feed: Feed, encoder: str | None) -> Any:
    """A row for each caption, in the order of the samples: whatever the encoder keeps, unpadded."""
    columns = [column for column in feed.content.columns if column.of_text]
    chosen = [column for column in columns if column.name == encoder] if encoder is not None else columns
    if len(chosen) != 1:
        names = ", ".join(column.name for column in columns) or "none"
        raise FeedError("name the text encoder whose entries you want", hint=f"there are: {names}")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise FeedError("datasets is not installed", hint="pip install datasets") from error
    column = chosen[0]
    count = len(column.keys) - (column.empty >= 0)
    entries = feed.batches.entries(column.name)
    arrays: dict[str, list[Any]] = {}
    for number in range(count):
        table, _, leaves = entries.read(number)
        for leaf in table.table.leaves:
            if leaf.dtype.foreign:
                hint = "feed.epoch gives them as torch tensors"
                raise FeedError(f"{column.name}: datasets has no numbers of type {leaf.dtype.name}", hint=hint)
        tree = table.table.build(leaves, [])
        if not isinstance(tree, dict):
            raise FeedError(f"{column.name}: its entries are no dict of tensors")
        for name, array in tree.items():
            arrays.setdefault(name, []).append(array)
    return datasets.Dataset.from_dict(arrays)
