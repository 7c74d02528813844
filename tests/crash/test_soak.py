"""A short soak: everything at once over one store. `make soak` takes ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.soak import soak


def test_everything_at_once_over_one_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Builders, feeds, readers, gc, evict, compact and kill -9: nothing wrong is read, nothing protected is lost."""
    code = soak(tmp_path / "cache", seconds=3, seed=1)
    told = capsys.readouterr().out
    assert code == 0, told
    assert "built" in told
