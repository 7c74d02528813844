"""`precook explain`: why the entries of a file are there or missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import precook
from tests.support.commands import Ended, change_config, run


class TestExplain:
    """`precook explain`."""

    def test_a_picture_is_explained(self, built: Path) -> None:
        """Every entry with its key and state; a missing one with its reason and what differs."""
        change_config("max_length: 77", "max_length: 128")
        out = run("explain", "data/cats/p0.png").out
        assert out.startswith("data/cats/p0.png\n  concept  cats\n")
        assert re.search(r"\n  pixels, 64 as \d+x\d+: ready\n    key      [0-9a-f]{64}\n", out)
        missing = (
            r"tokens, line 1: .*picture 0, line 0.*: missing\n    key      [0-9a-f]{64}\n    reason   recipe changed\n"
        )
        assert re.search(missing, out)
        assert out.count("\n    differs  recipe.max_length: 77 → 128\n") == 2

    def test_programs_see_the_same(self, built: Path) -> None:
        """The JSON document has each entry with state, reason and differences."""
        change_config("max_length: 77", "max_length: 128")
        found = run("explain", "data/cats/p0.png", "--json").document
        assert (found["version"], found["path"], found["problems"]) == (1, "data/cats/p0.png", [])
        (sample,) = found["samples"]
        assert sample["concept"] == "cats"
        assert sample["image"] == precook.digest(built / "data/cats/p0.png").hex
        states = [(entry["encoder"], entry["state"], entry["reason"]) for entry in sample["entries"]]
        assert states == [("pixels", "ready", None), *[("tokens", "missing", "recipe changed")] * 2]
        with precook.open(built / "cache") as store:
            assert precook.Key.from_hex(sample["entries"][0]["key"]) in store
            assert precook.Key.from_hex(sample["entries"][1]["nearest"]) in store
        assert sample["entries"][1]["differences"] == [{"field": "recipe.max_length", "old": 77, "new": 128}]

    @pytest.mark.parametrize(
        ("file", "sample"),
        [
            ("data/cats/p1.txt", "data/cats/p1.png"),
            ("data/dogs/d0-masklabel.png", "data/dogs/d0.png"),
            ("data/../data/dogs/d1.png", "data/dogs/d1.png"),
        ],
    )
    def test_captions_and_masks_lead_to_their_sample(self, built: Path, file: str, sample: str) -> None:
        """Whichever file of a sample is named, the sample is explained; an absolute path will do, too."""
        for path in (file, built / file):
            (found,) = run("explain", path, "--json").document["samples"]
            assert Path(found["path"]) == Path(sample)

    def test_a_refused_file_is_explained(self, built: Path) -> None:
        """It is no sample, and the reason says why; the command itself has done what it should."""
        (built / "data/cats/empty.png").touch()
        ended = run("explain", "data/cats/empty.png")
        assert ended == Ended(0, "data/cats/empty.png: left out: empty file\n", "")
        found = run("explain", "data/cats/empty.png", "--json").document
        assert (found["problems"], found["samples"]) == (["empty file"], [])

    @pytest.mark.parametrize(
        ("path", "message", "hint"),
        [
            ("precook.yaml", "no source of pets", "name a picture, text, caption or mask"),
            ("data/cats", "no source of pets", "name a picture, text, caption or mask"),
            ("data/cats/nothing.png", "no such file", "paths start at the current directory"),
        ],
    )
    def test_what_is_no_source_is_exit_code_1(self, built: Path, path: str, message: str, hint: str) -> None:
        """A file that belongs to no concept, a folder, and one that is not there."""
        ended = run("explain", path)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"error: {path}: {message}\nhint: {hint}")

    def test_paths_start_where_the_user_is(self, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With --config the project may lie elsewhere."""
        monkeypatch.chdir(built / "data" / "cats")
        (found,) = run("explain", "p0.png", "--config", "../../precook.yaml", "--json").document["samples"]
        assert Path(found["path"]).samefile(built / "data/cats/p0.png")
