"""What tests of plans share."""

from __future__ import annotations

from pathlib import Path

import pytest

from precook.fs import trust
from precook.sources import facts
from tests.support.projects import (
    build,
    dataset,
    project,
)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled although the test has just written them: the file system's clock is an hour ahead."""
    real = trust.file_system_time
    for module in (trust, facts):
        monkeypatch.setattr(module, "file_system_time", lambda folder: real(folder) + 3600 * 10**9)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a dataset of three pictures of one caption each, fully built."""
    dataset(tmp_path / "data")
    with project(tmp_path) as first:
        build(first)
    return tmp_path
