"""What fuzzing starts from and what it found, replayed under its limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.__main__ import FORMATS
from tests.support.commands import environment


@pytest.mark.parametrize("name", FORMATS)
def test_seeds_are_accepted_and_past_findings_stay_mended(name: str) -> None:
    """Every input that once broke a reader is refused or used, soon and in little memory."""
    command = [sys.executable, "-m", "tests.fuzz", "--replay", "--format", name]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
