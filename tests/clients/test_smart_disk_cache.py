"""What the tests of mgds' pull request 49 ask of its SmartDiskCache, asked of ours, around that checkout's own modules.

A class here is about what a class there is about. What they ask about files and methods of that cache that no user sees
is left out; where ours does otherwise, docs/guides/mgds.md says so under "What SmartDiskCache does otherwise", and the
test of it here has the same words in its docstring.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.clients.checkouts import checkout

sys.path.insert(0, str(checkout("mgds-pr49", "Nerogar/mgds, pull request 49") / "src"))

import torch

import precook
import tests.clients.torchvision_operators  # noqa: F401 - before all that imports torchvision
from tests.integrations.mgds.test_keys import by_path, run
from tests.support.mgds_pipelines import (
    DiskCache,
    Module,
    Run,
    concept,
    pictures,
    settle,
    shown,
    weights,
    without_sources,
)

TEXT_KEY = {"content_key_in_name": "prompt"}
COUNT = 6


@pytest.fixture
def cats(tmp_path: Path) -> Path:
    """A concept's folder."""
    pictures(tmp_path / "cats", COUNT)
    return tmp_path / "cats"


@pytest.fixture
def before(tmp_path: Path, cats: Path) -> Any:
    """What a first epoch shows of each picture."""
    return run(tmp_path, [concept(cats)])[0]


def packs(folder: Path) -> dict[Path, int]:
    """The files that hold entries, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/precook/packs/*/*.safetensors")}


def smart(**arguments: Any) -> Any:
    """The cache of the pull request itself."""
    kind = importlib.import_module("mgds.pipelineModules.SmartDiskCache").SmartDiskCache
    source = "image_path" if "latent_image" in arguments["split_names"] else "sample_prompt_path"
    return kind(**arguments, source_path_in_name=source, modeltype="tiny")


class TestBesideTheOtherCache:
    """Both caches in the same pipeline."""

    @pytest.mark.parametrize("balancing", [0.5, 1.0, 2.0])
    def test_items_are_the_same(self, tmp_path: Path, cats: Path, balancing: float) -> None:
        """Four epochs with variations and balancing, of files that nobody changes."""
        made = [concept(cats, balancing=balancing, image_variations=2, text_variations=2)]
        epochs = []
        for cache in (smart, DiskCache):
            with Run(tmp_path / cache.__name__, made, cache=cache) as run_:
                epochs.append([shown(run_.epoch()) for _ in range(4)])
        assert epochs[1] == epochs[0]


class TestCacheValidation:
    """Files that change between two runs."""

    def test_unchanged_files_cost_nothing(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """No encoder is called, none is prepared, and no file is written again."""
        written = packs(tmp_path)
        with Run(tmp_path, [concept(cats)]) as again:
            assert by_path(again.epoch()) == before
            assert (again.encoded, again.before) == ((0, 0), [])
        assert packs(tmp_path) == written

    def test_a_touched_file_costs_nothing(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """Another time of change with the same content is the same file."""
        for path in cats.iterdir():
            os.utime(path, (1, 1))
        assert run(tmp_path, [concept(cats)]) == (before, (0, 0))

    def test_an_edited_file_is_encoded_alone(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """Also if its size and its time of change stay as they were; its old value is never shown."""
        path = cats / "002.png"
        status = path.stat()
        path.write_bytes(path.read_bytes()[::-1])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        after, encoded = run(tmp_path, [concept(cats)])
        assert encoded == (1, 0)
        assert {name for name in after if after[name] != before[name]} == {"002.png"}

    def test_a_new_file_is_encoded_alone(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """The others keep what they have, wherever the new one sorts."""
        (cats / "000-a.png").write_bytes(b"new")
        (cats / "000-a.txt").write_text("new")
        after, encoded = run(tmp_path, [concept(cats)])
        assert encoded == (1, 1)
        del after["000-a.png"]
        assert after == before

    def test_what_is_gone_from_the_cache_is_made_again(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """A file of the cache that somebody deleted, or that is torn, is a miss."""
        for number, path in enumerate(packs(tmp_path)):
            if number:
                path.write_bytes(path.read_bytes()[:-100])
            else:
                path.unlink()
        after, encoded = run(tmp_path, [concept(cats)])
        assert after == before
        assert encoded == (COUNT, COUNT)

    def test_another_model_never_gets_what_the_first_made(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """By its weights, without a name that somebody has to think of; and both stay."""
        after, encoded = run(tmp_path, [concept(cats)], vae=weights(3.0))
        assert encoded == (COUNT, 0)
        assert all(after[name]["latent_image"] != before[name]["latent_image"] for name in before)
        assert run(tmp_path, [concept(cats)]) == (before, (0, 0))


class TestDeduplication:
    """Files with the same content."""

    def test_equal_files_are_encoded_once(self, tmp_path: Path, cats: Path) -> None:
        """Wherever they lie; each sample shows its own path."""
        for number in range(1, COUNT):
            shutil.copy(cats / "000.png", cats / f"{number:03}.png")
        items, encoded = run(tmp_path, [concept(cats)])
        assert encoded[0] == 1
        assert len({str(item["latent_image"]) for item in items.values()}) == 1
        assert len(items) == COUNT

    def test_editing_one_of_them_leaves_the_others(self, tmp_path: Path, cats: Path) -> None:
        """What they shared stays theirs."""
        shutil.copy(cats / "000.png", cats / "001.png")
        first, _ = run(tmp_path, [concept(cats)])
        (cats / "001.png").write_bytes(b"other")
        after, encoded = run(tmp_path, [concept(cats)])
        assert encoded == (1, 0)
        assert after["000.png"] == first["000.png"]
        assert after["001.png"]["latent_image"] != first["001.png"]["latent_image"]


class TestAtomicWrites:
    """A run that is ended in the middle."""

    def test_what_was_made_before_is_there(self, tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a stop the next run makes the rest; nothing has to be recovered by hand."""
        asked = threading.Event()

        def stop() -> bool:
            asked.set()
            return True

        def wait(encoder: Any) -> None:
            assert len(encoder.calls) < 2 or asked.wait(60)

        with Run(tmp_path, [concept(cats)], image_options={"stop_callback": stop}) as stopped:
            with monkeypatch.context() as patch:
                patch.setattr(type(stopped.encoder), "hook", staticmethod(wait))
                with pytest.raises(precook.StoppedError):
                    stopped.start()
            made = len(stopped.encoder.calls)
        items, encoded = run(tmp_path, [concept(cats)])
        assert encoded == (COUNT - made, COUNT)
        assert len(items) == COUNT


class TestGarbageCollection:
    """The two calls behind "Clean Cache"."""

    def test_nothing_to_collect(self, tmp_path: Path, cats: Path) -> None:
        """What the files of today need stays."""
        with Run(tmp_path, [concept(cats)]) as made:
            made.epoch()
            assert made.image_cache.gc_preview(grace=0).entries == 0

    def test_entries_of_removed_files_are_counted_and_removed(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """The preview removes nothing; what the others need stays."""
        for suffix in ("png", "txt"):
            (cats / f"001.{suffix}").unlink()
        del before["001.png"]
        with Run(tmp_path, [concept(cats)]) as made:
            made.epoch()
            preview = made.image_cache.gc_preview(grace=0)
            assert preview.entries >= 1
            assert made.image_cache.gc_clean(grace=0).entries == preview.entries
            assert made.image_cache.gc_preview(grace=0).entries == 0
        assert run(tmp_path, [concept(cats)]) == (before, (0, 0))

    def test_several_resolutions_stay(self, tmp_path: Path, cats: Path) -> None:
        """Of the resolutions that one run draws from, all are kept; of several runs, those with names of their own."""
        options = {"image_options": {"snapshot": "small"}}
        run(tmp_path, [concept(cats, image_variations=2)], target="64,128", **options)
        with Run(tmp_path, [concept(cats)], target="256", image_options={"snapshot": "large"}) as made:
            made.epoch()
            assert made.image_cache.gc_clean(grace=0).entries == 0
        assert run(tmp_path, [concept(cats, image_variations=2)], target="64,128", **options)[1] == (0, 0)


class TestSampleSelection:
    """How many samples an epoch shows, and which."""

    def test_samples_are_others_in_each_epoch(self, tmp_path: Path, cats: Path) -> None:
        """Two of six in each epoch: after three epochs all were shown."""
        made = [concept(cats, balancing=2, balancing_strategy="SAMPLES")]
        with Run(tmp_path, made) as run_:
            epochs = [by_path(run_.epoch()) for _ in range(3)]
        assert [len(epoch) for epoch in epochs] == [2, 2, 2]
        assert len(set().union(*epochs)) == COUNT

    def test_repeats_below_one_show_a_part(self, tmp_path: Path, cats: Path) -> None:
        """Half of six is three, rounded down."""
        with Run(tmp_path, [concept(cats, balancing=0.5)]) as run_:
            assert len(run_.epoch()) == COUNT // 2


class TestIntegration:
    """Whole runs."""

    def test_tensors_come_back_as_they_were(self, tmp_path: Path, cats: Path) -> None:
        """Bit for bit, with their types, and tuples as tuples; whoever changes one changes nothing here."""
        with Run(tmp_path, [concept(cats)]) as made:
            first = made.epoch()
            item = made.image_cache.get_item(0, "latent_image")
            kept = item["latent_image"].clone()
            item["latent_image"].zero_()
            assert torch.equal(made.image_cache.get_item(0, "latent_image")["latent_image"], kept)
            assert torch.equal(first[0]["latent_image"], kept)
            assert isinstance(first[0]["crop_resolution"], tuple)
            assert first[0]["hidden"][0].dtype == torch.bfloat16

    def test_each_variation_is_made_once(self, tmp_path: Path, cats: Path) -> None:
        """A variation is made when an epoch first reads it, not all of them before the first epoch."""
        with Run(tmp_path, [concept(cats, image_variations=3)]) as made:
            counts = []
            for _ in range(6):
                made.epoch()
                counts.append(made.encoded[0])
        assert counts == [COUNT, COUNT, COUNT, 0, 0, 0]

    def test_a_cache_that_knows_no_file_says_so(self, tmp_path: Path, cats: Path) -> None:
        """Without a path there is nothing to know a sample by; it is refused, not passed on uncached."""

        class Numbers(Module):
            def make(self, variation: int, index: int) -> Any:
                return torch.tensor([variation, index])

        extra = [Numbers("concept", "tokens"), Numbers("concept", "hidden")]
        with Run(tmp_path, [concept(cats)], extra=extra) as made:
            made.text_encoder.text_in_name = "concept"
            made.text_encoder.get_outputs = list
            made.text_cache.init(
                made.data.loading_pipeline, 42, made.data.loading_pipeline.modules.index(made.text_cache), made.state
            )
            with pytest.raises(precook.IdentityError, match="source_path_in_name"):
                made.start()


class TestSessionSkip:
    """Later epochs of the same run."""

    def test_later_epochs_encode_and_prepare_nothing(self, tmp_path: Path, cats: Path) -> None:
        """Nor do they read a file."""
        with Run(tmp_path, [concept(cats)]) as made:
            first = shown(made.epoch())
            for _ in range(3):
                assert shown(made.epoch()) == first
                assert (made.encoded, made.before) == ((0, 0), [])

    def test_a_file_that_changes_during_a_run_counts_in_the_next(self, tmp_path: Path, cats: Path) -> None:
        """An edit is noticed by the next run, or by this one when something has to be made."""
        with Run(tmp_path, [concept(cats)]) as made:
            first = by_path(made.epoch())
            (cats / "000.png").write_bytes(b"edited")
            assert by_path(made.epoch()) == first
        assert run(tmp_path, [concept(cats)])[1] == (1, 0)


class TestSidecarValidation:
    """Masks and other files beside a picture."""

    WATCHED: ClassVar[dict[str, Any]] = {
        "masks": True,
        "image_options": {"extra_watched_paths_in_names": ["mask_path"]},
    }

    def test_added_edited_touched_and_removed(self, tmp_path: Path, cats: Path) -> None:
        """Its content counts, and that it is there; its time of change does not."""
        first, _ = run(tmp_path, [concept(cats)], **self.WATCHED)
        mask = cats / "003-masklabel.png"
        for content, expected in ((b"\1\2", 1), (b"\2\1", 1), (b"\2\1", 0)):
            mask.write_bytes(content)
            os.utime(mask, (1, 1))
            assert run(tmp_path, [concept(cats)], **self.WATCHED)[1][0] == expected
        mask.unlink()
        assert run(tmp_path, [concept(cats)], **self.WATCHED) == (first, (0, 0))

    def test_a_file_beside_it_that_nobody_watches_costs_nothing(self, tmp_path: Path, cats: Path, before: Any) -> None:
        """Neither does a folder that changes."""
        (cats / "notes.md").write_text("notes")
        assert run(tmp_path, [concept(cats)]) == (before, (0, 0))


class TestVariants:
    """Several resolutions of a file: drift, rebucketing and variants there, keys here."""

    def test_going_back_to_a_resolution_costs_nothing(self, tmp_path: Path, cats: Path) -> None:
        """Each resolution is made once, beside the others."""
        sizes = ("64", "128", "64", "128")
        encoded = [run(tmp_path, [concept(cats)], target=size)[1][0] for size in sizes]
        assert encoded == [COUNT, COUNT, 0, 0]

    def test_a_file_in_two_places_has_both_of_its_resolutions(self, tmp_path: Path, cats: Path) -> None:
        """What sorts a batch and what is in it belong together, in every place of the list and every epoch."""
        made = [concept(cats, image_variations=3), concept(cats, image_variations=3, name="again", balancing=2.0)]
        with Run(tmp_path, made, target="64,128,256") as run_:
            for _ in range(3):
                run_.start()
                for index in range(run_.image_cache.length()):
                    split = run_.image_cache.get_item(index, "latent_image")
                    aggregate = run_.image_cache.get_item(index, "crop_resolution")
                    path = Path(aggregate["image_path"])
                    assert split["original_resolution"] == (1, len(path.read_bytes()))
                    assert aggregate["crop_resolution"][0] in (64, 128, 256)


class PickLine(Module):
    """The line of a caption that a variation asks for."""

    def make(self, variation: int, index: int) -> Any:
        lines = self.given(variation, index)
        return lines[variation % len(lines)]


class TestContentReuse:
    """Texts that are known by what they say."""

    def lines(self, cats: Path, *files: list[str]) -> None:
        for path in cats.iterdir():
            if path.stem not in {f"{number:03}" for number in range(len(files))}:
                path.unlink()
        for number, lines in enumerate(files):
            (cats / f"{number:03}.txt").write_text("\n".join(lines))
        settle(cats)

    def texts(self, tmp_path: Path, cats: Path, variations: int = 3, **options: Any) -> tuple[list[str], list[str]]:
        """Which lines were encoded in a run of as many epochs, and for what encoders were prepared."""
        called, prepared = [], []
        made = [concept(cats, text_variations=variations)]
        with Run(tmp_path, made, extra=[PickLine("prompts", "prompt")], text_options=options or TEXT_KEY) as run_:
            for variation in range(variations):
                for item in run_.epoch():
                    lines = (cats / Path(item["image_path"]).name).with_suffix(".txt").read_text().splitlines()
                    assert "".join(map(chr, item["tokens"].tolist())) == lines[variation % len(lines)]
                called += run_.text_encoder.calls
                prepared += run_.before
        return called, prepared

    def test_an_edited_line_is_encoded_alone(self, tmp_path: Path, cats: Path) -> None:
        """The others of its file are found."""
        self.lines(cats, ["a zero", "a one", "a two"], ["b zero", "b one", "b two"])
        assert len(self.texts(tmp_path, cats)[0]) == 6
        self.lines(cats, ["a zero", "a EDITED", "a two"], ["b zero", "b one", "b two"])
        assert self.texts(tmp_path, cats)[0] == ["a EDITED"]

    def test_lines_in_another_order_cost_nothing(self, tmp_path: Path, cats: Path) -> None:
        """No encoder is even prepared."""
        self.lines(cats, ["a zero", "a one", "a two"])
        self.texts(tmp_path, cats)
        self.lines(cats, ["a two", "a zero", "a one"])
        assert self.texts(tmp_path, cats) == ([], [])

    def test_a_line_of_two_files_is_encoded_once(self, tmp_path: Path, cats: Path) -> None:
        """Of different files, in one run or in two."""
        self.lines(cats, ["the same"], ["the same", "never"])
        assert self.texts(tmp_path, cats, variations=1)[0] == ["the same"]

    def test_without_the_option_files_count(self, tmp_path: Path, cats: Path) -> None:
        """Two files with the same line are two texts."""
        self.lines(cats, ["the same"], ["the same", "never"])
        assert self.texts(tmp_path, cats, variations=1, report=precook.report.SILENT)[0] == ["the same"] * 2

    def test_a_shared_text_shows_each_samples_own_concept(self, tmp_path: Path, cats: Path) -> None:
        """Names and weights of a concept are those of today, for every sample that shares an entry."""
        pictures(tmp_path / "dogs", 1)
        self.lines(cats, ["the same"])
        (tmp_path / "dogs" / "000.txt").write_text("the same")
        with Run(tmp_path, [concept(cats), concept(tmp_path / "dogs")], text_options=TEXT_KEY) as made:
            items = made.epoch()
            assert len(made.text_encoder.calls) == 1
        assert [item["concept_name"] for item in items] == ["cats", "dogs"]


class TestSourcelessParity:
    """Training without the files."""

    def test_every_epoch_is_the_same_without_the_files(self, tmp_path: Path, cats: Path) -> None:
        """Pairs, variations, resolutions and concepts, with stale texts in the store, and no file left."""
        (cats / "000.txt").write_text("a text that is edited later")
        made = [concept(cats, image_variations=2, text_variations=2, balancing=1.5)]
        run(tmp_path, made, target="64,128")
        (cats / "000.txt").write_text("edited")
        with Run(tmp_path, made, target="64,128") as with_sources:
            expected = [shown(with_sources.epoch()) for _ in range(4)]
        shutil.rmtree(cats)
        with without_sources(tmp_path, made) as without:
            assert [shown(without.epoch()) for _ in range(4)] == expected

    def test_a_file_that_is_listed_twice_is_shown_twice(self, tmp_path: Path, cats: Path) -> None:
        """Rows that share their content keep their own concepts."""
        made = [concept(cats), concept(cats, name="again", loss_weight=2.0)]
        with Run(tmp_path, made) as with_sources:
            expected = shown(with_sources.epoch())
        assert len(expected) == 2 * COUNT
        with without_sources(tmp_path, made) as without:
            assert shown(without.epoch()) == expected

    def test_what_was_never_built_is_an_error(self, tmp_path: Path, cats: Path) -> None:
        """A store without what is needed to train from says so, and shows nothing else."""
        with without_sources(tmp_path, [concept(cats)]) as without, pytest.raises(precook.PrecookError):
            without.start()
