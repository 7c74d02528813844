"""The protocol of removal in a bucket, on its model: no schedule loses an entry, and no rule can be left out."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from .model import Rules, play

_BLOCK = 100_000


@pytest.mark.parametrize("block", range(10))
def test_no_snapshot_that_counts_lacks_an_entry(block: int) -> None:
    """Whoever comes, sleeps and dies in between: in the end all that a snapshot names is there."""
    for seed in range(block * _BLOCK, (block + 1) * _BLOCK):
        lacking, bucket = play(seed, Rules())
        assert not lacking, f"schedule {seed}: {bucket}"


def test_a_feed_finds_each_entry_at_any_moment() -> None:
    """At no step of a schedule does a snapshot that counts lack an entry, so that a feed of it never loses one."""
    for seed in range(_BLOCK):
        lacking, bucket = play(seed, Rules(), every_step=True)
        assert not lacking, f"schedule {seed}: {bucket}"


@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_no_rule_can_be_left_out(rule: str) -> None:
    """Without any one of its rules, the protocol loses entries, and the model sees it."""
    without = replace(Rules(), **{rule: False})
    assert any(play(seed, without)[0] for seed in range(60_000))


def test_schedules_go_through_all_that_can_happen() -> None:
    """Packs are removed, entries rescued, snapshots late: the model plays what it is there for."""
    played = [play(seed, Rules())[1] for seed in range(1000)]
    assert any(bucket.dead for bucket in played)
    assert any(snapshot.is_late for bucket in played for snapshot in bucket.snapshots)
    assert any(bucket.sessions for bucket in played), "nobody was killed"
    assert any(
        bucket.condemned >> pack & 1 and any(entries & snapshot.needs for snapshot in bucket.counting(Rules()))
        for bucket in played
        for pack, entries in bucket.leaves.items()
    ), "nothing had to be rescued"
