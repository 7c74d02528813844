"""Plans through the public interface: what is missing after each kind of change, and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.encode import registry
from precook.fs import trust
from precook.plan.forecast import record_rate
from precook.plan.ready import record_failure
from precook.sources import facts
from tests.support.projects import (
    Words,
    build,
    dataset,
    keep_times,
    missing,
    picture,
    project,
    reasons,
    text_folder,
    vae_folder,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled although the test has just written them: the file system's clock is an hour ahead."""
    real = trust.file_system_time
    for module in (trust, facts):
        monkeypatch.setattr(module, "file_system_time", lambda folder: real(folder) + 3600 * 10**9)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a dataset of three pictures of one caption each, fully built."""
    dataset(tmp_path / "data")
    with project(tmp_path) as first:
        build(first)
    return tmp_path


class TestNeverStale:
    """SCENARIOS A: never stale, never wrong."""

    def test_a1_an_edited_picture_is_the_only_one_missing(self, base: Path) -> None:
        """A1: new bytes at the same size and path make exactly that sample's picture missing, because it changed."""
        picture(base / "data/p1.png", seed=99)
        with project(base) as opened:
            plan = opened.plan()
            assert [Path(entry.path or "").name for entry in plan.missing] == ["p1.png"]
            assert reasons(plan) == {("pixels", "content changed"): 1}

    def test_a2_an_edit_that_keeps_size_and_mtime_is_seen(self, base: Path) -> None:
        """A2: what `cp -p` does to a file shows in its ctime."""
        path = picture(base / "data/raw.bmp", seed=40)
        with project(base) as opened:
            build(opened)
            before, old = path.stat(), path.read_bytes()
            keep_times(path, old[:-1] + bytes([old[-1] ^ 1]))
            after = path.stat()
            assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
                before.st_size,
                before.st_mtime_ns,
                before.st_ino,
            )
            assert reasons(opened.plan()) == {("pixels", "content changed"): 1}

    def test_a2_a_file_replaced_by_another_with_its_times_is_seen(self, base: Path) -> None:
        """A2: what `rsync -t` does: another inode under the same name, the old times."""
        path = base / "data/p1.png"
        status = path.stat()
        new = picture(base / "new.png", seed=99)
        os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
        new.replace(path)
        with project(base) as opened:
            assert missing(opened.plan()) == {"pixels": 1}

    @pytest.mark.parametrize(
        "change",
        [
            {"resolutions": [96]},
            {"crop": "random", "seed": 1},
            {"flip": "always"},
            {"resampling": "bicubic"},
            {"step": 48, "resolutions": [96]},
        ],
        ids="-".join,
    )
    def test_a5_another_geometry_is_another_entry(self, base: Path, change: dict[str, Any]) -> None:
        """A5: every setting of the cut is in the key; going back finds everything there."""
        image = {"resolutions": [64], "step": 16, **change}
        with project(base, image=image) as opened:
            assert reasons(opened.plan()) == {("pixels", "geometry changed"): 3}
            build(opened)
        for both in ({}, {"image": image}):
            with project(base, **both) as opened:
                assert not len(opened.plan().missing)

    def test_a8_toggling_masks_adds_masks_and_touches_no_picture(self, base: Path) -> None:
        """A8: masks are entries of their own, cut with the very geometry of their pictures."""
        for number in range(2):
            picture(base / f"data/p{number}-masklabel.png", 50 + number)
        concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}]
        masked = {"pixels": {"uses": "image"}, "mask": {"uses": "mask", "factor": 8}, "words": Words()}
        image = {"resolutions": [64], "step": 16, "crop": "random"}
        with project(base, concepts=concepts, encoders=masked, image=image) as opened:
            plan = opened.plan()
            cuts = {(entry.path, entry.encoder): entry.parts.geometry for entry in plan.missing}
            for number in range(2):
                path = str(base / f"data/p{number}.png")
                assert cuts[path, "mask"] == cuts[path, "pixels"]
        with project(base, concepts=concepts, encoders=masked) as opened:
            assert reasons(opened.plan()) == {("mask", "new"): 3}
            build(opened)
        with project(base, concepts=concepts) as opened:
            assert not len(opened.plan().missing)

    def test_a8_a_changed_mask_is_the_only_thing_missing(self, base: Path) -> None:
        """A changed mask file is a changed mask, and its picture stays."""
        mask = picture(base / "data/p0-masklabel.png", 50)
        concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}]
        encoders = {"pixels": {"uses": "image"}, "mask": {"uses": "mask", "factor": 8}}
        with project(base, concepts=concepts, encoders=encoders) as opened:
            build(opened)
            picture(mask, 51)
            assert reasons(opened.plan()) == {("mask", "mask changed"): 1}

    def test_a9_a_new_file_changes_no_other_pairing(self, base: Path) -> None:
        """A9: captions and draws belong to their picture, whatever is added before it."""
        image = {"resolutions": [64], "step": 16, "crop": "random", "flip": "random", "variations": 3}

        def seen() -> dict[str, set[tuple[object, ...]]]:
            with project(base, image=image) as opened:
                plan = opened.plan()
                found: dict[str, set[tuple[object, ...]]] = {}
                for entry in (*plan.missing, *plan.ready):
                    found.setdefault(str(entry.path), set()).add((entry.encoder, entry.key, entry.line))
                return found

        before = seen()
        picture(base / "data/a0.png", seed=77)
        (base / "data/a0.txt").write_text("the first in every order")
        after = seen()
        assert set(after) - set(before) == {str(base / "data/a0.png")}
        assert {path: after[path] for path in before} == before

    def test_a10_what_cannot_be_identified_is_refused(self, base: Path) -> None:
        """A10: an encoder whose identity is not plain data names itself in an error, and nothing is planned."""
        with (
            project(base, encoders={"words": Words(version=lambda: 1)}) as opened,
            pytest.raises(precook.ConfigError) as caught,
        ):
            opened.plan()
        assert "encoders.words" in str(caught.value)

    def test_a11_keys_are_the_same_in_every_process(self, base: Path) -> None:
        """A11: another process, with another hash seed, in another folder, gives the same keys."""
        code = (
            "import sys; from pathlib import Path; from tests.support.projects import project\n"
            "plan = project(Path(sys.argv[1])).plan()\n"
            "print(sorted(key.hex for key in plan.ready.keys() + plan.missing.keys()))"
        )
        moved = base.parent / "elsewhere"
        shutil.copytree(base, moved)
        outputs = set()
        for seed, folder in (("1", base), ("2", moved)):
            environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
            done = subprocess.run(
                [sys.executable, "-c", code, str(folder)], env=environment, check=True, capture_output=True, text=True
            )
            outputs.add(done.stdout)
        assert len(outputs) == 1

    def test_a13_one_edited_line_is_one_missing_text(self, tmp_path: Path) -> None:
        """A13: of a file with three lines, editing one makes one text missing per text encoder, because it changed."""
        dataset(tmp_path / "data", lines=3)
        encoders = {"one": Words(1), "two": Words(2)}
        with project(tmp_path, encoders=encoders) as opened:
            assert build(opened) == {"one": 10, "two": 10}  # nine lines and the empty prompt
            caption = tmp_path / "data/p1.txt"
            caption.write_text(caption.read_text().replace("line 1", "line one"))
            assert reasons(opened.plan()) == {("one", "caption line changed"): 1, ("two", "caption line changed"): 1}

    def test_a13_reordered_lines_are_all_there(self, tmp_path: Path) -> None:
        """A13: reordering lines, or changing line ends and blank lines, makes nothing missing."""
        dataset(tmp_path / "data", lines=3)
        with project(tmp_path) as opened:
            build(opened)
            caption = tmp_path / "data/p1.txt"
            caption.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n ".join(reversed(caption.read_text().splitlines())).encode())
            assert not len(opened.plan().missing)

    def test_a13_equal_lines_are_encoded_once(self, tmp_path: Path) -> None:
        """A13: the same line in different files is one text."""
        dataset(tmp_path / "data")
        for number in range(3):
            (tmp_path / f"data/p{number}.txt").write_text(f"a cat\nnumber {number}\n")
        with project(tmp_path) as opened:
            assert missing(opened.plan())["words"] == 5  # a cat, three numbers, the empty prompt

    def test_a14_a_missing_or_empty_caption_is_the_empty_prompt(self, tmp_path: Path) -> None:
        """A14: such samples use the empty prompt, which is encoded once, and the plan says so."""
        dataset(tmp_path / "data")
        (tmp_path / "data/p0.txt").unlink()
        (tmp_path / "data/p1.txt").write_text("  \n\n")
        with project(tmp_path) as opened:
            plan = opened.plan()
            assert missing(plan)["words"] == 2
            assert "2 samples without a caption: the empty prompt is used" in str(plan)
        with project(tmp_path, text={"empty_prompt": False}) as opened:
            assert missing(opened.plan())["words"] == 2  # used by samples, so encoded all the same


class TestCost:
    """SCENARIOS B: cost in proportion to the change."""

    def test_b2_a_warm_plan_opens_no_source(self, base: Path) -> None:
        """B2, B8: a second plan opens neither picture nor caption, and decodes nothing."""
        assert _opened_by_a_plan(base) == []

    def test_b2_after_one_edit_only_that_file_is_opened(self, base: Path) -> None:
        """B2: one edited picture, one opened file."""
        picture(base / "data/p1.png", seed=99)
        assert [Path(path).name for path in _opened_by_a_plan(base)] == ["p1.png"]

    def test_b3_weights_are_not_read_again(self, tmp_path: Path) -> None:
        """B3: a second plan opens no weight file."""
        dataset(tmp_path / "data")
        vae_folder(tmp_path / "models/vae")
        encoders = {"latent": {"uses": "diffusers-vae", "model": "models/vae"}}
        with project(tmp_path, encoders=encoders) as opened:
            opened.plan()
        opened_files = _opened_by_a_plan(tmp_path, {"encoders": encoders})
        assert not [path for path in opened_files if path.endswith((".safetensors", ".png", ".txt"))]

    def test_b4_a_moved_folder_is_all_hits(self, base: Path) -> None:
        """B4: moving the data, or copying data and store to another place, makes nothing missing."""
        (base / "data").rename(base / "renamed")
        with project(base, concepts=[{"name": "things", "path": "renamed"}]) as opened:
            assert not len(opened.plan().missing)
        copied = base.parent / "copied"
        shutil.copytree(base, copied)
        with project(copied, concepts=[{"name": "things", "path": "renamed"}]) as opened:
            assert not len(opened.plan().missing)

    def test_b4_a_renamed_root_opens_no_source(self, base: Path) -> None:
        """B4: renaming the folder does not even cost hashing."""
        (base / "data").rename(base / "renamed")
        assert _opened_by_a_plan(base, {"concepts": [{"name": "things", "path": "renamed"}]}) == []

    def test_b5_two_concepts_share_what_is_equal(self, base: Path) -> None:
        """B5: the same picture in two concepts is one entry; with its own mask it has its own mask."""
        shutil.copytree(base / "data", base / "more")
        picture(base / "more/p0-masklabel.png", 50)
        both = [{"name": "things", "path": "data"}, {"name": "others", "path": "more"}]
        with project(base, concepts=both) as opened:
            plan = opened.plan()
            assert not len(plan.missing)
            assert plan.samples.count == 6
        masked = [{**both[0], "masks": "{stem}-masklabel.png"}, {**both[1], "masks": "{stem}-masklabel.png"}]
        encoders = {"pixels": {"uses": "image"}, "mask": {"uses": "mask"}}
        with project(base, concepts=masked, encoders=encoders) as opened:
            # One mask file; white ones are shared by all pictures that are cut alike.
            assert missing(opened.plan()) == {"mask": 2}

    def test_b7_one_change_writes_little(self, tmp_path: Path) -> None:
        """B7: after one edit a plan writes a small transaction, however many files there are."""
        dataset(tmp_path / "data", count=400)
        with project(tmp_path) as opened:
            build(opened)
            opened.plan()
        log = tmp_path / "cache/index.sqlite-wal"
        (tmp_path / "data/p7.txt").write_text("edited")
        with project(tmp_path) as opened:
            before = log.stat().st_size if log.exists() else 0
            assert len(opened.plan().missing) == 1
            assert log.stat().st_size - before < 64 << 10
            assert (tmp_path / "cache/index.sqlite").stat().st_size > 128 << 10

    def test_b8_rebucketing_decodes_nothing(self, base: Path) -> None:
        """B8: sizes and orientation are remembered: another resolution opens no file."""
        assert _opened_by_a_plan(base, {"image": {"resolutions": [48, 96], "step": 16}}) == []


class TestHousekeeping:
    """SCENARIOS E: nothing is mistaken for a deletion, and everything is explained."""

    def test_e3_an_absent_root_is_an_error(self, base: Path) -> None:
        """E3: a folder that is not there is not an empty dataset, and what is remembered stays."""
        (base / "data").rename(base / "unplugged")
        with project(base) as opened, pytest.raises(precook.SourceError, match="no such folder"):
            opened.plan()
        (base / "unplugged").rename(base / "data")
        assert _opened_by_a_plan(base) == []
        with project(base) as opened:
            assert not len(opened.plan().missing)

    def test_an_empty_folder_is_said(self, tmp_path: Path) -> None:
        """A folder without pictures is planned as such, and named."""
        (tmp_path / "data").mkdir()
        with project(tmp_path) as opened:
            assert "no pictures in" in str(opened.plan())


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


class TestReasons:
    """Every reason a miss can have."""

    def test_a_first_plan_is_all_new(self, tmp_path: Path) -> None:
        """Nothing was ever built: everything is new."""
        dataset(tmp_path / "data")
        with project(tmp_path) as opened:
            assert reasons(opened.plan()) == {("pixels", "new"): 3, ("words", "new"): 4}

    def test_a_damaged_entry_is_named(self, base: Path) -> None:
        """An entry whose bytes are wrong is missing, because it is damaged."""
        (pack,) = (base / "cache/packs").glob("*/*.safetensors")
        content = pack.read_bytes()
        pack.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with project(base) as opened:
            keys = opened.plan().ready.keys()
            (damaged,) = [key for key in keys if opened.store.get(key, None) is None]
            plan = opened.plan()
            assert plan.missing.keys() == [damaged]
            assert [why.reason.value for why in plan.missing.reasons()] == ["entry damaged"]

    def test_a_removed_pack_leaves_collected_entries(self, base: Path) -> None:
        """Entries that were there and are gone are missing for that reason."""
        with project(base) as opened:
            assert not len(opened.plan().missing)
        shutil.rmtree(base / "cache/packs")
        with project(base) as opened:
            assert reasons(opened.plan()) == {("pixels", "entry collected"): 3, ("words", "entry collected"): 4}

    def test_a_reason_stays_until_the_entry_is_built(self, base: Path) -> None:
        """Planning twice gives the same reason: looking does not count as building."""
        picture(base / "data/p1.png", seed=99)
        with project(base) as opened:
            assert reasons(opened.plan()) == reasons(opened.plan()) == {("pixels", "content changed"): 1}
            build(opened)
            assert not len(opened.plan().missing)

    def test_swapping_back_is_all_hits(self, base: Path) -> None:
        """A recipe that was used before finds its entries again."""
        with project(base, encoders={"words": Words(2)}) as opened:
            assert build(opened) == {"words": 4}
        with project(base, encoders={"words": Words(1)}) as opened:
            assert not len(opened.plan().missing)

    def test_what_failed_before_is_told_and_not_planned_again(self, base: Path) -> None:
        """A recorded failure is no miss; with another recipe it is tried again."""
        picture(base / "data/p9.png", seed=9)
        with project(base) as opened:
            (entry,) = opened.plan().missing.of("pixels")
            memory = opened.store.memory()
            record_failure(memory, entry.key.bytes, "out of paint")
            opened.store.remember(memory)
            plan = opened.plan()
            assert not len(plan.missing)
            assert [(failure.path, failure.encoder, failure.reason) for failure in plan.failed] == [
                ("p9.png", "pixels", "out of paint")
            ]
            assert "out of paint" in str(plan)
        with project(base, image={"resolutions": [96], "step": 16}) as opened:
            assert missing(opened.plan())["pixels"] == 4


class TestSamples:
    """A sample is its picture's content and its concept."""

    def test_duplicates_are_told_apart_and_reported(self, base: Path) -> None:
        """Two equal pictures in one concept are two samples that share an entry; renaming others changes neither."""
        shutil.copy(base / "data/p1.png", base / "data/q.png")
        with project(base) as opened:
            plan = opened.plan()
            assert "1 sample with the same picture as another one of its concept" in str(plan)
            ids = [plan.samples.id(sample) for sample in range(4)]
            assert len(set(ids)) == 4
            assert missing(plan) == {}
        picture(base / "data/a.png", seed=70)
        with project(base) as opened:
            plan = opened.plan()
            assert set(ids) < {plan.samples.id(sample) for sample in range(5)}

    def test_renaming_and_captions_do_not_change_a_sample(self, base: Path) -> None:
        """Neither path nor caption is part of a sample's identity; its concept is."""
        with project(base) as opened:
            plan = opened.plan()
            before = {plan.samples.id(sample) for sample in range(3)}
        (base / "data/p0.png").rename(base / "data/zzz.png")
        (base / "data/p1.txt").write_text("another caption")
        with project(base) as opened:
            plan = opened.plan()
            assert {plan.samples.id(sample) for sample in range(3)} == before
        with project(base, concepts=[{"name": "other", "path": "data"}]) as opened:
            plan = opened.plan()
            assert not {plan.samples.id(sample) for sample in range(3)} & before

    def test_a_few_lines_of_each_caption_can_be_kept(self, tmp_path: Path) -> None:
        """`text.variations: 2` keeps two lines of each picture, the same two in whatever order they stand."""
        dataset(tmp_path / "data", lines=5)
        text = {"variations": 2, "empty_prompt": False}
        with project(tmp_path, text=text) as opened:
            keys = set(opened.plan().missing.of("words").keys())
            assert len(keys) == 6
            for number in range(3):
                caption = tmp_path / f"data/p{number}.txt"
                caption.write_text("\n".join(reversed(caption.read_text().splitlines())))
            assert set(opened.plan().missing.of("words").keys()) == keys


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


class TestForecast:
    """What a build would take."""

    def test_size_and_time_come_from_earlier_builds(self, base: Path) -> None:
        """With a remembered rate, the plan forecasts bytes and seconds for what is missing."""
        for number in range(10, 14):
            picture(base / f"data/p{number}.png", number)
        with project(base, encoders={"pixels": {"uses": "image"}}) as opened:
            plan = opened.plan()
            memory = opened.store.memory()
            recipe = plan.encoders["pixels"].wants.encoding.recipe
            record_rate(memory, recipe, entries=2, nbytes=2 << 20, seconds=6.0)
            opened.store.remember(memory)
            plan = opened.plan()
            assert (plan.forecast.nbytes, plan.forecast.seconds) == (4 << 20, 12.0)
            assert "about 4.0 MiB, about 12 s" in str(plan)
            assert plan.forecast.free is not None
            assert plan.forecast.fits

    def test_without_a_rate_it_says_so(self, tmp_path: Path) -> None:
        """Before the first build nothing is invented."""
        dataset(tmp_path / "data")
        with project(tmp_path) as opened:
            plan = opened.plan()
            assert plan.forecast.nbytes is None
            assert "size not known before the first build" in str(plan)


def test_a_plan_writes_no_entry(base: Path) -> None:
    """Planning changes the index at most: no pack and no snapshot appears."""
    picture(base / "data/p7.png", seed=7)

    def files() -> set[str]:
        return {str(path) for path in (base / "cache").rglob("*") if "index.sqlite" not in path.name}

    before = files()
    with project(base) as opened:
        opened.plan()
    assert files() == before


def test_without_writing_nothing_changes(base: Path) -> None:
    """`write=False` leaves the store byte for byte as it was, and makes none where there is none."""
    picture(base / "data/p7.png", seed=7)

    def state(folder: Path) -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in [folder, *folder.rglob("*")]
        }

    before = state(base)
    with project(base) as opened:
        assert missing(opened.plan(write=False)) == {"pixels": 1}
    assert state(base) == before
    with project(base, store="nowhere") as opened:
        assert len(opened.plan(write=False).missing) == 8
    assert not (base / "nowhere").exists()


def test_an_unknown_encoder_is_refused(base: Path) -> None:
    """Asking for an encoder that is not there names those that are."""
    with project(base) as opened, pytest.raises(precook.ConfigError, match="there are pixels, words"):
        opened.plan(encoders=["latents"])


def test_a_model_that_is_not_there_is_refused(base: Path) -> None:
    """A missing model folder is an error of the config, with the next step."""
    encoders = {"latent": {"uses": "diffusers-vae", "model": "models/vae"}}
    with project(base, encoders=encoders) as opened, pytest.raises(precook.ConfigError, match="no such model"):
        opened.plan()


def _opened_by_a_plan(base: Path, changes: dict[str, Any] | None = None) -> list[str]:
    """The source and model files that a plan opens, as Python's own audit events tell."""
    opened: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(arguments[0]))
            flags = arguments[2]
            if path.startswith(str(base)) and not path.startswith(str(base / "cache")) and not os.path.isdir(path):
                opened.append(path)
            assert flags is None or isinstance(flags, int)

    sys.addaudithook(hook)
    try:
        with project(base, **(changes or {})) as one:
            one.plan()
    finally:
        watching = False
    return opened


def test_the_hook_sees_what_a_cold_plan_opens(tmp_path: Path) -> None:
    """The check above can fail: a first plan opens every file once."""
    dataset(tmp_path / "data")
    assert Counter(Path(path).name for path in _opened_by_a_plan(tmp_path)) == {
        f"p{number}{suffix}": 1 for number in range(3) for suffix in (".png", ".txt")
    }


def test_pictures_of_every_format_are_planned(tmp_path: Path) -> None:
    """JPEG, PNG, WebP, AVIF, BMP, TIFF and GIF all become samples, rotated ones by their real size."""
    for number, suffix in enumerate(("jpg", "png", "webp", "avif", "bmp", "tiff", "gif")):
        picture(tmp_path / f"data/p{number}.{suffix}", number)
    exif = Image.Exif()
    exif[274] = 6
    picture(tmp_path / "data/turned.jpg", 50, exif=exif)
    with project(tmp_path) as opened:
        plan = opened.plan()
        assert not plan.failed
        sizes = {
            Path(entry.path or "").name: entry.parts.geometry.source
            for entry in plan.missing.of("pixels")
            if entry.parts.geometry
        }
        assert sizes.pop("turned.jpg") == (64, 96)
        assert set(sizes.values()) == {(96, 64)}


def test_the_background_matters_only_to_transparent_pictures(tmp_path: Path) -> None:
    """Another background makes pictures with alpha missing, and no others."""
    picture(tmp_path / "data/opaque.png", 1)
    Image.fromarray(np.zeros((64, 96, 4), np.uint8)).save(tmp_path / "data/clear.png")
    with project(tmp_path, encoders={"pixels": {"uses": "image"}}) as opened:
        build(opened)
    image = {"resolutions": [64], "step": 16, "background": "black"}
    with project(tmp_path, image=image, encoders={"pixels": {"uses": "image"}}) as opened:
        plan = opened.plan()
        assert [Path(entry.path or "").name for entry in plan.missing] == ["clear.png"]
        (why,) = plan.missing.reasons()
        assert [str(change) for change in why.differences] == ["background: [255, 255, 255] → [0, 0, 0]"]


_RAISING = """
class Mine:
    input = "text"
    def identity(self): raise KeyError("x")
    def load(self, device): ...
    def encode(self, batch): ...
    def unload(self): ...
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("import nowhere", "cannot be imported: ModuleNotFoundError"),
        ("class Mine: pass", "is not an encoder"),
        ("class Other: pass", "has no Mine"),
        ("class Mine:\n    def __init__(self): raise OSError('no')", "cannot be made of these fields: OSError"),
        (_RAISING, "identity() failed: KeyError"),
    ],
)
def test_a_users_broken_encoder_is_an_error_of_the_config(tmp_path: Path, code: str, told: str) -> None:
    """Whatever a user's module raises is told with its place in the config, not as a traceback."""
    dataset(tmp_path / "data")
    name = f"mine_{abs(hash(code)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(code)
    with (
        project(tmp_path, encoders={"mine": {"uses": f"{name}:Mine"}}) as opened,
        pytest.raises(precook.ConfigError) as caught,
    ):
        opened.plan()
    assert told in str(caught.value)
    assert "encoders.mine" in str(caught.value)


def test_a_picture_whose_caption_is_refused_is_explained(base: Path) -> None:
    """The picture leads to the caption that keeps it from being a sample."""
    (base / "data/p1.txt").write_bytes(b"\xff\xfe\xff")
    with project(base) as opened:
        (problem,) = opened.plan().explain(base / "data/p1.png").problems
        assert str(base / "data/p1.txt") in problem
