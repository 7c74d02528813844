"""The order of a cache for names that are not cached."""

from __future__ import annotations

import json
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class VariationSorting(PipelineModule, RandomAccessPipelineModule):
    """Groups and balancing without a cache."""

    def __init__(
        self,
        names: list[str],
        balancing_in_name: str | None = None,
        balancing_strategy_in_name: str | None = None,
        variations_group_in_name: str | list[str] | None = None,
        group_enabled_in_name: str | None = None,
    ) -> None:
        super().__init__()
        self.names = names
        self.settings = (balancing_in_name, balancing_strategy_in_name, group_enabled_in_name)
        self.group_names = variations_group_in_name
        self.groups: dict[str, tuple[list[int], float, str]] = {}

    def length(self) -> int:
        return sum(self._outputs(key) for key in self.groups)

    def get_inputs(self) -> list[str]:
        return self.names

    def get_outputs(self) -> list[str]:
        return self.names

    def start(self, variation: int) -> None:
        balancing, strategy, enabled = self.settings
        for index in range(self._get_previous_length(balancing)):
            if self._get_previous_item(0, enabled, index):
                key = json.dumps([self._get_previous_item(0, name, index) for name in self.group_names], sort_keys=True)
                ways = self._get_previous_item(0, balancing, index), self._get_previous_item(0, strategy, index)
                self.groups.setdefault(key, ([], *ways))[0].append(index)

    def _outputs(self, key: str) -> int:
        members, balancing, strategy = self.groups[key]
        return int(len(members) * balancing) if strategy == "REPEATS" else int(balancing)

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        for key, (members, *_) in self.groups.items():
            if index < self._outputs(key):
                member = members[(index + variation * self._outputs(key)) % len(members)]
                return {requested_name: self._get_previous_item(variation, requested_name, member)}
            index -= self._outputs(key)
        raise IndexError
