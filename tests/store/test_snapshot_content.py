"""What a snapshot says: typed columns, and the same tree again when they are stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.store.snapshot import read_snapshot
from precook.store.snapshot_content import SnapshotContent, Texts
from precook.store.tree import take_apart
from tests.support.feeds import tree


def made(**changes: Any) -> dict[str, Any]:
    """The tree of a small snapshot, with fields that only another writer knows, at every place where one can be."""
    form = tree([("cats", 1), ("dogs", 2)])
    for part in (form["image"], form["concepts"][1], form["samples"], form["pictures"], form["lines"]):
        part["more"] = np.arange(2)
    form["encoders"]["prompt"] |= {"pad": 7, "more": "of it"}
    return {**form, "order": np.array([1, 0]), "nested": {"a": [1, None]}, **changes}


def test_what_was_read_is_stored_as_it_was() -> None:
    """Equal content is equal bytes, also with fields that another writer has added: nobody's snapshot changes."""
    form = made()
    before, after = take_apart(form), take_apart(SnapshotContent.of(form).tree())
    assert (before.skeleton, before.values) == (after.skeleton, after.values)
    assert [leaf.data.tobytes() for leaf in before.leaves] == [leaf.data.tobytes() for leaf in after.leaves]


def test_columns_have_names() -> None:
    """Each part is found by name, and what the format does not know stands apart."""
    content = SnapshotContent.of(made())
    assert [concept.name for concept in content.concepts] == ["cats", "dogs"]
    assert (content.encoders["prompt"].pad, content.encoders["latent"].pad) == (7, None)
    assert content.kept == {"captions"}
    assert set(content.extra) == {"order", "nested"}
    assert content.captions is not None
    assert sorted(content.captions.split()) == [b"1/0", b"2/0"]


@pytest.mark.parametrize("texts", [[], [b""], [b"a", b"", b"bc"]])
def test_texts_come_back(texts: list[bytes]) -> None:
    """Joined and split again, each by its row."""
    column = Texts.join(texts)
    assert column.split() == texts == [column[row] for row in range(len(column))]


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a part is missing": (lambda: {name: part for name, part in made().items() if name != "lines"}, "'lines'"),
    "a column is missing": (lambda: made(lines={}), "'sample'"),
    "a column of another type": (lambda: made(lines={"sample": np.zeros(2)}), "do not fit together"),
    "a sample that is not there": (lambda: made(lines={"sample": np.array([0, 2], np.int32)}), "do not fit together"),
    "a concept without weights": (lambda: made(concepts=[{"name": "cats"}]), "one of its concepts"),
    "an encoder without a recipe": (lambda: made(encoders={"latent": {"input": "image"}}), "one of its encoders"),
    "keys of an unknown encoder": (lambda: made(encoders={}), "do not fit together"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_another_tree_is_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Whatever does not fit is an error that names the file and what is wrong, not a snapshot that fails later."""
    form, reason = WRONG[kind]
    with precook.open(tmp_path / "cache") as store:
        written = store.freeze("made-up", SnapshotContent.of(made()))
        monkeypatch.setattr(SnapshotContent, "tree", lambda _: form())
        with pytest.raises(precook.DamagedPackError, match=reason):
            store.freeze("made-up", written.content)
        assert read_snapshot(written.file).samples == 2
