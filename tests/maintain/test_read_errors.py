"""Reads that fail: what the system says about one read is not what the bytes say, and nothing is removed for it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import precook
from precook.maintain.repair import plan_repair
from tests.support.commands import run
from tests.support.refusals import Refusals
from tests.support.snapshots import freeze, packs, put_packs
from tests.support.stores import flip

RECIPE = precook.Recipe("test", {"version": 1})
NEEDED = [1, 2, 5]
"""What the snapshot names, of six entries in two packs."""
ALL = range(6)

COMMANDS = {
    "gc": ("gc", "--grace", "0s", "--yes"),
    "evict": ("evict", "--max-size", "40KB", "--yes"),
    "compact": ("compact", "--yes"),
    "verify": ("verify", "--repair", "--yes"),
    "reindex": ("reindex",),
}


def keys(numbers: Sequence[int]) -> list[precook.Key]:
    return [RECIPE.key(number) for number in numbers]


def make(path: Path) -> None:
    """Two packs of three entries, of which a snapshot needs some; one of those lies in a third pack, too."""
    with precook.open(path) as store:
        put_packs(store, RECIPE, [range(3), range(3, 6)])
        freeze(store, "cats", keys(NEEDED))
    with precook.open(path.with_name("twin")) as twin:
        put_packs(twin, RECIPE, [[2]])
    (copy,) = packs(path.with_name("twin"))
    (path / "packs" / copy.parent.name).mkdir(exist_ok=True)
    shutil.move(copy, path / "packs" / copy.parent.name / copy.name)
    shutil.rmtree(path.with_name("twin"))
    precook.open(path).close()


def check(path: Path, numbers: Sequence[int]) -> None:
    """These are there and right, and nothing is called damaged."""
    with precook.open(path) as store:
        assert store.missing(keys(numbers)) == []
        assert [store.get(key)["number"] for key in keys(numbers)] == list(numbers)
        assert store.verify().clean
        assert store.damaged() == {}


def sector_of(path: Path, number: int) -> tuple[Path, int]:
    """The pack of an entry that lies in one pack, and a byte of its tensor."""
    with precook.open(path, read_only=True) as store:
        located = store.locate(RECIPE.key(number))
        assert located.copies == 1
        return located.pack, located.table.table.leaves[0].span(located.row)[0] + 100


@pytest.mark.parametrize("command", COMMANDS)
def test_one_read_that_fails_costs_no_entry(tmp_path: Path, command: str) -> None:
    """Whichever opening or read of a pack it is that fails once: all that is needed is there after."""
    make(tmp_path / "whole")
    number, count = 0, 1
    while number <= count:
        path = tmp_path / "store"
        shutil.copytree(tmp_path / "whole", path)
        with Refusals(packs(path), [number]).active() as refusals:
            ended = run(*COMMANDS[command], "--store", path)
        count = max(count, refusals.count)
        # 1: it could not begin and says so; 3: it left something as it is; 4: verify tells of it; 14: too little went.
        assert ended.code in {0, 1, 3, *([4] if command == "verify" else [14] if command == "evict" else [])}, ended.err
        assert ended.code != 1 or "cannot be read" in ended.err
        check(path, NEEDED if command in ("gc", "evict") else ALL)
        shutil.rmtree(path)
        number += 1
    assert count > 10


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("command", ["gc", "evict", "compact", "reindex"])
def test_packs_that_cannot_be_read_stay_as_they_are(tmp_path: Path, command: str, error: int) -> None:
    """The command says that it could not read them, if it removes by its exit code, too; later all is there."""
    path = tmp_path / "store"
    make(path)
    before = {pack: pack.read_bytes() for pack in packs(path)}
    with Refusals(packs(path), None, error).active():
        ended = run(*COMMANDS[command], "--store", path)
    assert {pack: pack.read_bytes() for pack in packs(path)} == before
    assert ended.code in ((0, 1) if command == "reindex" else (1, 3, 14))
    assert "cannot be read" in ended.err
    check(path, NEEDED)


@pytest.mark.parametrize("command", ["gc", "evict", "compact"])
def test_a_pack_with_a_bad_sector_is_left_as_it_is(tmp_path: Path, command: str) -> None:
    """Its other entries go on, it is named with the reason, and the exit code is 3; nothing of it is removed."""
    path = tmp_path / "store"
    make(path)
    pack, sector = sector_of(path, 1)
    before = pack.read_bytes()
    with Refusals([pack], None, sector=sector).active():
        ended = run(*COMMANDS[command], "--store", path)
        assert ended.code == 3
        assert f"left as it is: {pack}: cannot be read: Input/output error" in ended.err.replace("\n", " ")
        again = run(*COMMANDS[command], "--store", path, "--json")
        unread = (again.document.get("removed") or again.document.get("done") or again.document)["unread"]
        assert {item["pack"] for item in unread} <= {str(pack)}
    assert pack.read_bytes() == before
    check(path, NEEDED)


def test_what_verify_could_not_read_is_not_removed_later(tmp_path: Path) -> None:
    """It is told, with exit code 4; the entry stays one, and a compaction that can read it again carries it over."""
    path = tmp_path / "store"
    make(path)
    pack, sector = sector_of(path, 1)
    with Refusals([pack], None, sector=sector).active():
        ended = run("verify", "--store", path)
    assert ended.code == 4
    assert "cannot be read: Input/output error" in ended.out
    assert "1 unreadable entry" in ended.out
    assert run("compact", "--yes", "--store", path).code == 0
    assert not pack.exists()
    check(path, ALL)


def test_a_repair_reads_again_before_it_gives_up_an_entry(tmp_path: Path) -> None:
    """Where the error has passed nothing is dropped; a sector that stays bad costs its entry and no other."""
    path = tmp_path / "store"
    make(path)
    pack, sector = sector_of(path, 1)
    for reads in range(1, 3):
        with Refusals([pack], range(1, reads + 1), sector=sector).active():
            assert run("verify", "--repair", "--yes", "--store", path).code == (0 if reads == 1 else 4)
        assert pack.exists()
        check(path, ALL)
    with Refusals([pack], None, sector=sector).active():
        ended = run("verify", "--repair", "--yes", "--store", path)
        assert ended.code == 4
        assert "repaired: 1 entry to be made again, 1 pack written anew without them" in ended.out
    with precook.open(path) as store:
        assert store.missing(keys(ALL)) == keys([1])
        assert store.verify().lost == (RECIPE.key(1),)  # the snapshot names it: until a build makes it again
        assert not store.verify().damage


@pytest.mark.parametrize("what", ["rows", "whole packs"])
def test_a_repair_gives_up_nothing_while_the_disk_cannot_be_read(tmp_path: Path, what: str) -> None:
    """Neither what was unreadable before nor what was sound when it was verified: all of it is there later."""
    path = tmp_path / "store"
    make(path)
    with precook.open(path) as store:
        if what == "rows":
            pack, sector = sector_of(path, 1)
            with Refusals([pack], None, sector=sector).active():
                plan = plan_repair(store, store.verify())
        else:
            with Refusals(packs(path), None).active():
                plan = plan_repair(store, store.verify())
        assert plan.bad_packs
        before = {file: file.read_bytes() for file in packs(path)}
        with (
            Refusals([*packs(path), path / "store.toml"], None).active(),
            pytest.raises(precook.StoreReadError, match="cannot be read"),
        ):
            plan.execute()
        assert {file: file.read_bytes() for file in packs(path)} == before
    check(path, ALL)


def test_a_repair_leaves_a_pack_that_can_no_longer_be_read(tmp_path: Path) -> None:
    """Entries that were sound when they were verified are not dropped for an error that comes after."""
    path = tmp_path / "store"
    make(path)
    with precook.open(path) as store:
        flip(store, RECIPE.key(0))
        pack, sector = sector_of(path, 1)
        plan = plan_repair(store, store.verify())
        for at in (None, sector):
            refusals = Refusals([pack], None, sector=at)
            with refusals.active(), pytest.raises(precook.StoreReadError, match="cannot be read"):
                plan.execute()
            assert pack.exists()
        assert plan.execute().entries == 1
        assert store.missing(keys(ALL)) == keys([0])


def test_a_snapshot_that_cannot_be_read_for_a_moment_stays(tmp_path: Path) -> None:
    """Nothing is removed without it, and a repair does not take it for damaged."""
    path = tmp_path / "store"
    make(path)
    with precook.open(path) as store:
        freeze(store, "cats", keys([1]))
        old, new = store.snapshots()
    for file in (old, new):
        with Refusals([file.path], None).active():
            assert run("verify", "--repair", "--yes", "--store", path).code == 4
        assert file.path.exists()
    with Refusals([new.path], None).active():
        ended = run("gc", "--grace", "0s", "--yes", "--store", path)
    assert ended.code == 1
    assert "cannot be read: Input/output error" in ended.err
    check(path, ALL)
