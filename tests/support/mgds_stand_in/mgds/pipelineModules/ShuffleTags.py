"""Shuffles the tags of a text behind those that are kept; switched off, it hands on what it is given."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class ShuffleTags(PipelineModule, RandomAccessPipelineModule):
    """A text with its tags in another order, or not."""

    def __init__(
        self,
        text_in_name: str,
        enabled_in_name: str,
        delimiter_in_name: str,
        keep_tags_count_in_name: str,
        text_out_name: str,
    ) -> None:
        super().__init__()
        self.text_in_name = text_in_name
        self.enabled_in_name = enabled_in_name
        self.delimiter_in_name = delimiter_in_name
        self.keep_tags_count_in_name = keep_tags_count_in_name
        self.text_out_name = text_out_name

    def length(self) -> int:
        return self._get_previous_length(self.text_in_name)

    def get_inputs(self) -> list[str]:
        return [self.text_in_name, self.enabled_in_name, self.delimiter_in_name, self.keep_tags_count_in_name]

    def get_outputs(self) -> list[str]:
        return [self.text_out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        text = self._get_previous_item(variation, self.text_in_name, index)
        delimiter = self._get_previous_item(variation, self.delimiter_in_name, index)
        kept = self._get_previous_item(variation, self.keep_tags_count_in_name, index)
        if self._get_previous_item(variation, self.enabled_in_name, index):
            tags = [tag.strip() for tag in text.split(delimiter)]
            others = tags[kept:]
            self._get_rand(variation, index).shuffle(others)
            text = f"{delimiter} ".join(tags[:kept] + others)
        return {self.text_out_name: text}
