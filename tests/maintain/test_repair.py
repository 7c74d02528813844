"""Repairing: exactly what is damaged is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.maintain import lock
from precook.maintain.repair import plan_repair
from tests.support.commands import run
from tests.support.projects import Watched
from tests.support.snapshots import repeated
from tests.support.stores import RECIPE, fill, flip, keys_of, state


def test_a_repair_drops_exactly_what_is_damaged(made: precook.Project) -> None:
    """The next build encodes those entries and no others; all others stay as they are, and nothing comes back."""
    keys = keys_of(made.store)
    before = {key: made.store.get(key) for key in keys}
    for key in keys[:2]:
        flip(made.store, key)
    with precook.open(made.store_path) as store:
        plan = plan_repair(store, store.verify())
        assert {entry.key for entry in plan.lost} == set(keys[:2])
        assert all(entry.owners for entry in plan.lost)
        assert not store.missing(keys)  # a plan changes nothing
        done = plan.execute()
        assert (done.entries, done.rewritten, done.removed) == (2, 1, 0)
        for _ in ("as it is", "with a new index"):
            assert store.missing(keys) == keys[:2]
            after = store.verify()
            assert (after.damage, set(after.lost)) == ((), set(keys[:2]))
            store.reindex()
    with precook.Project(**_again(made)) as again:
        assert set(again.plan().missing.keys()) == set(keys[:2])
        assert again.build().encoded == {"pixels": 2, "words": 0}
        assert all(np.array_equal(again.store.get(key), before[key]) for key in keys)
        assert again.store.verify().clean


def _again(made: precook.Project) -> dict[str, Any]:
    return {
        "base": made.base,
        "dataset": "test",
        "concepts": [{"name": "things", "path": "data"}],
        "image": {"resolutions": [64], "step": 16},
        "keep": ["paths"],
        "encoders": {"pixels": {"uses": "image"}, "words": Watched()},
    }


def test_a_pack_that_cannot_be_read_goes_as_a_whole(path: Path) -> None:
    """Its entries are known from the index and are dropped; other packs stay."""
    keys = fill(path, packs=2)
    with precook.open(path) as store:
        pack = store.locate(keys[0]).pack
        content = bytearray(pack.read_bytes())
        content[20] ^= 1
        pack.write_bytes(content)
    with precook.open(path) as store:
        plan = plan_repair(store, store.verify())
        assert {entry.key for entry in plan.lost} == set(keys[:3])
        assert plan.execute().removed == 1
        assert store.missing(keys) == keys[:3]
        assert not pack.exists()
        assert store.verify().clean
        for key in keys[:3]:
            store.put(key, {"x": np.arange(50)})
        assert not store.missing(keys)


def test_a_sound_copy_is_not_lost(path: Path, tmp_path: Path) -> None:
    """An entry that two packs hold, one of them damaged, stays."""
    keys = fill(path, packs=1)
    fill(tmp_path / "twin", packs=1)
    (damaged,) = path.glob("packs/*/*.safetensors")
    (twin,) = (tmp_path / "twin").glob("packs/*/*.safetensors")
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    (path / "packs" / twin.parent.name).mkdir(exist_ok=True)
    twin.rename(path / "packs" / twin.parent.name / twin.name)
    with precook.open(path) as store:
        found = store.verify()
        assert len(found.damage) == 1
        plan = plan_repair(store, found)
        assert not plan.lost
        assert plan.execute().entries == 1
        assert not store.missing(keys)
        assert store.verify().clean


@given(at=st.integers(0, 10**9), bit=st.integers(0, 7))
@settings(max_examples=25)
def test_whatever_bit_flips_a_repair_leaves_a_clean_store(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    """After it, verify finds nothing, every entry is right or missing, and at most one pack's are missing."""
    path = tmp_path_factory.mktemp("flip") / "cache"
    keys = fill(path, packs=2, rows=2)
    pack = sorted(path.glob("packs/*/*.safetensors"))[at % 2]
    content = bytearray(pack.read_bytes())
    content[at % len(content)] ^= 1 << bit
    pack.write_bytes(content)
    with precook.open(path) as store:
        plan_repair(store, store.verify()).execute()
        assert store.verify().clean
        lost = store.missing(keys)
        assert len(lost) <= 2
        for key in set(keys) - set(lost):
            assert store.get(key)["x"].tolist() in (list(range(50)), list(range(1, 51)))


def test_a_damaged_snapshot_goes_only_when_a_newer_one_stands_in_its_place(made: precook.Project) -> None:
    """The latest one stays until a build has written another."""
    store = made.store
    content = store.snapshot("test").content
    store.freeze("test", repeated(content, 2.0))
    old, new = store.snapshots()
    for file in (old, new):
        raw = bytearray(file.path.read_bytes())
        raw[-1] ^= 1
        file.path.write_bytes(raw)
    found = store.verify()
    assert {damage.pack for damage in found.damage} == {old.path, new.path}
    plan = plan_repair(store, found)
    assert (plan.snapshots, plan.left) == ((old.path,), (new.path,))
    assert plan.execute().snapshots == 1
    assert [file.number for file in store.snapshots()] == [2]


def test_the_command_shows_what_a_repair_would_drop_before_it_does(made: precook.Project) -> None:
    """A preview changes no file; with --yes it is done; what was dropped is then lost, until a build makes it again."""
    key = keys_of(made.store)[1]
    flip(made.store, key)
    made.close()
    store = made.store_path
    with precook.open(store, read_only=True) as opened:
        before = state(opened)
    ended = run("verify", "--store", store, "--repair")
    assert ended.code == 4
    assert "test: pixels of" in ended.out
    assert "a repair: 1 entry to be made again, 1 pack written anew without them" in ended.out
    assert "--yes does it" in ended.err
    with precook.open(store, read_only=True) as opened:
        files, entries = state(opened)
        assert files == before[0]
        assert [entry for entry in before[1] if entry.key != key.bytes] == entries
    document = run("verify", "--store", store, "--json").document
    assert document["damage"][0]["samples"][0]["dataset"] == "test"
    assert document["repair"] is None
    ended = run("verify", "--store", store, "--repair", "--yes", "--json")
    assert ended.code == 4
    assert [one["key"] for one in ended.document["repair"]["lost"]] == [key.hex]
    assert ended.document["repair"]["done"]
    ended = run("verify", "--store", store)
    assert ended.code == 4
    assert ended.out.endswith(": 1 lost entry\n")
    with precook.open(store) as opened:
        assert opened.missing(keys_of(opened)) == [key]


def test_a_repair_waits_for_whoever_moves_entries(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a compaction is at work, a repair says who is in the way and touches nothing."""
    monkeypatch.setattr(lock, "_PATIENCE", 0.0)
    with precook.open(path) as store, precook.open(path) as other:
        store.put(RECIPE.key(1), {"x": np.arange(1000)})
        flip(store, RECIPE.key(1))
        (pack,) = path.glob("packs/*/*.safetensors")
        plan = plan_repair(store, store.verify())
        with lock.maintaining(other.internals(), "compact"), pytest.raises(precook.LockedError, match="compact"):
            plan.execute()
        assert pack.exists()
        assert plan.execute().entries == 1
