"""Paths of files that belong to others."""

from __future__ import annotations

import os
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class ModifyPath(PipelineModule, RandomAccessPipelineModule):
    """Another ending for a path."""

    def __init__(self, in_name: str, out_name: str, postfix: str, extension: str) -> None:
        super().__init__()
        self.in_name = in_name
        self.out_name = out_name
        self.postfix = postfix
        self.extension = extension

    def length(self) -> int:
        return self._get_previous_length(self.in_name)

    def get_inputs(self) -> list[str]:
        return [self.in_name]

    def get_outputs(self) -> list[str]:
        return [self.out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        stem = os.path.splitext(self._get_previous_item(variation, self.in_name, index))[0]
        return {self.out_name: stem + self.postfix + self.extension}
