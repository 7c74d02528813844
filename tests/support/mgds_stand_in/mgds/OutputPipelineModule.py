"""The end of a pipeline."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.SerialPipelineModule import SerialPipelineModule


class OutputPipelineModule(PipelineModule, SerialPipelineModule):
    """Asks for each name of each item."""

    def __init__(self, names: list[str | tuple[str, str]]) -> None:
        super().__init__()
        self.names = [name if isinstance(name, tuple) else (name, name) for name in names]

    def approximate_length(self) -> int:
        return self._get_previous_length(self.names[0][0])

    def get_inputs(self) -> list[str]:
        return [name for name, _ in self.names]

    def get_outputs(self) -> list[str]:
        return [name for _, name in self.names]

    def get_next_item(self) -> dict[str, Any]:
        item = {}
        for name, shown in self.names:
            if self._get_previous_length(name) <= self.current_index:
                raise StopIteration
            item[shown] = self._get_previous_item(self.current_variation, name, self.current_index)
        return {name: value for name, value in item.items() if value is not None}
