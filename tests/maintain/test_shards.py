"""Plain shards: readable without precook, and equal to what the store holds."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import precook
from precook.maintain.shards import export_shards
from tests.support.projects import Watched, dataset, picture, project
from tests.support.stores import flip


@pytest.fixture
def made(tmp_path: Path) -> Iterator[precook.Project]:
    """Pictures of two shapes and captions of several lengths, built."""
    dataset(tmp_path / "data", 3, lines=2)
    picture(tmp_path / "data" / "tall.png", 9, (64, 96))
    words = Watched(make=lambda item: {"ids": np.arange(len(item.text or "")), "n": (len(item.text or ""), None)})
    with project(tmp_path, encoders={"pixels": {"uses": "image"}, "words": words}) as opened:
        assert not opened.build().failed
        yield opened


def read(folder: Path, manifest: dict[str, Any], encoder: str, number: int) -> tuple[dict[str, Any], Any]:
    """An entry as docs/guides/share.md says it is read: its tensors by name, and its plain values."""
    file, stack, row, values = manifest["encoders"][encoder]["entries"][number]
    tensors = load_file(folder / manifest["encoders"][encoder]["files"][file])
    prefix = f"{stack}/"
    return {name[len(prefix) :]: one[row] for name, one in tensors.items() if name.startswith(prefix)}, values


@pytest.mark.parametrize("shard_bytes", [1, 20_000, 1 << 30])
def test_plain_readers_find_every_tensor(made: precook.Project, tmp_path: Path, shard_bytes: int) -> None:
    """With json and safetensors alone, every sample has its pictures and captions, equal to the store's."""
    folder = tmp_path / "out"
    done = export_shards(made.store, "test", folder, shard_bytes=shard_bytes)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {path.name for path in folder.iterdir()} == {*done.files, "manifest.json"}
    snapshot = made.store.snapshot("test")
    content = snapshot.content
    assert content.pictures.original is not None
    assert content.pictures.crop is not None
    assert len(manifest["samples"]) == done.samples == 4
    rows = iter(range(len(content.pictures.sample)))
    lines = iter(range(len(content.lines.sample)))
    for sample, identity in zip(manifest["samples"], content.samples.id, strict=True):
        assert sample["id"] == identity.tobytes().hex()
        for cut in sample["pictures"]:
            row = next(rows)
            key = precook.Key(content.picture_keys["pixels"][row].tobytes())
            assert cut["original_size"] == content.pictures.original[row].tolist()
            assert cut["crop"] == content.pictures.crop[row].tolist()
            tensors, _ = read(folder, manifest, "pixels", cut["entries"]["pixels"])
            (array,) = tensors.values()
            assert np.array_equal(array, made.store.get(key))
            assert list(array.shape[:2]) == cut["size"]
        for caption in sample["captions"]:
            key = precook.Key(content.line_keys["words"][next(lines)].tobytes())
            tensors, values = read(folder, manifest, "words", caption["words"])
            assert np.array_equal(tensors["ids"], made.store.get(key)["ids"])
            assert values == [{"$tuple": [len(tensors["ids"]), None]}]
    assert len(read(folder, manifest, "words", manifest["empty"]["words"])[0]["ids"]) == 0


def test_equal_shapes_are_stacked(made: precook.Project, tmp_path: Path) -> None:
    """Pictures of one size are one tensor; the other size has its own."""
    export_shards(made.store, "test", tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "pixels-00000.safetensors")
    assert sorted(len(tensor) for tensor in tensors.values()) == [1, 3]


def test_neither_paths_nor_captions_are_in_shards(made: precook.Project, tmp_path: Path) -> None:
    """Whatever the snapshot keeps, nothing of it is written."""
    export_shards(made.store, "test", tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        assert b"line 0" not in path.read_bytes()
        assert b"p0.png" not in path.read_bytes()


def test_a_folder_that_is_there_stays(made: precook.Project, tmp_path: Path) -> None:
    """Without force nothing is replaced, and with it only a folder of ours."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    with pytest.raises(precook.PrecookError, match="exists already") as caught:
        export_shards(made.store, "test", mine, force=True)
    assert "--force" not in caught.value.hint, "that would not help"
    assert (mine / "thesis.txt").read_text() == "mine"
    os.mkfifo(mine / "manifest.json")
    with pytest.raises(precook.PrecookError, match="exists already"):
        export_shards(made.store, "test", mine, force=True)
    folder = tmp_path / "out"
    export_shards(made.store, "test", folder)
    with pytest.raises(precook.PrecookError, match="exists already"):
        export_shards(made.store, "test", folder)
    export_shards(made.store, "test", folder, force=True)


def test_a_folder_named_like_an_unfinished_export_stays(made: precook.Project, tmp_path: Path) -> None:
    """`out.partial` is removed only where an interrupted export has left it."""
    mine = tmp_path / "out.partial"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    with pytest.raises(precook.PrecookError, match=r"out\.partial exists already"):
        export_shards(made.store, "test", tmp_path / "out", force=True)
    assert (mine / "thesis.txt").read_text() == "mine"
    shutil.rmtree(mine)
    mine.write_text("mine")
    with pytest.raises(precook.PrecookError, match=r"out\.partial exists already"):
        export_shards(made.store, "test", tmp_path / "out")
    assert mine.read_text() == "mine"
    mine.unlink()
    mine.mkdir()
    done = export_shards(made.store, "test", tmp_path / "out")
    assert sorted(path.name for path in done.path.iterdir()) == sorted([*done.files, "manifest.json"])


def test_damage_stops_the_export(made: precook.Project, tmp_path: Path) -> None:
    """The damaged entry is named and no folder appears; the next export is not hindered by what was left."""
    key = precook.Key(made.store.snapshot("test").content.picture_keys["pixels"][0].tobytes())
    with precook.open(made.store_path) as store:
        pack = store.locate(key).pack
        sound = pack.read_bytes()
        flip(store, key)
        with pytest.raises(precook.SnapshotEntriesError) as caught:
            export_shards(store, "test", tmp_path / "out")
        assert [one for one, _ in caught.value.entries] == [key]
        assert not (tmp_path / "out").exists()
        pack.write_bytes(sound)
    with precook.open(made.store_path) as store:
        store.reindex()
        export_shards(store, "test", tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()


def test_a_dataset_that_no_plan_made_has_no_resolutions(made: precook.Project, tmp_path: Path) -> None:
    """A list of samples, as taking over another tool's cache makes one, goes out, too."""
    content = made.store.snapshot("test").content
    listed = dataclasses.replace(content, image=dataclasses.replace(content.image, resolutions=[]))
    made.store.freeze("test", listed)
    export_shards(made.store, "test", tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {cut["resolution"] for sample in manifest["samples"] for cut in sample["pictures"]} == {None}
