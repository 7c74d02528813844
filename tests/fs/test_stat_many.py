"""Stamps of many files: the same whoever asks for them, and no process is left behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precook.fs import stat_many as stat_many_module
from precook.fs import stat_names as helper
from precook.sources.walk import walk
from tests.support.descriptors import descriptors
from tests.support.listings import ROLES, make, paths, the_same, usable

words = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
names = st.builds(lambda word, end: word + end, words, st.sampled_from([".png", ".PNG", ".Jpg", ".txt", "", ".gif"]))
trees = st.lists(
    st.tuples(st.lists(st.sampled_from(["a", "b.png", "ü", "n\n", "x y"]), max_size=2), names), max_size=25
)


@settings(max_examples=15)
@given(tree=trees, recursive=st.booleans())
def test_helpers_change_nothing(tree: list[tuple[list[str], str]], recursive: bool) -> None:
    """Any tree gives the same listing with no helper, with one and with three: all that matters, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        expected = set()
        for folders, name in tree:
            relative = os.path.join(*folders, name)
            if len(os.fsencode(name)) > 255 or name in (".", ".."):
                continue
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            if (root / relative).is_dir():
                continue
            (root / relative).write_bytes(os.fsencode(relative))
            matters = name.rpartition(".")[2].lower() in ROLES and "." in name
            if matters and name[0] != "." and (recursive or not folders):
                expected.add(relative)
        alone = walk(root, ROLES, recursive=recursive, helpers=0)
        assert set(usable(alone)) == set(paths(alone)) == expected
        for helpers in (1, 3):
            assert the_same(walk(root, ROLES, recursive=recursive, helpers=helpers), alone)


def test_large_folders_are_shared_with_helpers(root: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]) -> None:
    """From a number of files on, and only then; asked or not."""
    make(root, *(f"{number}.png" for number in range(30)))
    alone = walk(root, ROLES, recursive=True)
    assert not started
    monkeypatch.setattr(stat_many_module, "_MANY", 30)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert the_same(walk(root, ROLES, recursive=True), alone)
    assert len(started) == 2


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that are started; none of them may be left running, nor a pipe open."""
    processes: list[Any] = []
    real = subprocess.Popen

    def start(*args: Any, **options: Any) -> Any:
        processes.append(real(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    before = descriptors()
    yield processes
    assert all(process.returncode is not None for process in processes)
    assert descriptors() == before


FAULTY = {
    "fails": "raise SystemExit(3)",
    "fails in the end": "import os; os.write(1, bytes(48 * 8)); raise SystemExit(1)",
    "says nothing": "pass",
    "says too little": "import os; os.write(1, bytes(48))",
    "says too much": "import os; os.write(1, bytes(48 * 1000))",
    "is killed": "import os, signal; os.write(1, bytes(48)); os.kill(os.getpid(), signal.SIGKILL)",
    "is no program": "this is not Python",
}


@pytest.mark.parametrize("how", FAULTY)
def test_a_helper_that_fails_is_made_up_for(
    root: Path, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: list[Any]
) -> None:
    """Its part of the work is done here, the log says so, and the result is the same."""
    make(root, *(f"{number}.png" for number in range(20)), *(f"sub/{number}.png" for number in range(4)))
    alone = walk(root, ROLES, recursive=True, helpers=0)
    program = root / "program.py"
    program.write_text(FAULTY[how])
    monkeypatch.setattr(helper, "__file__", str(program))
    with caplog.at_level(logging.WARNING, "precook"):
        assert the_same(walk(root, ROLES, recursive=True, helpers=2), alone)
    assert len(started) == 2
    assert [record for record in caplog.records if "helper" in record.message]


def test_no_helper_is_started_where_python_cannot_be(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: list[Any]
) -> None:
    """No interpreter, an application that holds one, a frozen one: all alone, and no program is started by mistake."""
    make(root, *(f"{number}.png" for number in range(20)))
    alone = walk(root, ROLES, recursive=True, helpers=0)
    changes: list[tuple[object, str, object]] = [
        (sys, "executable", None),
        (sys, "executable", ""),
        (sys, "executable", "/usr/sbin/webserver"),
        (sys, "frozen", True),
        (helper, "__file__", str(tmp_path / "app.zip/precook/stat_names.py")),
    ]
    for thing, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(thing, name, value, raising=False)
            assert the_same(walk(root, ROLES, recursive=True, helpers=2), alone)
            assert not started, (name, value)
    assert not caplog.records
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    with caplog.at_level(logging.WARNING, "precook"):
        assert the_same(walk(root, ROLES, recursive=True, helpers=2), alone)
    assert "no helper process could be started" in caplog.text


def test_a_helper_does_not_outlive_an_interruption(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    """Ctrl-C in the middle leaves no process behind, even one that would wait for ever."""
    make(root, *(f"{number}.png" for number in range(20)))
    program = tmp_path / "program.py"
    program.write_text("import signal; signal.pause()")
    monkeypatch.setattr(helper, "__file__", str(program))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stat_many_module, "_stat_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        walk(root, ROLES, recursive=True, helpers=2)
    assert len(started) == 2


def test_a_helper_starts_without_anybodys_packages(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: list[Any]
) -> None:
    """What the environment would import at every start of Python costs a helper nothing, and has no say in it."""
    make(root, *(f"{number}.png" for number in range(20)))
    canary = tmp_path / "canary"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(canary)!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONHOME", str(tmp_path))  # nothing starts with this unless it is ignored
        listing = walk(root, ROLES, recursive=True, helpers=1)
    assert len(started) == 1
    assert len(usable(listing)) == 20
    assert not caplog.records
    assert not canary.exists()
    program = subprocess.run(
        [*started[0].args[:-1], "-X", "importtime", helper.__file__], input=b"", capture_output=True, check=True
    )
    imported = {line.split(b"|")[-1].strip() for line in program.stderr.splitlines()}
    assert b"array" in imported
    assert not imported & {b"site", b"numpy", b"precook", b"sitecustomize", b"json", b"typing"}
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert canary.exists()
