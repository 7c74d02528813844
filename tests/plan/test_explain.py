"""Explanations: every entry of a sample, and why it is missing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.encode import registry
from tests.support.projects import (
    Words,
    build,
    dataset,
    picture,
    project,
    text_folder,
    vae_folder,
)

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
        with project(base) as opened, pytest.raises(precook.SourceError, match="no source of test"):
            opened.plan().explain(base / "elsewhere.png")


def test_a_picture_whose_caption_is_refused_is_explained(base: Path) -> None:
    """The picture leads to the caption that keeps it from being a sample."""
    (base / "data/p1.txt").write_bytes(b"\xff\xfe\xff")
    with project(base) as opened:
        (problem,) = opened.plan().explain(base / "data/p1.png").problems
        assert str(base / "data/p1.txt") in problem
