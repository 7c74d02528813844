"""Objects to identify, and whether two of them have the same identity."""

from __future__ import annotations

from typing import Any

import pytest

from precook import identify
from precook.identity.canonical import canonical


def form(obj: object) -> bytes:
    return canonical(identify(obj))


def same(one: object, other: object) -> bool:
    return form(one) == form(other)


def clip(**settings: object) -> Any:
    """A tiny text model, the same at each call."""
    torch: Any = pytest.importorskip("torch", reason="identifies torch modules")
    transformers: Any = pytest.importorskip("transformers", reason="makes a text model")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=50, **{**size, **settings}))
