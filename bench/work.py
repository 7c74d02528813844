"""A run's place and settings: folders, samples and the peers that take part."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench import measure, peers
from bench.layout import InMemory, Peer, Precook
from bench.samples import Kind, Samples, make_samples, same

_CHECKED = 5
"""Samples compared with what went in, at each end, after a write."""


class DifferentError(AssertionError):
    """A layout gave back something else than was stored."""


@dataclass
class Run:
    """Settings of a run and what it has made so far; everything it writes lies in `folder`."""

    folder: Path
    counts: dict[Kind, int]
    repeats: int
    least: float
    """Seconds that a rate is measured for, at least."""
    taking_part: list[type[Peer]]
    quick: bool = False
    _samples: dict[Kind, Samples] = field(default_factory=dict)
    _written: dict[tuple[Kind, str], Peer] = field(default_factory=dict)

    @classmethod
    def asked(cls, folder: Path, options: argparse.Namespace, taking_part: list[type[Peer]]) -> Run:
        """The run that a script was asked for."""
        return cls(
            folder=folder,
            counts={"large": options.samples, "small": options.small_samples},
            repeats=options.repeats,
            least=0.1 if options.quick else 1.0,
            taking_part=taking_part,
            quick=options.quick,
        )

    def samples(self, kind: Kind) -> Samples:
        """The samples of a kind, made when first needed."""
        if kind not in self._samples:
            self._samples[kind] = make_samples(kind, self.counts[kind])
        return self._samples[kind]

    def order(self, kind: Kind) -> list[int]:
        """A random order of all samples, the same for everyone."""
        return random_order(self.counts[kind])

    def write(self, peer: type[Peer], kind: Kind) -> float:
        """Store all samples anew in a layout and check a few; the seconds it took."""
        samples = self.samples(kind)
        folder = self.path(peer, kind)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if not self.quick:
            measure.settle(folder)
        made = peer(folder, kind, len(samples))
        passed = measure.seconds(lambda: made.store(samples))
        check(made, samples)
        self._written[kind, peer.name] = made
        return passed

    def written(self, peer: type[Peer], kind: Kind) -> Peer:
        """A layout that holds all samples, closed."""
        if (kind, peer.name) not in self._written:
            self.write(peer, kind)
        return self._written[kind, peer.name]

    def path(self, peer: type[Peer], kind: Kind) -> Path:
        """Where a layout lies."""
        return self.folder / kind / peer.__name__

    def clear(self, kind: Kind) -> None:
        """Remove everything of a kind, from the disk and from memory."""
        self._samples.pop(kind, None)
        for key in [key for key in self._written if key[0] == kind]:
            del self._written[key]
        shutil.rmtree(self.folder / kind, ignore_errors=True)


def random_order(count: int) -> list[int]:
    """A random order, the same in every process."""
    order = list(range(count))
    random.Random(count).shuffle(order)
    return order


def check(peer: Peer, samples: Samples) -> None:
    """Compare the first samples, and the last where any order is possible, with what went in."""
    peer.open()
    try:
        found = dict(zip(range(_CHECKED), peer.scan(), strict=False))
        if peer.random:
            last = range(max(0, len(samples) - _CHECKED), len(samples))
            found |= {number: peer.get(number) for number in last}
        for number, tree in found.items():
            if not same(tree, samples.trees[number]):
                message = f"{peer.name} changed sample {number}"
                raise DifferentError(message)
    finally:
        peer.close()


def stored(run: Run) -> list[type[Peer]]:
    """Those that keep samples on the disk: all but the floor in memory."""
    return [peer for peer in run.taking_part if peer is not InMemory]


def nearest_peer(rates: dict[str, list[float]]) -> tuple[str, float]:
    """The layout that comes nearest to precook, or is ahead of it, and precook's rate as a multiple of its rate."""
    ours = rates[Precook.name]
    names = {peer.name for peer in peers.PEERS if not peer.floor and not issubclass(peer, Precook)}
    ratios = {name: measure.median_ratio(ours, found) for name, found in rates.items() if name in names}
    name = min(ratios, key=lambda key: ratios[key])
    return name, ratios[name]


def child_environment() -> dict[str, str]:
    """The environment in which a fresh process finds this package and the same precook."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
