"""Back to the file: `precook show` and `precook explain` take a key or a sample and name the file behind it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.fs import trust
from precook.sources import facts
from tests.support.commands import change_config, run
from tests.support.projects import Watched, dataset, project


@pytest.fixture(autouse=True)
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are old enough for what was read of them to be remembered."""
    real = trust.file_system_time
    for module in (trust, facts):
        monkeypatch.setattr(module, "file_system_time", lambda folder: real(folder) + 3600 * 10**9)


def keep_paths() -> None:
    """Freeze the dataset once more, with the paths of its pictures."""
    change_config("dataset: pets", "dataset: pets\nkeep: [paths]")
    assert run("build").code == 0


def entries_of(path: str) -> dict[str, list[str]]:
    """The keys of a file's entries, by encoder."""
    (sample,) = run("explain", path, "--json").document["samples"]
    keys: dict[str, list[str]] = {}
    for entry in sample["entries"]:
        keys.setdefault(entry["encoder"], []).append(entry["key"])
    return keys


def sample_of(path: str) -> str:
    """The id of a file's sample."""
    (sample,) = run("explain", path, "--json").document["samples"]
    return str(sample["sample"])


class TestExplain:
    """`precook explain` with digits."""

    @pytest.mark.parametrize("encoder", ["pixels", "tokens"])
    @pytest.mark.parametrize("digits", [64, 11, 10])
    def test_a_key_leads_to_its_file(self, built: Path, encoder: str, digits: int) -> None:
        """The key of a picture or of a caption, whole or its first digits, is explained as its file is."""
        key = entries_of("data/cats/p1.png")[encoder][0]
        assert run("explain", key[:digits].upper()).out == run("explain", "data/cats/p1.png").out

    def test_a_masks_key_leads_to_its_picture(self, built: Path) -> None:
        """Whatever of a sample an entry was made of, the sample is explained."""
        key = entries_of("data/dogs/d1.png")["mask"][0]
        (found,) = run("explain", key, "--json").document["samples"]
        assert found["path"] == "data/dogs/d1.png"

    def test_a_sample_leads_to_its_file(self, built: Path) -> None:
        """An id as a batch has it is enough; nothing of the store but what is remembered is needed."""
        sample = sample_of("data/cats/p0.png")
        assert run("explain", sample[:12]).out.startswith("data/cats/p0.png\n")
        shutil.rmtree(built / "cache/snapshots")
        assert run("explain", sample).out.startswith("data/cats/p0.png\n")

    def test_an_entry_of_several_samples_names_them_all(self, built: Path) -> None:
        """Dogs share a caption, and so an entry."""
        key = entries_of("data/dogs/d0.png")["tokens"][0]
        found = run("explain", key, "--json").document
        assert [sample["path"] for sample in found["samples"]] == ["data/dogs/d0.png", "data/dogs/d1.png"]

    @pytest.mark.parametrize("encoder", ["pixels", "tokens"])
    def test_an_entry_that_is_no_longer_asked_for_is_traced(self, built: Path, encoder: str) -> None:
        """Cut another way, or made by another recipe: what is remembered of the key still names the file."""
        key = entries_of("data/cats/p1.png")[encoder][0]
        change_config("resolutions: [64]", "resolutions: [32]")
        change_config("max_length: 77", "max_length: 128")
        found = run("explain", key, "--json").document
        assert [sample["path"] for sample in found["samples"]] == ["data/cats/p1.png"]
        assert found["note"] == f"entry {key} was made of this sample, and is not what the config asks for now"
        assert run("explain", key).out.startswith(f"{found['note']}\ndata/cats/p1.png\n")

    def test_a_missing_entry_has_a_file_too(self, pets: Path) -> None:
        """Nothing is built yet, and the key that a plan tells leads to what will make it."""
        key = entries_of("data/cats/p1.png")["pixels"][0]
        assert run("explain", key).out.startswith("data/cats/p1.png\n")

    def test_each_digit_counts(self, built: Path) -> None:
        """One digit more that is another one, and nothing begins so."""
        for name in (entries_of("data/cats/p1.png")["pixels"][0], sample_of("data/cats/p1.png")):
            for command in ("explain", "show"):
                for length in (8, 9):
                    assert run(command, name[:length]).code == 0
                    assert run(command, name[:length] + f"{15 - int(name[length], 16):x}").code == 1

    @pytest.mark.parametrize("digits", ["0123456789abcdef", "f" * 64])
    def test_what_nobody_has_is_told(self, built: Path, digits: str) -> None:
        """An error names the digits and what was looked for."""
        ended = run("explain", digits)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"error: {digits}: no file, and no entry or sample of pets begins so\nhint: ")

    def test_a_file_goes_before_digits(self, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file whose name is made of such digits is a file."""
        key = entries_of("data/cats/p1.png")["pixels"][0]
        Path(key[:8]).write_text("a note")
        assert "no source of pets" in run("explain", key[:8]).err

    def test_the_empty_prompt_has_no_file(self, built: Path) -> None:
        """It says so, and does not name some sample."""
        change_config("empty_prompt: false", "empty_prompt: true")
        assert run("build").code == 0
        with precook.open("cache") as store:
            key = store.snapshot("pets").content.empty_keys["tokens"].tobytes().hex()
        ended = run("explain", key)
        assert ended.code == 1
        assert "is the empty prompt" in ended.err


class TestShow:
    """`precook show` names files."""

    @pytest.mark.parametrize("encoder", ["pixels", "mask", "tokens"])
    def test_an_entry_names_its_file_by_what_is_remembered(self, built: Path, encoder: str) -> None:
        """A snapshot without paths and the config's files, as they were when they were last read: none is opened."""
        key = entries_of("data/dogs/d1.png")[encoder][0]
        found = run("show", key, "--json").document
        mask = ["data/dogs/d1-masklabel.png"] if encoder == "mask" else []
        both = ["data/dogs/d0.png"] if encoder == "tokens" else []
        assert sorted(found["sources"]) == sorted([*both, "data/dogs/d1.png", *mask])
        assert {sample["path"] for sample in found["samples"]} == {None}
        assert sample_of("data/dogs/d1.png") in [sample["sample"] for sample in found["samples"]]
        out = run("show", key).out
        assert out.startswith(f"entry      {key}\nsource     data/dogs/")
        assert f"needed by  pets: {encoder} of sample " in out

    def test_a_snapshot_that_keeps_paths_needs_no_config(self, built: Path, tmp_path: Path) -> None:
        """The store alone names the file, elsewhere and without its sources."""
        keep_paths()
        key, sample = entries_of("data/cats/p1.png")["tokens"][1], sample_of("data/cats/p1.png")
        (built / "precook.yaml").unlink()
        shutil.rmtree(built / "data")
        found = run("show", key, "--store", "cache", "--json").document
        assert found["sources"] == ["data/cats/p1.png"]
        assert [(one["dataset"], one["concept"], one["sample"]) for one in found["samples"]] == [
            ("pets", "cats", sample)
        ]
        assert "\nsource   data/cats/p1.png\n" in run("show", sample[:16], "--store", "cache").out

    def test_a_sample_shows_its_file_and_its_entries(self, built: Path) -> None:
        """Its digits are looked for among samples, too."""
        sample, entries = sample_of("data/cats/p0.png"), entries_of("data/cats/p0.png")
        found = run("show", sample[:14], "--json").document
        assert found["sample"] == sample
        (dataset,) = found["datasets"]
        assert (dataset["dataset"], dataset["concept"], dataset["sources"]) == ("pets", "cats", ["data/cats/p0.png"])
        assert dataset["content"] == precook.digest(built / "data/cats/p0.png").hex
        told: dict[str, list[str]] = {}
        for entry in dataset["entries"]:
            told.setdefault(entry["encoder"], []).append(entry["key"])
        assert told == entries
        out = run("show", sample).out
        assert out.startswith(
            f"sample   {sample}\nsource   data/cats/p0.png\ndataset  pets, snapshot 1\nconcept  cats\n"
        )
        assert f"entries  pixels  {entries['pixels'][0]}\n" in out

    def test_files_of_a_table_are_named(self, built: Path) -> None:
        """A table names its pictures, and show what it names."""
        key = entries_of("data/cats/p1.png")["pixels"][0]
        (built / "data/cats.csv").write_text("image,caption\ncats/p0.png,a cat\ncats/p1.png,another cat\n")
        change_config("path: data/cats", "path: data/cats.csv\n    captions: {column: caption}")
        assert run("show", key, "--json").document["sources"] == ["data/cats/p1.png"]

    def test_an_edited_file_is_not_named(self, built: Path) -> None:
        """It has other content now: whoever named it would be wrong."""
        key, sample = entries_of("data/cats/p1.png")["pixels"][0], sample_of("data/cats/p1.png")
        shutil.copy(built / "data/cats/p0.png", built / "data/cats/p1.png")
        for digits in (key, sample):
            out = run("show", digits).out
            assert "p1.png" not in out
            assert "not known: its snapshot keeps no paths" in out

    def test_another_config_does_not_matter(self, built: Path, tmp_path: Path) -> None:
        """A config that is broken is in nobody's way unless it is named, nor is a concept that is not there."""
        key = entries_of("data/cats/p1.png")["pixels"][0]
        change_config("path: data/dogs", "path: data/nowhere")
        assert run("show", key, "--json").document["sources"] == ["data/cats/p1.png"]
        (built / "precook.yaml").write_text("dataset: [")
        assert run("show", key, "--store", "cache", "--json").document["sources"] == []
        assert run("show", key, "--store", "cache", "--config", "precook.yaml").code == 2

    def test_digits_of_several_things_are_refused(self, built: Path) -> None:
        """A sample and an entry that begin alike are named, each with more of its digits."""
        sample = sample_of("data/cats/p1.png")
        with precook.open("cache") as store:
            store.put(precook.Key.from_hex(sample[:10] + "0" * 54), {"x": 1})
        ended = run("show", sample[:10])
        assert ended.code == 1
        assert f"more than one entry or sample begins with {sample[:10]}" in ended.err
        assert f"sample {sample[:16]}…, entry {sample[:10]}000000…" in ended.err
        assert run("show", sample[:12]).code == 0
        assert "more than one entry or sample" in run("explain", sample[:10]).err


def test_plans_explain_keys_and_samples(tmp_path: Path) -> None:
    """The same from Python: `plan.explain` takes what a batch has under `sample`."""
    dataset(tmp_path / "data", 3)
    with project(tmp_path, encoders={"pixels": {"uses": "image"}}, keep=["paths"]) as owner:
        owner.build()
        plan = owner.plan()
        for batch in owner.feed(batch_size=1).epoch(0):
            (state,) = plan.explain(batch["sample"][0]).samples
            assert [state.path] == batch["path"]
            assert Path(state.path).is_file()
        with pytest.raises(precook.PrecookError, match="no file, and no entry or sample"):
            plan.explain("abcdef123456")


def test_batches_have_paths_where_they_are_kept(tmp_path: Path) -> None:
    """With and without sources; without `keep` there is no such part."""
    dataset(tmp_path / "data", 3)
    sections: dict[str, Any] = {"encoders": {"pixels": {"uses": "image"}}}
    with project(tmp_path, **sections) as owner:
        owner.build()
        assert all("path" not in batch for batch in owner.feed(batch_size=3).epoch(0))
    with project(tmp_path, **sections, keep=["paths"]) as owner:
        assert owner.build().encoded == {"pixels": 0}
        for feed in (owner.feed(batch_size=3), owner.store.snapshot("test").feed(batch_size=3)):
            (batch,) = feed.epoch(0)
            for number, path in enumerate(batch["path"]):
                assert owner.plan().explain(path).samples[0].sample == batch["sample"][number]
            assert feed.dataset()[0]["path"] in batch["path"]
            (loaded,) = feed.loader(fields=["pixels", "path"])
            assert sorted(loaded["path"]) == sorted(batch["path"])


def test_an_entry_of_picture_and_text_leads_to_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder of several inputs: its entries are among the sample's, and each leads back."""
    monkeypatch.chdir(tmp_path)
    dataset(tmp_path / "data", 2)
    both = Watched("image", lambda item: f"{item.text} of {item.image.shape}")  # type: ignore[union-attr]
    both.inputs = ("image", "text")  # type: ignore[attr-defined]
    with project(Path(), encoders={"both": both}, text={"empty_prompt": False}) as owner:
        owner.build()
        for path in ("data/p0.png", "data/p1.png"):
            (state,) = owner.plan().explain(path).samples
            (entry,) = state.entries
            (again,) = owner.plan().explain(entry.key.hex).samples
            assert again.path == path
            (shown,) = run("show", state.sample, "--store", "cache", "--json").document["datasets"]
            assert shown["entries"] == [{"encoder": "both", "key": entry.key.hex}]
