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
from tests.support.projects import (
    Words,
    build,
    dataset,
    keep_times,
    missing,
    picture,
    project,
    reasons,
    vae_folder,
)

pytestmark = pytest.mark.usefixtures("settled")

ROOT = Path(__file__).parents[2]


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
            cuts = {(entry.path, entry.encoder): entry.geometry for entry in plan.missing}
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
            Path(entry.path or "").name: entry.geometry.source for entry in plan.missing.of("pixels") if entry.geometry
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
        ("class Mine: pass", "has no methods identity, load, encode, unload"),
        (_RAISING.replace('"text"', '"Sound"'), ":Mine: unknown input 'Sound'"),
        ("class Other: pass", "has no Mine"),
        (f"{_RAISING}    def __init__(self): raise OSError('no')", "cannot be made of these fields: OSError"),
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
