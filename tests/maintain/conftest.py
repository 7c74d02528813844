"""What the tests of maintenance share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import precook
from tests.support.projects import Watched, dataset, project


@pytest.fixture
def made(tmp_path: Path) -> Iterator[precook.Project]:
    """A project of four pictures, built; its snapshot keeps paths."""
    dataset(tmp_path / "data", 4)
    encoders = {"pixels": {"uses": "image"}, "words": Watched()}
    with project(tmp_path, encoders=encoders, keep=["paths"]) as opened:
        assert not opened.build().failed
        yield opened
