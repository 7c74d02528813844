"""Pad ids: what a batch of token ids is padded with, which only their tokenizer knows."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping

from precook.encode.crew import Worker
from precook.encode.tokens import TokensEncoder
from precook.plan.wants import Encoding
from precook.sources.memory import Memory

_KIND = "pads"


def pad_ids(encodings: Mapping[str, Encoding], make: Callable[[str], Worker], memory: Memory) -> dict[str, int]:
    """The pad id of each encoder that keeps token ids, where its tokenizer has one.

    Remembered by recipe: a tokenizer is loaded for it once, and a dataset without tokens never loads one. Where
    transformers is not installed nobody knows it, and a feed that has to pad says so.
    """
    found: dict[str, int] = {}
    for name, encoding in encodings.items():
        recipe = encoding.recipe
        if recipe.kind != "transformers-tokens":
            continue
        note = memory.note(_KIND, recipe.digest.bytes)
        if note is None and importlib.util.find_spec("transformers") is not None:
            worker = make(name)
            assert isinstance(worker, TokensEncoder)
            note = json.dumps(worker.find_pad_id())
            memory.write_note(_KIND, recipe.digest.bytes, note)
        pad = None if note is None else json.loads(note)
        if pad is not None:
            found[name] = pad
    return found
