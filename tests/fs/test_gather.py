"""Memory that is copied in one call of the system."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from precook.fs.system import system
from precook.values import Array

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")


def spans(*arrays: Array) -> Array:
    return np.array([(array.__array_interface__["data"][0], array.nbytes) for array in arrays], np.uint64)


def test_many_places_are_copied_in_order() -> None:
    """Two arrays are filled, one after the other, with what three hold; where one ends decides nothing."""
    parts = [np.arange(size, dtype=np.int64) + size for size in (5, 1000, 3)]
    first, second = np.zeros(700, np.int64), np.zeros(308, np.int64)
    assert system.gather(spans(first, second, *parts), 2)
    assert np.array_equal(np.concatenate([first, second]), np.concatenate(parts))


def test_memory_that_is_not_there_ends_the_copy_and_not_the_process() -> None:
    """As under a mapped file that somebody has cut short."""
    whole, filled = np.ones(8, np.int64), np.zeros(16, np.int64)
    nowhere = np.array([(4096, 64)], np.uint64)  # the system maps nothing there
    assert not system.gather(np.concatenate([spans(filled, whole), nowhere]), 1)


def test_more_places_than_the_system_takes_are_left_to_others() -> None:
    """No error: whoever asked copies in another way."""
    one, filled = np.ones(1, np.int64), np.zeros(1025, np.int64)
    assert not system.gather(np.concatenate([spans(filled), *[spans(one)] * 1025]), 1)
