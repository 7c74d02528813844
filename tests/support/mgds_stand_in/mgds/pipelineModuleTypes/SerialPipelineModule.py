"""Modules that give one item after the other."""

from __future__ import annotations

from typing import Any


class SerialPipelineModule:
    """Started at every epoch, at an index."""

    def __init__(self) -> None:
        super().__init__()
        self.current_variation = -1
        self.current_index = -1

    def start(self, variation: int, start_index: int) -> None:
        """Nothing by default."""

    def get_meta(self, name: str) -> Any:
        """Nothing by default."""
