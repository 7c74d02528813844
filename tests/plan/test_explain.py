"""Explanations: every entry of a sample, and why it is missing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.encode import registry
from precook.plan.reasons import ReasonFinder
from tests.support.projects import (
    Words,
    build,
    dataset,
    picture,
    project,
    text_folder,
    vae_folder,
)
from tests.support.texts import text_project, write_table

pytestmark = pytest.mark.usefixtures("settled")


class TestExplain:
    """SCENARIOS E4: which part of the key changed, old and new value."""

    def why(self, base: Path, path: str = "data/p1.png", **changes: Any) -> dict[str, tuple[object, object]]:
        with project(base, **changes) as opened:
            explanation = opened.plan().explain(base / path)
            (sample,) = explanation.samples
            assert any(entry.state == "missing" for entry in sample.entries)
            text = str(explanation)
            found: dict[str, tuple[object, object]] = {}
            for entry in sample.entries:
                for difference in entry.why.differences if entry.why else ():
                    found[difference.field] = (difference.old, difference.new)
                    assert str(difference) in text
            return found

    def test_e4_an_edited_picture(self, base: Path) -> None:
        """E4: the content's digest, old and new, and the entry of the old content."""
        old = precook.digest(base / "data/p1.png").hex
        picture(base / "data/p1.png", seed=99)
        assert self.why(base) == {"image digest": (old, precook.digest(base / "data/p1.png").hex)}
        with project(base) as opened:
            (sample,) = opened.plan().explain(base / "data/p1.png").samples
            (entry,) = (entry for entry in sample.entries if entry.encoder == "pixels")
            assert entry.why is not None
            assert entry.why.nearest is not None
            assert precook.Key(entry.why.nearest) in opened.store

    def test_e4_another_resolution(self, base: Path) -> None:
        """E4: the numbers of the geometry that differ, old and new."""
        found = self.why(base, image={"resolutions": [96], "step": 16})
        assert found["geometry.target"] == ([80, 48], [112, 80])
        assert "geometry.source" not in found

    def test_e4_another_dtype(self, tmp_path: Path) -> None:
        """E4: the setting's name, old and new value."""
        found = self._model_change(tmp_path, dtype="bfloat16")
        assert found == {"recipe.dtype": ("float16", "bfloat16")}

    def test_e4_other_weights(self, tmp_path: Path) -> None:
        """E4: the weight file whose content changed."""
        found = self._model_change(tmp_path, lambda: vae_folder(tmp_path / "models/vae", seed=1))
        assert list(found) == ["recipe.model.files.diffusion_pytorch_model.safetensors"]

    def test_e4_another_tokenizer(self, tmp_path: Path) -> None:
        """E4: the tokenizer file whose content changed; A4: its content counts, not its name."""
        dataset(tmp_path / "data")
        text_folder(tmp_path / "models/text")
        encoders = {"tokens": {"uses": "transformers-tokens", "model": "models/text", "max_length": 16}}
        with project(tmp_path, encoders=encoders) as opened:
            build(opened)
        text_folder(tmp_path / "models/text", {"a": 1, "cat": 0, "[UNK]": 2})
        found = self.why(tmp_path, encoders=encoders)
        assert list(found) == ["recipe.model.files.tokenizer.json"]

    def test_e4_another_code_version(self, base: Path) -> None:
        """E4: a user's encoder that raises its version."""
        found = self.why(base, encoders={"pixels": {"uses": "image"}, "words": Words(version=2)})
        assert found == {"recipe.identity.version": (1, 2)}

    def test_e4_another_version_of_ours(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """E4: likewise an encoder of ours."""
        monkeypatch.setitem(registry._VERSIONS, "image", 2)
        assert self.why(base) == {"recipe.version": (1, 2)}

    def _model_change(self, base: Path, change: Any = None, **settings: Any) -> dict[str, tuple[object, object]]:
        dataset(base / "data")
        vae_folder(base / "models/vae")
        encoder = {"uses": "diffusers-vae", "model": "models/vae", "dtype": "float16"}
        with project(base, encoders={"latent": encoder}) as opened:
            build(opened)
        if change is not None:
            change()
        return self.why(base, encoders={"latent": {**encoder, **settings}})

    def test_every_entry_of_a_sample_is_told(self, tmp_path: Path) -> None:
        """A sample with two resolutions, two variations and three lines has seven entries, each with key and state."""
        dataset(tmp_path / "data", lines=3)
        image = {"resolutions": [64, 96], "step": 16, "crop": "random", "variations": 2}
        with project(tmp_path, image=image) as opened:
            explanation = opened.plan().explain(tmp_path / "data/p1.png")
            (sample,) = explanation.samples
            assert Counter(entry.encoder for entry in sample.entries) == {"pixels": 4, "words": 3}
            assert {entry.state for entry in sample.entries} == {"missing"}
            for entry in sample.entries:
                assert entry.key.hex in str(explanation)

    def test_a_caption_or_mask_leads_to_its_sample(self, base: Path) -> None:
        """The path may be any file of the sample."""
        with project(base) as opened:
            plan = opened.plan()
            assert plan.explain(base / "data/p1.txt").samples == plan.explain(base / "data/p1.png").samples

    def test_a_refused_file_is_explained(self, base: Path) -> None:
        """A file that is no sample says why."""
        (base / "data/broken.png").write_bytes(b"not a picture")
        with project(base) as opened:
            explanation = opened.plan().explain(base / "data/broken.png")
            assert not explanation.samples
            assert len(explanation.problems) == 1

    def test_any_other_file_is_an_error(self, base: Path) -> None:
        """A file that is no source of the dataset is refused by name."""
        picture(base / "elsewhere.png", 7)
        with project(base) as opened:
            with pytest.raises(precook.SourceError, match="no source of test"):
                opened.plan().explain(base / "elsewhere.png")
            with pytest.raises(precook.SourceError, match="no such file"):
                opened.plan().explain(base / "nowhere.png")


def test_a_picture_whose_caption_is_refused_is_explained(base: Path) -> None:
    """The picture leads to the caption that keeps it from being a sample."""
    (base / "data/p1.txt").write_bytes(b"\xff\xfe\xff")
    with project(base) as opened:
        (problem,) = opened.plan().explain(base / "data/p1.png").problems
        assert str(base / "data/p1.txt") in problem


class TestNothingToExplain:
    """What leads to no sample says why, and what would."""

    def refused(self, plan: Any, path: object) -> precook.SourceError:
        with pytest.raises(precook.SourceError) as caught:
            plan.explain(path)
        return caught.value

    def test_a_file_of_a_concept_that_is_not_enabled(self, base: Path) -> None:
        """The concept is named, for the file is a source like any other."""
        dataset(base / "off")
        concepts = [{"name": "on", "path": "data"}, {"name": "off", "path": "off", "enabled": False}]
        with project(base, concepts=concepts) as opened:
            told = self.refused(opened.plan(), base / "off/p1.png")
        assert "it belongs to concept off, which is not enabled" in told.message
        assert "enabled: false" in (told.hint or "")

    def test_a_row_that_is_not_there(self, tmp_path: Path) -> None:
        """It is the row that is missing, and no file; one that cannot be used says why."""
        write_table(tmp_path / "train.jsonl", [{"text": "a cat"}, {"text": 3}, {"text": "a dog"}])
        with text_project(tmp_path, {"column": "text"}, encoders={"words": Words()}) as opened:
            plan = opened.plan()
            told = self.refused(plan, tmp_path / "train.jsonl, row 99")
            assert "no such row: 2 rows of train.jsonl can be used" in told.message
            (problem,) = plan.explain(tmp_path / "train.jsonl, row 2").problems
            assert "a number" in problem
            assert "it is not split" in self.refused(plan, tmp_path / "train.jsonl, row 1, passage 1").message
            assert "no such file" in self.refused(plan, tmp_path / "other.jsonl, row 1").message

    def test_a_row_stands_for_all_its_passages(self, tmp_path: Path) -> None:
        """And a passage that is not there is told by how many there are."""
        write_table(tmp_path / "train.jsonl", [{"text": "One.\n\nTwo.\n\nThree."}])
        settings = {"by": "paragraphs", "size": 16}
        with text_project(tmp_path, {"column": "text"}, encoders={"words": Words()}, passages=settings) as opened:
            plan = opened.plan()
            count = plan.samples.count
            assert count > 1
            assert len(plan.explain(tmp_path / "train.jsonl, row 1").samples) == count
            assert len(plan.explain(tmp_path / "train.jsonl, row 1, passage 2").samples) == 1
            assert f"there are {count}" in self.refused(plan, tmp_path / "train.jsonl, row 1, passage 9").message

    def test_a_row_of_a_table_of_pictures(self, base: Path) -> None:
        """Its picture has a path of its own, and that is the one to name."""
        (base / "table.csv").write_text("image\ndata/p1.png\n")
        with project(base, concepts=[{"name": "things", "path": "table.csv"}]) as opened:
            told = self.refused(opened.plan(), base / "table.csv, row 1")
        assert "a row of a table of pictures" in told.message

    def test_digits_that_are_too_few(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They may be meant as the beginning of a key, of which four are needed."""
        monkeypatch.chdir(base)
        with project(base) as opened:
            assert "4 digits" in (self.refused(opened.plan(), "abc").hint or "")
            assert "digits" not in (self.refused(opened.plan(), "abx").hint or "")

    def test_a_sample_whose_source_is_gone(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What only the store knows is told by what it knows, and nobody is sent to `precook show` for more."""
        monkeypatch.chdir(base)
        with project(base) as opened:
            opened.plan().freeze()
            (sample,) = opened.plan().explain(base / "data/p1.png").samples
            for path in base.glob("data/p1.*"):
                path.unlink()
            plan = opened.plan()
            told = self.refused(plan, sample.sample)
            assert "a sample of snapshot 1 of test, and no source here makes it now" in told.message
            entry = self.refused(plan, sample.entries[0].key.hex)
            assert "an entry that no source of test makes now" in entry.message
            assert not any("precook show" in (error.hint or "") for error in (told, entry))


def test_variations_of_tags_are_told_from_lines(tmp_path: Path) -> None:
    """A file of two captions has two captions, in however many orders each is kept."""
    picture(tmp_path / "data/p.png", 1)
    (tmp_path / "data/p.txt").write_text("one, two, three\nfour, five, six\n")
    concept = {"name": "things", "path": "data", "tags": {"variations": 3}}
    with project(tmp_path, concepts=[concept], encoders={"words": Words()}) as opened:
        (sample,) = opened.plan().explain(tmp_path / "data/p.png").samples
    told = [entry.what.partition(":")[0] for entry in sample.entries]
    assert told == [f"caption {caption}, variation {number}" for caption in (1, 2) for number in range(3)]


class Compared(np.ndarray[Any, Any]):
    """A column that counts how many of its numbers are looked at."""

    looked = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        Compared.looked += self.size
        plain = [part.view(np.ndarray) if isinstance(part, Compared) else part for part in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        Compared.looked += self.size
        plain = [part.view(np.ndarray) if isinstance(part, Compared) else part for part in args]
        return function(*plain, **options)


def test_a_whole_table_is_explained_with_work_for_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the rows are looked at as often each: not each of them once more for every other."""
    calls: list[int] = []
    find = ReasonFinder.find
    monkeypatch.setattr(ReasonFinder, "find", lambda self, rows: calls.append(len(rows)) or find(self, rows))
    work = []
    for count in (100, 400):
        write_table(tmp_path / "train.jsonl", [{"text": f"text {number}"} for number in range(count)])
        with text_project(tmp_path, {"column": "text"}, encoders={"words": Words()}) as opened:
            plan = opened.plan()
            encoder = plan.encoders["words"]
            wants = dataclasses.replace(encoder.wants, samples=encoder.wants.samples.view(Compared))
            plan.encoders["words"] = dataclasses.replace(encoder, wants=wants)
            Compared.looked = 0
            calls.clear()
            assert len(plan.explain(tmp_path / "train.jsonl").samples) == count
            assert calls == [count]
            work.append(Compared.looked / count)
    assert work[1] <= work[0]
