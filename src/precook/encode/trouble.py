"""Trouble: what an error that an encoder raised means for the batches after it."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from precook.errors import PrecookError


def out_of_memory(error: Exception) -> bool:
    """Whether memory was short, on the device or here, as Python and torch say it."""
    said = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said))
    )


def device_lost(error: Exception) -> bool:
    """Whether the device can do no more in this process: after such an error CUDA fails at everything."""
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def described(error: Exception) -> str:
    """An error as the reason of a failure."""
    if isinstance(error, PrecookError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def free_memory(error: Exception) -> None:
    """Let go of what an error holds on the device, so that the next try has room."""
    # Its frames hold on to what they had in the device's memory.
    traceback.clear_frames(error.__traceback__)
    if out_of_memory(error):
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
