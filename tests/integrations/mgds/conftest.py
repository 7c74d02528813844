"""What the tests of the mgds front share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cats(tmp_path: Path) -> Path:
    """A concept's folder with four pictures."""
    from tests.support.mgds_pipelines import pictures  # noqa: PLC0415 - it needs torch, which a test may lack

    pictures(tmp_path / "cats", 4)
    return tmp_path / "cats"
