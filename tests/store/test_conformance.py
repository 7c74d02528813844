"""Our own store passes the tests that are shipped for every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import precook
from precook.testing import StoreTests


class TestLocalStore(StoreTests):
    """A store on this machine's disk."""

    def open_store(self, path: Path, **options: Any) -> precook.Store:
        return precook.open(path, **options)


class TestEveryReadChecked(StoreTests):
    """The same, where each read is checked and each entry is a commit."""

    def open_store(self, path: Path, **options: Any) -> precook.Store:
        return precook.open(path, verify_reads="always", flush_bytes=1, **options)
