"""Stores that a group shares: whatever one user makes, the others can use, and one who may not does no harm."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.compact import plan_compact
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from tests.support.snapshots import freeze, packs, put_packs
from tests.support.users import FIRST, GROUP, SECOND, STRANGER, User

RECIPE = precook.Recipe("test", {"version": 1})


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody gets to."""
    if os.geteuid() != 0:
        pytest.skip("being two users needs root")
    # Not in pytest's own folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="precook-shared-"))
    folder.chmod(0o755)
    try:
        if not all(parent.stat().st_mode & 0o001 for parent in folder.parents):
            pytest.skip("the folder for temporary files is closed to other users")
        yield folder
    finally:
        shutil.rmtree(folder)


def shared(folder: Path, mode: int = 0o2775) -> Path:
    """A directory of the first user's and the group's."""
    folder.mkdir(exist_ok=True)
    os.chown(folder, FIRST, GROUP)
    folder.chmod(mode)
    return folder


def put(store: precook.Store, *numbers: int) -> None:
    put_packs(store, RECIPE, [numbers])


def read(store: precook.Store, *numbers: int) -> list[int]:
    return [store.get(RECIPE.key(number))["number"] for number in numbers]


def frozen(store: precook.Store, dataset: str, *numbers: int) -> None:
    freeze(store, dataset, [RECIPE.key(number) for number in numbers])
    store.pin(store.snapshots()[-1])


def collect(store: precook.Store) -> int:
    return plan_gc(store, grace=0).execute().entries


def evict(store: precook.Store, nbytes: int) -> int:
    return plan_evict(store, nbytes).execute().entries


def compact(store: precook.Store) -> int:
    return plan_compact(store).execute().packs_rewritten


def lease(store: precook.Store) -> int:
    with store.lease("mine") as held:
        assert held.protects
        return len(store.leases())


def reindex(store: precook.Store) -> int:
    return store.reindex()


def bring(store: precook.Store, archive: Path) -> int:
    with archive.open("rb") as file:
        return import_bundle(store, file).entries


def refused(store: precook.Store, number: int) -> tuple[bool, str]:
    with pytest.raises(precook.ReadOnlyError) as caught:
        store.put(RECIPE.key(number), number)
    return store.read_only, str(caught.value)


def rights(root: Path) -> dict[str, tuple[int, str]]:
    """Group and mode of everything below a directory that is not as it should be in a shared store."""
    wanted = root.stat().st_mode
    found: dict[str, tuple[int, str]] = {}
    for path in root.rglob("*"):
        status = path.lstat()
        meant = wanted & (0o2777 if path.is_dir() else 0o666)
        if (status.st_gid, stat.S_IMODE(status.st_mode)) != (GROUP, meant):
            found[str(path.relative_to(root))] = status.st_gid, oct(status.st_mode)
    return found


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o2775, 0o2770, 0o775])
def test_two_users_of_a_group_write_to_one_store(place: Path, umask: int, mode: int) -> None:
    """Each puts, freezes, pins, removes, compacts, imports and makes the index anew, beside the other and after it."""
    root = shared(place / "cache", mode)
    with precook.open(place / "other") as other:
        put(other, 50)
        frozen(other, "birds", 50)
        export_bundle(other, "birds", place / "birds.tar")
    with User(FIRST, root, umask=umask) as first, User(SECOND, root, umask=umask) as second:
        first.does(put, 0, 1, 2, 3)
        second.does(put, 4, 5, 6, 7)
        first.does(frozen, "cats", 0, 1)
        second.does(frozen, "dogs", 4, 5)
        assert rights(root) == {}
        assert second.does(collect) == 4
        first.does(put, 2, 3)
        assert first.does(collect) == 2
        assert first.does(lease) == second.does(lease) == 1
        assert second.does(reindex) == first.does(reindex) == 4
        first.does(put, 10)
        second.does(put, 11)
        assert second.does(bring, place / "birds.tar") == 1
        first.does(compact)
        assert second.does(evict, 1) == 1  # not what it has put itself
        first.does(put, 12)
        assert rights(root) == {}
    with User(SECOND, root, umask=umask) as second:
        second.does(put, 13)
    with User(FIRST, root, umask=umask) as first:
        first.does(put, 14)
        assert first.does(read, 0, 1, 4, 5, 12, 13, 14, 50) == [0, 1, 4, 5, 12, 13, 14, 50]
        assert first.does(collect) == 4
    assert rights(root) == {}


def test_a_store_made_in_a_shared_directory_is_shared_as_its_maker_means(place: Path) -> None:
    """Who may write to a new store says the umask of whoever makes it, as for every directory."""
    folder = shared(place / "disk")
    for umask, mode in ((0o002, 0o2775), (0o022, 0o2755)):
        root = folder / f"cache-{umask:03o}"
        with User(FIRST, root, umask=umask) as first, User(SECOND, root, umask=umask) as second:
            first.does(put, 1)
            assert stat.S_IMODE(root.stat().st_mode) == mode
            if umask == 0o002:
                second.does(put, 2)
                first.does(put, 3)
            else:
                assert second.does(refused, 2)[0]
                assert second.does(read, 1) == [1]


def test_a_store_of_one_user_goes_by_the_umask(place: Path) -> None:
    """Nothing is shared in a directory that only its owner writes to."""
    root = shared(place / "cache", 0o2755)
    with User(FIRST, root, umask=0o077) as first:
        first.does(put, 1)
        first.does(frozen, "cats", 1)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*") if not path.name.startswith("index.sq")}
    assert modes == {0o600, 0o2700}


def test_a_store_that_is_shared_later_is_so_from_when_its_owner_opens_it(place: Path) -> None:
    """Until then the second user reads, is told why it cannot write, and leaves nothing that keeps the owner out."""
    root = shared(place / "cache", 0o2755)
    with User(FIRST, root, umask=0o022) as first:
        first.does(put, 1, 2)
        first.does(frozen, "cats", 1)
        first.does(lease)
    root.chmod(0o2775)
    with User(SECOND, root, umask=0o022) as second:
        read_only, reason = second.does(refused, 3)
        assert read_only
        assert "index.sqlite belongs to another user and is not shared" in reason
        assert "chmod g+rwxs" in reason
        assert second.does(read, 1, 2) == [1, 2]
        with User(FIRST, root, umask=0o022) as first:
            first.does(put, 4)
    with User(SECOND, root, umask=0o022) as second:
        second.does(put, *range(100, 160))
        assert second.does(collect) == 62
    with User(FIRST, root, umask=0o022) as first:
        first.does(put, 5)
        assert first.does(read, 1, 5) == [1, 5]


def test_a_folder_whose_maker_died_before_it_was_shared_is_made_anew(place: Path) -> None:
    """An empty folder of another user's is in nobody's way."""
    root = shared(place / "cache")
    with User(FIRST, root, umask=0o022) as first:
        first.does(put, 1)
    for number in range(256):
        folder = root / "packs" / f"{number:02x}"
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, FIRST, GROUP)
            folder.chmod(0o2755)
    with User(SECOND, root, umask=0o022) as second:
        second.does(put, 2)
        assert second.does(read, 1, 2) == [1, 2]
    assert stat.S_IMODE(packs(root)[-1].parent.stat().st_mode) == 0o2775


def test_somebody_who_is_not_of_the_group_only_reads(place: Path) -> None:
    """And the two who are go on."""
    root = shared(place / "cache")
    with User(FIRST, root, umask=0o002) as first, User(STRANGER, root, umask=0o002) as stranger:
        first.does(put, 1)
        assert stranger.does(refused, 2)[0]
        assert stranger.does(read, 1) == [1]
        first.does(put, 3)
        assert stranger.does(read, 3) == [3]
