"""The maintenance lock: nothing is removed from a directory of others, and with a reserve also from a full disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.gc import plan_gc
from precook.maintain.lock import keep_reserve, make_reserve
from precook.store.layout import Layout
from tests.support.snapshots import disk_bytes, freeze, packs, put_packs

STRANGER, OURSELVES = 65533, 65534
"""Users that own nothing here."""


def fill(disk: Path) -> None:
    """Leave not a byte free."""
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_full_disk_can_be_collected_from_with_a_reserve(small_disk: Path, recipe: precook.Recipe) -> None:
    """Without one the removal cannot begin; with one it frees its own room first, and nothing else is harmed."""
    with precook.open(small_disk / "cache") as store:
        put_packs(store, recipe, [[number] for number in range(4)], size=50_000)
        with store.lease("kept") as lease:
            lease.protect(np.frombuffer(recipe.key(0).bytes, np.uint8).reshape(1, 32))
            layout = Layout(store.path)
            make_reserve(layout, 1 << 20)
            fill(small_disk)
            with pytest.raises(precook.NoSpaceError):
                store.put(recipe.key(9), np.zeros(50_000))
            assert plan_gc(store, grace=0).execute().entries == 3
            assert not layout.reserve.exists()
            assert store.get(recipe.key(0))["number"] == 0
    with precook.open(small_disk / "cache") as store:
        assert len(store) == 1
        assert store.verify().clean


def test_a_full_disk_without_a_reserve_is_a_named_error(small_disk: Path, recipe: precook.Recipe) -> None:
    """Exit code 14, and everything is still there."""
    with precook.open(small_disk / "cache") as store:
        put_packs(store, recipe, [[number] for number in range(4)], size=50_000)
        fill(small_disk)
        with pytest.raises(precook.NoSpaceError) as caught:
            plan_gc(store, grace=0).execute()
        assert caught.value.exit_code == 14
        (small_disk / "ballast").unlink()
        assert [store.get(recipe.key(number))["number"] for number in range(4)] == [0, 1, 2, 3]


def test_the_reserve_is_a_hundredth_of_a_store(store: precook.Store, recipe: precook.Recipe) -> None:
    """None for a small store, 64 MiB at most for a large one; it is made anew when the store has doubled."""
    store.put(recipe.key(1), 1)
    layout = Layout(store.path)
    assert not layout.reserve.exists()
    assert keep_reserve(layout, 99 << 20) == 0
    assert keep_reserve(layout, 100 << 20) == 1 << 20
    assert layout.reserve.stat().st_size == 1 << 20
    assert keep_reserve(layout, 199 << 20) == 1 << 20
    assert keep_reserve(layout, 200 << 20) == 2 << 20
    assert keep_reserve(layout, 1 << 40) == layout.reserve.stat().st_size == 64 << 20
    assert keep_reserve(layout, 100 << 20) == 64 << 20


def test_a_directory_that_anybody_may_write_to_is_refused(store: precook.Store, recipe: precook.Recipe) -> None:
    """Somebody may have planted what lies there; the error says how to go on, and nothing is removed."""
    put_packs(store, recipe, [range(3)])
    store.path.chmod(0o777)
    with pytest.raises(precook.ReadOnlyError, match="chmod o-w"):
        plan_gc(store, grace=0).execute()
    assert len(store) == 3
    store.path.chmod(0o755)
    assert plan_gc(store, grace=0).execute().entries == 3


@pytest.fixture
def planted() -> Iterator[Path]:
    """A store of another user's: the directory is his, and all that is in it may be written by anybody."""
    if os.geteuid() != 0:
        pytest.skip("giving a store to another user needs root")
    # Not in pytest's own folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="precook-planted-"))
    folder.chmod(0o755)
    recipe = precook.Recipe("planted", {})
    mask = os.umask(0o022)
    try:
        if not all(place.stat().st_mode & 0o001 for place in folder.parents):
            pytest.skip("the folder for temporary files is closed to other users")
        # Open all the while: its index has the files beside it that nobody else could make in that directory.
        with precook.open(folder / "cache") as store:
            put_packs(store, recipe, [range(3), range(3, 6)])
            freeze(store, "cats", [recipe.key(number) for number in range(3)])
            for file in (folder / "cache", *(folder / "cache").rglob("*")):
                os.chown(file, STRANGER, STRANGER)
                if file != folder / "cache":
                    file.chmod(0o777 if file.is_dir() else 0o666)
            plan_gc(store, grace=0)  # imports what a user without rights could not read
            yield folder / "cache"
    finally:
        os.seteuid(0)
        os.umask(mask)
        shutil.rmtree(folder)


def test_a_store_that_belongs_to_somebody_else_is_refused(planted: Path) -> None:
    """Whatever its files allow, nothing is removed from another user's directory; its owner may, and so may root."""
    before = disk_bytes(planted)
    os.seteuid(OURSELVES)
    with precook.open(planted) as store:
        plan = plan_gc(store, grace=0)
        assert plan.entries == 3
        with pytest.raises(precook.ReadOnlyError, match="belongs to somebody else") as caught:
            plan.execute()
        assert caught.value.exit_code == 13
        assert "run it as its owner" in str(caught.value.hint)
    os.seteuid(0)
    assert disk_bytes(planted) == before
    for user in (STRANGER, 0):
        os.seteuid(user)
        with precook.open(planted) as store:
            assert plan_gc(store, grace=0).execute().entries == (3 if user else 0)


def test_a_store_that_we_may_not_write_to_is_read_and_left_alone(planted: Path) -> None:
    """Another user reads its entries and sees what could go; removing it is refused."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setgid(OURSELVES)
            os.setuid(OURSELVES)
            with precook.open(planted) as store:
                read = store.get(precook.Recipe("planted", {}).key(1))["number"]
                plan = plan_gc(store, grace=0)
                try:
                    plan.execute()
                except precook.ReadOnlyError as error:
                    code = error.exit_code if (read, plan.entries) == (1, 3) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
    assert len(packs(planted)) == 2
