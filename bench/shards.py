"""Dataset libraries: many samples per file."""

# ruff: noqa: PLC0415 - a peer is imported where it is used, because it may not be installed

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.layout import COMMIT_BYTES, Peer
from bench.samples import FIELDS, Kind, Samples, Tree, dump_plain, load_plain, name_plain


class HfDatasets(Peer):
    """Hugging Face datasets: a mapped Arrow file with binary columns, faster than its typed array features."""

    name = "HF datasets (Arrow)"
    package = "datasets"
    _SHAPES: ClassVar[dict[Kind, list[tuple[int, ...]]]] = {
        "large": [(16, 64, 64), (128, 1024)],
        "small": [(-1,), (-1,)],
    }

    def write(self, samples: Samples) -> None:
        from datasets import Features, Value
        from datasets.arrow_writer import ArrowWriter

        columns = {name: Value("binary") for name in FIELDS[self.kind]}
        if self.kind == "large":
            columns["plain"] = Value("string")
        with ArrowWriter(features=Features(columns), path=str(self._path)) as writer:
            for tree in samples.trees:
                row: dict[str, Any] = {name: tree[name].numpy().tobytes() for name in FIELDS[self.kind]}
                writer.write(row if self.kind == "small" else row | {"plain": dump_plain(tree)})
            writer.finalize()

    def open(self) -> None:
        from datasets import Dataset

        self._dataset = Dataset.from_file(str(self._path))

    def get(self, number: int) -> Tree:
        return self._tree(self._dataset[number])

    def scan(self) -> Iterator[Tree]:
        return map(self._tree, self._dataset)

    def close(self) -> None:
        del self._dataset

    @property
    def _path(self) -> Path:
        return self.folder / "samples.arrow"

    def _tree(self, row: dict[str, Any]) -> Tree:
        tree: Tree = {
            name: torch.frombuffer(row[name], dtype=dtype).view(shape)
            for (name, dtype), shape in zip(FIELDS[self.kind].items(), self._SHAPES[self.kind], strict=True)
        }
        return tree if self.kind == "small" else tree | load_plain(row["plain"])


class Mds(Peer):
    """MosaicML streaming: MDS shards, read from the local disk."""

    name = "MosaicML MDS"
    package = "mosaicml-streaming"
    _COLUMNS: ClassVar[dict[Kind, dict[str, str]]] = {
        "large": {"latent": "ndarray:float16:16,64,64", "prompt": "ndarray:float16:128,1024", "plain": "json"},
        "small": {"ids": "ndarray:int32", "mask": "ndarray:int8"},
    }

    @classmethod
    def load(cls) -> None:
        super().load()
        try:
            importlib.import_module("streaming")
        except (ImportError, RuntimeError):
            # Its vision datasets need a torchvision that fits torch, which the CPU build often lacks. MDS itself does
            # not: load the package without the module that imports them.
            for name in [name for name in sys.modules if name.partition(".")[0] in ("streaming", "torchvision")]:
                del sys.modules[name]
            spec = importlib.util.find_spec("streaming")
            assert spec is not None
            shell = types.ModuleType("streaming")
            shell.__path__ = list(spec.submodule_search_locations or [])
            sys.modules["streaming"] = shell
        importlib.import_module("streaming.base.local")
        importlib.import_module("streaming.base.format.mds.writer")

    def write(self, samples: Samples) -> None:
        from streaming.base.format.mds.writer import MDSWriter

        with MDSWriter(out=str(self.folder), columns=self._COLUMNS[self.kind], size_limit=COMMIT_BYTES) as writer:
            for tree in samples.trees:
                row = {name: tree[name].numpy() for name in FIELDS[self.kind]}
                writer.write(row if self.kind == "small" else row | {"plain": [tree["crop"], tree["caption"]]})

    def open(self) -> None:
        from streaming.base.local import LocalDataset

        self._dataset = LocalDataset(str(self.folder))

    def get(self, number: int) -> Tree:
        row = self._dataset[number]
        tree: Tree = {name: torch.from_numpy(row[name]) for name in FIELDS[self.kind]}
        return tree if self.kind == "small" else tree | name_plain(row["plain"])

    def close(self) -> None:
        del self._dataset


class LitData(Peer):
    """LitData: chunks of serialized trees, types kept."""

    name = "LitData"
    package = "litdata"

    @classmethod
    def load(cls) -> None:
        super().load()
        os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")
        importlib.import_module("litdata.streaming")

    def write(self, samples: Samples) -> None:
        from litdata.streaming import Cache

        cache = Cache(str(self.folder), chunk_bytes=COMMIT_BYTES)
        for number, tree in enumerate(samples.trees):
            cache[number] = tree
        cache.done()
        cache.merge()

    def open(self) -> None:
        from litdata import StreamingDataset

        self._dataset = StreamingDataset(str(self.folder))

    def get(self, number: int) -> Tree:
        tree: Tree = self._dataset[number]
        return tree

    def scan(self) -> Iterator[Tree]:
        return iter(self._dataset)

    def close(self) -> None:
        del self._dataset


class WebDataset(Peer):
    """WebDataset: tar shards, in order only."""

    name = "WebDataset (sequential only)"
    package = "webdataset"
    random = False

    def write(self, samples: Samples) -> None:
        import webdataset

        pattern = f"{self.folder}/%06d.tar"
        with webdataset.ShardWriter(pattern, maxcount=1 << 40, maxsize=COMMIT_BYTES, verbose=0) as writer:
            for number, tree in enumerate(samples.trees):
                arrays = {f"{name}.npy": tree[name].numpy() for name in FIELDS[self.kind]}
                plain = {} if self.kind == "small" else {"plain.json": [tree["crop"], tree["caption"]]}
                writer.write({"__key__": f"{number:08d}", **arrays, **plain})

    def open(self) -> None:
        import webdataset

        shards = sorted(str(path) for path in self.folder.glob("*.tar"))
        self._dataset = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode()

    def get(self, number: int) -> Tree:
        raise NotImplementedError

    def scan(self) -> Iterator[Tree]:
        for row in self._dataset:
            tree: Tree = {name: torch.from_numpy(row[f"{name}.npy"]) for name in FIELDS[self.kind]}
            yield tree if self.kind == "small" else tree | name_plain(row["plain.json"])

    def close(self) -> None:
        del self._dataset
