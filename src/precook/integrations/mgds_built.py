"""A cache with its sources: it learns what they hold, and builds what is missing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from precook.errors import SourceChangedError
from precook.integrations.mgds_aggregates import Values, aggregates_key
from precook.integrations.mgds_build import BuildTask, build
from precook.integrations.mgds_cache import Cache, CacheOptions, MgdsPipeline, Part
from precook.integrations.mgds_groups import FolderRoots, IndexMap, gather_groups
from precook.integrations.mgds_keys import Keys, Naming, name_entries
from precook.integrations.mgds_manifest import GroupRecord, write_manifest
from precook.integrations.mgds_sources import Sources, learn_sources, list_paths
from precook.integrations.mgds_upstream import nobody_else
from precook.integrations.mgds_values import entry_parts
from precook.memo.memo import Memory
from precook.values import Bytes, Key


class BuiltCache(Cache):
    """A cache that makes what it does not have; paths and recipes are found once per process, as mgds lists files."""

    def __init__(self, options: CacheOptions, pipeline: MgdsPipeline) -> None:
        super().__init__(options, pipeline)
        self._naming: Naming | None = None
        self._roots: dict[str, dict[int, Any]] = {}
        self._paths: dict[str, list[str]] = {}
        self._sources: Sources | None = None
        self._maker: Keys | None = None
        self._recorded = frozenset[Part]()
        self._earlier: dict[Part, Bytes | None] = {}

    def __len__(self) -> int:
        # Before the first start, when files may not be listed yet, as many as there are upstream.
        return len(self._map) if self._map is not None else self._pipeline.length(self._options.names[0]) or 0

    def path(self, group: int, member: int, name: str) -> str:
        return self._paths[name][int(self.gather().groups[group].members[member])]

    def gather(self) -> IndexMap:
        if self._map is not None:
            return self._map
        options, pipeline = self._options, self._pipeline
        counted = options.groups.variations or options.names[0]
        length = pipeline.length(counted) or 0
        groups = IndexMap(gather_groups(self._root, options.groups, length))
        naming = self._name()
        paths = naming.everything.path_outputs() | set(naming.uses)
        self._passed = frozenset(paths & set(options.names))
        self._paths = list_paths(pipeline.ask, sorted({*naming.uses, *self._passed}), length)
        self._naming = naming
        self._map = groups
        return groups

    def _name(self) -> Naming:
        """What keys are made of, with the weights as they are now."""
        options, pipeline = self._options, self._pipeline
        return name_entries(
            pipeline.stages,
            split=options.split,
            aggregate=options.aggregate,
            group=options.groups.group,
            sources=options.sources,
            content=options.content,
            seed=pipeline.seed,
            given=options.identities,
            model=options.model,
        )

    def prepare(self, epoch: int, memory: Memory) -> None:
        index_map = self.gather()
        parts = self._parts(epoch)
        fresh: dict[bytes, Values] = {}
        known = self._sources is not None
        if not known:
            self._learn(memory)
        missing = self._missing(parts, memory)
        if missing and known:
            # Something is to be made: what the files hold and who the encoders are now counts, not what they were when
            # this process began.
            self._naming = self._name()
            self._learn(memory)
            missing = self._missing(parts, memory)
        if missing:
            fresh = self._build(missing, memory)
        self._load_aggregates(parts, fresh, memory)
        if missing or self._recorded != frozenset(self._keys):
            self._record(index_map, memory)
            self._recorded = frozenset(self._keys)

    def _root(self, _: int, name: str, index: int) -> Any:
        """The concept of a sample and the like, asked for once: the walk through a pipeline is slow."""
        known = self._roots.setdefault(name, {})
        if index not in known:
            known[index] = self._pipeline.ask(0, name, index)
        return known[index]

    def _learn(self, memory: Memory) -> None:
        assert self._naming is not None

        def save() -> None:
            self.store.remember(memory)

        report = self._options.report
        self._sources = learn_sources(self._paths, self._naming.uses, memory, save=save, report=report)
        self._earlier.clear()
        self._maker = Keys(self._naming, self._sources, self._pipeline.ask, root=self._root)
        with self._guarded():
            for part in self._keys:
                self._keys[part] = self._make_keys(part, memory)

    def _guarded(self) -> AbstractContextManager[None]:
        assert self._naming is not None
        return nobody_else(self._pipeline.stages, self._naming.everything)

    def _missing(self, parts: list[Part], memory: Memory) -> list[tuple[Part, int]]:
        """The members that have no sound entry."""
        assert self._naming is not None
        with self._guarded():
            for part in parts:
                if part not in self._keys:
                    self._keys[part] = self._make_keys(part, memory)
        missing = self._absent(parts, memory)
        if missing and self._naming.content is not None:
            rows: dict[Part, list[int]] = {}
            for part, member in missing:
                rows.setdefault(part, []).append(member)
            with self._guarded():
                for part, members in rows.items():
                    self._keys[part][members] = self._make_keys(part, memory, redraw=members)
            missing = self._absent(parts, memory)
        return missing

    def _make_keys(self, part: Part, memory: Memory, *, redraw: list[int] | None = None) -> Bytes:
        """The keys of a part; of some rows, with their texts drawn anew."""
        assert self._map is not None
        assert self._maker is not None
        members = self._map.groups[part[0]].members
        indices = (members if redraw is None else members[redraw]).tolist()
        return self._maker.of(indices, part[1], memory, redraw=redraw is not None)

    def _build(self, missing: list[tuple[Part, int]], memory: Memory) -> dict[bytes, Values]:
        """Encode what is missing; the aggregates of what was made, by key."""
        options, pipeline = self._options, self._pipeline
        assert self._naming is not None
        assert self._sources is not None
        assert self._maker is not None
        naming, sources, maker = self._naming, self._sources, self._maker
        fresh: dict[bytes, Values] = {}
        keys: dict[BuildTask, Key] = {}
        wanted: set[bytes] = set()
        shown = self._paths[next(iter(self._paths))] if self._paths else []
        for part, member in missing:
            index = int(self.gather().groups[part[0]].members[member])
            key = Key(self._keys[part][member].tobytes())
            if key.bytes not in wanted:
                wanted.add(key.bytes)
                keys[BuildTask(index, part[1], shown[index] if shown else f"sample {index}")] = key
        if options.before_cache is not None:
            options.before_cache()
        in_worker = pipeline.worker()

        def values(names: tuple[str, ...], job: BuildTask) -> Values:
            stored = [name for name in names if name not in self._passed]
            return {name: pipeline.ask(job.variation, name, job.index) for name in stored}

        with self.store.writer() as writer:

            def make(job: BuildTask) -> None:
                def encode() -> None:
                    key = keys[job]
                    split, aggregate = values(options.split, job), values(options.aggregate, job)
                    parts = entry_parts(split, aggregate)
                    sources.check_unchanged(job.index)
                    if naming.content is not None and maker.of_text_now(job.index, job.variation) != key:
                        raise SourceChangedError(Path(job.name))
                    writer.put_parts(key, parts, recipe=naming.recipe)
                    fresh[key.bytes] = aggregate

                in_worker(encode)

            with self._guarded():
                build(list(keys), make, pipeline.executor, stop=options.stop, report=options.report)
        made = np.frombuffer(b"".join(key.bytes for key in keys.values()), np.uint8).reshape(-1, 32)
        self._health.check(self.store, made, memory, pipeline.executor, written=True)
        return fresh

    def _record(self, index_map: IndexMap, memory: Memory) -> None:
        """Keep what each group is made of, so that it can be trained on without its sources."""
        if self.store.read_only:
            return
        assert self._naming is not None
        roots = FolderRoots(self._root, self._options.groups.all)
        for at, group in enumerate(index_map.groups):
            keys = {
                variation: made
                for variation in range(group.variations)
                if (made := self._made((at, variation), memory)) is not None
            }
            if not keys or not len(group.members):
                continue
            members = group.members.tolist()
            codes = [roots.code(index) for index in members]
            numbers = {code: number for number, code in enumerate(dict.fromkeys(codes))}
            paths = {name: [self._paths[name][index] for index in members] for name in sorted(self._passed)}
            concepts = np.array([numbers[code] for code in codes], np.int32)
            named = {variation: aggregates_key(made) for variation, made in keys.items()}
            there = {one: np.frombuffer(key.bytes, np.uint8) for one, key in named.items() if key in self.store}
            manifest = GroupRecord(len(codes), keys, paths, concepts, there)
            write_manifest(self.store, self._manifest_name(group.key), manifest, group, self._naming.recipe)

    def _made(self, part: Part, memory: Memory) -> Bytes | None:
        """The keys of a part that is in the store as a whole, also where this run has not come to it yet."""
        assert self._map is not None
        assert self._maker is not None
        if part in self._keys:
            # Made in an earlier epoch, perhaps, of files or by weights that are others now.
            return self._keys[part] if bool(self.store.present(self._keys[part]).all()) else None
        if part not in self._earlier:
            keys = self._maker.known(self._map.groups[part[0]].members.tolist(), part[1], memory)
            whole = keys is not None and bool(self.store.present(keys).all())
            self._earlier[part] = keys if whole else None
        return self._earlier[part]
