"""Concepts."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class ConceptPipelineModule(PipelineModule, RandomAccessPipelineModule):
    """Gives each concept."""

    def __init__(self, concepts: list[dict[str, Any]]) -> None:
        super().__init__()
        self.concepts = concepts

    def length(self) -> int:
        return len(self.concepts)

    def get_inputs(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return ["concept"]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {"concept": self.concepts[index]}
