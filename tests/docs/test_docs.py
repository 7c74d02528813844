"""What README and docs say is run."""

from __future__ import annotations

import doctest
import importlib
import importlib.machinery
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "precook"
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md"])
BLOCKS = [
    pytest.param(page, number, code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS)
def test_python_in_the_docs_runs(page: Path, number: int, code: str, tmp_path: Path) -> None:
    """Every python block runs as it stands, in an empty directory."""
    if page.stem == "bucket":
        pytest.importorskip("obstore", reason="stores in buckets need precook[remote]")
    for library in ("torch", "transformers", "trl"):
        if library in code:
            pytest.importorskip(library, reason=f"{library} is not installed")
    environment = dict(os.environ)
    stand_in = str(ROOT / "tests" / "support" / "mgds_stand_in")
    if "mgds" in code and not importlib.machinery.PathFinder.find_spec("mgds", [p for p in sys.path if p != stand_in]):
        # Its own package cannot be installed from an index.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [stand_in, environment.get("PYTHONPATH")]))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_examples_in_docstrings_run(file: Path) -> None:
    """Every `>>>` in the package gives what it shows."""
    name = ".".join(["precook", *file.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
    if name.endswith("__main__"):
        return
    if name == "precook.fs.windows" and sys.platform != "win32":
        pytest.skip("it needs Windows, and has no examples")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link in README and docs names a file that is there."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
