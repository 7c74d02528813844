"""What the threads of a build do is told by their processor clocks and by where they are."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from bench.waits import Waits

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processor clocks of threads are numbered as Linux does"
)

_SECONDS = 0.4


def _compute() -> None:
    """Until the thread's own clock has run for a while, however busy the machine is."""
    while time.thread_time() < _SECONDS:
        sum(range(1000))


def _wait_for(event: threading.Event) -> None:
    event.wait()


def test_a_thread_that_computes_and_one_that_waits_are_told_apart() -> None:
    """The table has a row for each kind of thread, with the time it computed, and where the others waited."""
    event = threading.Event()
    idle = [threading.Thread(target=_wait_for, args=(event,), name=f"tests-idle-{number}") for number in range(2)]
    busy = threading.Thread(target=_compute, name="tests-busy-0")
    other = threading.Thread(target=_wait_for, args=(event,), name="somebody-else")
    with Waits(ours="tests") as waits:
        for thread in (*idle, busy, other):
            thread.start()
        busy.join()
        event.set()
        for thread in (*idle, other):
            thread.join()
    section = waits.section("threads", device=75.0)
    assert section.value("the device", "waits, %") == 25
    assert section.value("tests-idle", "of them") == 2
    assert (section.value("tests-idle", "computes, %") or 0) < 5
    (places,) = [row[-1] for row in section.rows if row[0] == "tests-idle"]
    assert isinstance(places, str)
    assert places.startswith("test_waits._wait_for ")
    computed = (section.value("tests-busy", "computes, %") or 0) * (section.value("tests-busy", "there, s") or 0) / 100
    assert computed == pytest.approx(_SECONDS, rel=0.3)
    assert "somebody-else" not in [row[0] for row in section.rows]
