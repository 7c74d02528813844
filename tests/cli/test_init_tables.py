"""`precook init` for datasets of the hub: a config that works as it stands, and commands that name rows of tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from precook.config.check import read_config
from precook.fs import trust
from tests.support.commands import run

pytest.importorskip("datasets", reason="datasets is not installed")
from tests.plan.test_embedded import datasets, hub, parquet, rows


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


@pytest.fixture
def downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset as the hub gives it: splits in several files, and a card."""
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        hub(rows(3, first=3 * number)).to_parquet(tmp_path / f"pets/data/train-0000{number}-of-00002.parquet")
    hub(rows(2, first=20)).to_parquet(tmp_path / "pets/data/test-00000-of-00001.parquet")
    (tmp_path / "pets/README.md").write_text("# Pets\n")
    return tmp_path


def test_a_dataset_of_the_hub_gets_a_config_that_works_as_it_stands(downloaded: Path) -> None:
    """A concept for each split, what is trained on first, and the build is done without a change by hand."""
    told = run("init", "pets")
    assert told.code == 0, told.err
    assert "train: 6 pictures, all with captions ({column: text})" in told.out
    first, second = read_config(downloaded / "precook.yaml")[0].concepts
    assert (first.name, first.path, first.validation) == ("train", "pets/data/train-*.parquet", False)
    assert (second.name, second.path, second.validation) == ("test", "pets/data/test-*.parquet", True)
    assert run("build").code == 0
    plan = run("plan", "--json").document
    assert (plan["samples"], [one["ready"] for one in plan["encoders"]], plan["failed"]) == (8, [8], [])


@pytest.mark.parametrize("form", ["splits", "saved", "file", "named otherwise"])
def test_every_form_of_a_dataset_gets_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """What `save_to_disk` wrote, with splits or without, one file, and columns of other names."""
    monkeypatch.chdir(tmp_path)
    expected = {"given": "given"}
    path = "given"
    if form == "splits":
        datasets.DatasetDict({"train": hub(rows(2)), "validation": hub(rows(1, first=9))}).save_to_disk("given")
        expected = {"train": "given/train", "validation": "given/validation"}
    elif form == "saved":
        hub(rows(2)).save_to_disk("given")
    elif form == "file":
        hub(rows(2)).to_parquet("given.parquet")
        path, expected = "given.parquet", {"given": "given.parquet"}
    else:
        renamed = hub(rows(2)).rename_columns({"image": "photo", "text": "caption"})
        for number in range(2):
            renamed.to_parquet(tmp_path / f"given/000{number}.parquet")
        expected = {"given": "given/*.parquet"}
    told = run("init", path)
    assert told.code == 0, told.err
    concepts = read_config(tmp_path / "precook.yaml")[0].concepts
    assert {concept.name: concept.path for concept in concepts} == expected
    if form == "named otherwise":
        assert (concepts[0].image_column, concepts[0].captions.model_dump()) == ("photo", {"column": "caption"})
    ended = run("build")
    assert ended.code == 0, ended.err


def test_links_out_of_the_folder_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the hub's own cache has them: whether they may be followed is not guessed."""
    monkeypatch.chdir(tmp_path)
    hub(rows(1)).to_parquet(tmp_path / "blobs/a.parquet")
    (tmp_path / "snapshot").mkdir()
    os.symlink("../blobs/a.parquet", tmp_path / "snapshot/train-00000-of-00001.parquet")
    ended = run("init", "snapshot")
    assert ended.code == 1
    assert "leads out of the concept's folder" in ended.err
    assert "--local-dir" in ended.err


def test_a_broken_file_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is written."""
    monkeypatch.chdir(tmp_path)
    hub(rows(1)).to_parquet(tmp_path / "pets/train.parquet")
    (tmp_path / "pets/train.parquet").write_bytes((tmp_path / "pets/train.parquet").read_bytes()[:-20])
    ended = run("init", "pets")
    assert ended.code == 1
    assert "train.parquet: broken parquet: " in ended.err
    assert not (tmp_path / "precook.yaml").exists()


def test_explain_and_show_name_the_file_and_the_row(downloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a row to its entries, and from an entry back to its row."""
    real = trust.file_system_time  # an hour ahead: what the test has just written counts as settled
    monkeypatch.setattr(trust, "file_system_time", lambda folder: real(folder) + 3600 * 10**9)
    run("init", "pets")
    run("build")
    place = "pets/data/train-00001-of-00002.parquet, row 2"
    [sample] = run("explain", place, "--json").document["samples"]
    key = sample["entries"][0]["key"]
    assert sample["path"].endswith(place)
    for command in ("explain", "show"):
        ended = run(command, key)
        assert ended.code == 0, ended.err
        assert place in ended.out


def test_parquet_is_not_read_for_what_it_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of paths, or of texts, is what it was: no dataset with pictures in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    parquet.write_table(parquet.read_table(_texts(tmp_path)), tmp_path / "texts/a.parquet")
    assert run("init", "texts/a.parquet").code == 0
    assert read_config(tmp_path / "precook.yaml")[0].concepts[0].texts is not None


def _texts(base: Path) -> Path:
    datasets.Dataset.from_dict({"text": ["a", "b"]}).to_parquet(base / "t.parquet")
    return base / "t.parquet"


def test_a_table_that_cannot_be_read_does_not_hide_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of pictures gets a config whatever else lies in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.parquet").write_bytes(b"not a table")
    Image.new("RGB", (64, 64)).save(tmp_path / "data" / "cat.png")
    ended = run("init", "data")
    assert ended.code == 0, ended.err
    assert "1 picture" in ended.out


def test_pictures_beside_tables_are_told(downloaded: Path) -> None:
    """The config takes the tables, and says what it leaves aside."""
    Image.new("RGB", (64, 64)).save(downloaded / "pets" / "cat.png")
    ended = run("init", "pets")
    assert ended.code == 0, ended.err
    assert "left aside: 1 picture in files of their own" in (downloaded / "precook.yaml").read_text() + ended.out
