"""One file per sample: what most trainers do today."""

# ruff: noqa: PLC0415 - a peer is imported where it is used, because it may not be installed

from __future__ import annotations

import numpy as np
import torch

from bench.layout import Peer
from bench.samples import FIELDS, Samples, Tree, dump_plain, load_plain


class OnePt(Peer):
    """torch.save and torch.load as mgds calls them: one file per sample."""

    name = "one .pt per sample"

    def write(self, samples: Samples) -> None:
        for number, tree in enumerate(samples.trees):
            torch.save(tree, self._path(number))

    def get(self, number: int) -> Tree:
        tree: Tree = torch.load(self._path(number), weights_only=False)
        return tree

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:08d}.pt"


class OneNpz(Peer):
    """numpy.savez: one file per sample, plain values as JSON."""

    name = "one .npz per sample"

    def write(self, samples: Samples) -> None:
        for number, tree in enumerate(samples.trees):
            arrays = {name: tree[name].numpy() for name in FIELDS[self.kind]}
            if self.kind == "large":
                arrays["plain"] = np.array(dump_plain(tree))
            np.savez(self._path(number), allow_pickle=False, **arrays)

    def get(self, number: int) -> Tree:
        with np.load(self._path(number)) as file:
            tree = {name: torch.from_numpy(file[name]) for name in FIELDS[self.kind]}
            return tree if self.kind == "small" else tree | load_plain(file["plain"].item())

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:08d}.npz"


class OneSafetensors(Peer):
    """safetensors: one file per sample, plain values as JSON in its metadata."""

    name = "one safetensors per sample"
    package = "safetensors"

    def write(self, samples: Samples) -> None:
        from safetensors.torch import save_file

        for number, tree in enumerate(samples.trees):
            tensors = {name: tree[name] for name in FIELDS[self.kind]}
            save_file(tensors, self._path(number), None if self.kind == "small" else {"plain": dump_plain(tree)})

    def open(self) -> None:
        from safetensors import safe_open

        self._open = safe_open

    def get(self, number: int) -> Tree:
        with self._open(self._path(number), framework="pt") as file:
            tree = {name: file.get_tensor(name) for name in FIELDS[self.kind]}
            return tree if self.kind == "small" else tree | load_plain(file.metadata()["plain"])

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:08d}.safetensors"
