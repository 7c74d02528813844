"""Push and pull: from a folder to a bucket and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import precook
from precook.errors import NoSnapshotError
from tests.support.buckets import Buckets, fresh
from tests.support.commands import run
from tests.support.projects import picture, project

RECIPE = precook.Recipe("test", {"version": 1})


def built(base: Path, **changes: object) -> precook.Project:
    """A project that was built in a folder."""
    for number in range(4):
        picture(base / "data" / f"{number}.png", seed=number)
        (base / "data" / f"{number}.txt").write_text(f"caption {number}\n")
    made = project(base, **changes)
    made.plan().build()
    return made


def packs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "packs").rglob("*.safetensors")}


@pytest.mark.parametrize("buckets", ["file", "s3"], indirect=True)
def test_a_store_is_pushed_and_cloned_byte_for_byte(buckets: Buckets, tmp_path: Path) -> None:
    """REMOTE A3: the same keys, the same packs, the same snapshot, and nothing is encoded again."""
    url = buckets.url(fresh())
    with built(tmp_path / "a") as made:
        pushed = made.store.push(url, cache=buckets.cache)
        snapshot = made.store.snapshot("test")
        assert (pushed.datasets, pushed.new, pushed.reused) == (("test",), len(made.store), 0)
        assert pushed.snapshots == (snapshot.file.id,)
        again = made.store.push(url, cache=buckets.cache)
        assert (again.new, again.packs, again.nbytes) == (0, 0, 0)
        with precook.open(tmp_path / "b") as clone:
            pulled = clone.pull(url)
            assert pulled.new == len(made.store)
            assert packs(tmp_path / "a" / "cache") == packs(tmp_path / "b")
            assert clone.snapshot("test").file.path.read_bytes() == snapshot.file.path.read_bytes()
            assert clone.verify().clean
            assert not (tmp_path / "b" / "imports").exists()
            assert clone.pull(url).new == 0


def test_a_dataset_goes_without_what_others_need(folder: Buckets, tmp_path: Path) -> None:
    """Of a pack that holds more than the dataset names, only its own entries go."""
    name = fresh()
    with built(tmp_path / "a") as made, made.store.writer() as writer:
        keys = [RECIPE.key(number) for number in range(3)]
        for number, key in enumerate(keys):
            writer.put(key, np.full(10, number), recipe=RECIPE, labels={"file": "secret.png"})
        writer.flush()
        made.store.push(folder.url(name), dataset="test", cache=folder.cache)
        with folder.open(name) as far:
            assert far.missing(keys) == keys
            assert len(far) == len(made.store) - 3
            with pytest.raises(NoSnapshotError):
                made.store.push(folder.url(name), dataset="other", cache=folder.cache)


def test_labels_stay_here(folder: Buckets, tmp_path: Path) -> None:
    """Entries with labels go in packs of their own, without them, and are the same trees."""
    name = fresh()
    with precook.open(tmp_path / "a") as store:
        keys = [RECIPE.key(number) for number in range(3)]
        for number, key in enumerate(keys):
            store.put(key, {"x": np.full(10, number)}, recipe=RECIPE, labels={"file": "secret.png"})
        store.push(folder.url(name), cache=folder.cache)
        with folder.open(name) as far:
            for key in keys:
                np.testing.assert_array_equal(far.get(key)["x"], store.get(key)["x"])
    far_files = [path for path in (folder.root / "far" / name).rglob("*") if path.is_file()]
    assert far_files
    assert not [path for path in far_files if b"secret.png" in path.read_bytes()]


def test_captions_and_paths_stay_here_unless_asked_for(folder: Buckets, tmp_path: Path) -> None:
    """What a snapshot tells beside its entries does not leave by itself."""
    name, other = fresh(), fresh()
    with built(tmp_path / "a", keep=["captions", "paths"]) as made:
        made.store.push(folder.url(name), cache=folder.cache)
        with folder.open(name) as far:
            assert not far.snapshot("test").content.kept
        made.store.push(folder.url(other), keep=("captions", "paths"), cache=folder.cache)
        with folder.open(other) as far:
            assert far.snapshot("test").content.kept == {"captions", "paths"}


def test_what_was_pushed_halfway_is_not_sent_twice(folder: Buckets, tmp_path: Path) -> None:
    """REMOTE A3: a pack whose leaf was never written is adopted by the next push, and only the rest goes."""
    name = fresh()
    far = folder.root / "far" / name
    with precook.open(tmp_path / "a") as store:
        for number in range(6):
            store.put(RECIPE.key(number), np.full(1000, number), recipe=RECIPE)
        store.push(folder.url(name), cache=folder.cache)
        leaves = sorted((far / "index" / "leaves").iterdir())
        sent = sorted((far / "packs").rglob("*.safetensors"))
        leaves[0].unlink()  # killed between the two
        sent[-1].unlink()
        next(leaf for leaf in leaves if leaf.name.endswith(sent[-1].stem)).unlink(missing_ok=True)
        stamps = {path: path.stat().st_mtime_ns for path in sent[:-1]}
        again = store.push(folder.url(name), cache=tmp_path / "other machine")
        assert again.packs == 1
        assert {path: path.stat().st_mtime_ns for path in sent[:-1]} == stamps
        with folder.open(name, cache=tmp_path / "third") as far_store:
            assert far_store.verify().clean
            assert len(far_store) == 6


def test_an_entry_that_is_damaged_here_goes_by_its_other_copy_or_is_named(folder: Buckets, tmp_path: Path) -> None:
    """A pack with a damaged row does not go as it is."""
    with precook.open(tmp_path / "a") as store:
        keys = [RECIPE.key(number) for number in range(4)]
        with store.writer() as writer:
            for number, key in enumerate(keys):
                writer.put(key, np.full(5000, number), recipe=RECIPE)
    (pack,) = (tmp_path / "a" / "packs").rglob("*.safetensors")
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    name = fresh()
    with precook.open(tmp_path / "a") as store:
        with pytest.raises(precook.SnapshotEntriesError):
            store.push(folder.url(name), cache=folder.cache)
        assert len(store.damaged()) == 1
        store.push(folder.url(name), cache=folder.cache)  # what is damaged is no entry any more
        with folder.open(name) as far:
            assert len(far) == 3
            assert far.verify().clean


def test_the_commands_tell_what_was_brought(s3: Buckets, tmp_path: Path) -> None:
    """`precook push` and `precook pull` say datasets, entries and bytes, for people and for programs."""
    url = s3.url(fresh())
    with built(tmp_path / "a"):
        pass
    pushed = run("push", "test", "--to", url, "--store", tmp_path / "a" / "cache", "--json")
    assert pushed.code == 0, pushed.err
    assert pushed.document["datasets"] == ["test"]
    assert pushed.document["new"] == pushed.document["entries"] > 0
    told = run("push", "test", "--to", url, "--store", tmp_path / "a" / "cache")
    assert "of them there before" in told.out
    pulled = run("pull", "test", "--from", url, "--store", tmp_path / "b", "--json")
    assert pulled.document["new"] == pushed.document["new"]
    assert pulled.document["snapshots"] == pushed.document["snapshots"]
