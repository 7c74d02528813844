"""Threads: how long they keep the interpreter is changed for as long as somebody wants it, and then as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from precook.threads import short_turns

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
