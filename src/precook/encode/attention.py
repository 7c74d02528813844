"""Attention: which of torch's kernels a text model runs on.

cuDNN's needs a plan for each shape of a batch: 65 to 85 ms on an H200, a second for the first, and batches of texts
have many shapes. The others take as long for the work itself, and need none.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CHOOSING = threading.Lock()
"""Torch has one choice for the whole process: two that change it at once would not find it as it was."""


@contextmanager
def planless_attention(device: str) -> Iterator[None]:
    """On a GPU, attention in here runs on kernels that need no plan."""
    if not device.startswith("cuda"):
        yield
        return
    attention = importlib.import_module("torch.nn.attention")
    kinds = attention.SDPBackend
    with (
        _CHOOSING,
        attention.sdpa_kernel([kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION, kinds.MATH]),
    ):
        yield
