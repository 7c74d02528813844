"""A cache without its sources: it shows what was recorded when they were there."""

from __future__ import annotations

from typing import Any

import numpy as np

from precook.errors import IncompleteError
from precook.integrations.mgds_cache import Cache, CacheOptions, MgdsPipeline
from precook.integrations.mgds_groups import CacheGroup, FolderRoots, GroupSettings, IndexMap, group_settings
from precook.integrations.mgds_manifest import GroupRecord, read_manifest
from precook.memo.memo import Memory


class RecordedCache(Cache):
    """Groups as they were recorded; how often they are shown is as the concepts say now."""

    def __init__(self, options: CacheOptions, pipeline: MgdsPipeline) -> None:
        super().__init__(options, pipeline)
        self._manifests: list[GroupRecord] = []
        self._concepts: list[list[Any]] = []

    def item(self, epoch: int, index: int, name: str | None) -> dict[str, Any]:
        if name is None or name != self._options.root:
            return super().item(epoch, index, name)
        group, _, member = self.gather().locate(epoch, index)
        return {name: self._concepts[group][int(self._manifests[group].concepts[member])]}

    def path(self, group: int, member: int, name: str) -> str:
        return self._manifests[group].paths[name][member]

    def gather(self) -> IndexMap:
        if self._map is not None:
            return self._map
        options, pipeline = self._options, self._pipeline
        first: dict[str, GroupSettings] = {}
        concepts: dict[str, list[Any]] = {}
        if options.groups.variations is None:
            first[""], concepts[""] = GroupSettings("", 1, 1.0, "REPEATS"), []
        else:
            assert options.root is not None
            roots = FolderRoots(pipeline.ask, options.groups.all)
            for index in range(pipeline.length(options.root) or 0):
                code = roots.code(index)
                settings = group_settings(roots, code, options.groups)
                if settings is not None:
                    first.setdefault(settings.key, settings)
                    concepts.setdefault(settings.key, []).append(roots.value(code, options.root))
        groups: list[CacheGroup] = []
        for key, settings in first.items():
            manifest = read_manifest(self.store, self._manifest_name(key))
            recorded = int(manifest.concepts.max(initial=-1)) + 1
            if concepts[key] and recorded > len(concepts[key]):
                message = f"group {key[:12]} was built from {recorded} concepts, and {len(concepts[key])} are given"
                raise IncompleteError(message, hint="give the concepts it was built from")
            self._manifests.append(manifest)
            groups.append(settings.group(np.arange(manifest.size)))
        self._concepts = list(concepts.values())
        self._passed = frozenset(name for manifest in self._manifests for name in manifest.paths)
        self._map = IndexMap(groups)
        return self._map

    def prepare(self, epoch: int, memory: Memory) -> None:
        index_map = self.gather()
        parts = self._parts(epoch)
        for at, variation in parts:
            recorded = self._manifests[at].keys
            if variation not in recorded:
                message = f"variation {variation} of group {index_map.groups[at].key[:12]} was never built"
                raise IncompleteError(message, hint="run one epoch more with the sources, or ask for fewer variations")
            self._keys[at, variation] = recorded[variation]
        absent = self._absent(parts, memory)
        if absent:
            hint = "build again with the sources; `precook verify` says what is damaged"
            raise IncompleteError(f"{len(absent):,} entries of {self._options.label} are missing or damaged", hint=hint)
        self._load_aggregates(parts, {}, memory)
