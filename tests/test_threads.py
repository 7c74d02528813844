"""Threads: what keeps them waiting is changed for as long as somebody wants it, and then as it was."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from precook.threads import short_pauses, short_turns

PATIENCE = 60


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    """An interval that is nobody's default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0625)  # in binary digits as it is
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_turns_are_short_inside_and_as_before_after_it(usual: float) -> None:
    """Also after one inside of another, and after an error."""
    with short_turns():
        inside = sys.getswitchinterval()
        assert inside < usual / 10
        with pytest.raises(ValueError, match="inside"), short_turns():
            raise ValueError("inside")
        assert sys.getswitchinterval() == inside
    assert sys.getswitchinterval() == usual


def test_they_are_short_until_the_last_thread_has_enough(usual: float) -> None:
    """Whoever comes first and goes first does not end it for the other."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with short_turns():
            inside.set()
            assert leave.wait(PATIENCE)

    thread = threading.Thread(target=other)
    with short_turns():
        thread.start()
        assert inside.wait(PATIENCE)
    assert sys.getswitchinterval() < usual / 10
    leave.set()
    thread.join()
    assert sys.getswitchinterval() == usual


def test_an_interval_that_is_shorter_already_stays() -> None:
    """Somebody else has a reason for it."""
    sys.setswitchinterval(0.00001)
    shorter = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() == shorter
    assert sys.getswitchinterval() == shorter


def test_the_collector_leaves_alone_what_was_there_before() -> None:
    """And only until the last one has enough: then it finds garbage among it again."""

    class Node:
        me: object

    def left_alone() -> bool:
        return not any(one is node for one in gc.get_objects())

    node = Node()
    node.me = node
    with short_pauses():
        with pytest.raises(ValueError, match="inside"), short_pauses():
            raise ValueError("inside")
        assert left_alone()
        young = [object(), []]
        assert any(one is young for one in gc.get_objects())
    assert not left_alone()


def test_what_python_itself_has_frozen_is_nobody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 begins with 375 objects that its collector leaves alone: the others are left alone in here, too."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    node: list[object] = []
    node.append(node)
    with short_pauses():
        assert not any(one is node for one in gc.get_objects())
    assert any(one is node for one in gc.get_objects())


def test_what_somebody_else_has_frozen_stays_so() -> None:
    """A server freezes what it has before it forks."""
    ours: list[object] = [[]]
    gc.freeze()
    try:
        with short_pauses():
            pass
        # Of one object, not of how many there are: those of other tests' threads end when they like.
        assert not any(one is ours for one in gc.get_objects())
    finally:
        gc.unfreeze()
