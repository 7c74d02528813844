"""The mgds benchmark runs with or without mgds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark needs torch, and torch is not installed")

ROOT = Path(__file__).resolve().parents[2]


def test_a_quick_run_prints_what_each_step_costs(tmp_path: Path) -> None:
    """A smoke run of two steps shows that the first encodes everything and the second nothing."""
    command = [sys.executable, "bench/mgds.py", "--quick", "--steps", "2", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\| cold build +\| +\d+\.\d\d \| +\d+\.\d\d \| +200 \|", done.stdout)
    assert re.search(r"\| warm start, first \| +\d+\.\d\d \| +\d+\.\d\d \| +0 \|", done.stdout)
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"
