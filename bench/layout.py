"""What a layout is, and the two that are not peers: precook, and tensors that lie in memory."""

from __future__ import annotations

import importlib.metadata
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import torch

import precook
from bench import measure
from bench.samples import FIELDS, Kind, Samples, Tree

COMMIT_BYTES = 64 << 20
"""Bytes between commits and in a shard, where a layout lets us choose: precook's own."""

# Tensors over read-only memory are what "zero-copy" means for several of them; torch warns about each.
warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")


class Peer(ABC):
    """One layout in one folder."""

    name: ClassVar[str]
    package: ClassVar[str] = ""
    """What has to be installed, if anything beside torch, numpy and safetensors."""
    floor: ClassVar[bool] = False
    """Whether it is a bound to compare with, rather than a way to store samples."""
    random: ClassVar[bool] = True
    """Whether samples can be read in any order."""
    durable: ClassVar[bool] = False
    """Whether `write` itself makes every byte durable; the others are synced at the end, on the clock."""

    def __init__(self, folder: Path, kind: Kind, count: int) -> None:
        self.folder = folder
        self.kind = kind
        self.count = count

    @classmethod
    def load(cls) -> None:
        """Import what it needs."""
        if cls.package:
            importlib.metadata.version(cls.package)

    def store(self, samples: Samples) -> None:
        """Write all samples, durably."""
        self.write(samples)
        if not self.durable:
            measure.sync_tree(self.folder)

    @abstractmethod
    def write(self, samples: Samples) -> None:
        """Write all samples into an empty folder."""

    def open(self) -> None:  # noqa: B027 - files by name need none
        """Get ready to read."""

    @abstractmethod
    def get(self, number: int) -> Tree:
        """One sample with torch tensors."""

    def scan(self) -> Iterator[Tree]:
        """All samples in the order written."""
        return map(self.get, range(self.count))

    def close(self) -> None:  # noqa: B027 - likewise
        """Let go of every file and mapping."""


class Precook(Peer):
    """precook itself; a process's first read of an entry checks it."""

    name = "precook"
    durable = True
    verify: ClassVar[bool | Literal["always"]] = True

    def write(self, samples: Samples) -> None:
        with self._open() as store, store.writer() as writer:
            for key, tree in zip(self._keys(), samples.trees, strict=True):
                writer.put(key, tree, recipe=self.recipe)

    def open(self) -> None:
        self._store = self._open()
        self._listed = self._keys()

    def get(self, number: int) -> Tree:
        tree: Tree = self._store.get(self._listed[number])
        return tree

    def close(self) -> None:
        self._store.close()
        del self._store

    @property
    def recipe(self) -> precook.Recipe:
        """What made the samples."""
        return precook.Recipe("bench", {"kind": self.kind})

    def _open(self) -> precook.Store:
        return precook.open(self.folder, verify_reads=self.verify)

    def _keys(self) -> list[precook.Key]:
        return sample_keys(self.kind, self.count)


class PrecookAlways(Precook):
    """precook checking every entry at every read."""

    name = "precook, verify_reads=always"
    verify = "always"


_KEYS: dict[tuple[Kind, int], list[precook.Key]] = {}


def sample_keys(kind: Kind, count: int) -> list[precook.Key]:
    """The keys of all samples, made once: a plan has them before anything is read or written."""
    if (kind, count) not in _KEYS:
        recipe = precook.Recipe("bench", {"kind": kind})
        _KEYS[kind, count] = [recipe.key(number) for number in range(count)]
    return _KEYS[kind, count]


class InMemory(Peer):
    """Rows of tensors that already lie in memory."""

    name = "floor: tensors in memory"
    floor = True

    def write(self, samples: Samples) -> None:
        self._columns = {name: [tree[name] for tree in samples.trees] for name in FIELDS[self.kind]}
        self._plain = [{k: v for k, v in tree.items() if k not in self._columns} for tree in samples.trees]
        self._stacked = {
            name: torch.stack(column) if self.kind == "large" else column for name, column in self._columns.items()
        }
        del self._columns

    def get(self, number: int) -> Tree:
        return {name: column[number] for name, column in self._stacked.items()} | self._plain[number]
