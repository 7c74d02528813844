"""A file system without `flock`: what writes says so and how to go on, what reads goes on."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import precook
from tests.support.commands import run


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """From now on every file lies on a file system that answers so where it is to be locked."""

    def refuse(code: int) -> None:
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", flock)

    return refuse


def files(folder: Path) -> set[str]:
    """The names of all files below a folder."""
    return {path.name for path in folder.rglob("*") if path.is_file()}


CODES = [errno.ENOLCK, errno.EOPNOTSUPP]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "command",
    [
        "build",
        "gc --grace 0s --yes",
        "evict --max-size 1KiB --yes",
        "compact --yes",
        "export cats out.tar",
        "import archive.tar",
    ],
)
def test_a_command_that_writes_is_exit_code_11_and_says_why(
    cache: Path, things: Path, no_locks: Callable[[int], None], command: str, code: int
) -> None:
    """It names the reason and a place to go to, nothing is removed, and nothing half-made stays."""
    assert run("export", "cats", "archive.tar", "--store", cache).code == 0
    before = files(things)
    no_locks(code)
    ended = run(*command.split(), "--store", cache)
    assert ended.code == 11
    assert f"has no locks: {os.strerror(code)}\n" in ended.err
    assert "hint: use a local disk" in ended.err
    assert files(things) - before <= {"maintenance.lock"}
    assert before <= files(things)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("command", ["ls", "verify", "status", "leases", "snapshots"])
def test_a_command_that_reads_goes_on(
    cache: Path, things: Path, no_locks: Callable[[int], None], command: str, code: int
) -> None:
    """Nothing has to be locked for it."""
    no_locks(code)
    assert run(command, "--store", cache).code == 0


def test_every_write_of_the_library_is_a_named_error(
    cache: Path, recipe: precook.Recipe, no_locks: Callable[[int], None]
) -> None:
    """Puts, writers, leases and the first write to a new place; what is there can be read."""
    with precook.open(cache) as store:
        no_locks(errno.ENOLCK)
        for write in (
            lambda: store.put(recipe.key(100), 1),
            lambda: store.lease("mine"),
            lambda: precook.open(cache.parent / "new").put(recipe.key(1), 1),
            store.reindex,
        ):
            with pytest.raises(precook.LockedError, match="no locks") as caught:
                write()
            assert "local disk" in caught.value.hint
        assert store.get(recipe.key(1))["number"] == 1
        assert list(cache.rglob("*.partial")) == []


def test_the_doctor_names_the_lock(cache: Path, no_locks: Callable[[int], None]) -> None:
    """And SQLite, where it needs one; not what works all the same."""
    no_locks(errno.ENOLCK)
    ended = run("doctor", "--store", cache)
    assert ended.code == 1
    assert [line.split()[1] for line in ended.out.splitlines() if line.startswith("problem")] == ["flock", "sqlite"]
