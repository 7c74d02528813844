"""Text models of transformers: which class a folder holds, what it takes, and how much of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precook.config.encoders import TransformersText
from precook.encode.tokens import Tokenizer
from precook.encode.torch_tools import LOCAL, WEIGHTS, check_complete, check_weights, library, loading
from precook.errors import EncodeError, printable

_POSITIONS = ("position_embedding", "position_embeddings", "embed_positions", "wpe")
"""How models call their tables of learned positions."""
_MIXING = ("convbert",)
"""Models whose convolutions carry padding into real positions, mask or no mask."""


def load_model(folder: Path, section: TransformersText, dtype: Any) -> tuple[Any, bool]:
    """The model, and whether a pooler that it may have is more than random numbers."""
    check_weights(folder)
    transformers = library("transformers")
    if section.attention is not None and "/" in section.attention:
        hint = "choose one that is installed, such as sdpa or eager"
        raise EncodeError(f"attention: {printable(section.attention)} is code from the hub", hint=hint)
    with loading("model", folder):
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL, trust_remote_code=False)
        # Ours or the library's choice: a config file could name code from the hub.
        config._attn_implementation = section.attention  # noqa: SLF001
        kind = _kind(transformers, config, folder)
        # The name of this argument changed with 4.56.
        old = tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 56)
        model, info = kind.from_pretrained(
            folder, config=config, **{"torch_dtype" if old else "dtype": dtype}, **WEIGHTS
        )
    missing = set(info["missing_keys"])
    pooler = {name for name in missing if "pooler" in name.split(".")}
    check_complete(folder, missing - pooler)
    return model.eval(), not pooler


def _kind(transformers: Any, config: Any, folder: Path) -> Any:
    """The class to load: the one that the config names, without heads and decoders."""
    for name in config.architectures or ():
        kind = getattr(transformers, name, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            continue
        if hasattr(kind, "get_text_features"):
            # It has a text encoder of its own kind inside: with or without projection, we cannot know.
            hint = (
                f"save its text part alone: {name.removesuffix('Model')}TextModel.from_pretrained(…).save_pretrained(…)"
            )
            raise EncodeError(f"{printable(folder)}: {name} encodes texts and pictures", hint=hint)
        if name.endswith("EncoderModel") or not (config.is_encoder_decoder or "For" in name or "Head" in name):
            return kind
    return transformers.AutoModelForTextEncoding if config.is_encoder_decoder else transformers.AutoModel


def input_names(model: Any, tokenizer: Tokenizer, parameters: Any) -> list[str]:
    """Which of the tokenizer's columns the model gets."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    if model.config.model_type == "clip_text_model" and not getattr(model.config, "use_attention_mask", False):
        names.remove("attention_mask")
    return [
        name for name in names if name in parameters and name in ("input_ids", *tokenizer.library.model_input_names)
    ]


def sees_padding(model: Any, tokenizer: Tokenizer, parameters: Any) -> bool:
    """Whether padding changes what real positions hold."""
    if model.config.model_type in _MIXING:
        return True
    masked = "attention_mask" in parameters and "attention_mask" in tokenizer.library.model_input_names
    return not (masked or any(getattr(module, "is_causal", False) for module in model.modules()))


def _positions(model: Any, torch: Any) -> int | None:
    """How many positions the model has learned; None where it works them out."""
    count = _said_positions(model)
    if count is None:
        return None
    tables = [module for name, module in model.named_modules() if name.rpartition(".")[2] in _POSITIONS]
    for table in tables:
        # One of fewer rows belongs to a vision tower.
        if isinstance(table, torch.nn.Embedding) and table.num_embeddings >= count:
            # RoBERTa and its kin count from behind the padding index.
            return count - (0 if table.padding_idx is None else table.padding_idx + 1)
    return None


def _said_positions(model: Any) -> int | None:
    count = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return count if isinstance(count, int) and count > 0 else None


def most_tokens(section: TransformersText, tokenizer: Tokenizer, model: Any, torch: Any, folder: Path) -> int | None:
    """The most tokens of a text; None where nobody states a limit."""
    positions = _positions(model, torch)
    if section.max_length is None:
        limits = [limit for limit in (tokenizer.limit, positions) if limit is not None]
        return min(limits) if limits else _said_positions(model)
    if positions is not None and section.max_length > positions:
        message = f"{printable(folder)}: max_length is {section.max_length}, and the model has {positions} positions"
        raise EncodeError(message, hint=f"set max_length to {positions} or less")
    return section.max_length
