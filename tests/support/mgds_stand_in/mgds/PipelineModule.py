"""The base of all modules: how they ask those before them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule
from mgds.pipelineModuleTypes.SerialPipelineModule import SerialPipelineModule


class PipelineState:
    """What all modules share: one pool."""

    def __init__(self, max_threads: int | None = None) -> None:
        self.executor = ThreadPoolExecutor(max_threads)


class _Memo(threading.local):
    """The last item of a module, in each thread."""

    def __init__(self) -> None:
        self.at: tuple[int, int] | None = None
        self.item: dict[str, Any] = {}
        self.length = -1


class PipelineModule:
    """A module of a pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.clear_item_cache()

    def init(self, pipeline: Any, base_seed: int, module_index: int, state: PipelineState) -> None:
        """Take one's place."""
        self.pipeline = pipeline
        self._state = state
        self.__seed = base_seed
        self.__index = module_index

    def clear_item_cache(self) -> None:
        """Forget the last item."""
        self.__memo = _Memo()

    def _get_previous_item(self, variation: int, name: str, index: int) -> Any:
        first, *path = name.split(".")
        value = None
        for module in reversed(self.pipeline.modules[: self.__index]):
            if first in module.get_outputs():
                value = self.__ask(module, variation, first, index)
                if value is not None:
                    break
        for part in path:
            if part not in value:
                return None
            value = value[part]
        return value

    def __ask(self, module: PipelineModule, variation: int, name: str, index: int) -> Any:
        memo = module.__memo
        if memo.at != (variation, index):
            memo.item = _fetch(module, variation, name, index)
            memo.at = (variation, index)
        elif name not in memo.item:
            memo.item.update(_fetch(module, variation, name, index))
        return memo.item[name]

    def _get_previous_length(self, name: str) -> Any:
        first = name.split(".", maxsplit=1)[0]
        for module in reversed(self.pipeline.modules[: self.__index]):
            if first in module.get_outputs():
                memo = module.__memo
                if memo.length < 0:
                    serial = isinstance(module, SerialPipelineModule)
                    memo.length = module.approximate_length() if serial else module.length()
                return memo.length
        return None

    def _get_previous_meta(self, variation: int, name: str) -> Any:
        for module in reversed(self.pipeline.modules[: self.__index]):
            if name in module.get_outputs():
                if isinstance(module, RandomAccessPipelineModule):
                    return module.get_meta(variation, name)
                _check_variation(module, variation)
                return module.get_meta(name)
        return None

    def _get_rand(self, variation: int, index: int = -1) -> Random:
        return Random(hash((self.__seed, self.__index, variation, index)))


def _fetch(module: Any, variation: int, name: str, index: int) -> dict[str, Any]:
    if isinstance(module, RandomAccessPipelineModule):
        return module.get_item(variation, index, name)
    _check_variation(module, variation)
    if not isinstance(module, SerialPipelineModule):
        return module.get_item(index, name)
    if index != module.current_index:
        message = f"index {index} asked of a serial module at {module.current_index}"
        raise RuntimeError(message)
    item = module.get_next_item()
    module.current_index += 1
    return item


def _check_variation(module: Any, variation: int) -> None:
    if variation != module.current_variation:
        message = f"variation {variation} asked of a module at {module.current_variation}"
        raise RuntimeError(message)
