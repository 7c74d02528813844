"""The benchmark of what it costs to look after a store runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_quick_run_prints_plans_and_goals(tmp_path: Path) -> None:
    """Each plan has its row, what a collection did equals its preview, and nothing is left behind."""
    command = [sys.executable, "bench/maintain.py", "--quick", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\| (?:gc|evict to half|compact) ", done.stdout, re.MULTILINE)) == 6
    assert len(re.findall(r"\(goal: under .*\): (?:not )?met", done.stdout)) == 3
    assert not list(tmp_path.iterdir())
