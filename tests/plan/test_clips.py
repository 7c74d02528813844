"""Clips through the public interface: planned, built, explained and fed; what is wrong with one is told by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.sources import clip_facts
from precook.sources.crop import cut
from precook.sources.geometry import Geometry
from precook.sources.pictures import decode
from tests.support.clips import animation, clip, decoded, frame, turned, write_clip
from tests.support.commands import run
from tests.support.projects import Watched, keep_times, missing, picture, project, reasons


def frames_of(item: precook.Item) -> Any:
    """The clip itself, so that an entry tells what it was made of."""
    return item.video


def clips(base: Path, *, encoder: Any = None, **fields: Any) -> precook.Project:
    """A project of clips that keeps their frames."""
    sections: dict[str, Any] = {
        "encoders": {"clip": encoder or Watched("video", frames_of)},
        "image": {"resolutions": ["64x48"], "step": 16},
        "video": {"frames": [1, 5], "fps": 16},
        "keep": ["captions"],
        **fields,
    }
    return project(base, **sections)


def fed(owner: precook.Project, **options: Any) -> dict[str, Any]:
    """What a feed gives of each clip, by caption."""
    with owner.feed(batch_size=1, **options) as feed:
        return {batch["caption"][0]: batch for batch in feed.epoch(0)}


def test_clips_go_from_files_to_batches(tmp_path: Path) -> None:
    """Frames x height x width: videos, animated pictures and stills, each with its caption."""
    content = clip(9)
    write_clip(tmp_path / "data/a.mp4", content, "a dance")
    write_clip(tmp_path / "data/b.gif", animation(4), "a wave")
    picture(tmp_path / "data/c.png", 1, (64, 48))
    (tmp_path / "data/c.txt").write_text("a still")
    with clips(tmp_path) as owner:
        report = owner.build()
        assert report.encoded == {"clip": 3}
        found = fed(owner)
        assert {name: batch["size"] for name, batch in found.items()} == {
            "a dance": (5, 48, 64),
            "a wave": (5, 48, 64),
            "a still": (1, 48, 64),
        }
        np.testing.assert_array_equal(found["a dance"]["clip"][0], np.stack(decoded(content)[:5]))
        np.testing.assert_array_equal(found["a still"]["clip"][0][0], decode((tmp_path / "data/c.png").read_bytes()))
        with owner.feed(batch_size=2, last="keep") as feed:
            sizes = sorted((batch["size"], len(batch["sample"])) for batch in feed.epoch(0))
        assert sizes == [((1, 48, 64), 1), ((5, 48, 64), 2)], "a batch has clips of one size and one number of frames"
        shutil.rmtree(tmp_path / "data")
    with precook.open(tmp_path / "cache").snapshot("test").feed(batch_size=1) as feed:
        assert {batch["size"] for batch in feed.epoch(0)} == {(5, 48, 64), (1, 48, 64)}


def test_concepts_may_have_frames_of_their_own(tmp_path: Path) -> None:
    """What a concept says takes the place of the file's, field by field; a feed has batches of both."""
    content = clip(20)
    for name in ("long", "short", "slow"):
        write_clip(tmp_path / name / f"{name}.mp4", content if name != "slow" else clip(20, rate=8), name)
    concepts = [
        {"name": "long", "path": "long", "video": {"frames": [9, 40]}},
        {"name": "short", "path": "short"},
        {"name": "slow", "path": "slow", "video": {"fps": "source", "start": "middle"}},
    ]
    with clips(tmp_path, concepts=concepts) as owner:
        assert owner.build().encoded == {"clip": 3}
        found = fed(owner)
        assert {name: batch["size"][0] for name, batch in found.items()} == {"long": 9, "short": 5, "slow": 5}
        np.testing.assert_array_equal(found["long"]["clip"][0], np.stack(decoded(content)[:9]))
        slow = decoded((tmp_path / "slow/slow.mp4").read_bytes())
        np.testing.assert_array_equal(found["slow"]["clip"][0], np.stack(slow[7:12]))
    alone = [{"name": "other", "path": "long"}]
    with clips(tmp_path, concepts=alone, video={"frames": [9], "fps": 16}) as owner:
        assert not owner.plan().missing, "the same keys as where the file says it"
    short = [{"name": "long", "path": "long", "video": {"frames": [40]}}, {"name": "short", "path": "short"}]
    with clips(tmp_path, concepts=short) as owner:
        (failure,) = owner.plan().failed
    assert failure.reason == "too short: 20 frames at 16 per second, and video.frames asks for 40"


@pytest.mark.usefixtures("settled")
def test_a_warm_plan_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size and time stamps are remembered with the digest, of even rates and of others, and other settings use them."""
    write_clip(tmp_path / "data/a.mp4", clip(9), "even")
    write_clip(tmp_path / "data/b.mkv", clip(times=[0, 50, 130, 180, 300, 420, 500, 900], form="matroska"), "uneven")
    write_clip(tmp_path / "data/c.gif", animation(40, duration=[30 + 10 * (n % 3) for n in range(40)]), "long")
    with clips(tmp_path) as owner:
        owner.build()
        before = [entry.first.settings for entry in owner.plan().ready]

    def refuse(content: bytes) -> None:
        raise AssertionError("a clip was decoded")

    monkeypatch.setattr(clip_facts, "read_clip", refuse)
    with clips(tmp_path) as owner:
        assert [entry.first.settings for entry in owner.plan().ready] == before
    with clips(tmp_path, video={"frames": [3], "fps": 8, "start": "middle"}) as owner:
        taken = {entry.path: entry.first.frames for entry in owner.plan().missing}
    assert {Path(path or "").name: frames and frames.count for path, frames in taken.items()} == {
        "a.mp4": 3,
        "b.mkv": 3,
        "c.gif": 3,
    }


@pytest.mark.usefixtures("settled")
def test_lost_time_stamps_are_read_again(tmp_path: Path) -> None:
    """Memory may lose any part of itself; a plan is the same without it."""
    write_clip(tmp_path / "data/b.mkv", clip(times=[0, 50, 130, 180, 300, 420], form="matroska"), "uneven")
    with clips(tmp_path) as owner:
        owner.build()
        before = [entry.key for entry in owner.plan().ready]
        memory = owner.store.memory()
        memory.forget(clip_facts.ClipReader.stamps)
        owner.store.remember(memory)
        assert [entry.key for entry in owner.plan().ready] == before


def test_a_clip_edited_in_its_second_half_counts_as_changed(tmp_path: Path) -> None:
    """The whole file is the content: it is told that it changed, and no entry of the former one is served."""
    path = write_clip(tmp_path / "data/a.mp4", clip(20), "a")
    write_clip(tmp_path / "data/b.mp4", clip(20, rate=12), "b")
    with clips(tmp_path) as owner:
        owner.build()
        assert not missing(owner.plan())
        keep_times(path, clip(20, times=[*range(0, 950, 50), 1900]))
        plan = owner.plan()
        assert reasons(plan) == {("clip", "content changed"): 1}


def test_settings_change_the_entries_that_they_concern(tmp_path: Path) -> None:
    """Another rate that takes the same frames is no other entry; other frames are, and explain says which."""
    path = write_clip(tmp_path / "data/a.mp4", clip(40), "a")
    picture(tmp_path / "data/c.png", 1, (64, 48))
    with clips(tmp_path) as owner:
        owner.build()
    with clips(tmp_path, video={"frames": [1, 5], "fps": "source"}) as owner:
        assert not missing(owner.plan())
    with clips(tmp_path, video={"frames": [1, 5], "fps": 8}) as owner:
        plan = owner.plan()
        assert reasons(plan) == {("clip", "geometry changed"): 1}
        told = str(plan.explain(path))
        assert "64x48 as 64x48, 5 frames from 0: missing" in told
        assert "frames.rate: 0 → 8000" in told
    with clips(tmp_path, video={"frames": [1, 5, 9], "fps": 16}) as owner:
        assert [Path(entry.path or "").name for entry in owner.plan().missing] == ["a.mp4"]


def test_drawn_starts_differ_by_variation_and_stay(tmp_path: Path) -> None:
    """`start: random` draws by content, variation and seed: the same in every plan, another for another variation."""
    write_clip(tmp_path / "data/a.mp4", clip(200), "a")
    image = {"resolutions": ["64x48"], "step": 16, "variations": 4}
    video = {"frames": [5], "start": "random"}

    def starts(**fields: Any) -> list[int]:
        with clips(tmp_path, video=video, image={**image, **fields}) as owner:
            return [entry.first.frames.start for entry in owner.plan().missing if entry.first.frames is not None]

    first = starts()
    assert len(set(first)) > 1
    assert starts() == first
    assert starts(seed=1) != first
    shutil.move(tmp_path / "data/a.mp4", tmp_path / "data/z.mp4")
    assert starts() == first


def test_phone_videos_are_cut_upright(tmp_path: Path) -> None:
    """Buckets go by the size that is shown."""
    write_clip(tmp_path / "data/a.mov", turned(clip(5, size=(96, 64)), 90), "a")
    with clips(tmp_path, image={"resolutions": [64], "step": 16}) as owner:
        (entry,) = owner.plan().missing
        assert entry.first.geometry is not None
        assert entry.first.geometry.source == (64, 96)
        width, height = entry.first.geometry.target
        assert width < height


def test_encoders_of_pictures_get_the_first_frame_that_is_taken(tmp_path: Path) -> None:
    """Of a clip its first chosen frame; a still is the picture that it is in any other dataset, entry and all."""
    content = clip(21)
    write_clip(tmp_path / "data/a.mp4", content, "moving")
    picture(tmp_path / "data/c.png", 1, (96, 64))
    (tmp_path / "data/c.txt").write_text("still")
    image = {"resolutions": ["64x48"], "step": 16}
    with project(tmp_path, encoders={"pixels": {"uses": "image"}}, image=image, keep=["captions"]) as owner:
        assert owner.build().encoded == {"pixels": 1}
    video = {"frames": [1, 5], "fps": 16, "start": "middle"}
    encoders = {"clip": Watched("video", frames_of), "pixels": {"uses": "image"}}
    with clips(tmp_path, encoders=encoders, video=video) as owner:
        assert missing(owner.plan()) == {"clip": 2, "pixels": 1}
        owner.build()
        found = fed(owner)
        first = found["moving"]["clip"][0][0]
        np.testing.assert_array_equal(first, decoded(content)[8])
        pixels = np.asarray(found["moving"]["pixels"][0])
        np.testing.assert_array_equal(pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels, first)


def test_masks_go_with_clips(tmp_path: Path) -> None:
    """A clip's mask is one picture, cut as its frames."""
    write_clip(tmp_path / "data/a.mp4", clip(5), "a")
    picture(tmp_path / "data/a-masklabel.png", 3, (64, 48))
    concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}]
    encoders = {"clip": Watched("video", frames_of), "mask": {"uses": "mask", "factor": 8}}
    with clips(tmp_path, encoders=encoders, concepts=concepts) as owner:
        owner.build()
        (batch,) = fed(owner).values()
    assert tuple(batch["mask"].shape) == (1, 1, 6, 8)
    assert tuple(batch["clip"].shape) == (1, 5, 48, 64, 3)


def test_what_is_wrong_with_a_clip_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    """Cut off, empty, damaged, too short or no video at all: each by its name, and the good one is built."""
    good = clip(9)
    write_clip(tmp_path / "data/good.mp4", good, "good")
    write_clip(tmp_path / "data/short.mp4", clip(3), "short")
    write_clip(tmp_path / "data/early.mp4", good[:-50], "early")
    write_clip(tmp_path / "data/nothing.mp4", b"", "nothing")
    write_clip(tmp_path / "data/text.mkv", b"no film", "text")
    picture(tmp_path / "data/still.png", 1)
    with clips(tmp_path, video={"frames": [5, 9], "fps": 16}) as owner:
        plan = owner.plan()
        told = {failure.path: failure.reason for failure in plan.failed}
        assert told.pop("short.mp4") == "too short: 3 frames at 16 per second, and video.frames asks for 5"
        assert told.pop("still.png") == "too short: 1 frame at 16 per second, and video.frames asks for 5"
        assert told.pop("early.mp4") == "cut off: its last 50 bytes are missing"
        assert told.pop("nothing.mp4") == "empty file"
        assert told.pop("text.mkv").startswith("not a picture or a video")
        assert not told
        report = owner.build()
        assert report.encoded == {"clip": 1}


def test_a_clip_that_changes_after_the_plan_is_not_encoded(tmp_path: Path) -> None:
    """What is decoded is compared with what was planned."""
    path = write_clip(tmp_path / "data/a.mp4", clip(9), "a")
    with clips(tmp_path) as owner:
        with owner.feed(batch_size=1, on_missing="encode") as feed:
            path.write_bytes(clip(12))
            assert not list(feed.epoch(0))
        assert missing(owner.plan()) == {"clip": 1}


def test_a_feed_encodes_clips_that_are_missing(tmp_path: Path) -> None:
    """`on_missing="encode"` makes a clip when a batch needs it."""
    write_clip(tmp_path / "data/a.mp4", clip(9), "a")
    with clips(tmp_path) as owner:
        found = fed(owner, on_missing="encode")
        assert found["a"]["size"] == (5, 48, 64)


def test_a_plan_names_what_it_ignores(tmp_path: Path) -> None:
    """Files of other endings are counted, sound is told to be ignored, and so is how many frames clips have."""
    write_clip(tmp_path / "data/a.mp4", clip(16, audio=True), "a")
    write_clip(tmp_path / "data/b.mp4", clip(3), "b")
    for name in ("one.psd", "two.PSD", "README", "three.blend"):
        (tmp_path / "data" / name).write_bytes(b"x")
    (tmp_path / "data/.hidden").write_bytes(b"x")
    with clips(tmp_path) as owner:
        shown = str(owner.plan())
    assert "things: 4 files ignored: 2 .psd" in shown
    assert "1 without an ending" in shown
    assert "1 clip with sound, which is ignored" in shown
    assert "clips: 1 of 1 frame, 1 of 5 frames" in shown
    picture(tmp_path / "data/c.png", 1)
    with project(tmp_path) as owner:
        shown = str(owner.plan())
    assert "2 .mp4" in shown
    assert "videos are samples where an encoder takes them" in shown


def test_a_geometry_cuts_every_frame_alike(tmp_path: Path) -> None:
    """Each frame is what `cut` makes of it alone, flipped and cropped with all others."""
    content = clip(5, size=(96, 80))
    write_clip(tmp_path / "data/a.mp4", content, "a")
    image = {"resolutions": ["64x48"], "step": 16, "crop": "random", "flip": "always"}
    with clips(tmp_path, image=image) as owner:
        plan = owner.plan()
        (entry,) = plan.missing
        geometry = entry.first.geometry
        assert isinstance(geometry, Geometry)
        owner.build()
        (batch,) = fed(owner).values()
    expected = np.stack([cut(one, geometry) for one in decoded(content)])
    np.testing.assert_array_equal(batch["clip"][0], expected)
    assert not np.array_equal(expected[0], frame(0)[:48, :64])


def test_the_command_line_plans_builds_and_shows_clips(tmp_path: Path) -> None:
    """`plan --json` counts them, and `explain` says which frames an entry has."""
    write_clip(tmp_path / "data/a.mp4", clip(9, audio=True), "a")
    (tmp_path / "own_clips.py").write_text(OWN)
    (tmp_path / "precook.yaml").write_text(
        """
dataset: dances
concepts: [{name: dances, path: data}]
image: {resolutions: ["64x48"], step: 16}
video: {frames: [1, 5], fps: 16}
encoders: {clip: {uses: "own_clips:Own"}}
"""
    )
    config = ["--config", str(tmp_path / "precook.yaml")]
    done = run("build", *config)
    assert done.code == 0, done.err
    document = run("plan", *config, "--json").document
    assert document["with_sound"] == 1
    told = run("explain", str(tmp_path / "data/a.mp4"), *config)
    assert "5 frames from 0: ready" in told.out


OWN = """
class Own:
    input = "video"
    def identity(self): return 1
    def load(self, device): pass
    def encode(self, batch): return [item.video.mean(axis=(1, 2)) for item in batch]
    def unload(self): pass
"""


def test_a_clip_of_one_frame_is_not_the_picture_that_another_encoder_takes_of_it(tmp_path: Path) -> None:
    """Two encoders of one class and one identity, of which one takes clips: each has entries of its own."""
    write_clip(tmp_path / "data/a.mp4", clip(9), "a dance")
    encoders = {"clip": Watched("video", frames_of), "still": Watched("image")}
    with clips(tmp_path, encoders=encoders, video={"frames": [1], "fps": 16}) as owner:
        assert owner.build().encoded == {"clip": 1, "still": 1}
        batch = fed(owner)["a dance"]
        assert (tuple(batch["clip"].shape), tuple(batch["still"].shape)) == ((1, 1, 48, 64, 3), (1, 48, 64, 3))


def frame_folder(folder: Path, count: int, *, first: int = 1, size: tuple[int, int] = (64, 48)) -> Path:
    """A folder of frames, numbered without zeros in front."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(frame(number, *size)).save(folder / f"frame-{first + number}.png")
    return folder


FOLDERS = [{"name": "things", "path": "data", "clips": "folders"}]


def test_a_folder_of_frames_is_a_clip(tmp_path: Path) -> None:
    """Frames come in the order of the numbers in their names, the caption lies beside the folder, and rates do not
    matter.
    """
    frame_folder(tmp_path / "data/jump", 12)
    (tmp_path / "data/jump.txt").write_text("a jump")
    frame_folder(tmp_path / "data/more/run", 1)
    (tmp_path / "data/more/run.txt").write_text("a run")
    picture(tmp_path / "data/stray.png", 1)
    with clips(tmp_path, concepts=FOLDERS, video={"frames": [1, 11], "fps": 24}) as owner:
        plan = owner.plan()
        assert "1 file ignored: 1 .png" in str(plan)
        assert owner.build().encoded == {"clip": 2}
        assert len(plan.explain(tmp_path / "data/jump").samples) == 1
        found = fed(owner)
    assert found["a jump"]["size"] == (11, 48, 64)
    np.testing.assert_array_equal(found["a jump"]["clip"][0], np.stack([frame(number) for number in range(11)]))
    np.testing.assert_array_equal(found["a run"]["clip"][0][0], frame(0))
    captions = [{**FOLDERS[0], "captions": "filename"}]
    with clips(tmp_path, concepts=captions, video={"frames": [1, 11], "fps": 8}) as owner:
        assert not missing(owner.plan()), "another rate takes the same frames"
        owner.build()
        assert set(fed(owner)) == {"jump", "run"}


def test_an_edited_frame_is_another_clip(tmp_path: Path) -> None:
    """A frame that changes, comes or goes makes the clip another one; its name alone does not."""
    folder = frame_folder(tmp_path / "data/jump", 6)
    frame_folder(tmp_path / "data/run", 5, size=(96, 80))
    with clips(tmp_path, concepts=FOLDERS) as owner:
        owner.build()
        (folder / "frame-6.png").rename(folder / "frame-7.png")
        assert not missing(owner.plan())
        Image.fromarray(frame(40)).save(folder / "frame-7.png")
        assert reasons(owner.plan()) == {("clip", "content changed"): 1}
        (folder / "frame-7.png").unlink()
        assert missing(owner.plan()) == {"clip": 1}


def test_a_bad_frame_leaves_its_clip_out(tmp_path: Path) -> None:
    """A frame that cannot be read, or of another size, is named; the other clips go on."""
    frame_folder(tmp_path / "data/good", 5)
    bad = frame_folder(tmp_path / "data/bad", 5)
    (bad / "frame-3.png").write_bytes(b"")
    odd = frame_folder(tmp_path / "data/odd", 5)
    Image.fromarray(frame(9, 32, 32)).save(odd / "frame-4.png")
    with clips(tmp_path, concepts=FOLDERS) as owner:
        told = {failure.path: failure.reason for failure in owner.plan().failed}
        assert sorted(told.values()) == [
            "frame-3.png: empty file",
            "its frames have several sizes: frame-4.png is another than the first",
        ]
        assert owner.build().encoded == {"clip": 1}


def test_encoders_of_pictures_take_the_first_frame_of_a_folder(tmp_path: Path) -> None:
    """Also of a folder that holds one frame only."""
    frame_folder(tmp_path / "data/jump", 5)
    frame_folder(tmp_path / "data/still", 1, size=(96, 80))
    encoders = {"clip": Watched("video", frames_of), "first": Watched("image")}
    captions = [{**FOLDERS[0], "captions": "filename"}]
    with clips(tmp_path, encoders=encoders, concepts=captions) as owner:
        owner.build()
        found = fed(owner)
    for batch in found.values():
        np.testing.assert_array_equal(batch["first"][0], batch["clip"][0][0])


def test_what_a_clip_is_decides_its_entries(tmp_path: Path) -> None:
    """The frames of a folder one by one have other keys than all of them as a clip."""
    frame_folder(tmp_path / "data/jump", 5)
    with clips(tmp_path, concepts=FOLDERS) as owner:
        together = {entry.key for entry in owner.plan().missing}
    with clips(tmp_path) as owner:
        apart = {entry.key for entry in owner.plan().missing}
    assert (len(together), len(apart)) == (1, 5)
    assert not together & apart


def test_the_mask_of_a_folder_lies_beside_it(tmp_path: Path) -> None:
    """It is a mask, and neither a frame nor a folder's clip."""
    frame_folder(tmp_path / "data/more/jump", 5)
    picture(tmp_path / "data/more/jump-mask.png", 3, (64, 48))
    concepts = [{**FOLDERS[0], "masks": "{stem}-mask.png", "missing_mask": "error"}]
    encoders = {"clip": Watched("video", frames_of), "mask": {"uses": "mask", "factor": 8}}
    with clips(tmp_path, encoders=encoders, concepts=concepts) as owner:
        assert not owner.plan().failed
        assert owner.build().encoded == {"clip": 1, "mask": 1}


def test_folders_of_frames_have_no_further_pictures(tmp_path: Path) -> None:
    """What a config cannot mean is refused with what to write."""
    for fields in ({"path": "data.csv"}, {"images": {"control": "{stem}.png"}}):
        with pytest.raises(precook.ConfigError, match="clips"):
            clips(tmp_path, concepts=[{**FOLDERS[0], **fields}])


def test_frames_with_digits_of_several_scripts_in_their_names_have_an_order(tmp_path: Path) -> None:
    """Numbers are compared with numbers, and all else as text."""
    for number, name in enumerate(("a1", "\u06631", "a10", "a9")):
        picture(tmp_path / f"data/dance/{name}.png", number, (64, 48))
    with clips(tmp_path, concepts=FOLDERS, video={"frames": [4], "fps": "source"}) as owner:
        assert [len(owner.plan().missing), owner.plan().failed] == [1, ()]


def test_a_frame_leads_to_its_clip(tmp_path: Path) -> None:
    """As a caption does; and where one is bad, the folder and each of its frames say which."""
    frame_folder(tmp_path / "data/jump", 5)
    frame_folder(tmp_path / "data/bad", 5)
    (tmp_path / "data/bad/frame-3.png").write_bytes(b"no picture")
    with clips(tmp_path, concepts=FOLDERS) as owner:
        plan = owner.plan()
        (sample,) = plan.explain(tmp_path / "data/jump/frame-3.png").samples
        assert sample.path == str(tmp_path / "data/jump")
        for path in ("data/bad", "data/bad/frame-1.png", "data/bad/frame-3.png"):
            (problem,) = plan.explain(tmp_path / path).problems
            assert "frame-3.png: " in problem
        (failure,) = plan.failed
        assert failure.path == "bad"
