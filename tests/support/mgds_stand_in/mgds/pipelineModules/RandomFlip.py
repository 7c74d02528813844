"""Mirrors what a concept wants mirrored; switched off, it hands on what it is given."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class RandomFlip(PipelineModule, RandomAccessPipelineModule):
    """Some values of a sample, mirrored or not."""

    def __init__(self, names: list[str], enabled_in_name: str, fixed_enabled_in_name: str) -> None:
        super().__init__()
        self.names = names
        self.enabled_in_name = enabled_in_name
        self.fixed_enabled_in_name = fixed_enabled_in_name

    def length(self) -> int:
        return self._get_previous_length(self.names[0])

    def get_inputs(self) -> list[str]:
        return [*self.names, self.enabled_in_name, self.fixed_enabled_in_name]

    def get_outputs(self) -> list[str]:
        return self.names

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        drawn = self._get_rand(variation, index).random() < 0.5
        is_random = self._get_previous_item(variation, self.enabled_in_name, index)
        mirrored = drawn if is_random else self._get_previous_item(variation, self.fixed_enabled_in_name, index)
        values = {name: self._get_previous_item(variation, name, index) for name in self.names}
        return {name: value.flip(-1) if mirrored else value for name, value in values.items()}
