"""Batches of one resolution."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.SingleVariationRandomAccessPipelineModule import SingleVariationRandomAccessPipelineModule


class AspectBatchSorting(PipelineModule, SingleVariationRandomAccessPipelineModule):
    """Shuffles whole batches; resolutions are keys of a dict."""

    def __init__(self, resolution_in_name: str, names: list[str], batch_size: int) -> None:
        super().__init__()
        self.resolution_in_name = resolution_in_name
        self.names = names
        self.batch_size = batch_size
        self.order: list[int] = []

    def length(self) -> int:
        return len(self.order)

    def get_inputs(self) -> list[str]:
        return [self.resolution_in_name, *self.names]

    def get_outputs(self) -> list[str]:
        return self.names

    def start(self, variation: int) -> None:
        buckets: dict[Any, list[int]] = {}
        for index in range(self._get_previous_length(self.resolution_in_name)):
            resolution = self._get_previous_item(self.current_variation, self.resolution_in_name, index)
            buckets.setdefault(resolution, []).append(index)
        rand = self._get_rand(variation)
        batches = []
        for bucket in buckets.values():
            rand.shuffle(bucket)
            whole = len(bucket) - len(bucket) % self.batch_size
            batches += [bucket[at : at + self.batch_size] for at in range(0, whole, self.batch_size)]
        rand.shuffle(batches)
        self.order = [index for batch in batches for index in batch]

    def get_item(self, index: int, requested_name: str | None = None) -> dict[str, Any]:
        at = self.order[index]
        return {name: self._get_previous_item(self.current_variation, name, at) for name in self.names}
