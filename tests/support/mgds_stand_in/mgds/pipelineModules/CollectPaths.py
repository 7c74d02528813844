"""The files of all concepts."""

from __future__ import annotations

import os
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class CollectPaths(PipelineModule, RandomAccessPipelineModule):
    """Lists files once, by concept and then by path."""

    def __init__(  # noqa: PLR0913, PLR0917 - mgds' own signature
        self,
        concept_in_name: str,
        path_in_name: str,
        include_subdirectories_in_name: str,
        enabled_in_name: str,
        path_out_name: str,
        concept_out_name: str,
        extensions: list[str],
        include_postfix: list[str] | None,
        exclude_postfix: list[str],
    ) -> None:
        super().__init__()
        self.concept_in_name = concept_in_name
        self.path_in_name = path_in_name
        self.enabled_in_name = enabled_in_name
        self.path_out_name = path_out_name
        self.concept_out_name = concept_out_name
        self.extensions = extensions
        self.exclude_postfix = exclude_postfix
        self.paths: list[str] = []
        self.concepts: list[dict[str, Any]] = []

    def length(self) -> int:
        return len(self.paths)

    def get_inputs(self) -> list[str]:
        return [self.concept_in_name]

    def get_outputs(self) -> list[str]:
        return [self.path_out_name, self.concept_out_name]

    def start(self, variation: int) -> None:
        for index in range(self._get_previous_length(self.concept_in_name)):
            concept = self._get_previous_item(variation, self.concept_in_name, index)
            if concept[self.enabled_in_name]:
                found = sorted(self._files(concept[self.path_in_name]))
                self.paths += found
                self.concepts += [concept] * len(found)

    def _files(self, folder: str) -> list[str]:
        splits = [os.path.splitext(name) for name in os.listdir(folder)]
        return [
            os.path.join(folder, stem + suffix)
            for stem, suffix in splits
            if suffix.lower() in self.extensions and not stem.endswith(tuple(self.exclude_postfix))
        ]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.path_out_name: self.paths[index], self.concept_out_name: self.concepts[index]}
