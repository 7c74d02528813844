"""A short soak: everything at once over one store. `make soak` takes ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.soak import ROLES, soak


def test_everything_at_once_over_one_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Builders, feeds, readers, all that look after a store, kill and stop: nothing is wrong, nothing needed is lost."""
    roles = [role for role in ROLES if role != "verify command"]
    code = soak(tmp_path / "cache", seconds=3, seed=1, roles=roles, alone=True)
    told = capsys.readouterr().out
    assert code == 0, told
    assert "built" in told
