"""Modules that give any item of the variation at hand."""

from __future__ import annotations

from typing import Any


class SingleVariationRandomAccessPipelineModule:
    """Started at every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.current_variation = -1

    def start(self, variation: int) -> None:
        """Nothing by default."""

    def get_meta(self, name: str) -> Any:
        """Nothing by default."""
