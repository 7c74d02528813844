"""Further pictures: found, cut and told apart, taken by encoders alone or with others, and handed out in batches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.plan.reasons import Reason
from precook.sources.crop import cut
from precook.sources.pictures import decode
from tests.support.commands import run
from tests.support.projects import Watched, picture, project

PIXELS = {"uses": "image"}
CONTROL = {"uses": "image", "of": "control"}


def edits(base: Path, count: int = 3, *, size: tuple[int, int] = (96, 64)) -> Path:
    """Targets p0.png, p1.png, … with captions, and their controls in a folder beside them."""
    for number in range(count):
        picture(base / f"data/p{number}.png", number)
        (base / f"data/p{number}.txt").write_text(f"edit {number}\nchange {number}\n")
        picture(base / f"control/p{number}.png", 100 + number, size)
    return base


def concept(control: Any = "../control/{stem}.png", **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "edits", "path": "data", "images": {"control": control}, **fields}]


class Pairs(Watched):
    """A user's encoder of several inputs, which keeps what it was given."""

    def __init__(self, *inputs: str, **options: Any) -> None:
        super().__init__(None, _everything, **options)
        self.inputs = inputs


def _everything(item: precook.Item) -> dict[str, Any]:
    """All parts of an item."""
    text = {} if item.text is None else {"text": item.text}
    pictures = {} if item.image is None else {"image": item.image}
    mask = {} if item.mask is None else {"mask": item.mask}
    return {**text, **pictures, **mask, **{f"image_{name}": pixels for name, pixels in item.images.items()}}


def test_an_encoder_takes_the_picture_that_of_names(tmp_path: Path) -> None:
    """The control, cut as the target is; the key has its content, so that the same picture elsewhere is a hit."""
    edits(tmp_path)
    with project(tmp_path, concepts=concept(), encoders={"pixels": PIXELS, "control": CONTROL}) as opened:
        assert opened.build().encoded == {"pixels": 3, "control": 3}
        plan = opened.plan()
        for entry in plan.ready.of("control"):
            path = tmp_path / "control" / Path(entry.path or "").name
            assert entry.geometry is not None
            assert np.array_equal(opened.store.get(entry.key), cut(decode(path.read_bytes()), entry.geometry))
        (batch,) = opened.feed(batch_size=3).epoch(0)
        assert batch["control"].shape == batch["pixels"].shape
        assert not np.array_equal(batch["control"], batch["pixels"])
    # The controls as samples of their own: nothing is left to encode.
    swapped = [{"name": "controls", "path": "control"}]
    with project(tmp_path, concepts=swapped, encoders={"pixels": PIXELS}) as opened:
        assert not opened.plan().missing


def test_what_one_input_is_called_is_in_no_key(tmp_path: Path) -> None:
    """A class with `of`, one whose `input` is the picture's name, and a renamed picture have the same keys."""
    edits(tmp_path)

    def keys(encoder: Any, name: str = "control") -> list[precook.Key]:
        concepts = [{"name": "edits", "path": "data", "images": {name: "../control/{stem}.png"}}]
        with project(tmp_path, concepts=concepts, encoders={"mine": encoder}) as opened:
            return opened.plan().missing.keys()

    first = keys(Watched("control"))
    assert keys(Watched("depth"), "depth") == first
    with project(tmp_path, concepts=concept(), encoders={"mine": Watched("image")}) as opened:
        assert not set(opened.plan().missing.keys()) & set(first)
    uses = {"uses": "tests.support.projects:Pixels", "of": "control"}
    own = keys({"uses": "tests.support.projects:Pixels"})
    assert not set(keys(uses)) & set(own)


def test_a_class_gets_the_picture_that_of_names_as_its_image(tmp_path: Path) -> None:
    """So that one class serves for targets and controls; a class that takes no image has nothing to rename."""
    edits(tmp_path, 1)
    uses = {"uses": "tests.support.projects:Pixels", "of": "control"}
    with project(tmp_path, concepts=concept(), encoders={"mine": uses}) as opened:
        assert opened.build().encoded == {"mine": 1}
        (batch,) = opened.feed(batch_size=1, tensors="numpy").epoch(0)
        (entry,) = opened.plan().ready
        assert np.array_equal(batch["mine"][0], cut(decode((tmp_path / "control/p0.png").read_bytes()), entry.geometry))
    words = {"uses": "tests.support.projects:Words", "of": "control"}
    with (
        project(tmp_path, concepts=concept(), encoders={"mine": words}) as opened,
        pytest.raises(precook.ConfigError, match=r"Words takes text: `of` names what it gets as its image"),
    ):
        opened.plan()


@pytest.mark.parametrize(("fit", "size"), [("target", (64, 64)), ("own", (80, 48))])
def test_a_further_picture_is_cut_as_its_target_or_by_itself(tmp_path: Path, fit: str, size: tuple[int, int]) -> None:
    """`fit: target` gives it the target's box, whatever its size; `fit: own` a size of its own shape."""
    picture(tmp_path / "data/a.png", 1, (90, 90))
    picture(tmp_path / "control/a.png", 2, (45, 45) if fit == "target" else (200, 120))
    image = {"resolutions": [64], "step": 16, "flip": "random", "variations": 4, "crop": "random"}
    given = {"path": "../control/{stem}.png", "fit": fit}
    encoders = {"pixels": PIXELS, "control": CONTROL}
    with project(tmp_path, concepts=concept(given), image=image, encoders=encoders) as opened:
        plan = opened.plan()
        cuts = {name: [entry.geometry for entry in plan.missing.of(name)] for name in encoders}
    for own, other in zip(cuts["pixels"], cuts["control"], strict=True):
        assert own is not None
        assert other is not None
        assert other.target == size
        assert own.flip == other.flip
        if fit == "target":
            assert (own.scaled, own.crop, own.target) == (other.scaled, other.crop, other.target)
    assert len({cut.flip for cut in cuts["control"] if cut}) == 2


def test_pictures_of_their_own_size_meet_in_batches_of_their_size(tmp_path: Path) -> None:
    """Targets of one size whose controls are of two: each batch has one size of both."""
    edits(tmp_path, 4)
    picture(tmp_path / "control/p2.png", 7, (64, 96))
    picture(tmp_path / "control/p3.png", 8, (64, 96))
    given = {"path": "../control/{stem}.png", "fit": "own"}
    encoders = {"pixels": PIXELS, "control": CONTROL, "both": Pairs("text", "control")}
    with project(tmp_path, concepts=concept(given), encoders=encoders) as opened:
        opened.build()
        batches = list(opened.feed(batch_size=4).epoch(0))
        assert sorted(tuple(batch["control"].shape[1:3]) for batch in batches) == [(48, 80), (80, 48)]
        assert all(batch["both"]["image_control"].shape == batch["control"].shape for batch in batches)
        snapshot = opened.store.snapshot("test")
        assert [len(batch["sample"]) for batch in snapshot.feed(batch_size=4).epoch(1)] == [2, 2]


class TestBadInput:
    """What is missing or does not fit is told by name, and the others go on."""

    def test_a_target_without_its_control_is_told_and_left_out(self, tmp_path: Path) -> None:
        """With the name of the file that is not there; `optional` keeps the sample."""
        edits(tmp_path)
        (tmp_path / "control/p1.png").unlink()
        encoders = {"pixels": PIXELS, "control": CONTROL}
        with project(tmp_path, concepts=concept(), encoders=encoders) as opened:
            plan = opened.plan()
            (failure,) = plan.failed
            assert (failure.path, failure.reason) == (
                "p1.png",
                "no control picture for it: there is no ../control/p1.png",
            )
            assert opened.build().encoded == {"pixels": 2, "control": 2}
        given = {"path": "../control/{stem}.png", "optional": True}
        with project(tmp_path, concepts=concept(given), encoders=encoders) as opened:
            assert not opened.plan().failed
            assert opened.build().encoded == {"pixels": 1, "control": 0}

    def test_a_control_without_its_target_is_told(self, tmp_path: Path) -> None:
        """Once, and not where another concept has its target; the others go on."""
        edits(tmp_path)
        picture(tmp_path / "control/q.png", 9)
        picture(tmp_path / "control/alone.png", 10)
        picture(tmp_path / "more/q.png", 11)
        both = [*concept(), {**concept()[0], "name": "more", "path": "more"}]
        with project(tmp_path, concepts=both, encoders={"control": CONTROL}) as opened:
            (failure,) = opened.plan().failed
            assert (failure.concept, failure.path) == ("edits", "../control/alone.png")
            assert failure.reason == "no picture for this control"
            assert opened.build().encoded == {"control": 4}
        with project(tmp_path, concepts=both, encoders={"pixels": PIXELS}) as opened:
            assert not opened.plan().failed, "nobody takes controls here"

    @pytest.mark.parametrize("pattern", ["{stem}_control.png", "control/{stem}.png", "../b/{stem}.png"])
    def test_controls_among_the_samples_are_no_samples(self, tmp_path: Path, pattern: str) -> None:
        """Wherever they lie, with a target or without; also where a sample may do without its control."""
        for number, name in enumerate(("x", "y")):
            picture(tmp_path / f"data/a/{name}.png", number)
            picture(tmp_path / "data/a" / pattern.format(stem=name), 100 + number)
        picture(tmp_path / "data/a" / pattern.format(stem="alone"), 200)
        for optional in (False, True):
            given = concept({"path": pattern, "optional": optional})
            with project(tmp_path, concepts=given, encoders={"pixels": PIXELS, "control": CONTROL}) as opened:
                plan = opened.plan()
                assert {Path(entry.path or "").name for entry in plan.missing.of("pixels")} == {"x.png", "y.png"}
                (failure,) = plan.failed
                assert "alone" in (failure.path or "")
                assert failure.reason == "no picture for this control"

    def test_a_pattern_that_leads_to_the_picture_itself_is_told(self, tmp_path: Path) -> None:
        """Every picture, by name: none of them has a control of its own."""
        edits(tmp_path, 2)
        with project(tmp_path, concepts=concept("{stem}.png"), encoders={"control": CONTROL}) as opened:
            plan = opened.plan()
            assert sorted(failure.path or "" for failure in plan.failed) == ["p0.png", "p1.png"]
            assert not plan.missing

    def test_a_control_of_another_shape_is_told(self, tmp_path: Path) -> None:
        """It cannot lie over its target; the message says what to write where it need not."""
        edits(tmp_path)
        picture(tmp_path / "control/p0.png", 5, (64, 96))
        with project(tmp_path, concepts=concept(), encoders={"control": CONTROL}) as opened:
            (failure,) = opened.plan().failed
            assert failure.path == "../control/p0.png"
            assert failure.reason == (
                "for p0.png: another shape than its picture: 64x96, its picture 96x64: "
                "write `fit: own` if it is to be cut by its own shape"
            )

    def test_a_file_that_a_table_names_and_that_is_not_there_is_told_with_its_target(self, tmp_path: Path) -> None:
        """Under any name, and for several targets: each of them is left out, and named."""
        edits(tmp_path, 3)
        (tmp_path / "control/p2.png").unlink()
        rows = ["image,control", "data/p0.png,control/p0.png"]
        rows += [f"data/p{number}.png,control/p2.png" for number in (1, 2)]
        (tmp_path / "table.csv").write_text("\n".join(rows))
        concepts = [{"name": "things", "path": "table.csv", "images": {"control": {"column": "control"}}}]
        with project(tmp_path, concepts=concepts, encoders={"control": CONTROL}) as opened:
            plan = opened.plan()
            told = [(failure.path, failure.reason) for failure in plan.failed]
            assert [path for path, _ in told] == ["control/p2.png"] * 2
            assert [reason.partition(": ")[0] for _, reason in told] == ["for data/p1.png", "for data/p2.png"]
            assert f"{tmp_path / 'control/p2.png'}: for data/p1.png: " in str(plan)

    def test_a_broken_control_is_told(self, tmp_path: Path) -> None:
        """Its sample is left out."""
        edits(tmp_path)
        (tmp_path / "control/p0.png").write_bytes(b"no picture")
        with project(tmp_path, concepts=concept(), encoders={"control": CONTROL}) as opened:
            assert [failure.path for failure in opened.plan().failed] == ["../control/p0.png"]
            assert opened.build().encoded == {"control": 2}

    def test_a_control_that_changes_during_a_build_is_not_encoded(self, tmp_path: Path) -> None:
        """What is read is compared with what was planned, each picture of an item."""
        edits(tmp_path, 1)
        with project(tmp_path, concepts=concept(), encoders={"both": Pairs("text", "control")}) as opened:
            plan = opened.plan()
            stale = plan.missing.keys()
            picture(tmp_path / "control/p0.png", 55)
            plan.build()
            assert opened.store.missing(stale) == stale

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            ("x", "images: must be a mapping of names to patterns, not text 'x'"),
            ({"control": "control.png"}, "images.control: 'control.png' would be one file for every picture"),
            ({"control": {"stem": None}}, "images.control: unknown field 'stem'"),
            ({"control": {"fit": "own"}}, "images.control: must have either a path or a column"),
            (
                {"control": {"path": "{stem}.x", "fit": "both"}},
                "control.fit: must be target or own, not text 'both'",
            ),
            (
                {"control": {"path": "{stem}.x", "optional": 1}},
                "control.optional: must be true or false, not the number 1",
            ),
            ({"control": ["{stem}.x", 3]}, "images.control[1]: must be a pattern or {column: …}, not the number 3"),
            ({"control": []}, "images.control: must not be empty"),
            ({"text": "{stem}.x"}, "images.text: a sample has a part of that name already"),
            ({"Control": "{stem}.x"}, "images: the name of a picture must be 1 to 64 small letters"),
            ({"c": ["{stem}.x"], "c_1": "{stem}.y"}, "images: two pictures are called 'c_1'"),
        ],
    )
    def test_a_wrong_section_is_refused(self, tmp_path: Path, images: Any, message: str) -> None:
        """With the field, and what it must be."""
        concepts = [{"name": "edits", "path": "data", "images": images}]
        with pytest.raises(precook.ConfigError) as refused:
            project(tmp_path, concepts=concepts, encoders={"pixels": PIXELS})
        assert message in str(refused.value)

    def test_a_picture_that_no_concept_has_is_refused(self, tmp_path: Path) -> None:
        """By the config, or by the plan where a class of one's own asks for it; with the nearest name."""
        edits(tmp_path, 1)
        with pytest.raises(precook.ConfigError, match=r"no concept has a picture called 'contorl'; did you mean 'con"):
            project(tmp_path, concepts=concept(), encoders={"pixels": {**PIXELS, "of": "contorl"}})
        with (
            project(tmp_path, concepts=concept(), encoders={"mine": Pairs("text", "contorl")}) as opened,
            pytest.raises(precook.ConfigError, match=r"no concept has: contorl; did you mean 'control'\?"),
        ):
            opened.plan()


def test_columns_of_a_table_name_further_pictures(tmp_path: Path) -> None:
    """A row without one is told, as is a file that is not there."""
    edits(tmp_path)
    rows = [{"image": f"data/p{number}.png", "edit": f"control/p{number}.png"} for number in range(3)]
    rows[1]["edit"] = ""
    rows[2]["edit"] = "control/none.png"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["image,edit", *(f"{row['image']},{row['edit']}" for row in rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    for name in ("rows.jsonl", "rows.csv"):
        concepts = [{"name": "edits", "path": name, "images": {"control": {"column": "edit"}}}]
        with project(tmp_path, concepts=concepts, encoders={"control": CONTROL}) as opened:
            plan = opened.plan()
            told = {failure.path: failure.reason for failure in plan.failed}
            assert told == {
                "data/p1.png": "no control picture for it: its row names none",
                "control/none.png": "for data/p2.png: cannot be read: No such file or directory",
            }
            assert len(plan.missing) + len(plan.ready) == 1
            opened.build()


def test_a_list_of_patterns_gives_numbered_pictures(tmp_path: Path) -> None:
    """`control_1` and `control_2`, which encoders take one by one or together."""
    edits(tmp_path)
    shutil.copytree(tmp_path / "control", tmp_path / "second")
    picture(tmp_path / "second/p0.png", 77)
    concepts = concept(["../control/{stem}.png", "../second/{stem}.png"])
    both = Pairs("control_1", "control_2")
    encoders = {"second": {**PIXELS, "of": "control_2"}, "both": both}
    with project(tmp_path, concepts=concepts, encoders=encoders) as opened:
        assert opened.build().encoded == {"second": 3, "both": 3}
        (batch,) = opened.feed(batch_size=3).epoch(0)
        assert np.array_equal(batch["second"], batch["both"]["image_control_2"])


class TestSeveralInputs:
    """An encoder that takes several parts of a sample."""

    def test_every_caption_meets_every_control_once(self, tmp_path: Path) -> None:
        """Equal combinations are encoded once; the same caption with another control is another entry."""
        edits(tmp_path)
        for name in ("p1", "p2"):
            (tmp_path / f"data/{name}.txt").write_text("edit 0\n")
        shutil.copy(tmp_path / "control/p1.png", tmp_path / "control/p2.png")
        encoder = Pairs("text", "control")
        with project(tmp_path, concepts=concept(), text={"empty_prompt": False}, encoders={"both": encoder}) as opened:
            assert opened.build().encoded == {"both": 3}
            assert sorted(item.text or "" for item in encoder.items) == ["change 0", "edit 0", "edit 0"]
            assert all(set(item.images) == {"control"} and item.image is None for item in encoder.items)

    def test_equal_targets_and_prompts_with_different_controls_differ(self, tmp_path: Path) -> None:
        """Two samples that only their controls tell apart have two prompts, and batches have each with its own."""
        for number, name in enumerate(("a", "b")):
            picture(tmp_path / f"data/{name}.png", 1)
            (tmp_path / f"data/{name}.txt").write_text("the same\n")
            picture(tmp_path / f"control/{name}.png", 100 + number)
        encoders = {"pixels": PIXELS, "control": CONTROL, "both": Pairs("text", "control")}
        with project(tmp_path, concepts=concept(), text={"empty_prompt": False}, encoders=encoders) as opened:
            assert opened.build().encoded == {"pixels": 1, "control": 2, "both": 2}
            (batch,) = opened.feed(batch_size=2).epoch(0)
            assert not np.array_equal(batch["control"][0], batch["control"][1])
            assert np.array_equal(batch["both"]["image_control"], batch["control"])

    def test_a_batch_has_the_entry_of_the_caption_and_the_cut_that_were_drawn(self, tmp_path: Path) -> None:
        """Over epochs, resolutions, variations and dropout: text and pictures of an item belong together."""
        edits(tmp_path)
        image = {"resolutions": [32, 64], "step": 16, "flip": "random", "variations": 3}
        encoders = {"pixels": PIXELS, "both": Pairs("control", "text", "image")}
        with project(tmp_path, concepts=concept(), image=image, encoders=encoders, keep=["captions"]) as opened:
            opened.build()
            feeds = [opened.feed(batch_size=2, caption_dropout=0.3)]
            feeds.append(opened.store.snapshot("test").feed(batch_size=2, caption_dropout=0.3))
            drawn = set()
            for feed in feeds:
                for epoch in range(6):
                    for batch in feed.epoch(epoch):
                        assert batch["both"]["text"] == batch["caption"]
                        assert np.array_equal(batch["both"]["image"], batch["pixels"])
                        drawn |= set(batch["caption"])
            assert len(drawn) == 7

    def test_without_the_empty_prompt_dropout_is_refused(self, tmp_path: Path) -> None:
        """As for encoders of texts alone."""
        edits(tmp_path, 1)
        encoders = {"both": Pairs("text", "control")}
        with project(tmp_path, concepts=concept(), text={"empty_prompt": False}, encoders=encoders) as opened:
            opened.build()
            with pytest.raises(precook.FeedError, match=r"both: the empty prompt is not among the entries"):
                opened.feed(batch_size=1, caption_dropout=0.5)

    def test_an_edited_part_makes_its_own_combinations_missing(self, tmp_path: Path) -> None:
        """One caption line or one control: the other entries stay, and the reason names the part."""
        edits(tmp_path)
        encoders = {"both": Pairs("text", "control")}
        with project(tmp_path, concepts=concept(), encoders=encoders) as opened:
            assert opened.build().encoded == {"both": 9}
            (tmp_path / "data/p0.txt").write_text("edit 0\nanother\n")
            plan = opened.plan()
            assert [why.reason for why in plan.missing.reasons()] == [Reason.CAPTION]
            opened.build()
            picture(tmp_path / "control/p1.png", 66)
            plan = opened.plan()
            assert [why.reason for why in plan.missing.reasons()] == [Reason.FURTHER] * 3
            assert "control digest" in str(plan.missing.reasons()[0].differences[0])
            told = str(plan.explain(tmp_path / "control/p1.png"))
            assert "both, 64 as 80x48, line 1: 'edit 1': missing" in told
            assert "both, 64 as 80x48, the empty prompt: missing" in told

    def test_the_names_and_the_order_of_several_inputs_are_in_the_key(self, tmp_path: Path) -> None:
        """An encoder may do one thing with one and another with the other."""
        edits(tmp_path)
        keys = []
        for inputs in (("image", "control"), ("control", "image"), ("text", "image"), ("image", "mask")):
            with project(tmp_path, concepts=concept(), encoders={"both": Pairs(*inputs)}) as opened:
                keys.append(set(opened.plan().missing.keys()))
        assert not any(one & other for number, one in enumerate(keys) for other in keys[:number])

    def test_a_mask_beside_a_picture_is_white_where_there_is_none(self, tmp_path: Path) -> None:
        """Cut as the picture, and of its size."""
        edits(tmp_path, 2)
        picture(tmp_path / "data/p1-masklabel.png", 5)
        concepts = [{"name": "edits", "path": "data", "masks": "{stem}-masklabel.png"}]
        encoder = Pairs("image", "mask")
        with project(tmp_path, concepts=concepts, encoders={"both": encoder}) as opened:
            opened.build()
        masks = [item.mask for item in encoder.items]
        assert sorted(bool((mask == 255).all()) for mask in masks if mask is not None) == [False, True]
        assert all(mask is not None and mask.shape == (48, 80) for mask in masks)

    def test_an_absent_optional_picture_is_absent(self, tmp_path: Path) -> None:
        """The encoder gets what there is, and batches have no items of an encoder of that picture alone."""
        edits(tmp_path)
        (tmp_path / "control/p1.png").unlink()
        given = {"path": "../control/{stem}.png", "optional": True}
        watched = Watched(None, lambda item: len(item.images))
        watched.inputs = ("text", "control")
        encoders = {"pixels": PIXELS, "control": CONTROL, "count": watched}
        with project(tmp_path, concepts=concept(given), encoders=encoders) as opened:
            assert opened.build().encoded == {"pixels": 3, "control": 2, "count": 9}
            batches = list(opened.feed(batch_size=4).epoch(0))
            assert sorted(len(batch["sample"]) for batch in batches) == [1, 2]
            for batch in batches:
                has = len(batch["sample"]) == 2
                assert (batch["control"] is not None) == has
                assert batch["count"] == [int(has)] * len(batch["sample"])

    def test_live_feeds_encode_combinations(self, tmp_path: Path) -> None:
        """What a batch lacks is made for it, and never again."""
        edits(tmp_path)
        encoder = Pairs("text", "control")
        with project(tmp_path, concepts=concept(), encoders={"both": encoder}) as opened:
            with opened.feed(batch_size=3, on_missing="encode") as feed:
                (batch,) = feed.epoch(0)
                assert len(encoder.items) in (3, 4)
                assert all(text.endswith(tuple("012")) for text in batch["both"]["text"])
            opened.build()
            assert len(encoder.items) == 9

    def test_entries_travel_with_their_dataset(self, tmp_path: Path) -> None:
        """Frozen, exported, imported elsewhere and fed there, without sources; gc keeps them; status counts them."""
        edits(tmp_path)
        encoders = {"pixels": PIXELS, "both": Pairs("text", "control")}
        with project(tmp_path, concepts=concept(), encoders=encoders) as opened:
            opened.build()
            (first,) = opened.store.snapshot("test").feed(batch_size=3).epoch(0)
        assert run("export", "test", str(tmp_path / "test.tar"), "--store", str(tmp_path / "cache")).code == 0
        assert run("import", str(tmp_path / "test.tar"), "--store", str(tmp_path / "other")).code == 0
        with precook.open(tmp_path / "other") as store:
            (again,) = store.snapshot("test").feed(batch_size=3).epoch(0)
        assert np.array_equal(first["both"]["image_control"], again["both"]["image_control"])
        assert first["both"]["text"] == again["both"]["text"]
        assert run("gc", "--grace", "0s", "--yes", "--store", str(tmp_path / "cache")).code == 0
        with project(tmp_path, concepts=concept(), encoders=encoders) as opened:
            assert not opened.plan().missing

    def test_recomputing_gives_the_same(self, tmp_path: Path) -> None:
        """`verify --recompute` reads all parts of an item again."""
        edits(tmp_path)
        with project(tmp_path, concepts=concept(), encoders={"both": Pairs("text", "control")}) as opened:
            opened.build()
            (difference,) = opened.recompute(1.0)
            assert (difference.checked, difference.equal) == (9, 9)


def test_a_single_text_or_picture_keeps_its_key(tmp_path: Path) -> None:
    """A dataset that gets controls has all its old entries: keys of one input are what they were."""
    edits(tmp_path)
    encoders: dict[str, Any] = {"pixels": PIXELS, "words": Watched("text")}
    with project(tmp_path, encoders=encoders) as opened:
        opened.build()
    with project(tmp_path, concepts=concept(name="things"), encoders=encoders) as opened:
        assert not opened.plan().missing


@pytest.mark.parametrize("folder", ["data", "data/more"])
def test_a_control_without_its_target_is_no_target_where_both_lie_in_one_folder(tmp_path: Path, folder: str) -> None:
    """Wherever in the concept that is, and whether or not all others have their controls."""
    for number, name in enumerate(("a", "a_control", "b", "lost_control")):
        picture(tmp_path / folder / f"{name}.png", number)
    control = {"path": "{stem}_control.png", "optional": True}
    with project(tmp_path, concepts=concept(control), encoders={"pixels": PIXELS, "control": CONTROL}) as owner:
        plan = owner.plan()
        assert {Path(entry.path or "").name for entry in plan.missing} == {"a.png", "b.png"}
        (failure,) = plan.failed
        assert (Path(failure.path or "").name, failure.reason) == ("lost_control.png", "no picture for this control")
