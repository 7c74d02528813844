"""Texts as numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class Tokenize(PipelineModule, RandomAccessPipelineModule):
    """Puts a text into a template and a chat, and cuts it into tokens."""

    def __init__(
        self,
        in_name: str,
        tokens_out_name: str,
        mask_out_name: str,
        tokenizer: Any,
        max_token_length: int,
        format_text: str | None = None,
        apply_chat_template: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__()
        self.in_name = in_name
        self.tokens_out_name = tokens_out_name
        self.mask_out_name = mask_out_name
        self.tokenizer = tokenizer
        self.max_token_length = max_token_length
        self.format_text = format_text
        self.apply_chat_template = apply_chat_template
        self.tokenizer_lock = threading.Lock()

    def length(self) -> int:
        return self._get_previous_length(self.in_name)

    def get_inputs(self) -> list[str]:
        return [self.in_name]

    def get_outputs(self) -> list[str]:
        return [self.tokens_out_name, self.mask_out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        text = self._get_previous_item(variation, self.in_name, index)
        if self.format_text is not None:
            text = self.format_text.format(text)
        with self.tokenizer_lock:
            if self.apply_chat_template is not None:
                text = self.tokenizer.apply_chat_template(self.apply_chat_template(text), tokenize=False)
            options = {"padding": "max_length", "truncation": True, "max_length": self.max_token_length}
            made = self.tokenizer(text, return_tensors="pt", **options)
        return {self.tokens_out_name: made.input_ids[0], self.mask_out_name: made.attention_mask[0]}
