"""A system that gives no more threads: commands say so and end, and go on when there are some again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import precook
from tests.support.commands import report, run
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
