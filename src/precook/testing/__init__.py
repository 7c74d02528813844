"""Tests that a store or an encoder of your own can pass: subclass them where pytest finds the subclass.

`StoreTests` says what every store does, `EncoderTests` what every encoder does, and `StoreMachine` compares a store
with a dict under random operations. Importing this package imports neither pytest nor hypothesis: the first two are
plain classes that pytest collects, and `StoreMachine` imports hypothesis when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precook.testing.encoder import EncoderTests
from precook.testing.store import StoreTests
from precook.testing.trees import example_trees, same

if TYPE_CHECKING:
    from precook.testing.machine import StoreMachine

__all__ = ["EncoderTests", "StoreMachine", "StoreTests", "example_trees", "same"]


def __getattr__(name: str) -> object:
    if name != "StoreMachine":
        message = f"module 'precook.testing' has no attribute {name!r}"
        raise AttributeError(message)
    try:
        from precook.testing.machine import StoreMachine  # noqa: PLC0415 - hypothesis is needed here alone
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        message = "precook.testing.StoreMachine needs hypothesis: pip install hypothesis"
        raise ModuleNotFoundError(message, name=error.name) from error
    return StoreMachine
