"""A small sweep over the real store: some points of every kind. `python -m tests.crash` takes them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .conftest import done

if TYPE_CHECKING:
    from .driver import Driver

# Scenario, fault, and every how-manieth call: primes, so that strides and the rhythm of commits do not fall into step.
KILLED = [
    ("create", "kill", 5),
    ("create", "killafter", 11),
    ("build", "kill", 11),
    ("build", "torn", 11),
    ("lost-index", "kill", 11),
    ("old-index", "kill", 11),
    ("doubtful-index", "kill", 19),
    ("reindex", "kill", 3),
    ("damage", "kill", 7),
    ("gc", "kill", 13),
    ("gc", "killafter", 29),
    ("evict", "kill", 23),
    ("compact", "kill", 13),
    ("compact", "torn", 29),
    ("import", "kill", 13),
    ("import", "killafter", 29),
    ("export", "kill", 3),
    ("repair", "kill", 13),
]
REFUSED = [
    ("create", "enospc", 5),
    ("create", "enospc-forever", 11),
    ("create", "edquot-forever", 11),
    ("create", "eio", 5),
    ("create", "eio-forever", 11),
    ("create", "fsync-eio", 1),
    ("create", "emfile", 1),
    ("build", "enospc", 19),
    ("build", "fsync-eio", 7),
    ("lost-index", "enospc", 19),
    ("reindex", "fsync-eio", 2),
    ("damage", "enospc", 11),
    ("gc", "enospc", 17),
    ("gc", "eio", 23),
    ("compact", "enospc", 17),
    ("compact", "fsync-eio", 3),
    ("import", "enospc", 17),
    ("import", "fsync-eio", 5),
    ("export", "enospc", 5),
    ("export", "fsync-eio", 3),
    ("repair", "eio", 19),
]
UNREADABLE = [
    ("create", "read-eio", 11),
    ("create", "stat-eio", 23),
    ("lost-index", "read-eio", 31),
    ("export", "read-eio", 13),
    ("read", "read-eio", 19),
    ("read", "mmap-enomem", 3),
    ("gc", "read-eio", 17),
    ("gc", "read-eio-forever", 41),
    ("evict", "read-eio", 41),
    ("leased", "read-eio", 61),
    ("compact", "read-eio", 17),
    ("repair", "read-eio", 19),
    ("import", "read-eio", 23),
]
LOCKLESS = [
    ("create", "flock-enolck", 3),
    ("create", "flock-enolck-forever", 5),
    ("gc", "flock-enolck", 5),
    ("import", "flock-enolck", 5),
]
HARMLESS = [
    ("create", "short", 5),
    ("create", "eintr", 11),
    ("build", "short", 17),
    ("build", "short-forever", 29),
    ("lost-index", "short", 17),
    ("create", "read-short", 5),
    ("create", "read-eintr", 5),
    ("lost-index", "read-short", 11),
    ("read", "read-short", 7),
    ("gc", "read-short", 7),
    ("compact", "read-short", 13),
    ("leased", "read-short", 19),
    ("import", "read-short", 13),
]
SEEDED: dict[str, tuple[str, dict[str, Any]]] = {
    "no-file-sync": ("cut_everywhere", {"every": 10, "randoms": 0}),
    "no-directory-sync": ("cut_everywhere", {"every": 1000, "randoms": 0}),
    "ignored-short-write": ("sweep", {"fault": "short", "stride": 1}),
}


@pytest.mark.parametrize(("scenario", "fault", "stride"), KILLED)
def test_killed_at_any_call_nothing_is_lost(driver: Driver, scenario: str, fault: str, stride: int) -> None:
    """A process killed at any system call loses nothing acknowledged, and the next one carries on without help."""
    report = driver.run("sweep", scenario=scenario, fault=fault, stride=stride)
    assert report.summary() == ""
    assert report.points > 0


@pytest.mark.parametrize(("scenario", "fault", "stride"), REFUSED)
def test_refused_call_is_a_named_error(driver: Driver, scenario: str, fault: str, stride: int) -> None:
    """A call that the disk refuses becomes an error of ours that says what it was, and harms nothing."""
    report = driver.run("sweep", scenario=scenario, fault=fault, stride=stride)
    assert report.summary() == ""
    assert report.errors


@pytest.mark.parametrize(("scenario", "fault", "stride"), UNREADABLE)
def test_refused_read_removes_nothing(driver: Driver, scenario: str, fault: str, stride: int) -> None:
    """What the system refuses to read is a named error at most: nothing is lost for it, and later all is there."""
    report = driver.run("sweep", scenario=scenario, fault=fault, stride=stride)
    assert report.summary() == ""
    assert report.points > 0


@pytest.mark.parametrize(("scenario", "fault", "stride"), LOCKLESS)
def test_refused_lock_is_a_named_error(driver: Driver, scenario: str, fault: str, stride: int) -> None:
    """A file system that gives no lock is told by name, and what was locked before is let go."""
    report = driver.run("sweep", scenario=scenario, fault=fault, stride=stride)
    assert report.summary() == ""
    assert report.errors


@pytest.mark.parametrize(("scenario", "stride"), [("create", 13), ("gc", 29), ("import", 37)])
def test_second_user_carries_on(driver: Driver, scenario: str, stride: int) -> None:
    """What one user of a group was killed in the middle of, another one finishes, and the first can read it."""
    report = done(driver.run("sweep", scenario=f"two users, {scenario}", fault="kill", stride=stride))
    assert report.summary() == ""
    assert report.points > 0


@pytest.mark.parametrize(
    ("scenario", "system", "stride"),
    [("create", "tmpfs", 19), ("read", "tmpfs", 19), ("gc", "tmpfs", 19), ("evict", "ext4", 47)],
)
def test_full_disk_can_be_read_and_made_room_on(driver: Driver, scenario: str, system: str, stride: int) -> None:
    """With no byte free entries are read, gc and evict work out of the reserve, and later all goes on."""
    report = done(driver.run("fill_up", scenario=scenario, system=system, stride=stride))
    assert report.summary() == ""
    assert report.points > 0


def test_failed_sync_takes_nothing_from_another_process(driver: Driver) -> None:
    """What another process has found and acknowledged stays when whoever wrote it cannot make its name durable."""
    report = driver.run("meanwhile", scenario="create", fault="fsync-eio", first=3, stride=2)
    assert report.summary() == ""
    assert report.errors


@pytest.mark.parametrize(("scenario", "fault", "stride"), HARMLESS)
def test_short_or_interrupted_call_is_continued(driver: Driver, scenario: str, fault: str, stride: int) -> None:
    """A write that took only half, or a call that was interrupted, goes on where it stopped."""
    report = driver.run("sweep", scenario=scenario, fault=fault, stride=stride)
    assert report.summary() == ""
    assert not report.errors
    assert report.points > 0


@pytest.mark.parametrize(
    ("scenario", "every", "brief"),
    [
        ("create", 11, False),
        ("build", 1000, True),
        ("old-index", 1000, True),
        ("doubtful-index", 1000, True),
        ("damage", 53, False),
        ("gc", 1000, True),
        ("compact", 1000, True),
        ("import", 401, True),
        ("export", 199, True),
        ("repair", 211, True),
    ],
)
def test_power_cut_loses_nothing_acknowledged(driver: Driver, scenario: str, every: int, brief: bool) -> None:
    """Whatever part of the unsynced data and names survives a power cut, acknowledged entries are there and equal."""
    report = driver.run("cut_everywhere", scenario=scenario, every=every, brief=brief, randoms=1)
    assert report.summary() == ""
    assert report.checked > 0


def test_lying_disk_never_gives_wrong_bytes(driver: Driver) -> None:
    """On a disk that ignores syncs, entries may be lost in a power cut, yet none comes out wrong."""
    report = driver.run("cut_everywhere", scenario="create", every=11, randoms=1, lying=True)
    assert report.summary() == ""
    assert report.checked > 0


@pytest.mark.parametrize(("fault", "stride"), [("kill-at-sync", 1), ("fsync-eio", 3)])
def test_what_was_found_unsynced_is_not_taken_for_durable(driver: Driver, fault: str, stride: int) -> None:
    """What a killed process had not synced, or could not, is not acknowledged by the next one until it is durable."""
    report = driver.run("cut_after_fault", scenario="create", fault=fault, stride=stride, brief=True, randoms=0)
    assert report.summary() == ""
    assert report.checked > 0


@pytest.mark.parametrize("bug", SEEDED)
def test_seeded_bug_is_caught(driver: Driver, bug: str) -> None:
    """Each classic mistake, made on purpose in the store's file operations, is found."""
    task, options = SEEDED[bug]
    assert driver.run(task, scenario="create", bug=bug, **options).violations > 0


def test_kill_at_random_moments(driver: Driver) -> None:
    """A process that puts in a loop is killed again and again: all it acknowledged stays, and verify finds nothing."""
    assert driver.run("kill_loop", rounds=10).summary() == ""


def test_writers_of_the_same_keys_share_a_store(driver: Driver) -> None:
    """Four processes that write the same keys at the same time all succeed, and verify finds nothing."""
    assert driver.run("overlap", blocks=2).summary() == ""
