"""Names of files, as texts."""

from __future__ import annotations

import os
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class GetFilename(PipelineModule, RandomAccessPipelineModule):
    """The last part of a path."""

    def __init__(self, path_in_name: str, filename_out_name: str, include_extension: bool) -> None:
        super().__init__()
        self.path_in_name = path_in_name
        self.filename_out_name = filename_out_name
        self.include_extension = include_extension

    def length(self) -> int:
        return self._get_previous_length(self.path_in_name)

    def get_inputs(self) -> list[str]:
        return [self.path_in_name]

    def get_outputs(self) -> list[str]:
        return [self.filename_out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        name = os.path.basename(self._get_previous_item(variation, self.path_in_name, index))
        return {self.filename_out_name: name if self.include_extension else os.path.splitext(name)[0]}
