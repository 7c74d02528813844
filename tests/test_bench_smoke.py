"""The store benchmark runs with whatever peers are installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark reads to torch tensors, and torch is not installed")

ROOT = Path(__file__).resolve().parents[1]


def test_quick_run_prints_ratios_and_goals(tmp_path: Path) -> None:
    """A smoke run of some sections names the missing peers and compares precook with those that are there."""
    command = [sys.executable, "bench/store.py", "--quick", "--only", "import,batch,read"]
    command += ["--dir", str(tmp_path), "--png", str(tmp_path / "store.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "not installed:" in done.stdout
    ratio = re.compile(r"precook against one \.pt per sample: \d+\.\dx \(goal: at least 30\.0x\): (not )?met")
    assert len(ratio.findall(done.stdout)) == 2
    assert re.search(r"share of memcpy: \d\.\d\d \(goal: at least 0\.90\)", done.stdout)
    assert not list(tmp_path.glob("precook-bench-*")), "the run left its files behind"
