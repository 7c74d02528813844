"""The cache behind `precook.integrations.mgds.DiskCache`: the entries of an epoch, and what an item is made of.

`Cache` has what caches with and without their sources share; `build.py` and `sourceless.py` have the two kinds.
"""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precook.errors import printable
from precook.fs.old_caches import name_old_cache
from precook.integrations.mgds.entries import Aggregates, Values, load_aggregates, split_values
from precook.integrations.mgds.groups import GetPrevious, GroupNames, IndexMap
from precook.integrations.mgds.packs import PackChecks
from precook.integrations.mgds.upstream import UpstreamModule
from precook.memo.memo import Memory
from precook.open_store import open_store
from precook.report import Reporter
from precook.store.lease import Lease
from precook.store.store import Store
from precook.values import Bytes, Key

_log = logging.getLogger("precook")

FOLDER = "precook"
"""Where the store lies in the folder that a cache is given."""
GroupVariation = tuple[int, int]
"""A group, by its number, in one of its variations: what mgds builds and reads as a whole."""


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What a cache is asked to do: the arguments of `DiskCache`."""

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
    snapshot: str | None
    identities: Mapping[str, object]
    skip_failed: bool
    workers: int | None
    """How many threads build, where it is not the pipeline's pool that does."""
    report: Reporter

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is cached."""
        return self.split + self.aggregate

    @property
    def concept(self) -> str | None:
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

    modules: tuple[UpstreamModule, ...]
    get_previous: GetPrevious
    length: Callable[[str], int | None]
    seed: int
    executor: Executor
    device: Any
    prepare_threads: Callable[[], Callable[[Callable[[], None]], None]]
    """Called before a build; what it returns runs one item in a thread of the pool, as torch wants it."""
    next_caches: Callable[[], list[Cache]]
    """Gives the caches that start right after this one."""
    leave_out: Callable[[Sequence[int], int], bool]
    """Takes samples out of the whole pipeline at an epoch's start; whether it could."""


class Cache(abc.ABC):
    """One cache of a pipeline; `start` is called in one thread, `item` from any."""

    def __init__(self, options: CacheOptions, pipeline: MgdsPipeline) -> None:
        self._options = options
        self._pipeline = pipeline
        self._store: Store | None = options.store if isinstance(options.store, Store) else None
        self._lease: Lease | None = None
        self._checks = PackChecks()
        self._map: IndexMap | None = None
        self._keys: dict[GroupVariation, Bytes] = {}
        """The key of each member's entry."""
        self._held_aggregates: dict[GroupVariation, tuple[Bytes, Aggregates]] = {}
        """Those of an epoch, each after the keys of the entries that they belong to."""
        self._path_names = frozenset[str]()
        """Cached names that are paths: where a file lies today is known without a cache, and no part of any key."""
        self._unmade = frozenset[str]()
        """Names that nobody makes, such as those of a text encoder that a model is trained without: mgds has no value
        for them, before the cache and behind it."""

    @abc.abstractmethod
    def index_map(self) -> IndexMap:
        """The groups of the cache's samples; found once."""

    @abc.abstractmethod
    def path(self, group: int, member: int, name: str) -> str:
        """A path of a member of a group."""

    def forget(self) -> None:
        """Know nothing of the pipeline's samples any more: the next start finds them anew."""
        self._map = None
        self._keys, self._held_aggregates = {}, {}

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
            if not os.path.exists(place):  # noqa: PTH110 - told once, when the folder changes hands
                old = name_old_cache(Path(self._options.cache_dir))
                if old is not None:
                    where = printable(self._options.cache_dir)
                    _log.warning("%s holds %s (%s), which stays unused; %s", where, old.what, old.found, old.adopt)
            self._store = open_store(place)
        return self._store

    def __len__(self) -> int:
        return len(self.index_map())

    def close(self) -> None:
        """Let go of the lease, and of the store where it was opened here."""
        if self._lease is not None:
            self._lease.close()
        if self._store is not None and self._store is not self._options.store:
            self._store.close()
            self._store = None

    def start(self, epoch: int) -> None:
        """Leave everything that an epoch needs in the store, sound."""
        self.index_map()
        if self._unmade.issuperset(self._options.names):
            return
        for cache in self._pipeline.next_caches():
            # What is wrong with the settings of another cache is said before this one has encoded for hours.
            cache.index_map()
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
        values: Values = {}
        if name in self._options.aggregate:
            names = self._options.aggregate
            held = self._held_aggregates.get((group, variation))
            values = held[1].get(member) if held is not None else {}
        elif name in self._options.split:
            names = self._options.split
            if not (self._path_names | self._unmade).issuperset(names):
                tree = self.store.get(Key(self._keys[group, variation][member].tobytes()))
                values = split_values(tree, self._pipeline.device)
        else:
            return {}
        values.update((path, self.path(group, member, path)) for path in names if path in self._path_names)
        return {name: None if name in self._unmade else values[name] for name in names}

    def _read_by(self, epoch: int) -> list[GroupVariation]:
        """What an epoch reads."""
        groups = enumerate(self.index_map().groups)
        return [(number, variation) for number, group in groups for variation in group.variations_in(epoch)]

    def _absent(self, wanted: list[GroupVariation], memory: Memory) -> list[tuple[GroupVariation, int]]:
        """The members without a sound entry; what the others have is protected from here on."""
        if not wanted:
            return []
        keys = np.concatenate([self._keys[pair] for pair in wanted])
        # Protected before they are looked up: what is there now must be there for the whole epoch.
        if self._lease is None and not self.store.read_only:
            self._lease = self.store.lease(f"mgds {self._options.label}")
        if self._lease is not None:
            self._lease.protect(keys)
        absent = self._checks.absent(self.store, keys, memory, self._pipeline.executor)
        sizes = [len(self._keys[pair]) for pair in wanted]
        ends = np.cumsum(sizes)
        owners = np.searchsorted(ends, absent, side="right")
        firsts = ends - sizes
        return [(wanted[owner], int(row - firsts[owner])) for row, owner in zip(absent, owners, strict=True)]

    def _load_aggregates(self, wanted: list[GroupVariation], made: Mapping[bytes, Values], memory: Memory) -> None:
        """Hold the aggregates of an epoch in memory; `made` has those of entries that were just built."""
        left_out = self._path_names | self._unmade
        stored = [name for name in self._options.aggregate if name not in left_out]
        loaded: dict[GroupVariation, tuple[Bytes, Aggregates]] = {}
        for number, variation in wanted if stored else []:
            group = f"{self._options.label}/{self.index_map().groups[number].key}/{variation}/{sorted(stored)}"
            keys = self._keys[number, variation]
            held = self._held_aggregates.get((number, variation))
            if held is None or not np.array_equal(held[0], keys):
                found = load_aggregates(self.store, keys, stored, group=group, made=made, memory=memory)
                held = (keys.copy(), found)
            loaded[number, variation] = held
        self._held_aggregates = loaded
