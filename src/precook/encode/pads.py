"""Pad ids: what a batch of token ids is padded with, which only their tokenizer knows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from precook.encode.crew import Worker
from precook.encode.tokens import TokensEncoder
from precook.plan.wants import Encoding
from precook.sources.memory import Memory

_KIND = "pads"


def pad_ids(encodings: Mapping[str, Encoding], make: Callable[[str], Worker], memory: Memory) -> dict[str, int]:
    """The pad id of each encoder that keeps token ids, where its tokenizer has one.

    Remembered by recipe: a tokenizer is loaded for it once, and a dataset without tokens never loads one.
    """
    found: dict[str, int] = {}
    for name, encoding in encodings.items():
        recipe = encoding.recipe
        if recipe.kind != "transformers-tokens":
            continue
        note = memory.note(_KIND, recipe.digest.bytes)
        if note is None:
            worker = make(name)
            assert isinstance(worker, TokensEncoder)
            worker.load("cpu")
            note = json.dumps(worker.pad_id)
            worker.unload()
            memory.write_note(_KIND, recipe.digest.bytes, note)
        pad = json.loads(note)
        if pad is not None:
            found[name] = pad
    return found
