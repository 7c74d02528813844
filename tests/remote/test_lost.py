"""What is lost, left over or damaged around a bucket is told and mended, and never taken for what is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.errors import StoreError
from precook.store.snapshot import copy_snapshot
from tests.remote.test_transfer import built
from tests.support.buckets import Buckets, fresh
from tests.support.commands import run

RECIPE = precook.Recipe("test", {"version": 1})


def far_packs(folder: Buckets, name: str) -> list[Path]:
    return sorted((folder.root / "far" / name / "packs").rglob("*.safetensors"))


def test_packs_that_are_gone_are_told_and_pushed_again(folder: Buckets, tmp_path: Path) -> None:
    """A leaf whose pack is gone does not stand for its entries."""
    name = fresh()
    with built(tmp_path / "a") as made:
        made.store.push(folder.url(name), cache=folder.cache)
        before = far_packs(folder, name)
        with folder.open(name) as far:
            for path in before:
                path.unlink()
            found = far.verify()
            assert len(found.lost) == len(made.store)
            assert not far.verify().clean, "a look at the leaves has brought it back"
        told = run("verify", "--store", folder.url(name))
        assert told.code == 4, told.out + told.err
        again = made.store.push(folder.url(name), cache=folder.cache)
        assert again.new == len(made.store)
        assert far_packs(folder, name) == before
        with folder.open(name) as far:
            assert far.verify().clean
            assert len(far) == len(made.store)


def test_a_store_that_saw_the_loss_sees_the_packs_again(folder: Buckets, tmp_path: Path) -> None:
    """What was sent again by somebody else is there again for whoever has it open."""
    name = fresh()
    with built(tmp_path / "a") as made:
        made.store.push(folder.url(name), cache=folder.cache)
        with folder.open(name, cache=tmp_path / "other") as far:
            for path in far_packs(folder, name):
                path.unlink()
            assert far.verify().lost
            assert far.reindex() == 0
            made.store.push(folder.url(name), cache=folder.cache)
            assert far.reindex() == len(made.store)
            assert far.verify().clean


def test_a_pull_names_a_pack_that_is_gone(folder: Buckets, tmp_path: Path) -> None:
    """Nobody sees the error of a missing file."""
    name = fresh()
    with precook.open(tmp_path / "a") as store:
        store.put(RECIPE.key(1), np.arange(100), recipe=RECIPE)
        store.push(folder.url(name), cache=folder.cache)
    for path in far_packs(folder, name):
        path.unlink()
    with precook.open(tmp_path / "b") as clone, pytest.raises(precook.PrecookError):
        clone.pull(folder.url(name))


def test_a_foreign_number_leaves_room_for_later_snapshots(tmp_path: Path) -> None:
    """A snapshot that is brought from elsewhere gets the next number here, and a last number is refused."""
    with built(tmp_path / "a") as made, precook.open(tmp_path / "b") as other:
        snapshot = made.store.snapshot("test")
        last = snapshot.file.path.with_name(f"99999999-{snapshot.file.id}.safetensors")
        shutil.copyfile(snapshot.file.path, last)
        foreign = made.store.snapshot("test")
        assert foreign.file.number == 99_999_999
        other.put(RECIPE.key(1), np.arange(3), recipe=RECIPE)
        internals = other.internals()
        copied = copy_snapshot(internals.layout, other._directories, foreign)
        assert copied.file.number == 1
        (other.path / "snapshots" / "test" / last.name).write_bytes(b"")
        with pytest.raises(StoreError, match="none can come after it"):
            copy_snapshot(internals.layout, other._directories, foreign)
