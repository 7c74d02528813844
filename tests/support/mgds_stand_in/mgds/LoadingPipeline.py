"""Modules in a row, epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mgds.PipelineModule import PipelineModule, PipelineState
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule
from mgds.pipelineModuleTypes.SerialPipelineModule import SerialPipelineModule


class LoadingPipeline:
    """Gives the items of an epoch, one after the other."""

    def __init__(
        self,
        device: torch.device,
        modules: list[Any],
        batch_size: int,
        seed: int,
        state: PipelineState,
        initial_epoch: int = 0,
        initial_index: int = 0,
    ) -> None:
        self.device = device
        self.modules: list[Any] = list(_flat(modules))
        self._output = next(one for one in self.modules if type(one).__name__ == "OutputPipelineModule")
        for index, module in enumerate(self.modules):
            module.init(self, seed, index, state)
        self._epoch = initial_epoch - 1
        self._first = (initial_epoch, initial_index - initial_index % batch_size)

    def start_next_epoch(self) -> None:
        """Start every module, in order."""
        self._epoch += 1
        with torch.no_grad():
            for module in self.modules:
                module.clear_item_cache()
                if isinstance(module, RandomAccessPipelineModule):
                    if not module.started:
                        module.start(self._epoch)
                    module.started = True
                    continue
                module.current_variation = self._epoch
                if isinstance(module, SerialPipelineModule):
                    module.current_index = self._first[1] if self._epoch == self._first[0] else 0
                    module.start(self._epoch, module.current_index)
                else:
                    module.start(self._epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        with torch.no_grad():
            item = self._output.get_next_item()
        self._output.current_index += 1
        return item


def _flat(modules: Any) -> Iterator[PipelineModule]:
    if isinstance(modules, list):
        for module in modules:
            yield from _flat(module)
    elif modules is not None:
        yield modules
