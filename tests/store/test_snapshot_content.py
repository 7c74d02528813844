"""What a snapshot says: typed columns, and the same tree again when they are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.store.snapshot import read_snapshot
from precook.store.snapshot_content import FrozenEos, SnapshotContent, Texts
from precook.store.tree import take_apart
from tests.support.feeds import tree
from tests.support.forged import name_of, pack_of


def made(**changes: Any) -> dict[str, Any]:
    """The tree of a small snapshot, with fields that only another writer knows, at every place where one can be."""
    form = tree([("cats", 1), ("dogs", 2)])
    form["lines"]["order"] = np.array([1, 0], np.int32)
    for part in (form["image"], form["concepts"][1], form["samples"], form["pictures"], form["lines"]):
        part["more"] = np.arange(2)
    form["encoders"]["prompt"] |= {"pad": 7, "eos": {**EOS, "more": "of it"}, "more": "of it"}
    return {**form, "order": np.array([1, 0]), "nested": {"a": [1, None]}, **changes}


def cut_numbers(**changes: Any) -> dict[str, Any]:
    """The pictures of the same snapshot, with the numbers of their cuts."""
    numbers = {name: np.ones((2, 2), np.int32) for name in ("original", "crop")}
    return {**made()["pictures"], **numbers, **changes}


def concept(**changes: Any) -> dict[str, Any]:
    return {"name": "cats", "loss_weight": 1.0, "repeats": 1.0, "samples": None, **changes}


def test_what_was_read_is_stored_as_it_was() -> None:
    """Equal content is equal bytes, also with fields that another writer has added: nobody's snapshot changes."""
    form = made()
    before, after = take_apart(form), take_apart(SnapshotContent.of(form).tree())
    assert (before.skeleton, before.values) == (after.skeleton, after.values)
    assert [leaf.data.tobytes() for leaf in before.leaves] == [leaf.data.tobytes() for leaf in after.leaves]


def test_the_numbers_of_cuts_are_stored_as_they_were() -> None:
    """A snapshot that has them keeps them, and one without gets none."""
    form = made(pictures=cut_numbers())
    assert SnapshotContent.of(form).tree()["pictures"].keys() == form["pictures"].keys()
    assert not {"original", "crop"} & SnapshotContent.of(made()).tree()["pictures"].keys()


def test_columns_have_names() -> None:
    """Each part is found by name, and what the format does not know stands apart."""
    content = SnapshotContent.of(made())
    assert [concept.name for concept in content.concepts] == ["cats", "dogs"]
    assert (content.encoders["prompt"].pad, content.encoders["latent"].pad) == (7, None)
    assert content.encoders["prompt"].eos == FrozenEos(3, 1, 0, None, {"more": "of it"})
    assert content.encoders["latent"].eos is None
    assert content.lines.order is not None
    assert content.kept == {"captions"}
    assert set(content.extra) == {"order", "nested"}
    assert content.captions is not None
    assert sorted(content.captions.split()) == [b"1/0", b"2/0"]


@pytest.mark.parametrize("texts", [[], [b""], [b"a", b"", b"bc"]])
def test_texts_come_back(texts: list[bytes]) -> None:
    """Joined and split again, each by its row."""
    column = Texts.join(texts)
    assert column.split() == texts == [column[row] for row in range(len(column))]


EOS = {"id": 3, "before": 1, "after": 0, "limit": None}
WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a part is missing": (lambda: {name: part for name, part in made().items() if name != "lines"}, "'lines'"),
    "a column is missing": (lambda: made(lines={}), "'sample'"),
    "a column of another type": (lambda: made(lines={"sample": np.zeros(2)}), "do not fit together"),
    "a sample that is not there": (lambda: made(lines={"sample": np.array([0, 2], np.int32)}), "do not fit together"),
    "a concept without weights": (lambda: made(concepts=[{"name": "cats"}]), "'loss_weight'"),
    "a concept whose weight is no number": (lambda: made(concepts=[concept(loss_weight=nan)] * 2), "no weights"),
    "a concept that is shown less than never": (lambda: made(concepts=[concept(repeats=-1)] * 2), "no weights"),
    "a concept of half a sample": (lambda: made(concepts=[concept(samples=0.5)] * 2), "no number of samples"),
    "an encoder without a recipe": (lambda: made(encoders={"latent": {"input": "image"}}), "'recipe'"),
    "an encoder that pads with text": (
        lambda: made(encoders={"latent": {"input": "image", "recipe": "", "pad": "x"}}),
        "pads with no number",
    ),
    "an encoder that ends texts with a text": (
        lambda: made(encoders={"latent": {"input": "text", "recipe": "", "eos": {**EOS, "id": "x"}}}),
        "ends texts with no token",
    ),
    "an encoder that ends texts below zero": (
        lambda: made(encoders={"latent": {"input": "text", "recipe": "", "eos": {**EOS, "before": -1}}}),
        "ends texts with no token",
    ),
    "an end of no limit": (
        lambda: made(encoders={"latent": {"input": "text", "recipe": "", "eos": {"id": 1, "before": 0, "after": 0}}}),
        "'limit'",
    ),
    "captions in an order of others": (
        lambda: made(lines={**made()["lines"], "order": np.array([0, 2], np.int32)}),
        "do not fit together",
    ),
    "an order of one caption alone": (
        lambda: made(lines={**made()["lines"], "order": np.array([0], np.int32)}),
        "do not fit together",
    ),
    "a dataset that leads out of its folder": (lambda: made(dataset="../up"), "no name"),
    "an encoder that leads out of its folder": (
        lambda: made(encoders={**made()["encoders"], "../../up": {"input": "image", "recipe": ""}}),
        "an encoder is called",
    ),
    "an encoder without a name": (lambda: made(encoders={1: {}}), "no names"),
    "sizes below zero": (
        lambda: made(pictures={**made()["pictures"], "size": np.full((2, 2), -1, np.int32)}),
        "do not fit together",
    ),
    "the size of a picture, and no offset": (
        lambda: made(pictures={**made()["pictures"], "original": np.ones((2, 2), np.int32)}),
        "do not fit together",
    ),
    "offsets below zero": (lambda: made(pictures=cut_numbers(crop=np.full((2, 2), -1, np.int32))), "do not fit"),
    "offsets of one picture alone": (lambda: made(pictures=cut_numbers(crop=np.ones((1, 2), np.int32))), "do not fit"),
    "sizes of pictures that are texts": (lambda: made(pictures=cut_numbers(original="ab")), "do not fit"),
    "captions that end before they begin": (
        lambda: made(captions={"text": np.zeros(4, np.uint8), "ends": np.array([3, 2])}),
        "do not fit together",
    ),
    "captions that end outside": (
        lambda: made(captions={"text": np.zeros(4, np.uint8), "ends": np.array([3, 5])}),
        "do not fit together",
    ),
    "a part that is a number": (lambda: made(image=1), "no names"),
    "columns that are texts": (lambda: made(lines={"sample": "ab"}), "do not fit together"),
    "concepts by name": (lambda: made(concepts={}), "no list"),
    "cuts of no number": (lambda: made(image={"resolutions": [1.5], "variations": 1, "pick": "one"}), "were cut"),
    "a weight that no float holds": (lambda: made(concepts=[concept(loss_weight=10**400)] * 2), "no weights"),
    "repeats that no float holds": (lambda: made(concepts=[concept(repeats=10**400)] * 2), "no weights"),
    "samples without number": (lambda: made(concepts=[concept(samples=2**70)] * 2), "no number of samples"),
    "a pad that no column holds": (
        lambda: made(encoders={"latent": {"input": "image", "recipe": '["x",{}]', "pad": 2**70}}),
        "pads with no number",
    ),
    "a resolution that no column holds": (
        lambda: made(image={"resolutions": [2**70], "variations": 1, "pick": "one"}),
        "were cut",
    ),
    "keys of an unknown encoder": (lambda: made(encoders={}), "do not fit together"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_another_tree_is_no_snapshot(tmp_path: Path, kind: str) -> None:
    """Whatever does not fit is an error that names the file and what is wrong, not a snapshot that fails later."""
    form, reason = WRONG[kind]
    with precook.open(tmp_path / "cache") as store:
        written = store.freeze("made-up", SnapshotContent.of(made()))
        content = pack_of(form())
        written.file.path.with_name(f"00000002-{name_of(content)}.safetensors").write_bytes(content)
        with pytest.raises(precook.DamagedPackError, match=reason):
            store.snapshot("made-up")
        assert read_snapshot(written.file).samples == 2


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    """A snapshot that its readers would refuse is an error when it is made, and the one before it stays the latest."""
    with precook.open(tmp_path / "cache") as store:
        written = store.freeze("made-up", SnapshotContent.of(made()))
        wrong = dataclasses.replace(written.content.concepts[0], samples=-1)
        with pytest.raises(precook.PrecookError, match="cannot be frozen"):
            store.freeze("made-up", dataclasses.replace(written.content, concepts=[wrong] * 2))
        assert store.snapshot("made-up").file == written.file
