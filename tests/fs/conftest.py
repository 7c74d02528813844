"""What the tests of file systems share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder
