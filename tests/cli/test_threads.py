"""A system that gives no more threads: commands say so and end, and go on when there are some again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import precook
from tests.support.commands import environment, report, run
from tests.support.snapshots import freeze, put_packs


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Refuse every thread whose name begins so, as Python does where the system gives none."""
    start = threading.Thread.start

    def refuse_them(name: str) -> None:
        def refusing(thread: threading.Thread) -> None:
            if thread.name.startswith(name):
                message = "can't start new thread"
                raise RuntimeError(message)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refusing)

    return refuse_them


@pytest.mark.parametrize("name", ["read", "signals", "claims", "decode", "encode", "writer"])
def test_a_build_without_threads_ends_and_the_next_goes_on(
    things: Path, refuse: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whichever thread cannot be had: exit code 1 with the reason and the next step, and nothing to clear away."""
    refuse(f"precook-{name}")
    ended = run("build")
    assert (ended.code, ended.out) == (1, "")
    assert f"error: the system gives no more threads: precook-{name}" in ended.err
    assert "ulimit -u" in ended.err
    monkeypatch.undo()
    monkeypatch.chdir(things)
    found = report()
    assert {encoder: found["encoded"][encoder] + found["reused"][encoder] for encoder in found["encoded"]} == {
        "pixels": 6,
        "words": 6,
    }


def test_a_feed_without_threads_is_a_named_error(
    store: Path, recipe: precook.Recipe, refuse: Callable[[str], None]
) -> None:
    """The first batch says why it does not come."""
    with precook.open(store) as opened:
        put_packs(opened, recipe, [range(4)])
        freeze(opened, "cats", [recipe.key(number) for number in range(4)])
        feed = opened.snapshot("cats").feed(batch_size=2)
        refuse("precook-feed")
        with pytest.raises(precook.PrecookError, match="no more threads: precook-feed"):
            next(iter(feed.epoch(0)))


HASH_AS_ANOTHER = """
import dataclasses, os, resource, sys, precook  # as root: the other user may not be allowed to read them
from pathlib import Path

content = os.open(sys.argv[1], os.O_RDONLY)
precook.digest(b"")
os.setgroups([])
os.setgid(61_311)
os.setuid(61_311)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    precook.digest(Path(f"/dev/fd/{content}"))
except precook.PrecookError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit of processes does not hold for root, who alone can be another")
def test_a_file_that_would_be_read_by_several_threads_is_a_named_error(tmp_path: Path) -> None:
    """The library that makes digests starts threads of its own, and panics where it gets none."""
    (tmp_path / "weights").write_bytes(bytes(4 << 20))
    command = [sys.executable, "-c", HASH_AS_ANOTHER, str(tmp_path / "weights")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert "the system gives no more threads: precook-digest" in done.stdout
    assert done.returncode == 0
