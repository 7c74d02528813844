"""Feeding alone: batches brought to the GPU as fast as they come, for nobody who trains on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import measure
from bench.feedset import store_samples
from bench.perfile import OnePt
from bench.samples import FIELDS, Samples, make_samples
from bench.table import Column, Goal, Section
from bench.ways import BATCH, FeedWay, PeerWay
from bench.work import DifferentError

_GB = 1e9
_KIND = "large"
_WANTED = 20_000
_FULL, _QUICK = 4096, 64
"""Samples; whole batches of them."""
_RING = 16
"""Batches that lie in pinned memory for the floor: more than a processor's cache holds."""


def alone(base: Path, device: str, *, quick: bool) -> Section:
    """The rate of each way, epoch after epoch and one way after the other."""
    samples = make_samples(_KIND, _QUICK if quick else _FULL)
    ways = _ways(base, samples, device, (1,) if quick else (8, 14))
    expected = _total(torch.stack([tree[name].view(torch.int16) for tree in samples.trees]) for name in FIELDS[_KIND])
    # Workers start first: they are forked, and threads of ours need not be.
    for way in sorted(ways, key=lambda way: not way.workers):
        way.open()
        found = _total(tensor.view(torch.int16) for batch in way.batches(0) for tensor in batch)
        if way.whole and found != expected:
            message = f"{way.name} did not give every sample once"
            raise DifferentError(message)
    epochs = {way.name: iter(range(1, 1_000_000)) for way in ways}
    rates = measure.interleave(
        {
            way.name: partial(measure.rate, partial(_epoch, way, epochs[way.name]), at_least=0.1 if quick else 2.0)
            for way in ways
        },
        1 if quick else 3,
    )
    for way in ways:
        way.close()
    files = rates[ways[-1].name]
    size = samples.payload / len(samples)
    columns = [Column("fed from"), Column("samples/s"), Column("GB/s", ".2f"), Column("x .pt", ",.2f")]
    title = f"Feeding alone: batches of {BATCH[_KIND]}, {len(samples):,} samples of {size / 1e3:.0f} kB"
    section = Section("alone", title, columns)
    for way in ways:
        rate = measure.median(rates[way.name])
        section.rows.append([way.name, rate, rate * size / _GB, measure.median_ratio(rates[way.name], files)])
    ours = measure.median(rates[_Fed.default])
    section.goals.append(Goal("feeding alone, samples a second", ours, _WANTED, "at least", ",.0f", ""))
    section.notes += [
        (
            "medians of three runs of two seconds in turn, after an epoch in which each way has read everything and "
            "the sum of all bits was compared; whole epochs in random order, threads and first batch of each included."
        ),
        (
            "floor: batches that already lie in pinned memory, copied and nothing else; tensors on the GPU: all "
            "samples lie there, and a batch is picked out of them; .pt: torch.load and the default collate function in "
            "workers that stay, pinned memory, `.to(device, non_blocking=True)`; x .pt: against the last row."
        ),
    ]
    return section


class _Way(ABC):
    """One way to have the batches of an epoch on the device, each as a tuple of tensors."""

    workers = 0
    whole = True
    """Whether an epoch shows every sample once."""

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.device = device

    def open(self) -> None:  # noqa: B027 - those that hold tensors need none
        """Get ready."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterable[tuple[Any, ...]]:
        """The batches of an epoch."""

    def close(self) -> None:  # noqa: B027 - likewise
        """Let go of everything."""


class _Floor(_Way):
    """Copies out of pinned memory."""

    whole = False

    def __init__(self, samples: Samples, device: str) -> None:
        super().__init__("floor: copies from pinned memory", device)
        size = BATCH[_KIND]
        self._steps = len(samples) // size
        self._ring = [
            [torch.stack([tree[name] for tree in trees]) for name in FIELDS[_KIND]]
            for trees in (samples.trees[at : at + size] for at in range(0, min(self._steps, _RING) * size, size))
        ]
        if device == "cuda":
            self._ring = [[tensor.pin_memory() for tensor in tensors] for tensors in self._ring]

    def batches(self, epoch: int) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 - each is the same
        for step in range(self._steps):
            tensors = self._ring[step % len(self._ring)]
            yield tuple(tensor.to(self.device, non_blocking=True) for tensor in tensors)


class _Resident(_Way):
    """All samples on the device."""

    def __init__(self, samples: Samples, device: str) -> None:
        super().__init__("tensors on the GPU", device)
        self._columns = [torch.stack([tree[name] for tree in samples.trees]).to(device) for name in FIELDS[_KIND]]

    def batches(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        generator = torch.Generator(self.device).manual_seed(epoch)
        order = torch.randperm(len(self._columns[0]), generator=generator, device=self.device)
        for chosen in order.split(BATCH[_KIND]):
            yield tuple(column[chosen] for column in self._columns)


class _Fed(_Way):
    """A feed of ours, with some threads."""

    default = "precook, feed.epoch, threads=2 (the default)"

    def __init__(self, folder: Path, samples: Samples, device: str, *, threads: int | None = None) -> None:
        super().__init__(f"precook, feed.epoch, threads={threads}" if threads else self.default, device)
        more = {} if threads is None else {"threads": threads, "prefetch": 2 * threads}
        self._way = FeedWay(folder, _KIND, len(samples), **more)

    def open(self) -> None:
        self._way.open()

    def batches(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        for batch in self._given(epoch):
            yield batch["latent"], batch["prompt"]["hidden"]

    def close(self) -> None:
        self._way.close()

    def _given(self, epoch: int) -> Iterable[dict[str, Any]]:
        return self._way.feed.epoch(epoch, device=self.device)


class _Loaded(_Fed):
    """The same feed where a DataLoader would be."""

    default = "precook, feed.loader"

    def open(self) -> None:
        super().open()
        self._loader = self._way.feed.loader(device=self.device)

    def _given(self, epoch: int) -> Iterable[dict[str, Any]]:  # noqa: ARG002 - it goes on by itself
        return self._loader


class _Files(_Way):
    """One .pt file for each sample, read by the workers of a DataLoader."""

    def __init__(self, folder: Path, samples: Samples, device: str, workers: int) -> None:
        super().__init__(f"one .pt per sample, DataLoader, {workers} workers", device)
        self.workers = workers
        self._way = PeerWay(OnePt, folder, _KIND, len(samples), workers, pinned=device == "cuda")

    def open(self) -> None:
        self._way.open()

    def batches(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        for batch in self._way.batches(epoch):
            yield tuple(batch[name].to(self.device, non_blocking=True) for name in FIELDS[_KIND])

    def close(self) -> None:
        self._way.close()


def _ways(base: Path, samples: Samples, device: str, workers: tuple[int, ...]) -> list[_Way]:
    store, files = base / "alone-store", base / "alone-files"
    store_samples(store, samples)
    files.mkdir()
    OnePt(files, _KIND, len(samples)).store(samples)
    return [
        _Floor(samples, device),
        _Resident(samples, device),
        *(_Fed(store, samples, device, threads=threads) for threads in (1, None, 4, 8)),
        _Loaded(store, samples, device),
        *(_Files(files, samples, device, count) for count in workers),
    ]


def _epoch(way: _Way, epochs: Iterator[int]) -> int:
    """Take every batch of the next epoch, to the last copy; the number of samples."""
    taken = sum(len(batch[0]) for batch in way.batches(next(epochs)))
    if way.device == "cuda":
        torch.cuda.synchronize()
    return taken


def _total(tensors: Iterable[Any]) -> int:
    """The sum of all numbers; summed where they lie, and asked for once."""
    total: Any = 0
    for tensor in tensors:
        total = total + tensor.sum(dtype=torch.int64)
    return int(total)
