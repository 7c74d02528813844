"""The mgds benchmark runs without checkouts, around a stand-in."""

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
    cpu, encoded = done.stdout.split("### Samples that were encoded")
    for step, count in (("cold build", 200), ("first warm start", 0)):
        assert re.search(rf"\| {step} +\| +\d+\.\d\d\d \|", cpu)
        assert re.search(rf"\| {step} +\| +{count} \|", encoded)
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"
