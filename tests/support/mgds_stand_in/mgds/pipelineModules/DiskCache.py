"""A cache as the contract has it, in memory: what a replacement is compared with."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.SingleVariationRandomAccessPipelineModule import SingleVariationRandomAccessPipelineModule


class DiskCache(PipelineModule, SingleVariationRandomAccessPipelineModule):
    """Keeps the draws of each group and variation."""

    def __init__(  # noqa: PLR0913, PLR0917 - mgds' own signature
        self,
        cache_dir: str,
        split_names: list[str] | None = None,
        aggregate_names: list[str] | None = None,
        variations_in_name: str | None = None,
        balancing_in_name: str | None = None,
        balancing_strategy_in_name: str | None = None,
        variations_group_in_name: str | list[str] | None = None,
        group_enabled_in_name: str | None = None,
        before_cache_fun: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.split = split_names or []
        self.aggregate = aggregate_names or []
        self.names = (variations_in_name, balancing_in_name, balancing_strategy_in_name, group_enabled_in_name)
        group = variations_group_in_name
        self.group = [group] if isinstance(group, str) else group
        self.before = before_cache_fun
        self.groups: dict[str, dict[str, Any]] | None = None
        self.kept: dict[tuple[str, int, int], dict[str, Any]] = {}

    def length(self) -> int:
        if self.groups is None:
            return self._get_previous_length((self.split + self.aggregate)[0])
        return sum(group["outputs"] for group in self.groups.values())

    def get_inputs(self) -> list[str]:
        return self.get_outputs()

    def get_outputs(self) -> list[str]:
        return self.split + self.aggregate

    def start(self, variation: int) -> None:
        if self.groups is None:
            self.groups = self._sort()
        called = False
        for key, group in self.groups.items():
            size = len(group["members"])
            tape = range(variation * group["outputs"], (variation + 1) * group["outputs"])
            for drawn in dict.fromkeys(at // size % group["variations"] for at in tape):
                for member, index in enumerate(group["members"]):
                    if (key, drawn, member) not in self.kept:
                        if not called and self.before is not None:
                            self.before()
                        called = True
                        names = self.get_outputs()
                        item = {name: self._get_previous_item(drawn, name, index) for name in names}
                        self.kept[key, drawn, member] = item

    def _sort(self) -> dict[str, dict[str, Any]]:
        variations, balancing, strategy, enabled = self.names
        groups: dict[str, dict[str, Any]] = {}
        if variations is None:
            length = self._get_previous_length((self.split + self.aggregate)[0])
            return {"": {"members": list(range(length)), "variations": 1, "outputs": length}}
        for index in range(self._get_previous_length(variations)):
            if enabled and not self._get_previous_item(0, enabled, index):
                continue
            common = [self._get_previous_item(0, name, index) for name in self.group]
            key = hashlib.sha256(json.dumps(common, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
            if key not in groups:
                groups[key] = {
                    "members": [],
                    "variations": self._get_previous_item(0, variations, index),
                    "balancing": self._get_previous_item(0, balancing, index),
                    "strategy": self._get_previous_item(0, strategy, index),
                }
            groups[key]["members"].append(index)
        for group in groups.values():
            repeats = math.floor(len(group["members"]) * group["balancing"])
            group["outputs"] = {"REPEATS": repeats, "SAMPLES": int(group["balancing"])}[group["strategy"]]
        return groups

    def get_item(self, index: int, requested_name: str | None = None) -> dict[str, Any]:
        assert self.groups is not None
        for key, group in self.groups.items():
            if index < group["outputs"]:
                turn, member = divmod(index + self.current_variation * group["outputs"], len(group["members"]))
                kept = self.kept[key, turn % group["variations"], member]
                names = next((part for part in (self.aggregate, self.split) if requested_name in part), [])
                return {name: kept[name] for name in names}
            index -= group["outputs"]
        raise IndexError(index)
