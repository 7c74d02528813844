"""Settings."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class SettingsPipelineModule(PipelineModule, RandomAccessPipelineModule):
    """Gives the settings of the whole pipeline."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings

    def length(self) -> int:
        return 1

    def get_inputs(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return ["settings"]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {"settings": self.settings}
