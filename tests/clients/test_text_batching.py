"""The text encoder modules of mgds' pull request 49, which put the texts of several threads into one batch."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.clients.checkouts import checkout

# ruff: noqa: E402, I001 - without the checkout there is nothing to import
sys.path[:0] = [str(checkout("mgds-pr49", "Nerogar/mgds, pull request 49") / "src")]

import tests.clients.torchvision_operators  # noqa: F401 - before all that imports torchvision

import tokenizers
import torch
import transformers
from mgds.MGDS import MGDS
from mgds.OutputPipelineModule import OutputPipelineModule
from mgds.PipelineModule import PipelineState
from mgds.pipelineModules.CollectPaths import CollectPaths
from mgds.pipelineModules.EncodeQwenText import EncodeQwenText
from mgds.pipelineModules.LoadText import LoadText
from mgds.pipelineModules.Tokenize import Tokenize

from precook.integrations.mgds import SmartDiskCache
from precook.report import SILENT

TEXTS = 16


def test_texts_of_many_threads_share_a_batch_and_are_what_they_are_alone(tmp_path: Path) -> None:
    """With `build_max_workers` fewer calls of the encoder make the same; without a batch each text is a call."""
    (tmp_path / "texts").mkdir()
    for number in range(TEXTS):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(" ".join(["cat"] * (number % 5 + 1)))
    words = {"?": 0, "cat": 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="?", unk_token="?")
    torch.manual_seed(0)
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4}
    config = transformers.Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=2)
    encoder = transformers.Qwen3ForCausalLM(config).eval()

    def epoch(folder: str, *, batched: bool) -> tuple[list[torch.Tensor], int]:
        calls: list[int] = []
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda module, *_: calls.append(1) if module is encoder else None
        )
        listed = CollectPaths(
            concept_in_name="concept",
            path_in_name="path",
            include_subdirectories_in_name="concept.include_subdirectories",
            enabled_in_name="enabled",
            path_out_name="path",
            concept_out_name="concept",
            extensions=[".txt"],
            include_postfix=None,
            exclude_postfix=[],
        )
        encode = EncodeQwenText(
            "tokens",
            "mask",
            "hidden",
            "mask",
            encoder,
            -1,
            dtype=torch.float32,
            batch_collector=batched,
            max_batch_size=8,
        )
        modules = [
            listed,
            LoadText(path_in_name="path", text_out_name="text"),
            Tokenize("text", "tokens", "mask", tokenizer, 8),
            encode,
            SmartDiskCache(
                cache_dir=str(tmp_path / folder),
                split_names=["hidden"],
                build_max_workers=8 if batched else None,
                report=SILENT,
            ),
            OutputPipelineModule(names=["hidden"]),
        ]
        state = PipelineState(1)
        concepts = [{"path": str(tmp_path / "texts"), "enabled": True, "include_subdirectories": False}]
        data = MGDS(torch.device("cpu"), concepts, {}, modules, batch_size=1, state=state)
        try:
            data.start_next_epoch()
            return [item["hidden"] for item in data], len(calls)
        finally:
            hook.remove()
            modules[-2].close()
            state.executor.shutdown()

    alone, calls = epoch("alone", batched=False)
    assert calls <= TEXTS
    together, batches = epoch("together", batched=True)
    assert batches < calls
    for one, other in zip(alone, together, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
