"""The tutorial and the guides of own encoders and of tests, typed in as a reader would: files, commands, output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT, console_blocks, titled_files

TUTORIAL = ROOT / "docs" / "tutorial.md"
ENCODERS = ROOT / "docs" / "guides" / "encoders.md"
TESTING = ROOT / "docs" / "guides" / "testing.md"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and `python` and `precook` of this interpreter on the path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, arguments in (("python", ""), ("precook", "-m precook")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "reader"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("page", [TUTORIAL, ENCODERS], ids=lambda page: page.stem)
def test_a_page_does_what_it_shows(shell: Path, page: Path) -> None:
    """Every file is written and every command is run, in the order of the page."""
    if page == TUTORIAL:
        pytest.importorskip("torch", reason="torch is not installed")
    for name, content in titled_files(page).items():
        (shell / name).write_text(content)
    examples = [example for block in console_blocks(page) for example in block]
    assert len(examples) > 5
    for example in examples:
        ended = subprocess.run(
            example.command, shell=True, cwd=shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        assert ended.returncode == 0, ended.stdout.decode()
        assert re.fullmatch(example.pattern, ended.stdout.decode()), ended.stdout.decode()


@pytest.mark.parametrize("name", sorted(titled_files(TESTING)))
def test_the_guide_of_tests_shows_tests_that_pass(shell: Path, name: str) -> None:
    """A reader's file is collected by pytest, and everything in it passes."""
    (shell / name).write_text(titled_files(TESTING)[name])
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf", name]
    ended = subprocess.run(arguments, cwd=shell, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed
    assert int(passed[1]) >= 10
