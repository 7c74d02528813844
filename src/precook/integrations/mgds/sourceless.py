"""Training without sources: snapshots of the groups of a cache, and the cache that shows what they name.

Such a snapshot is like every other: it keeps its entries from being collected, travels in exports, and the newest one
of a group counts. What only mgds needs stands in a part of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError, IncompleteError, NoSnapshotError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.integrations.mgds.cache import Cache, CacheOptions, MgdsPipeline
from precook.integrations.mgds.groups import CacheGroup, GroupSettings, IndexMap, SharedSettings, group_settings
from precook.memo.memo import Memory
from precook.store.snapshot_content import (
    FrozenConcept,
    FrozenEncoder,
    FrozenImage,
    LineColumns,
    PictureColumns,
    SampleColumns,
    SnapshotContent,
    Texts,
)
from precook.store.store import Store
from precook.values import Bytes, Key

PROMPTS = ("prompt", "prompt_1", "prompt_2", "prompt_3", "prompt_4")
"""What OneTrainer calls its prompts; a cache without sources gives those that led to its entries."""


@dataclass(frozen=True, slots=True)
class OtherPath:
    """What a group is known by when its concept's folder is another one now, or gone."""

    likeness: str
    """The cache's names, the model, and the values that make the group, but for paths: as a digest."""
    folder: str
    """The last part of the concept's path."""

    @classmethod
    def of(cls, options: CacheOptions, shared: SharedSettings, number: int) -> OtherPath:
        """What a group is known by, given what its samples share."""
        values: dict[bool, list[Any]] = {True: [], False: []}
        for name in options.groups.group:
            values[name.rpartition(".")[2] == "path"].append(shared.value(number, name))
        form = json.dumps([sorted(options.names), values[False]], sort_keys=True)
        likeness = digest(canonical([form, options.model])).hex
        return cls(likeness, "/".join(os.path.basename(os.path.normpath(str(path))) for path in values[True]))  # noqa: PTH119


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The samples of one group, as they were built."""

    keys: dict[int, Bytes]
    """By variation, the key of each member's entry."""
    paths: dict[str, list[str]]
    """By name, the path of each member, for names that are paths."""
    concepts: npt.NDArray[np.int32]
    """Which of the group's concepts each member belongs to."""
    aggregates: dict[int, Bytes]
    """By variation, the key of the entry that holds the aggregates of all members, where there is one."""
    other_path: OtherPath | None = None
    """None in snapshots of versions that did not keep it."""
    source: str | None = None
    """Which of the paths is that of the file a member is made of; None in snapshots of such versions, too."""

    @property
    def concept_count(self) -> int:
        """How many concepts the group was built from."""
        return int(self.concepts.max(initial=-1)) + 1


def snapshot_name(options: CacheOptions, group: str) -> str:
    """The dataset's name for a group of a cache: another model, other names or another snapshot are another dataset."""
    named = [] if options.snapshot is None else [options.snapshot]
    which = digest(canonical([group, sorted(options.names), options.model, *named])).hex[:24]
    label = "".join(char if char.isalnum() and char.isascii() else "-" for char in options.label)[:24]
    return f"mgds-{label}-{which}"


def write_group(store: Store, name: str, snapshot: GroupSnapshot, group: CacheGroup, recipe: Recipe) -> None:
    """Keep a snapshot; one that is the latest already is not written again."""
    concepts = [f"{group.key}-{concept}" for concept in range(snapshot.concept_count)]
    store.freeze(name, _content(name, snapshot, recipe.form.decode("ascii"), group.variations, concepts))


def _content(
    name: str, snapshot: GroupSnapshot, recipe: str, group_variations: int, concepts: Sequence[str]
) -> SnapshotContent:
    """A group as every snapshot is written."""
    count, variations = len(snapshot.concepts), sorted(snapshot.keys)
    keys = np.concatenate([snapshot.keys[variation] for variation in variations])
    targets = np.zeros((len(keys), 2), np.int32)
    targets[:, 1] = np.repeat(variations, count)
    other = snapshot.other_path
    return SnapshotContent(
        dataset=name,
        image=FrozenImage(resolutions=[], variations=group_variations, pick="random"),
        concepts=[FrozenConcept(concept, loss_weight=1.0, repeats=1.0) for concept in concepts],
        encoders={
            "entry": FrozenEncoder("image", recipe),
            **{f"aggregates-{variation}": FrozenEncoder("image", recipe="") for variation in snapshot.aggregates},
        },
        samples=SampleColumns(
            id=snapshot.keys[variations[0]], image=snapshot.keys[variations[0]], concept=snapshot.concepts
        ),
        pictures=PictureColumns(
            sample=np.tile(np.arange(count, dtype=np.int32), len(variations)),
            target=targets,
            size=np.zeros((len(keys), 2), np.int32),
        ),
        picture_keys={"entry": keys},
        lines=LineColumns(np.zeros(0, np.int32)),
        line_keys={},
        empty_keys={f"aggregates-{variation}": key for variation, key in snapshot.aggregates.items()},
        extra={
            "mgds": {
                "variations": variations,
                "paths": {name: _pack(texts) for name, texts in snapshot.paths.items()},
                **({} if other is None else {"likeness": other.likeness, "folder": other.folder}),
                **({} if snapshot.source is None else {"source": snapshot.source}),
            }
        },
    )


def read_group(store: Store, name: str) -> GroupSnapshot:
    """The latest snapshot of a group; `NoSnapshotError` where it was never built."""
    snapshot = store.snapshot(name)
    try:
        return _read_group(snapshot.content)
    except ValueError as error:
        raise DamagedPackError(snapshot.file.path, f"not a snapshot of an mgds cache: {error}") from error


def _read_group(content: SnapshotContent) -> GroupSnapshot:
    form, keys, concepts = content.extra.get("mgds"), content.picture_keys.get("entry"), content.samples.concept
    if not isinstance(form, dict) or keys is None:
        raise ValueError("it has no entries or no variations")
    variations, columns = form.get("variations"), form.get("paths")
    if not isinstance(variations, list) or not all(type(variation) is int for variation in variations):
        raise ValueError("its variations are not numbers")
    if len(keys) != len(variations) * len(concepts) or len(set(variations)) != len(variations):
        raise ValueError("it has not one entry for each variation of each member")
    if not isinstance(columns, dict):
        raise ValueError("its paths have no names")  # noqa: TRY004 - damaged bytes, not a caller's mistake
    paths = {path_name: _unpack(texts) for path_name, texts in columns.items()}
    if any(len(texts) != len(concepts) for texts in paths.values()):
        raise ValueError("it has not one path for each member")
    shaped = keys.reshape(len(variations), len(concepts), 32)
    likeness, folder = form.get("likeness"), form.get("folder")
    other = OtherPath(likeness, folder) if isinstance(likeness, str) and isinstance(folder, str) else None
    source = form.get("source")
    source = source if isinstance(source, str) and source in paths else None
    return GroupSnapshot(dict(zip(variations, shaped, strict=True)), paths, concepts, {}, other, source)


def write_members(store: Store, name: str, stays: npt.NDArray[np.bool_]) -> None:
    """Keep a group's latest snapshot once more, without the members that do not stay."""
    content = store.snapshot(name).content
    group = read_group(store, name)
    shown = stays.tolist()
    left = replace(
        group,
        keys={variation: keys[stays] for variation, keys in group.keys.items()},
        paths={
            path: [text for text, kept in zip(texts, shown, strict=True) if kept] for path, texts in group.paths.items()
        },
        concepts=group.concepts[stays],
    )
    settings = (
        content.encoders["entry"].recipe,
        content.image.variations,
        [concept.name for concept in content.concepts],
    )
    store.freeze(name, _content(name, left, *settings))


def _pack(texts: Sequence[str]) -> dict[str, Any]:
    column = Texts.join([text.encode("utf-8", "surrogatepass") for text in texts])
    return {"text": column.text, "ends": column.ends}


def _unpack(form: Any) -> list[str]:
    return [text.decode("utf-8", "surrogatepass") for text in Texts.of(form).split()]


class SourcelessCache(Cache):
    """A cache that shows what was built when its sources were there; balancing is as the concepts say now."""

    def __init__(self, options: CacheOptions, pipeline: MgdsPipeline) -> None:
        super().__init__(options, pipeline)
        self._snapshots: list[GroupSnapshot] = []
        self._concepts: list[list[Any]] = []
        """Of each group, the concepts that are given now."""

    def item(self, epoch: int, index: int, name: str | None) -> dict[str, Any]:
        if name is None or name in self._options.names:
            return super().item(epoch, index, name)
        group, variation, member = self.index_map().locate(epoch, index)
        if name == self._options.concept:
            return {name: self._concepts[group][int(self._snapshots[group].concepts[member])]}
        # Lazily: the tensors beside the texts are not wanted here.
        texts = self.store.get(Key(self._keys[group, variation][member].tobytes()), lazy=True).get("texts", {})
        return {prompt: texts.get(prompt) for prompt in PROMPTS}

    def path(self, group: int, member: int, name: str) -> str:
        return self._snapshots[group].paths[name][member]

    def index_map(self) -> IndexMap:
        if self._map is None:
            settings_by_key, concepts, other_paths = self._given_groups()
            groups: list[CacheGroup] = []
            snapshots: list[GroupSnapshot] = []
            for key, settings in settings_by_key.items():
                snapshot = self._find(key, other_paths.get(key), set(settings_by_key) - {key})
                built, given = snapshot.concept_count, len(concepts[key])
                if given and built > given:
                    message = f"group {key[:12]} was built from {built} concepts, and {given} are given"
                    raise IncompleteError(message, hint="give the concepts it was built from")
                snapshots.append(snapshot)
                groups.append(settings.group(np.arange(len(snapshot.concepts))))
            self._snapshots, self._concepts = snapshots, list(concepts.values())
            self._path_names = frozenset(name for snapshot in snapshots for name in snapshot.paths)
            self._map = IndexMap(groups)
        return self._map

    def _find(self, key: str, wanted: OtherPath | None, others: set[str]) -> GroupSnapshot:
        """What was built of a group: under its key, or as the same group with another path."""
        name = snapshot_name(self._options, key)
        try:
            return read_group(self.store, name)
        except NoSnapshotError:
            if wanted is None:
                raise
            taken = {snapshot_name(self._options, other) for other in others}
            prefix = name.rpartition("-")[0]
            # The newest of each dataset; those of other concepts of this run are theirs.
            names = {file.dataset for file in self.store.snapshots() if file.dataset.startswith(prefix)} - taken
            alike = [read_group(self.store, other) for other in sorted(names)]
            alike = [
                group
                for group in alike
                if group.other_path is not None and group.other_path.likeness == wanted.likeness
            ]
            alike = [group for group in alike if group.other_path == wanted] or alike
            if not alike:
                raise
            if len(alike) > 1:
                message = (
                    f"{len(alike)} groups of {self._options.label} were built with these settings in other folders"
                )
                hint = "give the concept the path it was built with, or a folder of the same name"
                raise IncompleteError(message, hint=hint) from None
            return alike[0]

    def _given_groups(self) -> tuple[dict[str, GroupSettings], dict[str, list[Any]], dict[str, OtherPath]]:
        """The groups that the concepts of this run name, the concepts of each, and what else they are known by."""
        options, pipeline = self._options, self._pipeline
        if options.groups.variations is None:
            return {"": GroupSettings("", 1, 1.0, "REPEATS")}, {"": []}, {}
        settings_by_key: dict[str, GroupSettings] = {}
        concepts: dict[str, dict[int, Any]] = {}
        other_paths: dict[str, OtherPath] = {}
        assert options.concept is not None
        shared = SharedSettings(pipeline.get_previous, options.groups.all)
        for index in range(pipeline.length(options.concept) or 0):
            number = shared.number(index)
            settings = group_settings(shared, number, options.groups)
            if settings is not None:
                settings_by_key.setdefault(settings.key, settings)
                other_paths.setdefault(settings.key, OtherPath.of(options, shared, number))
                concepts.setdefault(settings.key, {})[number] = shared.value(number, options.concept)
        return settings_by_key, {key: list(by_number.values()) for key, by_number in concepts.items()}, other_paths

    def prepare(self, epoch: int, memory: Memory) -> None:
        wanted = self._read_by(epoch)
        for group, variation in wanted:
            built = self._snapshots[group].keys
            if variation not in built:
                message = f"variation {variation} of group {self.index_map().groups[group].key[:12]} was never built"
                raise IncompleteError(message, hint="run one epoch more with the sources, or ask for fewer variations")
            self._keys[group, variation] = built[variation]
        absent = self._absent(wanted, memory)
        if absent:
            hint = "build again with the sources; `precook verify` says what is damaged"
            raise IncompleteError(f"{len(absent):,} entries of {self._options.label} are missing or damaged", hint=hint)
        self._load_aggregates(wanted, {}, memory)
