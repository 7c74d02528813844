"""Every store does the same: what a folder passes, a bucket passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import precook
from precook.testing import StoreTests
from tests.support.buckets import Buckets


class TestBucket(StoreTests):
    """REMOTE A1: put, get, get_many, stack, missing, cached, verify and the rest, over each kind of bucket."""

    @pytest.fixture(autouse=True)
    def _buckets(self, buckets: Buckets) -> None:
        self.buckets = buckets

    def open_store(self, path: Path, **options: Any) -> precook.Store:
        return self.buckets.open(f"{path.parent.name}/{path.name}", **options)
