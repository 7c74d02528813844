"""A disk without a free byte: what is there can be read, and with a reserve `gc` and `evict` make room."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.lock import make_reserve
from precook.store.layout import Layout
from tests.support.commands import run
from tests.support.snapshots import freeze, make_older, put_packs

SIZES = {"tmpfs": 12, "ext4": 24, "xfs": 320, "btrfs": 128}
"""MiB of a disk, about the smallest that each can be made on."""


def call(*command: object) -> str:
    """What a command complains of; nothing where it succeeds."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return (done.stderr or "it failed") if done.returncode else ""


@pytest.fixture(params=SIZES)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, at a place with a space in its name."""
    kind: str = request.param
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place, image = tmp_path / "small disk", tmp_path / "image"
    place.mkdir()
    if kind == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZES[kind]}m", "none", place]
    else:
        if shutil.which(f"mkfs.{kind}") is None:
            pytest.skip(f"mkfs.{kind} is not installed")
        with image.open("wb") as file:
            file.truncate(SIZES[kind] << 20)
        assert not call(f"mkfs.{kind}", "-q", image)
        mount = ["mount", "-o", "loop", image, place]
    if refused := call(*mount):
        pytest.skip(f"{kind} cannot be mounted here: {refused.strip()}")
    try:
        yield place
    finally:
        assert not call("umount", "-l", place)  # arrays that were handed out may still lie there


def fill(disk: Path) -> None:
    """Leave not a byte free: neither a file that is there can grow, nor a new one."""
    for number in itertools.count():
        written = 0
        with contextlib.suppress(OSError), (disk / f"ballast-{number}").open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        written += file.write(bytes(size))
            os.fsync(file.fileno())
        # XFS keeps a few blocks from a file that grows, and gives them to another.
        if not written:
            return


def make_room(disk: Path) -> None:
    """Remove what fills it."""
    for ballast in disk.glob("ballast-*"):
        ballast.unlink()


@pytest.fixture
def full(disk: Path, recipe: precook.Recipe) -> Path:
    """A store with a reserve on a disk that is full; half of its entries are named by a snapshot."""
    with precook.open(disk / "cache") as store:
        put_packs(store, recipe, [[number] for number in range(6)], size=50_000)
        freeze(store, "cats", [recipe.key(number) for number in range(3)])
    make_older(disk / "cache", 1e6)
    make_reserve(Layout(disk / "cache"), 1 << 20)
    fill(disk)
    return disk / "cache"


def numbers(path: Path, recipe: precook.Recipe, *, count: int = 6) -> list[int]:
    """Which entries can be read."""
    with precook.open(path) as store:
        there = [number for number in range(count) if recipe.key(number) in store]
        assert [store.get(recipe.key(number))["number"] for number in there] == there
        return there


@pytest.mark.parametrize("command", [["gc"], ["evict", "--max-size", "1300KiB"]], ids=["gc", "evict"])
def test_room_is_made_by_removing(full: Path, recipe: precook.Recipe, command: list[str]) -> None:
    """The reserve goes first; then there is room for SQLite, and the removal frees more."""
    ended = run(*command, "--store", full, "--yes")
    assert (ended.code, ended.err) == (0, "")
    assert "removed 3 entries" in ended.out
    assert not (full / "reserve").exists()
    assert numbers(full, recipe) == [0, 1, 2]
    with precook.open(full) as store:
        store.put(recipe.key(9), np.zeros(50_000))
    assert run("verify", "--store", full).code == 0


def test_without_a_reserve_the_error_says_what_is_missing(full: Path, recipe: precook.Recipe) -> None:
    """Room, not the disk's health or files that are open; and nothing is lost."""
    (full / "reserve").unlink()
    fill(full.parent)
    ended = run("gc", "--store", full, "--yes")
    assert ended.code == 14
    assert "no space left" in ended.err
    assert "health" not in ended.err
    assert "ulimit" not in ended.err
    assert numbers(full, recipe) == list(range(6))


@pytest.mark.parametrize("index", ["kept", "with a log", "older than the packs", "gone"])
def test_what_is_there_can_be_read(full: Path, recipe: precook.Recipe, index: str) -> None:
    """By plain calls and commands, in whatever state the index was left; only writing is refused, and says why."""
    leave(full, recipe, index)
    count = 7 if index in ("with a log", "older than the packs") else 6
    assert numbers(full, recipe, count=count) == list(range(count))
    with precook.open(full) as store:
        assert store.missing([recipe.key(0), recipe.key(99)]) == [recipe.key(99)]
        assert store.stats().entries == count
        with store.snapshot("cats").feed(batch_size=1, tensors="numpy") as feed:
            assert len(list(feed.epoch(0))) == 3
        for _ in range(2):
            with pytest.raises(precook.NoSpaceError):
                store.put(recipe.key(99), np.zeros(50_000))
            assert store.get(recipe.key(1))["number"] == 1
        with pytest.raises(precook.NoSpaceError, match="no space left"):
            store.reindex()
        assert store.get(recipe.key(2))["number"] == 2
        # Once there is room, the same store goes on.
        make_room(full.parent)
        store.put(recipe.key(99), np.zeros(50_000))
    assert numbers(full, recipe, count=count) == list(range(count))


@pytest.mark.parametrize("command", ["status", "ls", "gc", "verify", "snapshots", "leases"])
def test_commands_that_only_look_work(full: Path, command: str) -> None:
    """As if there were room."""
    assert run(command, "--store", full).code == 0


def leave(full: Path, recipe: precook.Recipe, index: str) -> None:
    """Leave the index in a state that a process that was ended may have left it in."""
    make_room(full.parent)
    early = (full / "index.sqlite").read_bytes()
    if index in ("with a log", "older than the packs"):
        with precook.open(full) as store:
            put_packs(store, recipe, [[6]])
            log = [(path, path.read_bytes()) for path in full.glob("index.sqlite*")]
        if index == "with a log":
            for path, content in log:
                path.write_bytes(content)
        else:
            (full / "index.sqlite").write_bytes(early)
    elif index == "gone":
        (full / "index.sqlite").unlink()
    fill(full.parent)
