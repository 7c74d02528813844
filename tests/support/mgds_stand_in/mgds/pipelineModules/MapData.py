"""A function between two names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class MapData(PipelineModule, RandomAccessPipelineModule):
    """Calls a function on each value."""

    def __init__(self, in_name: str, out_name: str, map_fn: Callable[[Any], Any]) -> None:
        super().__init__()
        self.in_name = in_name
        self.out_name = out_name
        self.map_fn = map_fn

    def length(self) -> int:
        return self._get_previous_length(self.in_name)

    def get_inputs(self) -> list[str]:
        return [self.in_name]

    def get_outputs(self) -> list[str]:
        return [self.out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.out_name: self.map_fn(self._get_previous_item(variation, self.in_name, index))}
