"""The samples everyone stores: random, the same in every run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

Kind = Literal["large", "small"]
KINDS: tuple[Kind, ...] = ("large", "small")
Tree = dict[str, Any]

FIELDS: dict[Kind, dict[str, torch.dtype]] = {
    "large": {"latent": torch.float16, "prompt": torch.float16},
    "small": {"ids": torch.int32, "mask": torch.int8},
}
"""The tensors of a sample."""
_LATENT = (16, 64, 64)
_PROMPT = (128, 1024)
_TOKENS = (500, 700)
"""A small sample has from this many tokens to that many: about 3 kB, five bytes each."""
_WORDS = ("a", "the", "cat", "dog", "house", "red", "small", "portrait", "of", "in", "with", "under", "river", "light")


@dataclass(frozen=True, slots=True)
class Samples:
    """A training set in memory."""

    kind: Kind
    trees: list[Tree]
    payload: int
    """Bytes of tensors and of caption text: what any layout has to keep."""

    def __len__(self) -> int:
        return len(self.trees)


def make_samples(kind: Kind, count: int) -> Samples:
    """`count` samples, each tensor with memory of its own."""
    random = np.random.default_rng(count)
    make = _large if kind == "large" else _small
    trees = [make(random) for _ in range(count)]
    payload = sum(
        tensor.nbytes if isinstance(tensor, torch.Tensor) else len(tensor.encode()) if isinstance(tensor, str) else 0
        for tree in trees
        for tensor in tree.values()
    )
    return Samples(kind, trees, payload)


def _large(random: np.random.Generator) -> Tree:
    """What an image trainer caches: a latent, a prompt embedding, a crop as a tuple, a caption."""
    return {
        "latent": _halves(random, _LATENT),
        "prompt": _halves(random, _PROMPT),
        "crop": (int(random.integers(512)), int(random.integers(512))),
        "caption": " ".join(random.choice(_WORDS, size=random.integers(8, 24)).tolist()),
    }


def _small(random: np.random.Generator) -> Tree:
    """What a text trainer caches: token ids and a mask, unpadded."""
    length = int(random.integers(*_TOKENS))
    ids = random.integers(0, 150_000, length, dtype=np.int32)
    return {"ids": torch.from_numpy(ids), "mask": torch.from_numpy(random.integers(0, 2, length, dtype=np.int8))}


def _halves(random: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    # Any bits without the highest of the exponent: numbers below 2, no NaN, so that equal means equal.
    bits = random.integers(0, 1 << 16, shape, dtype=np.uint16) & np.uint16(0xBFFF)
    return torch.from_numpy(bits.view(np.float16))


def same(found: Tree, wanted: Tree) -> bool:
    """Whether a sample came back as it went in: values, types, shapes and dtypes."""
    if found.keys() != wanted.keys():
        return False
    for name, value in wanted.items():
        other = found[name]
        if type(other) is not type(value):
            return False
        if isinstance(value, torch.Tensor):
            if other.dtype != value.dtype or not torch.equal(other, value):
                return False
        elif other != value:
            return False
    return True


def touch(tree: Tree) -> int:
    """Read every byte of every tensor: a sum over 64-bit words, and over the bytes that are left."""
    total = 0
    for value in tree.values():
        if isinstance(value, torch.Tensor):
            flat = value.numpy().reshape(-1).view(np.uint8)
            whole = flat.size & ~7
            total += int(np.add.reduce(flat[:whole].view(np.uint64)))
            if whole != flat.size:
                total += int(np.add.reduce(flat[whole:]))
    return total


def dump_plain(tree: Tree) -> str:
    """The plain values of a large sample as JSON, for layouts that have no types of their own."""
    return json.dumps([tree["crop"], tree["caption"]])


def load_plain(text: str | bytes) -> Tree:
    """The plain values of a large sample from their JSON."""
    return name_plain(json.loads(text))


def name_plain(values: list[Any]) -> Tree:
    """The plain values under their names, the tuple a tuple again."""
    return {"crop": tuple(values[0]), "caption": values[1]}
