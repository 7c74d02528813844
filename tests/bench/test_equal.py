"""The comparison of losses, fed and live: it holds, and it would notice if it did not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for library in ("torch", "diffusers", "transformers", "peft"):
    pytest.importorskip(library, reason=f"{library} is not installed")

ROOT = Path(__file__).resolve().parents[2]


def test_losses_fed_and_live_are_equal(tmp_path: Path) -> None:
    """A few steps of each of the four loops: no loss differs, and other captions and pictures would show."""
    command = [sys.executable, "bench/equal.py", "--quick", "--dir", str(tmp_path)]
    # One thread: tiny models on a busy machine wait for threads more than they compute.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (\S.*?) +\| +3 \|.*\| +(\w+) \|$", done.stdout, re.MULTILINE)
    assert rows == [("SD 1.5", "equal"), ("SDXL", "equal"), ("FLUX", "equal"), ("Qwen-Image", "equal")]
    assert not list(tmp_path.iterdir()), "the run left its files behind"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "equal"),
        ({"fed": [1.0, 1.00001]}, "differs"),
        ({"fed": [1.0, float("nan")]}, "differs"),
        ({"live": [float("nan"), 1.0]}, "differs"),
        ({"others": {"captions": 1e-6, "pictures": 0.1}}, "blind"),
        ({"others": {"captions": 0.1, "pictures": 0.1, "sizes": 0.0}}, "blind"),
    ],
)
def test_a_verdict_sees_differences_and_loops_that_cannot_see_them(changes: dict[str, Any], verdict: str) -> None:
    """One loss that is off by a hundred thousandth, one that is no number, and a loss that ignores its data."""
    from bench.equal import Outcome  # noqa: PLC0415 - it imports diffusers

    given: dict[str, Any] = {"fed": [1.0, 1.0], "live": [1.0, 1.0], "others": {"captions": 0.1}, **changes}
    assert Outcome(loop=None, **given).verdict == verdict
