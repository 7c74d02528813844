"""The front of a pipeline."""

from __future__ import annotations

from typing import Any

from mgds.ConceptPipelineModule import ConceptPipelineModule
from mgds.LoadingPipeline import LoadingPipeline
from mgds.PipelineModule import PipelineState
from mgds.SettingsPipelineModule import SettingsPipelineModule


class MGDS:
    """A data set."""

    def __init__(  # noqa: PLR0913, PLR0917 - mgds' own signature
        self,
        device: Any,
        concepts: list[dict[str, Any]],
        settings: dict[str, Any],
        definition: list[Any],
        batch_size: int,
        state: PipelineState,
        seed: int = 42,
        initial_epoch: int = 0,
        initial_epoch_sample: int = 0,
    ) -> None:
        modules = [ConceptPipelineModule(concepts), SettingsPipelineModule(settings), *definition]
        self.loading_pipeline = LoadingPipeline(
            device, modules, batch_size, seed, state, initial_epoch, initial_epoch_sample
        )

    def __iter__(self) -> LoadingPipeline:
        return self.loading_pipeline

    def start_next_epoch(self) -> None:
        """Start an epoch."""
        self.loading_pipeline.start_next_epoch()
