"""A short soak: everything at once over one store. `make soak` takes ten minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_everything_at_once_over_one_store() -> None:
    """Builders, feeds, readers, commands, kill and stop: nothing wrong is read, nothing that is needed is lost."""
    # A process of its own: it forks, which one that holds the threads of other tests cannot do safely.
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.soak", "--seconds", "3", "--seed", "1"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "built" in done.stdout
