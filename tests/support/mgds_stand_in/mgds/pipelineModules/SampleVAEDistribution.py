"""Latents of distributions."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class SampleVAEDistribution(PipelineModule, RandomAccessPipelineModule):
    """The mean of a distribution."""

    def __init__(self, in_name: str, out_name: str, mode: str = "mean") -> None:
        super().__init__()
        self.in_name = in_name
        self.out_name = out_name
        self.mode = mode

    def length(self) -> int:
        return self._get_previous_length(self.in_name)

    def get_inputs(self) -> list[str]:
        return [self.in_name]

    def get_outputs(self) -> list[str]:
        return [self.out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.out_name: self._get_previous_item(variation, self.in_name, index).mean.squeeze(0)}
