"""Commands beside a collection: what was removed just now is neither damage nor an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import precook
from precook.maintain.gc import plan_gc
from tests.support.commands import run
from tests.support.snapshots import freeze, packs, put_packs
from tests.support.stopped import Stopped

RECIPE = precook.Recipe("test", {"version": 1})

COMMAND = """
import sys
from precook.cli.main import app
try:
    app(sys.argv[1:], prog_name="precook")
except SystemExit as ending:
    print("exit code", ending.code or 0)
"""


def keys(*numbers: int) -> list[precook.Key]:
    return [RECIPE.key(number) for number in numbers]


def collect(store: precook.Store) -> None:
    """Another snapshot takes the place of the first one, which goes with all that only it named."""
    freeze(store, "cats", keys(0))
    assert plan_gc(store, grace=0).execute().snapshots == 1


@pytest.mark.parametrize(
    "command",
    [
        ("verify",),
        ("verify", "--dataset", "cats"),
        ("gc", "--grace", "0s"),
        ("gc", "--grace", "0s", "--yes"),
        ("clear", "--dataset", "cats"),
        ("status",),
        ("status", "--json"),
        ("snapshots",),
        ("export", "cats", "{folder}/cats.tar"),
    ],
    ids=" ".join,
)
def test_a_snapshot_that_vanishes_after_it_was_listed_is_no_error(
    store: precook.Store, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """The snapshots are listed again: the command goes on with what there is now."""
    put_packs(store, RECIPE, [[0], [1], [2]])
    freeze(store, "cats", keys(0, 1, 2))
    words = [word.format(folder=tmp_path) for word in command]
    with Stopped(tmp_path, "snapshots.listed", COMMAND, *words, "--store", store.path) as process:
        process.arrive()
        collect(store)
        assert process.go().endswith("exit code 0\n")
    assert store.missing(keys(0, 1, 2)) == keys(1, 2)


@pytest.mark.parametrize("options", [(), ("--as", "safetensors")], ids=["bundle", "shards"])
def test_an_export_whose_snapshot_is_collected_before_its_lease_takes_the_newer_one(
    store: precook.Store, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Its entries are gone by then; those of the newer snapshot are there."""
    put_packs(store, RECIPE, [[0], [1], [2]])
    freeze(store, "cats", keys(0, 1, 2))
    words = ("export", "cats", tmp_path / "out", *options, "--json", "--store", store.path)
    with Stopped(tmp_path, "export.chosen", COMMAND, *words) as process:
        process.arrive()
        collect(store)
        said = process.go()
    assert said.endswith("exit code 0\n")
    assert json.loads(said.removesuffix("exit code 0\n"))["snapshot"] == store.snapshot("cats").file.id


@pytest.mark.parametrize("point", ["verify.listed", "verify.opened"])
def test_a_pack_that_is_removed_while_it_is_verified_is_not_damaged(
    store: precook.Store, tmp_path: Path, point: str
) -> None:
    """Neither one that is about to be opened nor one that is open, and nothing in them counts as lost."""
    put_packs(store, RECIPE, [[0], [1], [2]])
    freeze(store, "cats", keys(0, 1, 2))
    first = min(packs(store.path), key=lambda pack: pack.name)  # the one that is looked at first
    others = [number for number in range(3) if RECIPE.key(number).bytes not in first.read_bytes()]
    with Stopped(tmp_path, point, COMMAND, "verify", "--store", store.path) as process:
        process.arrive()
        freeze(store, "cats", keys(*others))
        plan_gc(store, grace=0).execute()
        assert not first.exists()
        assert "no damage\nexit code 0\n" in process.go()


def test_damage_that_is_removed_meanwhile_is_not_told(store: precook.Store, tmp_path: Path) -> None:
    """An entry that was damaged and that a collection took before the end is nobody's any more."""
    put_packs(store, RECIPE, [[0], [1]])
    (pack,) = (pack for pack in packs(store.path) if RECIPE.key(1).bytes in pack.read_bytes())
    content = bytearray(pack.read_bytes())
    content[-1] ^= 1
    pack.write_bytes(content)
    freeze(store, "cats", keys(0))
    with Stopped(tmp_path, "verify.read", COMMAND, "verify", "--store", store.path) as process:
        process.arrive()
        plan_gc(store, grace=0).execute()
        assert "no damage\nexit code 0\n" in process.go()
    assert not pack.exists()


def test_what_is_moved_and_what_is_written_meanwhile_is_not_lost(store: precook.Store, tmp_path: Path) -> None:
    """A compaction moves what the snapshot names, and a newer snapshot names what was not there at the beginning."""
    put_packs(store, RECIPE, [[0], [1]])
    freeze(store, "cats", keys(0, 1))
    with Stopped(tmp_path, "verify.listed", COMMAND, "verify", "--store", store.path) as process:
        process.arrive()
        assert run("compact", "--yes", "--store", store.path).code == 0
        put_packs(store, RECIPE, [[2]])
        freeze(store, "cats", keys(0, 1, 2))
        out = process.go()
    assert "no damage\nexit code 0\n" in out
