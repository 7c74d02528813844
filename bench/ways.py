"""Ways to get batches of the same samples: precook's feed, and a torch DataLoader over each of its peers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data import get_worker_info as worker_info

import precook
from bench.blobs import Lmdb
from bench.feedset import DATASET
from bench.layout import Peer
from bench.perfile import OnePt, OneSafetensors
from bench.samples import FIELDS, Kind, Tree
from bench.shards import HfDatasets, LitData, Mds, WebDataset

BATCH: dict[Kind, int] = {"large": 16, "small": 64}
PEERS: tuple[type[Peer], ...] = (OnePt, OneSafetensors, Lmdb, HfDatasets, Mds, LitData, WebDataset)
WORKERS = 2

warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)


class Way(ABC):
    """One way to get the batches of one kind of sample."""

    workers: int = 0
    """Processes that read."""

    def __init__(self, name: str, folder: Path, kind: Kind, count: int) -> None:
        self.name = name
        self.folder = folder
        self.kind = kind
        self.count = count

    @abstractmethod
    def open(self) -> None:
        """Get ready."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterable[dict[str, Any]]:
        """The batches of an epoch, in random order where the layout can."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    def epoch(self, epoch: int) -> int:
        """Take every batch of an epoch; the number of samples."""
        name = next(iter(FIELDS[self.kind]))
        return sum(len(_tensor(batch, name)) for batch in self.batches(epoch))


class FeedWay(Way):
    """`feed.epoch`: threads of this process."""

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        count: int,
        *,
        verify: bool | Literal["always"] = True,
        **options: Any,
    ) -> None:
        super().__init__("precook, feed.epoch", folder, kind, count)
        self._verify = verify
        self._options = options

    def open(self) -> None:
        self._store = precook.open(self.folder, verify_reads=self._verify)
        self.feed = self._store.snapshot(DATASET).feed(batch_size=BATCH[self.kind], **self._options)

    def batches(self, epoch: int) -> Iterable[dict[str, Any]]:
        return self.feed.epoch(epoch)

    def close(self) -> None:
        self.feed.close()
        self._store.close()


class FeedLoaderWay(FeedWay):
    """`feed.dataset()` and `feed.batch_sampler()` in a DataLoader."""

    def __init__(self, folder: Path, kind: Kind, count: int, workers: int) -> None:
        super().__init__(folder, kind, count)
        self.name = f"precook, DataLoader, {_told(workers)}"
        self.workers = workers

    def batches(self, epoch: int) -> Iterable[dict[str, Any]]:
        return DataLoader(self.feed.dataset(), batch_sampler=self.feed.batch_sampler(epoch), num_workers=self.workers)


class PeerWay(Way):
    """A peer's samples in a DataLoader."""

    def __init__(
        self, peer: type[Peer], folder: Path, kind: Kind, count: int, workers: int, *, pinned: bool = False
    ) -> None:
        super().__init__(f"{peer.name}, DataLoader, {_told(workers)}", folder, kind, count)
        self.peer = peer
        self.workers = workers
        self._pinned = pinned

    def open(self) -> None:
        made = self.peer(self.folder, self.kind, self.count)
        dataset: Any = _Samples(made) if self.peer.random else _Stream(made)
        self._loader: Any = DataLoader(
            dataset,
            batch_size=BATCH[self.kind],
            shuffle=True if self.peer.random else None,
            generator=torch.Generator().manual_seed(0),
            num_workers=self.workers,
            collate_fn=_collate_large if self.kind == "large" else _collate_small,
            persistent_workers=self.workers > 0,
            pin_memory=self._pinned,
        )

    def batches(self, epoch: int) -> Iterable[dict[str, Any]]:  # noqa: ARG002 - the generator goes on
        return self._loader

    def close(self) -> None:
        del self._loader


class _Samples(Dataset[Tree]):
    """Samples by number; a worker opens the layout when it is first asked."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._opened: object = None

    def __len__(self) -> int:
        return self._peer.count

    def __getitem__(self, number: int) -> Tree:
        info = worker_info()
        here = info.id if info else "here"
        if self._opened != here:
            self._peer.open()
            self._opened = here
        return self._peer.get(number)


class _Stream(IterableDataset[Tree]):
    """Samples in the order written; the layout itself shares its shards out to the workers."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __iter__(self) -> Iterator[Tree]:
        self._peer.open()
        yield from self._peer.scan()


def _collate_large(trees: list[Tree]) -> dict[str, Any]:
    batch = {name: default_collate([tree[name] for tree in trees]) for name in FIELDS["large"]}
    return batch | {name: [tree[name] for tree in trees] for name in ("crop", "caption")}


def _collate_small(trees: list[Tree]) -> dict[str, Any]:
    lengths = torch.tensor([len(tree["ids"]) for tree in trees])
    batch = {
        name: torch.nn.utils.rnn.pad_sequence([tree[name] for tree in trees], batch_first=True)
        for name in FIELDS["small"]
    }
    return batch | {"padding": torch.arange(int(lengths.max())) < lengths[:, None]}


def _tensor(batch: dict[str, Any], name: str) -> Any:
    return batch["tokens"]["ids"] if "tokens" in batch else batch[name]


def _told(workers: int) -> str:
    return f"{workers} workers" if workers else "no workers"
