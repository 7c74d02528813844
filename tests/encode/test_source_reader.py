"""Reading sources: how many texts are sorted together."""

from __future__ import annotations

import pytest

from precook.encode.source_reader import TextLots


@pytest.mark.parametrize(
    ("texts", "parts", "sizes"),
    [
        (100_000, 1, [512, 1024, 2048, 4096, 8192, 8192]),
        (10_000, 4, [512, 1024, 2048, 2500, 2500]),
        (600, 2, [300, 300]),
    ],
)
def test_lots_of_texts_grow_step_by_step(texts: int, parts: int, sizes: list[int]) -> None:
    """The first comes soon, and none takes so long to sort that a device is done with the one before."""
    lots = TextLots(texts, parts)
    found = []
    for _ in sizes:
        found.append(lots.count(()))
        lots.grow()
    assert found == sizes
