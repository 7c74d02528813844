"""Places that a store cannot have as it likes: long paths, and disks that do not tell `Cats` from `cats`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.gc import plan_gc
from tests.support.commands import run
from tests.support.projects import picture
from tests.support.snapshots import freeze, put_packs


def long_path(base: Path, nbytes: int) -> Path:
    """A path below a folder with so many bytes."""
    path = str(base)
    while len(path) < nbytes - 202:
        path += "/" + "d" * 200
    path += "/" + "e" * (nbytes - len(path) - 1)
    assert len(path) == nbytes
    return Path(path)


def test_a_store_is_made_and_used_at_the_longest_path_there_is(tmp_path: Path, recipe: precook.Recipe) -> None:
    """Also what is made only now and then: a snapshot, an import, an index made anew, a removal."""
    with precook.open(tmp_path / "short") as store:
        put_packs(store, recipe, [range(3)])
        freeze(store, "cats", [recipe.key(0)])
        export_bundle(store, "cats", tmp_path / "cats.tar")
    path = long_path(tmp_path, 474)
    with precook.open(path) as store, store.lease("mine"), (tmp_path / "cats.tar").open("rb") as archive:
        put_packs(store, recipe, [range(3, 6)])
        import_bundle(store, archive)
        freeze(store, "d" * 64, [recipe.key(3)])
        assert store.reindex() == 4
        assert plan_gc(store, grace=0).execute().entries == 2
        assert store.verify().clean


@pytest.mark.parametrize("nbytes", [475, 500, 2000, 4090, 4200])
def test_a_path_that_is_too_long_to_write_to_is_refused_by_name(
    tmp_path: Path, recipe: precook.Recipe, nbytes: int
) -> None:
    """Nothing is made there, and the error names the limit."""
    with precook.open(tmp_path / "short") as store:
        put_packs(store, recipe, [range(3)])
        freeze(store, "cats", [recipe.key(0)])
        export_bundle(store, "cats", tmp_path / "cats.tar")
    path = long_path(tmp_path / "long", nbytes)
    with pytest.raises(precook.StoreError, match=f"{nbytes} bytes, a store that is written to at most 474") as caught:
        precook.open(path)
    assert caught.value.hint.startswith("use a shorter path")
    ended = run("import", tmp_path / "cats.tar", "--store", path)
    assert ended.code == 1
    assert "at most 474" in ended.err
    assert not (tmp_path / "long").exists()


def test_a_store_that_was_moved_to_a_long_path_can_be_read(tmp_path: Path, recipe: precook.Recipe) -> None:
    """With read_only=True, up to what the system itself takes; also where a short link leads there."""
    with precook.open(tmp_path / "short") as store:
        put_packs(store, recipe, [range(3)])
    path = long_path(tmp_path, 3900)
    path.parent.mkdir(parents=True)
    (tmp_path / "short").rename(path)
    (tmp_path / "link").symlink_to(path)
    for way in (path, tmp_path / "link"):
        with pytest.raises(precook.StoreError, match="3900 bytes"):
            precook.open(way)
        with precook.open(way, read_only=True) as store:
            assert store.get(recipe.key(1))["number"] == 1
    longer = path.with_name(path.name + "e")
    path.rename(longer)
    with pytest.raises(precook.StoreError, match="that is read at most 3900"):
        precook.open(longer, read_only=True)


def imitate(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Have the functions of `os` find folders below a directory by their names without regard to case."""

    def find(path: Any) -> Any:
        if not isinstance(path, (str, os.PathLike)) or not Path(path).is_relative_to(root):
            return path
        found = root
        for name in Path(path).relative_to(root).parts:
            names = listed(found) if found.exists() else []
            found /= name if name in names else next((n for n in names if n.lower() == name.lower()), name)
        return found

    def blind(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: function(*map(find, args), **options)

    listed = os.listdir
    for name in ("stat", "mkdir", "rmdir", "open", "rename", "unlink", "listdir", "access"):
        monkeypatch.setattr(os, name, blind(getattr(os, name)))


@pytest.fixture(params=["ext4", "imitated"])
def blind_disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a disk that does not tell upper case from lower case."""
    place = tmp_path / "blind"
    place.mkdir()
    if request.param == "imitated":
        imitate(monkeypatch, place)
        (place / "A").mkdir()
        if not (place / "a").is_dir():
            pytest.skip("this Python does not look up the functions of os when it calls them")
        (place / "A").rmdir()
        yield place
        return
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    image = tmp_path / "image"
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    for command in (["mkfs.ext4", "-q", "-O", "casefold", image], ["mount", "-o", "loop", image, place]):
        try:
            done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip(f"there is no {command[0]}")
        if done.returncode:
            pytest.skip(f"{command[0]} of ext4 with casefold failed here: {done.stderr.strip()[:100]}")
    try:
        (place / "folded").mkdir()
        subprocess.run(["chattr", "+F", str(place / "folded")], check=True)
        yield place / "folded"
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_dataset_whose_folder_is_taken_by_another_spelling_is_refused(
    blind_disk: Path, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """Frozen or imported, before anything is written; the other one is as it was, and so are its entries."""
    with precook.open(tmp_path / "other") as other:
        put_packs(other, recipe, [range(8, 10)])
        freeze(other, "CATS", [recipe.key(8)])
        export_bundle(other, "CATS", tmp_path / "cats.tar")
    with precook.open(blind_disk / "cache") as store:
        put_packs(store, recipe, [range(4)])
        freeze(store, "Cats", [recipe.key(0)])
        with pytest.raises(precook.StoreError, match="does not tell the dataset cats from Cats") as caught:
            freeze(store, "cats", [recipe.key(1)])
        assert "another name" in caught.value.hint
        with (
            pytest.raises(precook.StoreError, match="does not tell the dataset CATS from Cats"),
            (tmp_path / "cats.tar").open("rb") as archive,
        ):
            import_bundle(store, archive)
        assert [(file.dataset, file.number) for file in store.snapshots()] == [("Cats", 1)]
        assert len(store) == 4
        assert plan_gc(store, grace=0).execute().entries == 3
        freeze(store, "Cats", [recipe.key(0), recipe.key(0)])
        for file in store.snapshots():
            store.unpin(file)
            store.remove_snapshot(file)
        freeze(store, "cats", [recipe.key(0)])
        assert [file.dataset for file in store.snapshots()] == ["cats"]


def test_a_build_of_a_taken_name_ends_before_it_encodes(
    blind_disk: Path, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """Not at its end, when it is to be frozen."""
    with precook.open(blind_disk / "cache") as store:
        put_packs(store, recipe, [range(1)])
        freeze(store, "Cats", [recipe.key(0)])
    picture(tmp_path / "data" / "cat.png", 1, (64, 64))
    config = tmp_path / "precook.yaml"
    config.write_text(
        "dataset: cats\nconcepts: [{name: cats, path: data}]\nimage: {resolutions: [64]}\n"
        "text: {empty_prompt: false}\nencoders: {pixels: {uses: image}}\n"
    )
    ended = run("build", "--config", config, "--store", blind_disk / "cache")
    assert ended.code == 1
    assert "does not tell the dataset cats from Cats" in ended.err
    with precook.open(blind_disk / "cache") as store:
        assert len(store) == 1


def test_names_that_differ_in_case_live_side_by_side_where_the_disk_tells_them_apart(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """As they always did."""
    put_packs(store, recipe, [range(2)])
    if (store.path / "PACKS").exists():
        pytest.skip("this disk does not")
    for dataset, number in (("Cats", 0), ("cats", 1)):
        freeze(store, dataset, [recipe.key(number)])
    assert [file.dataset for file in store.snapshots()] == ["Cats", "cats"]
    assert plan_gc(store, grace=0).execute().entries == 0
