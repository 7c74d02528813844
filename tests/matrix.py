"""The wheel, alone, on every Python: builds it, installs it without torch, runs the numpy half of the tests.

Run by `make matrix`. A Python that is not here is named and passed over.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
# Everything that neither needs torch nor takes long; tests that need torch skip themselves and say so.
TESTS = [
    "store/test_tree.py",
    "store/test_store.py",
    "store/test_conformance.py",
    "testing/test_store_tests.py",
    "testing/test_encoder_tests.py",
    "encode/test_cached.py",
    "store/test_hostile.py",
    "store/test_processes.py",
    "store/test_format.py",
]
TESTS += [
    "feed/test_sampler.py",
    "test_api.py",
    "identity/test_canonical.py",
    "identity/test_identify.py",
    "cli/test_main.py",
    "test_units.py",
]
TESTS += [
    "plan/test_plan.py",
    "memo/test_memo.py",
    "sources/test_walk.py",
    "sources/test_geometry.py",
    "sources/test_captions.py",
    "encode/test_batching.py",
]


def find_python(version: str) -> str | None:
    """An interpreter of this version, on the path or among pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(map(str, Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")))
    for candidate in candidates:
        if candidate is None:
            continue
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def build_wheel(folder: Path) -> Path:
    """The wheel, built with what is installed here in its known version: nothing is fetched for it."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(version: str, python: str, wheel: Path, scratch: Path) -> bool:
    """Whether the numpy half passes and the command line runs in an empty environment."""
    venv = scratch / version
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    pip = [
        str(venv / "bin/pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    subprocess.run([*pip, str(wheel), "pytest", "pytest-timeout", "hypothesis"], check=True)
    # Away from the sources: what is tested is the wheel.
    tests = scratch / f"tests-{version}"
    shutil.copytree(ROOT / "tests", tests / "tests")
    for name in ("docs", "README.md", "CONTRIBUTING.md", "pyproject.toml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tests / name)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = [str(venv / "bin/python"), "-m", "pytest", "-q", *(f"tests/{name}" for name in TESTS)]
    passed = subprocess.run(run, cwd=tests, env=environment, check=False).returncode == 0
    helped = (
        subprocess.run([str(venv / "bin/precook"), "--help"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )
    print(f"Python {version}: tests {'pass' if passed else 'FAIL'}, --help {'runs' if helped else 'FAILS'}", flush=True)
    return passed and helped


def main() -> int:
    """Check every version; the number that failed."""
    with tempfile.TemporaryDirectory(prefix="precook-matrix-") as name:
        scratch = Path(name)
        wheel = build_wheel(scratch)
        failed = 0
        for version in VERSIONS:
            python = find_python(version)
            if python is None:
                print(f"Python {version}: SKIPPED, not installed here", flush=True)
            else:
                failed += not check(version, python, wheel, scratch)
    return failed


if __name__ == "__main__":
    sys.exit(main())
