"""Concepts for validation: built with the others, and shown by a feed of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.store import snapshot
from tests.support.projects import Watched, picture, project

TRAIN = {"name": "train", "path": "train"}
CHECK = {"name": "check", "path": "check", "validation": True}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Two folders with four and three pictures, with two captions each."""
    for seed, (name, count) in enumerate({"train": 4, "check": 3}.items()):
        for number in range(count):
            picture(tmp_path / name / f"{number}.png", 10 * seed + number)
            (tmp_path / name / f"{number}.txt").write_text(f"{name} {number}\n{name} {number} again\n")
    return tmp_path


def opened(base: Path, *concepts: dict[str, Any], **sections: Any) -> precook.Project:
    return project(base, concepts=list(concepts), **sections)


def shown(feed: Any, epochs: int = 3) -> list[tuple[Any, ...]]:
    """What each batch of some epochs holds, but for tensors."""
    return [
        (batch["concept"], batch["sample"], batch.get("caption"), batch["pixels"].tolist())
        for epoch in range(epochs)
        for batch in feed.epoch(epoch)
    ]


def names(feed: Any) -> list[str]:
    return sorted(name for concepts, *_ in shown(feed, 1) for name in concepts)


def test_a_build_makes_both_and_each_feed_shows_its_own(base: Path) -> None:
    """Training feeds never show a sample for validation, and feeds for validation show nothing else."""
    with opened(base, TRAIN, CHECK) as made:
        plan = made.plan()
        assert "check: 3 samples for validation" in str(plan)
        plan.build()
        assert not made.plan().missing
        for source in (made, made.store.snapshot("test")):
            assert names(source.feed(batch_size=2, seed=0)) == ["train"] * 4
            assert names(source.feed(batch_size=2, seed=0, validation=True)) == ["check"] * 3


@pytest.mark.parametrize("keep", [[], ["paths", "captions"]])
def test_training_is_as_if_there_were_no_validation(base: Path, keep: list[str]) -> None:
    """The very same batches, whether the other concept is there or not; a state goes on, too."""
    sections = {"keep": keep, "store": "cache"}
    with opened(base, TRAIN, **sections) as made:
        made.build()
        feed = made.feed(batch_size=2, seed=5)
        alone = shown(feed)
        for _ in zip(feed.epoch(3), range(1), strict=False):
            state = feed.state_dict()
    for concepts in ((TRAIN, CHECK), (CHECK, TRAIN)):
        with opened(base, *concepts, **sections) as made:
            made.build()
            assert shown(made.feed(batch_size=2, seed=5)) == alone
            feed = made.feed(batch_size=2, seed=5)
            feed.load_state_dict(state)
            assert len(list(feed.epoch(3))) == 1


def test_a_validation_feed_is_as_if_there_were_nothing_else(base: Path) -> None:
    """Its batches are those that the concept alone would give."""
    with opened(base, TRAIN, CHECK) as made:
        made.build()
        beside = shown(made.feed(batch_size=2, seed=5, validation=True))
    with opened(base, {**CHECK, "validation": False}) as made:
        made.build()
        assert shown(made.feed(batch_size=2, seed=5)) == beside


def test_the_flag_costs_no_entry(base: Path) -> None:
    """Turning a concept into one for validation, and back, encodes nothing."""
    with opened(base, TRAIN, CHECK) as made:
        made.build()
    with opened(base, TRAIN, {**CHECK, "validation": False}) as made:
        assert not any(made.build().encoded.values())
        assert names(made.feed(batch_size=2, seed=0)) == ["check"] * 3 + ["train"] * 4


def test_without_such_a_concept_there_is_no_such_feed(base: Path) -> None:
    """The error says what to write, from a project and from a snapshot."""
    with opened(base, TRAIN) as made:
        made.build()
        for source in (made, made.store.snapshot("test")):
            with pytest.raises(precook.FeedError, match="no concept for validation") as caught:
                source.feed(batch_size=2, validation=True)
            assert "validation: true" in (caught.value.hint or "")


def test_nothing_but_validation_is_nothing_to_train_on(base: Path) -> None:
    """A feed for training refuses, and says that it is the flag, from a project and from a snapshot."""
    with opened(base, CHECK) as made:
        made.build()
        for source in (made, made.store.snapshot("test")):
            with pytest.raises(precook.FeedError, match="every concept is for validation") as caught:
                source.feed(batch_size=2)
            assert "validation=True" in (caught.value.hint or "")


def test_where_nothing_is_built_a_feed_that_skips_says_so(base: Path) -> None:
    """It names what is missing, of what it would show: sources that could not be used are another cause."""
    with opened(base, TRAIN, CHECK) as made:
        for validation in (False, True):
            with pytest.raises(precook.FeedError, match=r"22 entries missing: .*no sample is left") as caught:
                made.feed(batch_size=2, on_missing="skip", validation=validation)
            assert "precook build" in (caught.value.hint or "")
    for path in (base / "check").iterdir():
        path.unlink()
    with (
        opened(base, TRAIN, CHECK) as made,
        pytest.raises(precook.FeedError, match="test has no samples to validate with"),
    ):
        made.feed(batch_size=2, on_missing="skip", validation=True)


def test_a_live_feed_encodes_what_it_shows_and_no_more(base: Path) -> None:
    """With `on_missing="encode"` a training feed makes no entry of a sample for validation."""
    encoder = Watched("image")
    made = opened(base, TRAIN, CHECK, encoders={"pixels": encoder})
    with made, made.feed(batch_size=4, seed=0, on_missing="encode") as feed:
        assert len(list(feed.epoch(0))) == 1
    assert len(encoder.items) == 4


def test_an_exported_dataset_keeps_them_apart(base: Path, tmp_path: Path) -> None:
    """The archive of a dataset brings the flag along."""
    with opened(base, TRAIN, CHECK) as made:
        made.build()
        export_bundle(made.store, "test", tmp_path / "test.tar")
    with precook.open(tmp_path / "other") as there, (tmp_path / "test.tar").open("rb") as archive:
        import_bundle(there, archive)
        imported = there.snapshot("test")
        assert names(imported.feed(batch_size=2)) == ["train"] * 4
        assert names(imported.feed(batch_size=2, validation=True)) == ["check"] * 3


def test_older_readers_refuse_the_snapshot(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not know the flag would train on these samples: it says that it is too old instead."""
    with opened(base, TRAIN, CHECK) as made:
        made.build()
    monkeypatch.setattr(snapshot, "FORMAT", 1)
    with precook.open(base / "cache") as store, pytest.raises(precook.PrecookError, match="2"):
        store.snapshot("test")
    monkeypatch.undo()
    with opened(base, TRAIN, store="plain") as made:
        made.build()
    monkeypatch.setattr(snapshot, "FORMAT", 1)
    with precook.open(base / "plain") as store:
        assert store.snapshot("test").samples == 4


class Both(Watched):
    """A user's encoder of a picture, its control and its caption, which keeps what it was given."""

    inputs = ("image", "control", "text")

    def __init__(self) -> None:
        super().__init__(None, lambda item: {"text": item.text or "", "red": int(item.images["control"][0, 0, 0])})


def test_entries_of_pictures_with_texts_stay_together(base: Path) -> None:
    """Of an encoder that takes both, each feed has its own pairs, the empty prompt's among them."""
    for name in ("train", "check"):
        for number, path in enumerate(sorted((base / name).glob("*.png"))):
            picture(base / f"{name}-control" / path.name, 50 + number, (40, 40 + 8 * number))
    images = {
        name: {"control": {"path": f"../{name}-control/{{stem}}.png", "fit": "own"}} for name in ("train", "check")
    }
    train, check = {**TRAIN, "images": images["train"]}, {**CHECK, "images": images["check"]}
    options = {"batch_size": 1, "seed": 2, "caption_dropout": 0.4}
    alone = []
    for concept in (train, {**check, "validation": False}):
        with opened(base, concept, encoders={"both": Both()}) as made:
            made.build()
            feed = made.feed(**options)
            alone.append([(batch["sample"], batch["both"]) for epoch in range(3) for batch in feed.epoch(epoch)])
    assert any(both[0]["text"] == "" for _, both in alone[0])
    assert any(both[0]["text"] != "" for _, both in alone[0])
    with opened(base, check, train, encoders={"both": Both()}) as made:
        made.build()
        for source in (made, made.store.snapshot("test")):
            for validation, expected in zip((False, True), alone, strict=True):
                feed = source.feed(**options, validation=validation)
                shown = [(batch["sample"], batch["both"]) for epoch in range(3) for batch in feed.epoch(epoch)]
                assert str(shown) == str(expected)


def test_texts_without_pictures_are_held_back_too(tmp_path: Path) -> None:
    """A concept of texts alone is for validation as any other."""
    for name, count in (("train", 4), ("check", 3)):
        rows = [json.dumps({"text": f"{name} {number}"}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    concepts = [
        {"name": "train", "path": "train.jsonl", "texts": {"column": "text"}},
        {"name": "check", "path": "check.jsonl", "texts": {"column": "text"}, "validation": True},
    ]
    with opened(tmp_path, *concepts, encoders={"words": Watched()}) as made:
        made.build()
        for source in (made, made.store.snapshot("test")):
            for validation, expected in ((False, ["train"] * 4), (True, ["check"] * 3)):
                feed = source.feed(batch_size=2, seed=0, validation=validation)
                assert sorted(name for batch in feed.epoch(0) for name in batch["concept"]) == expected


def test_pictures_that_are_trained_on_and_validated_with_are_told(base: Path) -> None:
    """The plan counts those for validation and names one with its twin; within one of both nothing is said."""
    for name in ("0.png", "1.png"):
        shutil.copy(base / "train/2.png", base / "check" / name)
    with opened(base, TRAIN, CHECK) as made:
        told = f"such as {base / 'check/0.png'} and {base / 'train/2.png'}"
        assert f"2 samples for validation with the same picture as one to train on, {told}" in str(made.plan())
    for one, other in ((TRAIN, {**CHECK, "validation": False}), ({**TRAIN, "validation": True}, CHECK)):
        with opened(base, one, other) as made:
            assert "as one to train on" not in str(made.plan())


def test_texts_that_are_trained_on_and_validated_with_are_told(tmp_path: Path) -> None:
    """As pictures are, by table and row."""
    for name, texts in (("train", ["a", "b", "c"]), ("check", ["d", "c"])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    concepts = [
        {"name": "train", "path": "train.jsonl", "texts": {"column": "text"}},
        {"name": "check", "path": "check.jsonl", "texts": {"column": "text"}, "validation": True},
    ]
    with opened(tmp_path, *concepts, encoders={"words": Watched()}) as made:
        told = f"such as {tmp_path / 'check.jsonl'}, row 2 and {tmp_path / 'train.jsonl'}, row 3"
        assert f"1 sample for validation with the same text as one to train on, {told}" in str(made.plan())
