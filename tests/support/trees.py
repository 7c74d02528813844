"""Trees to test with, which are shipped: strategies for every kind that can be stored, and equality of every bit."""

from __future__ import annotations

from precook.testing import same
from precook.testing.machine import leaves, plain, shapes, trees

__all__ = ["leaves", "plain", "same", "shapes", "trees"]
