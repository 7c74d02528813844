"""Modules that give any item of any variation."""

from __future__ import annotations

from typing import Any


class RandomAccessPipelineModule:
    """Started once per process."""

    def __init__(self) -> None:
        super().__init__()
        self.started = False

    def start(self, variation: int) -> None:
        """Nothing by default."""

    def get_meta(self, variation: int, name: str) -> Any:
        """Nothing by default."""
