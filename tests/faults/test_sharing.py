"""A small sweep over export, import and repair: some points of every kind. `python -m tests.faults` takes them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .driver import Driver

KILLED = [("import", "kill", 13), ("import", "killafter", 29), ("export", "kill", 3), ("repair", "kill", 13)]
REFUSED = [
    ("import", "enospc", 17),
    ("import", "fsync-eio", 5),
    ("export", "enospc", 5),
    ("export", "fsync-eio", 3),
    ("repair", "eio", 19),
]
CUT = [("import", 401), ("export", 199), ("repair", 211)]


@pytest.mark.parametrize(("scenario", "fault", "stride"), KILLED)
def test_killed_at_any_call_nothing_is_lost(driver: Driver, scenario: str, fault: str, stride: int) -> None:
    """A process killed at any system call loses nothing, and the next one goes on to the end without help."""
    report = driver.run("sweep", scenario=scenario, fault=fault, stride=stride)
    assert report.summary() == ""
    assert report.points > 0


@pytest.mark.parametrize(("scenario", "fault", "stride"), REFUSED)
def test_refused_call_is_a_named_error(driver: Driver, scenario: str, fault: str, stride: int) -> None:
    """A call that the disk refuses becomes an error of ours that says what it was, and harms nothing."""
    report = driver.run("sweep", scenario=scenario, fault=fault, stride=stride)
    assert report.summary() == ""
    assert report.errors


@pytest.mark.parametrize(("scenario", "every"), CUT)
def test_power_cut_loses_nothing_acknowledged(driver: Driver, scenario: str, every: int) -> None:
    """Whatever survives a power cut: entries are whole or absent, and a snapshot is only there with all it names."""
    report = driver.run("cut_everywhere", scenario=scenario, every=every, brief=True, randoms=1)
    assert report.summary() == ""
    assert report.checked > 0
