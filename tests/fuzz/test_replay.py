"""What fuzzing starts from and what it found, replayed under its limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.__main__ import FORMATS
from tests.support.commands import environment


def fuzz(*arguments: str) -> str | None:
    """What is wrong after a run of the fuzzer, if anything is."""
    if "old_cache" in arguments:
        pytest.importorskip("torch", reason="torch is not installed")
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    return done.stdout + done.stderr if done.returncode else None


@pytest.mark.parametrize("name", FORMATS)
def test_seeds_are_accepted_and_past_findings_stay_mended(name: str) -> None:
    """Every input that once broke a reader is refused or used, soon and in little memory."""
    assert fuzz("--replay", "--format", name) is None


@pytest.mark.parametrize("name", FORMATS)
def test_changed_inputs_are_used_or_refused(name: str) -> None:
    """A few changes of good files, always the same: then everything works, or an error of ours refuses them."""
    assert fuzz("--inputs", "60", "--seconds", "500", "--format", name) is None
