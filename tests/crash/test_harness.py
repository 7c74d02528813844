"""The harness, tested on a toy: it sees every call, passes a store that is right and catches each that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .bugs import BUGS
from .conftest import done
from .library import UnavailableError, compile_library

if TYPE_CHECKING:
    from pathlib import Path

    from .driver import Driver
    from .report import Report

# For each of the toy's mistakes, what catches it and in which words.
CAUGHT = [
    ("acknowledges too early", "sweep", {"fault": "kill"}, "acknowledged and is lost"),
    ("leaks errors", "sweep", {"fault": "enospc"}, "none of the store's own"),
    ("leaks errors", "sweep", {"fault": "read-eio"}, "none of the store's own"),
    ("leaks errors", "sweep", {"fault": "flock-enolck"}, "none of the store's own"),
    ("takes a read error for damage", "sweep", {"fault": "read-eio"}, "acknowledged and is lost"),
    ("takes a read error for damage", "sweep", {"fault": "read-eio-forever"}, "acknowledged and is lost"),
    ("takes a name away again", "meanwhile", {"fault": "fsync-eio"}, "acknowledged and is lost"),
    ("acknowledges too early", "fill_up", {"system": "tmpfs"}, "acknowledged and is lost"),
    ("writes in place", "sweep", {"fault": "torn"}, "wrong bytes"),
    ("writes in place", "cut_everywhere", {}, "wrong bytes"),
    ("trusts what it finds", "cut_after_fault", {"fault": "kill"}, "acknowledged and is lost"),
    ("tries a failed sync again", "cut_after_fault", {"fault": "fsync-eio"}, "wrong bytes"),
]
SEEDED: dict[str, tuple[str, dict[str, Any]]] = {
    "no-file-sync": ("cut_everywhere", {}),
    "no-directory-sync": ("cut_everywhere", {}),
    "ignored-short-write": ("sweep", {"fault": "short"}),
    "believed-short-read": ("sweep", {"fault": "read-short"}),
}
SURVIVED = [
    *("kill", "killafter", "torn", "short", "enospc", "eio-forever", "fsync-eio"),
    *("read-eio", "read-eio-forever", "read-short", "read-eintr", "flock-enolck", "flock-enolck-forever"),
]


def test_every_call_is_seen_and_replayed(driver: Driver) -> None:
    """Each kind of call shows up in the trace, SQLite's too, and the model ends up with the very files on disk."""
    report = driver.run("replay_every_call")
    assert report.summary() == ""
    assert report.points > 50


def test_every_read_can_be_refused(driver: Driver) -> None:
    """Each kind of call that only looks is seen and fails once, SQLite's and mappings too."""
    report = driver.run("refuse_every_read")
    assert report.summary() == ""
    assert report.points > 10


def test_without_a_compiler_the_reason_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no C compiler is installed, the harness says so, for the skip to say it too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="needs"):
        compile_library(tmp_path)


@pytest.mark.parametrize("fault", SURVIVED)
def test_sweep_passes_a_store_that_is_right(driver: Driver, fault: str) -> None:
    """A toy that syncs and renames in the right order survives every fault at every call."""
    report = driver.run("sweep", scenario="toy", fault=fault)
    assert report.summary() == ""
    assert report.points > 0


def test_power_cut_passes_a_store_that_is_right(driver: Driver) -> None:
    """A toy that syncs and renames in the right order survives every power cut, after a fault as well."""
    reports = [
        driver.run("cut_everywhere", scenario="toy", randoms=5),
        driver.run("cut_after_fault", scenario="toy", fault="kill"),
        driver.run("cut_after_fault", scenario="toy", fault="fsync-eio"),
    ]
    assert [report.summary() for report in reports] == ["", "", ""]
    assert all(report.checked > 10 for report in reports)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("meanwhile", {"scenario": "toy", "fault": "stop"}),
        ("meanwhile", {"scenario": "toy", "fault": "fsync-eio", "cut": True}),
        ("sweep", {"scenario": "two users, toy", "fault": "kill"}),
        ("fill_up", {"scenario": "toy", "system": "tmpfs"}),
        ("fill_up", {"scenario": "toy", "system": "ext4", "stride": 7}),
    ],
)
def test_store_that_is_right_gets_along(driver: Driver, task: str, options: dict[str, Any]) -> None:
    """A toy that is right stands a second process, a second user and a full disk."""
    report = done(driver.run(task, **options))
    assert report.summary() == ""
    assert report.points > 3


@pytest.mark.parametrize(("mistake", "task", "options", "words"), CAUGHT)
def test_mistake_is_caught(driver: Driver, mistake: str, task: str, options: dict[str, str], words: str) -> None:
    """Each mistake of the toy is found, by the sweep that is there for it, and called by its name."""
    assert_caught(done(driver.run(task, scenario=f"toy {mistake}", **options)), words)


def test_mistake_among_two_users_is_caught(driver: Driver) -> None:
    """A toy whose files only their maker can read is found out by the second user."""
    assert_caught(done(driver.run("sweep", scenario="two users, toy keeps files to itself", fault="kill")), "denied")


@pytest.mark.parametrize("bug", BUGS)
def test_seeded_bug_is_caught(driver: Driver, bug: str) -> None:
    """Each bug seeded into the toy's file operations is found."""
    task, options = SEEDED[bug]
    assert_caught(driver.run(task, scenario="toy", bug=bug, **options), "")


def assert_caught(report: Report, words: str) -> None:
    """The sweep found something, and said what it was."""
    assert report.violations > 0
    assert any(words in what for _, what in report.found)
