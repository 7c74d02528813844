"""The lines of caption files."""

from __future__ import annotations

import os
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class LoadMultipleTexts(PipelineModule, RandomAccessPipelineModule):
    """Lines that are not empty; one empty line where there is none, or no file."""

    def __init__(self, path_in_name: str, texts_out_name: str) -> None:
        super().__init__()
        self.path_in_name = path_in_name
        self.texts_out_name = texts_out_name

    def length(self) -> int:
        return self._get_previous_length(self.path_in_name)

    def get_inputs(self) -> list[str]:
        return [self.path_in_name]

    def get_outputs(self) -> list[str]:
        return [self.texts_out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        path = self._get_previous_item(variation, self.path_in_name, index)
        lines = []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        return {self.texts_out_name: [line for line in lines if line] or [""]}
