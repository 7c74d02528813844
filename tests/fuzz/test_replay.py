"""What fuzzing starts from, what it found, and a few inputs more, under its limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.__main__ import FORMATS
from tests.support.commands import environment


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_of_every_format_are_used_or_refused(name: str) -> None:
    """Seeds are accepted, past findings stay mended, and of some changed files, always the same, none breaks anything.

    Each is used and then everything works, or it is refused by an error of ours, soon and in little memory.
    """
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "60", "--seconds", "500", "--format", name]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
