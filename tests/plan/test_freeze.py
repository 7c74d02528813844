"""Freezing: what a snapshot of a plan holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import precook
from tests.support.projects import (
    dataset,
    project,
)

pytestmark = pytest.mark.usefixtures("settled")


class TestSnapshot:
    """A fully built plan, frozen."""

    def test_an_incomplete_plan_cannot_be_frozen(self, tmp_path: Path) -> None:
        """While something is missing there is nothing to freeze."""
        dataset(tmp_path / "data")
        with project(tmp_path) as opened, pytest.raises(precook.IncompleteError, match="7 entries"):
            opened.plan().freeze()

    def test_a_plan_of_some_encoders_cannot_be_frozen(self, base: Path) -> None:
        """A snapshot without some of the encoders would not be the dataset's."""
        with project(base) as opened, pytest.raises(precook.IncompleteError, match="some encoders"):
            opened.plan(encoders=["pixels"]).freeze()

    def test_it_holds_every_key_and_nothing_private(self, base: Path) -> None:
        """Keys, sizes and settings are there; neither a path nor a caption is anywhere in the file."""
        with project(base) as opened:
            snapshot = opened.store.snapshot("test")
            plan = opened.plan()
            assert {key.tobytes() for key in snapshot.entry_keys()} == {entry.key.bytes for entry in plan.ready}
            assert snapshot.content.pictures.size.tolist() == [[48, 80]] * 3
            content = snapshot.file.path.read_bytes()
        for private in (b"p0.png", b"picture 0", b"data/", os.fsencode(base)):
            assert private not in content

    def test_paths_and_captions_are_kept_when_asked_for(self, base: Path) -> None:
        """`keep: [paths, captions]` adds both, each with its sample."""
        with project(base, keep=["paths", "captions"]) as opened:
            snapshot = opened.plan().freeze()
        assert snapshot.content.captions is not None
        assert snapshot.content.paths is not None
        texts = [text.decode() for text in snapshot.content.captions.split()]
        paths = [os.fsdecode(path) for path in snapshot.content.paths.split()]
        lines = snapshot.content.lines.sample.tolist()
        assert sorted(texts) == [f"picture {number}, line 0" for number in range(3)]
        for text, sample in zip(texts, lines, strict=True):
            number = text.split()[1].rstrip(",")
            assert paths[sample].endswith(f"p{number}.png")

    @pytest.mark.parametrize("change", ["gone", "a FIFO", "huge", "no text"])
    def test_a_caption_that_is_no_longer_there_is_told(self, base: Path, change: str) -> None:
        """Whatever became of a caption file since the plan, the error names it."""
        with project(base, keep=["captions"]) as opened:
            plan = opened.plan()
            caption = base / "data/p1.txt"
            caption.unlink()
            if change == "a FIFO":
                os.mkfifo(caption)
            elif change != "gone":
                caption.write_bytes(b"\xff")
                os.truncate(caption, 64 << 30 if change == "huge" else 1)
            with pytest.raises(precook.SourceChangedError, match=r"p1\.txt"):
                plan.freeze()

    def test_an_equal_one_is_not_written_twice(self, base: Path) -> None:
        """Freezing again changes nothing; a changed loss weight is a new snapshot under the next number."""
        with project(base) as opened:
            first = opened.store.snapshot("test")
            assert opened.plan().freeze().file == first.file
            assert len(opened.store.snapshots()) == 1
        with project(base, concepts=[{"name": "things", "path": "data", "loss_weight": 0.5}]) as opened:
            assert opened.plan().freeze().file.number == 2
            assert opened.store.snapshot("test").content.concepts[0].loss_weight == 0.5

    def test_the_order_of_files_does_not_matter(self, base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        """The same dataset under other names gives an equal snapshot."""
        with project(base) as opened:
            first = opened.store.snapshot("test").content
            for number, name in enumerate(("z", "a", "m")):
                for suffix in (".png", ".txt"):
                    (base / f"data/p{number}{suffix}").rename(base / f"data/{name}{suffix}")
            again = opened.plan().freeze()
            assert again.file.number == 1
            assert (again.content.samples.id == first.samples.id).all()

    def test_a_failed_sample_is_left_out(self, base: Path) -> None:
        """What cannot be used does not keep the rest from being frozen."""
        (base / "data/broken.png").write_bytes(b"not a picture")
        with project(base) as opened:
            assert opened.plan().freeze().samples == 3

    @pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
    def test_a_damaged_one_is_refused_and_replaced(self, base: Path, damage: str) -> None:
        """A snapshot that is not what was written raises; freezing again writes a good one."""
        with project(base) as opened:
            path = opened.store.snapshot("test").file.path
            content = path.read_bytes()
            changed = {"flip": content[:-1] + bytes([content[-1] ^ 1]), "cut": content[:-9], "empty": b""}[damage]
            path.write_bytes(changed)
            with pytest.raises(precook.DamagedPackError):
                opened.store.snapshot("test")
            assert opened.plan().freeze().file.number == 2
            assert opened.store.snapshot("test").samples == 3

    def test_an_unknown_dataset_is_an_error(self, base: Path) -> None:
        """The store says which dataset it does not have."""
        with project(base) as opened, pytest.raises(precook.NoSnapshotError, match="nobody"):
            opened.store.snapshot("nobody")
