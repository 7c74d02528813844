"""Damage at rest: never a wrong tensor, always a name, and the rest stays readable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.maintain.prune import plan_clear
from precook.store import files
from precook.store.layout import Layout
from precook.store.lock import locked
from tests.support.descriptors import descriptors
from tests.support.trees import same

TREES: list[Any] = [
    {"a": np.arange(5, dtype=np.float32), "n": "one"},
    {"a": np.arange(5, 10, dtype=np.float32), "n": "two"},
    [np.arange(3), (1, 2)],
    [np.arange(4), (1, 2)],
    "only plain",
]


def noise(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that mean nothing: the same in every process that collects tests, and the next time."""
    return np.random.default_rng(seed).bytes(nbytes)


@pytest.fixture
def keys(recipe: precook.Recipe) -> list[precook.Key]:
    return [recipe.key(i) for i in range(len(TREES))]


@pytest.fixture
def built(path: Path, recipe: precook.Recipe, keys: list[precook.Key]) -> Path:
    """A small store of one pack with three tables."""
    with precook.open(path) as store, store.writer() as writer:
        for key, tree in zip(keys, TREES, strict=True):
            writer.put(key, tree, recipe=recipe, labels={"name": "x"})
    return path


def the_pack(path: Path) -> Path:
    (pack,) = path.glob("packs/*/*.safetensors")
    return pack


def answers(path: Path, keys: list[precook.Key], **options: Any) -> list[Any]:
    """What a fresh process-like open answers for each key: the tree, or the error."""
    found: list[Any] = []
    with precook.open(path, **options) as store:
        for key in keys:
            try:
                found.append(store.get(key))
            except precook.MissingEntryError as error:
                assert key.hex in str(error)
                found.append(error)
    return found


def check_never_wrong(path: Path, keys: list[precook.Key], **options: Any) -> int:
    """Each answer is the tree that was put or a miss; how many were misses."""
    found = answers(path, keys, **options)
    misses = [isinstance(answer, precook.MissingEntryError) for answer in found]
    assert all(miss or same(answer, tree) for miss, answer, tree in zip(misses, found, TREES, strict=True))
    return sum(misses)


@pytest.mark.parametrize("part", range(4))
def test_a_flipped_bit_anywhere_in_a_pack_is_noticed(built: Path, keys: list[precook.Key], part: int) -> None:
    """Every byte of a pack is flipped, one at a time: reads give the tree or a miss, and verify sees every flip."""
    pack = the_pack(built)
    good = pack.read_bytes()
    # Every bit of every byte would be eight times the work for the same code paths.
    for offset in range(part, len(good), 4):
        bad = bytearray(good)
        bad[offset] ^= 1 << (offset % 8)
        pack.write_bytes(bad)
        with precook.open(built, read_only=True) as store:
            check_open = store.verify()
        assert not check_open.clean, f"byte {offset} of {len(good)}"
        check_never_wrong(built, keys, read_only=True)


def test_a_flipped_bit_in_data_costs_one_entry(built: Path, keys: list[precook.Key]) -> None:
    """The damaged entry names itself and its pack, becomes a miss for good, and can be put again."""
    pack = the_pack(built)
    data = bytearray(pack.read_bytes())
    at = data.rindex(np.arange(5, 10, dtype=np.float32).tobytes())
    data[at] ^= 1
    pack.write_bytes(data)
    with precook.open(built) as store:
        assert keys[1] in store
        with pytest.raises(precook.DamagedEntryError) as caught:
            store.get(keys[1])
        assert caught.value.pack == pack
        assert caught.value.exit_code == 4
        assert store.missing(keys) == [keys[1]]
        assert store.get(keys[1], "default") == "default"
        assert store.stats().damaged == ((keys[1], "its checksum does not match"),)
        (damage,) = store.verify().damage
        assert (damage.key, damage.pack, damage.offset) == (keys[1], pack, at)
    assert check_never_wrong(built, keys) == 1
    with precook.open(built) as store:
        assert len(store.stats().damaged) == 1
        store.put(keys[1], TREES[1])
        assert store.stats().damaged == ()
    assert check_never_wrong(built, keys) == 0
    with precook.open(built) as store:
        plan_clear(store, everything=True).execute()
        assert store.damaged() == {}


def test_putting_again_over_a_rotten_entry_stores_it(built: Path, keys: list[precook.Key]) -> None:
    """What `put` reports as stored can be read: an entry that only the index believes in is written anew."""
    pack = the_pack(built)
    data = bytearray(pack.read_bytes())
    data[data.rindex(np.arange(5, 10, dtype=np.float32).tobytes())] ^= 1
    pack.write_bytes(data)
    with precook.open(built) as store:
        store.put(keys[1], TREES[1])
        assert same(store.get(keys[1]), TREES[1])
    assert check_never_wrong(built, keys) == 0


def test_an_index_with_torn_pages_is_made_anew_by_whoever_writes(
    built: Path, keys: list[precook.Key], recipe: precook.Recipe
) -> None:
    """Adding, dropping and marking end in a rebuild, not in SQLite's complaint; odd values count as damage too."""
    import sqlite3  # noqa: PLC0415

    index = built / "index.sqlite"
    good = index.read_bytes()
    size = 4096
    for page in range(1, len(good) // size):
        index.write_bytes(good[: page * size] + noise(size, page) + good[(page + 1) * size :])
        with precook.open(built) as store:
            store.put(recipe.key("new", page), page)
            assert store.get(recipe.key("new", page)) == page
        assert check_never_wrong(built, keys) == 0
    with sqlite3.connect(index) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, 'id BLOB NOT NULL UNIQUE', 'id BLOB UNIQUE')")
    db.close()
    with sqlite3.connect(index) as db:
        db.execute("UPDATE pack SET id = NULL WHERE number = 1")
    db.close()
    assert check_never_wrong(built, keys) == 0


def test_the_other_copy_of_a_damaged_entry_is_served(
    tmp_path: Path, recipe: precook.Recipe, keys: list[precook.Key]
) -> None:
    """A key that lies in two packs survives damage to either of them, and is not listed as damaged."""
    for name in "ab":
        with precook.open(tmp_path / name) as store:
            store.put(keys[0], TREES[0])
            store.put(recipe.key(name), name)
    for pack in tmp_path.glob("b/packs/*/*"):
        (tmp_path / "a/packs" / pack.parent.name).mkdir(exist_ok=True)
        shutil.copy(pack, tmp_path / "a/packs" / pack.parent.name / pack.name)
    copies = [pack for pack in tmp_path.glob("a/packs/*/*") if keys[0].bytes in pack.read_bytes()]
    assert len(copies) == 2
    for pack in copies:
        good = pack.read_bytes()
        pack.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        assert same(answers(tmp_path / "a", [keys[0]])[0], TREES[0])
        pack.write_bytes(good)
        with precook.open(tmp_path / "a") as store:
            assert store.damaged() == {}
            store.reindex()


@pytest.mark.parametrize("verify", [True, "always", False])
def test_a_pack_cut_short_loses_only_what_was_cut(built: Path, keys: list[precook.Key], verify: Any) -> None:
    """Entries before the cut stay readable, the others are misses; no length makes a reader crash."""
    pack = the_pack(built)
    good = pack.read_bytes()
    lost = []
    for length in [*range(0, len(good), 97), len(good) - 1]:
        pack.write_bytes(good[:length])
        lost.append(check_never_wrong(built, keys, read_only=True, verify_reads=verify))
    assert lost[0] == len(TREES)
    assert lost[-1] == 1


def replaced(pack: Path, what: str) -> None:
    good = pack.read_bytes()
    pack.unlink()
    if what == "empty":
        pack.touch()
    elif what == "directory":
        pack.mkdir()
    elif what == "symlink":
        elsewhere = pack.parent.parent.parent / "elsewhere"
        elsewhere.write_bytes(good)
        pack.symlink_to(elsewhere)
    elif what == "fifo":
        os.mkfifo(pack)
    elif what == "garbage":
        pack.write_bytes(noise(len(good)))
    elif what == "pickle":
        pack.write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")


@pytest.mark.parametrize("what", ["gone", "empty", "directory", "symlink", "fifo", "garbage", "pickle"])
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("index", ["kept", "deleted"])
def test_a_pack_replaced_by_something_else_is_a_miss(
    built: Path, keys: list[precook.Key], what: str, read_only: bool, index: str
) -> None:
    """No replacement hangs, crashes or answers; the store can be written to again."""
    replaced(the_pack(built), what)
    if index == "deleted":
        (built / "index.sqlite").unlink()
    assert check_never_wrong(built, keys, read_only=read_only) == len(TREES)
    with precook.open(built, read_only=True) as store:
        assert store.get_many(keys, "miss") == ["miss"] * len(keys)
        assert store.missing(keys) == keys
        assert store.verify().clean == (what == "gone")
    with precook.open(built) as store:
        for key, tree in zip(keys, TREES, strict=True):
            store.put(key, tree)
    assert check_never_wrong(built, keys) == 0


def test_a_pack_under_another_packs_name_is_refused(path: Path, keys: list[precook.Key]) -> None:
    """Two packs swapped are both noticed: a pack's name is the digest of its head."""
    with precook.open(path) as store:
        store.put(keys[0], TREES[0])
        store.put(keys[1], TREES[1])
    first, second = sorted(path.glob("packs/*/*"))
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    found = answers(path, keys[:2])
    assert all(isinstance(answer, precook.MissingEntryError) for answer in found)


@pytest.mark.parametrize("step", [7])
def test_a_flipped_bit_in_the_index_costs_nothing(built: Path, keys: list[precook.Key], step: int) -> None:
    """Whatever SQLite makes of a damaged file, the packs answer."""
    index = built / "index.sqlite"
    good = index.read_bytes()
    pack = the_pack(built)
    for offset in [*range(100), *range(100, len(good), step * 13)]:
        bad = bytearray(good)
        bad[offset] ^= 0x55
        index.write_bytes(bad)
        for leftover in built.glob("index.sqlite-*"):
            leftover.unlink()
        found = answers(built, keys)
        assert pack.exists()
        wrong = [a for a, t in zip(found, TREES, strict=True) if not isinstance(a, KeyError) and not same(a, t)]
        assert not wrong, f"byte {offset}"


@pytest.mark.parametrize("content", [b"", b"not a database at all", noise(8192)], ids=["empty", "text", "noise"])
def test_an_index_that_is_no_database_is_made_anew(built: Path, keys: list[precook.Key], content: bytes) -> None:
    """Garbage, an empty file and a missing one all end in the same answers."""
    (built / "index.sqlite").write_bytes(content)
    assert check_never_wrong(built, keys, read_only=True) == 0
    assert (built / "index.sqlite").read_bytes() == content
    assert check_never_wrong(built, keys) == 0
    (built / "index.sqlite").unlink()
    assert check_never_wrong(built, keys, read_only=True) == 0
    assert not (built / "index.sqlite").exists()
    assert check_never_wrong(built, keys) == 0


def test_an_index_older_or_newer_than_the_packs_is_caught_up(built: Path, recipe: precook.Recipe) -> None:
    """Packs without rows are indexed at open, rows without packs are dropped."""
    old = (built / "index.sqlite").read_bytes()
    before = set(built.glob("packs/*/*"))
    with precook.open(built) as store:
        store.put(recipe.key("late"), "late")
    new = (built / "index.sqlite").read_bytes()
    (late,) = set(built.glob("packs/*/*")) - before
    (built / "index.sqlite").write_bytes(old)
    for read_only in (True, False):
        with precook.open(built, read_only=read_only) as store:
            assert store.get(recipe.key("late")) == "late"
    (built / "index.sqlite").write_bytes(new)
    late.unlink()
    for read_only in (True, False):
        with precook.open(built, read_only=read_only) as store:
            assert recipe.key("late") not in store
            assert len(store) == len(TREES)


def test_an_index_that_names_a_wrong_row_is_not_believed(built: Path, keys: list[precook.Key]) -> None:
    """A place is confirmed by the pack's own key column: rows that were mixed up end in a rebuild."""
    import sqlite3  # noqa: PLC0415

    with sqlite3.connect(built / "index.sqlite") as db:
        db.execute("UPDATE entry SET row = (row + 1) % 5")
    db.close()
    assert check_never_wrong(built, keys) == 0


def test_a_store_restored_from_a_partial_backup_serves_what_it_has(tmp_path: Path, recipe: precook.Recipe) -> None:
    """Packs that are missing are misses, packs that are extra are indexed."""
    with precook.open(tmp_path / "a") as store:
        for i in range(6):
            store.put(recipe.key(i), i)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with precook.open(tmp_path / "a") as store:
        store.put(recipe.key(6), 6)
    packs = sorted((tmp_path / "b").glob("packs/*/*"))
    for pack in packs[:2]:
        pack.unlink()
    for pack in (tmp_path / "a").glob("packs/*/*"):
        copy = tmp_path / "b" / pack.relative_to(tmp_path / "a")
        if recipe.key(6).bytes in pack.read_bytes():
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(pack, copy)
    with precook.open(tmp_path / "b") as store:
        assert len(store) == 5
        assert store.get(recipe.key(6)) == 6
        assert store.verify().clean


def test_leftovers_of_a_dead_writer_are_swept_and_those_of_a_live_one_are_not(built: Path) -> None:
    """A partial file is removed at the next open, unless its writer still holds it."""
    import fcntl  # noqa: PLC0415

    folder = the_pack(built).parent
    dead, alive = folder / "x.dead.partial", folder / "x.alive.partial"
    dead.write_text("half")
    with alive.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        precook.open(built).close()
        assert not dead.exists()
        assert alive.exists()
    precook.open(built).close()
    assert not alive.exists()


def test_leftovers_of_a_rebuild_are_swept(built: Path) -> None:
    """A half-made index of a process that died goes at the next open."""
    names = ["index.sqlite.ab12.partial", "index.sqlite.ab12.partial-journal", "store.toml.cd34.partial"]
    for name in names:
        (built / name).write_text("half")
    with locked(Layout(built).lock):
        # Another process is rebuilding: its file stays.
        precook.open(built).close()
        assert sorted(path.name for path in built.glob("*.partial*")) == names[:2]
    precook.open(built).close()
    assert not list(built.glob("*.partial*"))


def test_a_rebuild_that_is_cut_off_at_its_last_step_forgets_no_removal(
    path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old index knew of dropped rows is in the new one alone: that stays, although its name may not last."""
    keys = [recipe.key(number) for number in range(40)]
    gone = precook.Recipe("gone", {}).key(0)
    with precook.open(path) as store:
        with store.writer() as writer:
            writer.put(gone, np.arange(300), recipe=precook.Recipe("gone", {}))
            for key in keys:
                writer.put(key, np.arange(3000), recipe=recipe)
        plan_clear(store, recipe="gone").execute()
        assert gone not in store
        real, at_root = files.sync_directory, []

        def cut_off(folder: Path) -> None:
            if Path(folder) == path:
                at_root.append(folder)
                if len(at_root) == 2:
                    raise KeyboardInterrupt
            real(folder)

        monkeypatch.setattr(files, "sync_directory", cut_off)
        with pytest.raises(KeyboardInterrupt):
            store.reindex()
        monkeypatch.undo()
    with precook.open(path) as store:
        assert gone not in store
        assert not store.missing(keys)


def test_deleting_the_index_changes_no_answer(path: Path, recipe: precook.Recipe) -> None:
    """Every key answers the same after index.sqlite is gone."""
    wanted = [recipe.key(i) for i in range(300)]
    with precook.open(path) as store:
        for at in range(0, 300, 100):
            with store.writer() as writer:
                for i in range(at, at + 100):
                    writer.put(wanted[i], {"x": np.full(i % 7, i), "i": i}, recipe=recipe)
        before = store.get_many(wanted)
        stats = store.stats()
    (path / "index.sqlite").unlink()
    with precook.open(path) as store:
        assert same(store.get_many(wanted), before)
        assert store.stats().recipes == stats.recipes


@pytest.mark.parametrize("when", ["opening the store", "opening the pack", "reading the row"])
def test_running_out_of_descriptors_is_not_damage(built: Path, keys: list[precook.Key], when: str) -> None:
    """An error that says nothing about the bytes is raised as such: nothing is called missing, damaged or dropped."""
    import resource  # noqa: PLC0415

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    store = precook.open(built)
    if when == "reading the row":
        assert same(store.get(keys[2]), TREES[2])
    store.missing(keys)  # SQLite has its files open
    if when == "opening the store":
        (built / "index.sqlite").unlink()
    descriptors()  # no garbage that is collected meanwhile makes room
    used = [os.open("/dev/null", os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used[0] + 1, limits[1]))
        with pytest.raises(precook.StoreError):
            precook.open(built).get(keys[0]) if when == "opening the store" else store.get(keys[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(used[0])
    assert store.missing(keys) == []
    assert same(store.get(keys[0]), TREES[0])
    store.close()
    assert check_never_wrong(built, keys) == 0


def test_a_pack_cut_short_serves_its_whole_rows_again_and_again(path: Path, recipe: precook.Recipe) -> None:
    """Also large leaves, which are mapped when a pack is whole, and stacks of them."""
    wanted = [recipe.key(i) for i in range(4)]
    with precook.open(path) as store, store.writer() as writer:
        for i, key in enumerate(wanted):
            writer.put(key, np.full(50_000, i))
    pack = the_pack(path)
    os.truncate(pack, pack.stat().st_size - 100)
    with precook.open(path) as store:
        for _ in range(3):
            assert same(store.get_many(wanted[:3]), [np.full(50_000, i) for i in range(3)])
            assert same(store.stack(wanted[:3]), np.stack([np.full(50_000, i) for i in range(3)]))
        assert store.get(wanted[3], None) is None
