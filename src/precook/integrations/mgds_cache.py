"""The cache behind `precook.integrations.mgds.DiskCache`: its entries, and what an item is made of."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precook.integrations.mgds_aggregates import Aggregates, Values, load_aggregates
from precook.integrations.mgds_groups import Ask, GroupNames, IndexMap
from precook.integrations.mgds_health import Health
from precook.integrations.mgds_manifest import manifest_name
from precook.integrations.mgds_upstream import Stage
from precook.integrations.mgds_values import entry_values
from precook.memo.memo import Memory
from precook.open_store import open_store
from precook.report import Reporter
from precook.store.lease import Lease
from precook.store.reader import LazyTensor
from precook.store.store import Store
from precook.values import Bytes, Key

FOLDER = "precook"
"""Where the store lies in the folder that a cache is given."""
Part = tuple[int, int]
"""A group, by its number, and a variation of it."""


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What a cache is asked to do."""

    cache_dir: str
    split: tuple[str, ...]
    aggregate: tuple[str, ...]
    groups: GroupNames
    before_cache: Callable[[], object] | None
    store: str | os.PathLike[str] | Store | None
    sources: tuple[str, ...]
    content: str | None
    stop: Callable[[], bool] | None
    sourceless: bool
    model: object
    identities: Mapping[str, object]
    report: Reporter

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is cached."""
        return self.split + self.aggregate

    @property
    def root(self) -> str | None:
        """The name that stands for a sample's concept, which a cache without sources gives too."""
        names = self.groups.all
        return names[0].partition(".")[0] if names else None

    @property
    def label(self) -> str:
        """What people call this cache: the last part of its folder."""
        return Path(self.cache_dir).name or "cache"


@dataclass(frozen=True, slots=True)
class MgdsPipeline:
    """What a cache is given by the pipeline it stands in."""

    stages: tuple[Stage, ...]
    ask: Ask
    length: Callable[[str], int | None]
    seed: int
    executor: Executor
    device: Any
    worker: Callable[[], Callable[[Callable[[], None]], None]]
    """Called before a build; what it returns runs one item in a thread of the pool, as torch wants it."""


class Cache(abc.ABC):
    """One cache of a pipeline; `start` is called in one thread, `item` from any."""

    def __init__(self, options: CacheOptions, pipeline: MgdsPipeline) -> None:
        self._options = options
        self._pipeline = pipeline
        self._store: Store | None = options.store if isinstance(options.store, Store) else None
        self._lease: Lease | None = None
        self._health = Health()
        self._map: IndexMap | None = None
        self._keys: dict[Part, Bytes] = {}
        self._aggregates: dict[Part, Aggregates] = {}
        self._passed = frozenset[str]()
        """Cached names that are paths: where a file lies today is known without a cache, and no part of any key."""

    @abc.abstractmethod
    def gather(self) -> IndexMap:
        """The groups of the cache's samples; found once."""

    @abc.abstractmethod
    def path(self, group: int, member: int, name: str) -> str:
        """A path of a member of a group."""

    @abc.abstractmethod
    def prepare(self, epoch: int, memory: Memory) -> None:
        """See to it that everything an epoch needs is in the store, sound."""

    @property
    def store(self) -> Store:
        """Where the entries lie."""
        if self._store is None:
            # A folder of its own: what mgds has left in the cache's folder may stay there.
            place = self._options.store if self._options.store is not None else Path(self._options.cache_dir, FOLDER)
            assert not isinstance(place, Store)
            self._store = open_store(place)
        return self._store

    def __len__(self) -> int:
        return len(self.gather())

    def close(self) -> None:
        """Let go of the lease, and of the store where it was opened here."""
        if self._lease is not None:
            self._lease.close()
        if self._store is not None and self._store is not self._options.store:
            self._store.close()
            self._store = None

    def start(self, epoch: int) -> None:
        """Leave everything that an epoch needs in the store, sound."""
        memory = self.store.memory()
        try:
            self.prepare(epoch, memory)
        finally:
            # Also on the way out of an error: files that were read and texts that were drawn stay known.
            self.store.remember(memory)

    def item(self, epoch: int, index: int, name: str | None) -> dict[str, Any]:
        """All split values or all aggregates of an output, whichever the name belongs to."""
        assert self._map is not None, "start comes first"
        group, variation, member = self._map.locate(epoch, index)
        if name in self._options.aggregate:
            part = self._aggregates.get((group, variation))
            values = part.get(member) if part is not None else {}
            names = self._options.aggregate
        elif name in self._options.split:
            names = self._options.split
            values = {}
            if not self._passed.issuperset(names):
                tree = self.store.get(Key(self._keys[group, variation][member].tobytes()))
                values = entry_values(tree, "split", self._pipeline.device)
        else:
            return {}
        return {one: self.path(group, member, one) if one in self._passed else values[one] for one in names}

    def _parts(self, epoch: int) -> list[Part]:
        """What an epoch reads."""
        return [(at, one) for at, group in enumerate(self.gather().groups) for one in group.touched(epoch)]

    def _absent(self, parts: list[Part], memory: Memory) -> list[tuple[Part, int]]:
        if not parts:
            return []
        keys = np.concatenate([self._keys[part] for part in parts])
        self._protect(keys)
        self._health.check(self.store, keys, memory, self._pipeline.executor)
        absent = np.flatnonzero(~self.store.present(keys))
        ends = np.cumsum([len(self._keys[part]) for part in parts])
        owners = np.searchsorted(ends, absent, side="right")
        firsts = ends - [len(self._keys[part]) for part in parts]
        return [(parts[owner], int(at - firsts[owner])) for at, owner in zip(absent, owners, strict=True)]

    def _protect(self, keys: Bytes) -> None:
        # Before they are looked up: what is there now must be there for the whole epoch.
        if self._lease is None and not self.store.read_only:
            self._lease = self.store.lease(f"mgds {self._options.label}")
        if self._lease is not None:
            self._lease.protect(keys)

    def _load_aggregates(self, parts: list[Part], fresh: dict[bytes, Values], memory: Memory) -> None:
        stored = [name for name in self._options.aggregate if name not in self._passed]
        if not stored:
            self._aggregates = {}
            return

        def read(key: Key) -> Values:
            # Lazily: the large tensors of the entry are not wanted here.
            tree = self.store.get(key, lazy=True)
            values = tree["aggregate"]
            if any(_is_lazy(value) for value in values.values()):
                values = self.store.get(key)["aggregate"]
            return dict(values)

        loaded: dict[Part, Aggregates] = {}
        for part in parts:
            group = self.gather().groups[part[0]]
            which = f"{self._options.label}/{group.key}/{part[1]}/{sorted(stored)}"
            loaded[part] = load_aggregates(
                self.store, self._keys[part], stored, group=which, fresh=fresh, memory=memory, read=read
            )
        self._aggregates = loaded

    def _manifest_name(self, group: str) -> str:
        options = self._options
        return manifest_name(options.label, group, options.names, options.model)


def _is_lazy(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_is_lazy(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_is_lazy(item) for item in value)
    return isinstance(value, LazyTensor)
