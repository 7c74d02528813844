"""The package: built with known versions of what builds it, also on a bare machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests import matrix

ROOT = Path(__file__).parent.parent


def commands(target: str) -> list[str]:
    """What `make` would run for a target, as if nothing had been made."""
    if shutil.which("make") is None or not (ROOT / "Makefile").is_file():
        pytest.skip("make or the Makefile is not here")
    done = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("target", [".venv/ready", ".venvs/bench/ready", ".venvs/docs/ready"])
def test_what_builds_the_package_comes_from_the_constraints(target: str) -> None:
    """It is installed first, in its pinned version, and the build gets no environment that pip fills by itself."""
    installs = [command for command in commands(target) if "install" in command]
    (package,) = [command for command in installs if " -e " in command]
    assert "--no-build-isolation" in package
    before = " ".join(installs[: installs.index(package)])
    assert "-c constraints.txt" in before
    pinned = set(re.findall(r"^([a-z-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    # What the backend needs itself, and for an editable install.
    assert {"hatchling", "editables"} <= set(before.split())
    assert {"hatchling", "editables", "packaging", "pathspec", "pluggy", "trove-classifiers"} <= pinned


def test_the_wheel_is_built_without_asking_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make matrix` builds it where no index can be reached."""
    for module in ("hatchling", "build"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("there is no source tree here")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    wheel = matrix.build_wheel(tmp_path)
    assert "precook/__init__.py" in zipfile.ZipFile(wheel).namelist()
