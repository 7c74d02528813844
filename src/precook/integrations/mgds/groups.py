"""Groups and the index map of mgds: which input, in which variation, stands behind an output of an epoch."""

from __future__ import annotations

import bisect
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import ConfigError, ConfigProblem

GetPrevious = Callable[[int, str, int], Any]
"""Asks the modules before a cache for a value, as mgds' `_get_previous_item` does: by variation, name and index."""


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The names that say how samples are grouped and balanced; without `variations` there is one group of all."""

    variations: str | None
    balancing: str | None
    strategy: str | None
    group: tuple[str, ...]
    enabled: str | None

    @property
    def all(self) -> tuple[str, ...]:
        """Those that are asked for."""
        names = (self.enabled, self.variations, self.balancing, self.strategy, *self.group)
        return tuple(name for name in names if name is not None) if self.variations is not None else ()


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Samples that share their variations and their balancing."""

    key: str
    """SHA-256 of what they have in common, as mgds computes it."""
    members: npt.NDArray[np.int64]
    """Input indices, in their order."""
    variations: int
    outputs: int
    """How many of them an epoch shows."""

    def variations_in(self, epoch: int) -> list[int]:
        """The variations that an epoch reads, each once, in the order in which it reads them."""
        size = len(self.members)
        if not size or not self.outputs:
            return []
        first, last = epoch * self.outputs, (epoch + 1) * self.outputs - 1
        return list(dict.fromkeys(turn % self.variations for turn in range(first // size, last // size + 1)))

    def locate(self, epoch: int, output: int) -> tuple[int, int]:
        """Variation and member behind an output of the group: epochs read one endless tape of all its members."""
        turn, member = divmod(output + epoch * self.outputs, len(self.members))
        return turn % self.variations, member


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a sample brings to its group; those of the first sample count for all."""

    key: str
    variations: int
    balancing: float
    strategy: str

    def group(self, members: npt.NDArray[np.int64]) -> CacheGroup:
        """The group that these settings make of its members."""
        # Compared, not converted: OneTrainer's strategies are members of an enum that equal these texts.
        if self.strategy == "REPEATS":
            outputs = math.floor(len(members) * self.balancing)
        elif self.strategy == "SAMPLES":
            outputs = int(self.balancing)
        else:
            problem = f"unknown balancing strategy {self.strategy!r}"
            raise ConfigError(ConfigProblem("balancing_strategy", None, problem, "give REPEATS or SAMPLES"))
        return CacheGroup(self.key, members, self.variations, outputs)


class IndexMap:
    """The outputs of a cache: those of its first group, then those of its second, and so on."""

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self.groups = tuple(groups)
        self._ends = list(accumulate(group.outputs for group in self.groups))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def keeps_order(self) -> bool:
        """Whether every output is the sample of the same number, in its one variation, in each epoch."""
        members = [index for group in self.groups for index in group.members.tolist()]
        whole = all(group.variations == 1 and group.outputs == len(group.members) for group in self.groups)
        return whole and members == list(range(len(members)))

    def locate(self, epoch: int, output: int) -> tuple[int, int, int]:
        """Number of the group, variation and member behind an output."""
        if not 0 <= output < len(self):
            message = f"output {output} of a cache with {len(self)}"
            raise IndexError(message)
        number = bisect.bisect_right(self._ends, output)
        group = self.groups[number]
        return (number, *group.locate(epoch, output - (self._ends[number] - group.outputs)))


class SharedSettings:
    """The values of names such as `concept.image.flip`, looked up once for all samples that share the `concept`.

    Asking the pipeline is slow and a concept has thousands of samples, so a sample is asked for its `concept` only, and
    samples with the same object there have the same number.
    """

    def __init__(self, get_previous: GetPrevious, names: Sequence[str]) -> None:
        self._get_previous = get_previous
        self._roots = tuple(dict.fromkeys(name.partition(".")[0] for name in names))
        self._numbers: dict[tuple[int, ...], int] = {}
        self._values: list[tuple[Any, ...]] = []  # kept, so that Python gives no id to another object
        self._by_index: dict[int, int] = {}

    def has(self, names: Sequence[str]) -> bool:
        """Whether it knows the values of these names."""
        return {name.partition(".")[0] for name in names} <= set(self._roots)

    def number(self, index: int) -> int:
        """The number of what a sample's names stand for: samples with equal numbers have the same objects there."""
        number = self._by_index.get(index)
        if number is None:
            values = tuple([self._get_previous(0, root, index) for root in self._roots])
            ids = tuple(map(id, values))
            number = self._numbers.setdefault(ids, len(self._values))
            if number == len(self._values):
                self._values.append(values)
            self._by_index[index] = number
        return number

    def value(self, number: int, name: str) -> Any:
        """The value of a name; None where a part of it is not there, as in mgds."""
        root, *path = name.split(".")
        value = self._values[number][self._roots.index(root)]
        for part in path:
            if value is None or part not in value:
                return None
            value = value[part]
        return value


def gather_groups(shared: SharedSettings, names: GroupNames, length: int) -> list[CacheGroup]:
    """Sort inputs into groups, in the order in which the groups first appear."""
    if names.variations is None:
        return [CacheGroup("", np.arange(length), 1, length)]
    by_number: dict[int, GroupSettings | None] = {}
    by_key: dict[str, GroupSettings] = {}
    members: dict[str, list[int]] = {}
    for index in range(length):
        number = shared.number(index)
        if number not in by_number:
            by_number[number] = group_settings(shared, number, names)
        settings = by_number[number]
        if settings is not None:
            by_key.setdefault(settings.key, settings)
            members.setdefault(settings.key, []).append(index)
    return [settings.group(np.array(members[key], np.int64)) for key, settings in by_key.items()]


def group_settings(shared: SharedSettings, number: int, names: GroupNames) -> GroupSettings | None:
    """Key, variations, balancing and strategy that a sample brings to its group; None where it is not enabled."""
    if names.enabled is not None and not shared.value(number, names.enabled):
        return None
    assert names.variations is not None
    variations = int(shared.value(number, names.variations))
    if variations < 1:
        raise ConfigError(ConfigProblem(names.variations, None, f"{variations} variations", "give 1 or more"))
    balancing = shared.value(number, names.balancing) if names.balancing is not None else 1.0
    strategy = shared.value(number, names.strategy) if names.strategy is not None else "REPEATS"
    # Bit for bit the key of mgds: VariationSorting groups names that are not cached by it, and must find these groups.
    values = [shared.value(number, name) for name in names.group]
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, separators=(",", ":"), indent=None)
    return GroupSettings(hashlib.sha256(text.encode("utf-8")).hexdigest(), variations, balancing, strategy)
