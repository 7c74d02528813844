"""Snapshots of somebody else: a feed gives what they say, or an error that says what is wrong with them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.store.layout import Layout
from tests.support.feeds import everything, images
from tests.support.forged import make_archive, name_of, pack_of, take_archive


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built dataset of pictures, masks and texts."""
    base = tmp_path_factory.mktemp("home")
    with everything(images(base, 4), keep=["captions"]) as made:
        assert not made.build().failed
    return base


@pytest.fixture
def store(home: Path) -> Iterator[precook.Store]:
    with precook.open(home / "cache") as opened:
        yield opened


def put(store: precook.Store, tree: dict[str, Any]) -> None:
    """Make this the latest snapshot, whatever it says."""
    content = pack_of(tree)
    folder = Layout(store.path).snapshots / "test"
    number = 1 + max(int(path.name[:8]) for path in folder.iterdir())
    (folder / f"{number:08d}-{name_of(content)}.safetensors").write_bytes(content)


def shown(store: precook.Store, **options: Any) -> list[Any]:
    """The first batches of a feed of the latest snapshot."""
    given = {"tensors": "numpy", "batch_size": 2, "threads": 0, **options}
    with store.snapshot("test").feed(**given) as feed:
        return list(itertools.islice(feed.epoch(0), 3))


def test_an_epoch_of_billions_is_refused(home: Path, store: precook.Store, tmp_path: Path) -> None:
    """An archive may ask for a billion repeats: whoever feeds it is told, before memory is taken."""
    export_bundle(store, "test", tmp_path / "out.tar")
    manifest, members = take_archive((tmp_path / "out.tar").read_bytes())
    tree = store.snapshot("test").content.tree()
    del tree["captions"]
    tree["concepts"][0]["repeats"] = 1e9
    members[0] = pack_of(tree)
    (tmp_path / "evil.tar").write_bytes(make_archive(manifest, members))
    with precook.open(tmp_path / "there") as there, (tmp_path / "evil.tar").open("rb") as archive:
        import_bundle(there, archive)
        with pytest.raises(precook.FeedError, match="would show 4,000,000,000 items") as refused:
            shown(there)
        assert "repeats" in refused.value.hint
        assert there.verify().clean


def test_many_repeats_are_drawn_at_once(store: precook.Store) -> None:
    """What an epoch costs grows with its items, not with their square."""
    tree = store.snapshot("test").content.tree()
    tree["concepts"][0]["repeats"] = 100_000.0
    put(store, tree)
    with store.snapshot("test").feed(tensors="numpy", batch_size=1000, threads=0) as feed:
        assert len(feed) == 400


def changed(tree: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    """The tree with another part at some place."""
    *way, last = path
    part: Any = tree
    for step in way:
        part = part[step]
    part[last] = to
    return tree


def recipe(kind: str, **data: Any) -> str:
    return json.dumps([kind, data])


UNFIT: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "rows in another order": (
        lambda tree: changed(tree, "pictures", "sample", to=tree["pictures"]["sample"][::-1].copy()),
        "not in the order",
    ),
    "captions in another order": (
        lambda tree: changed(tree, "lines", "sample", to=tree["lines"]["sample"][::-1].copy()),
        "not in the order",
    ),
    "a sample without a picture": (
        lambda tree: changed(tree, "pictures", "sample", to=np.zeros(4, np.int32)),
        "no picture",
    ),
    "a weight beyond a float": (lambda tree: changed(tree, "concepts", 0, "loss_weight", to=1e300), "loss_weight"),
    "an encoder that nothing is said of": (
        lambda tree: changed(tree, "encoders", "words", "recipe", to=""),
        "nothing is said",
    ),
    "an encoder whose recipe is a number": (
        lambda tree: changed(tree, "encoders", "words", "recipe", to="5"),
        "nothing is said",
    ),
    "an encoder without entries": (lambda tree: changed(tree, "line_keys", to={}), "no entries"),
    "an empty prompt of pictures": (
        lambda tree: changed(tree, "empty_keys", "pixels", to=np.ones(32, np.uint8)),
        "no entries",
    ),
    "a caption that is not text": (
        lambda tree: changed(tree, "captions", "text", to=np.full_like(tree["captions"]["text"], 0xFF)),
        "not text",
    ),
    "masks of nothing": (
        lambda tree: changed(
            changed(tree, "picture_keys", "mask", to=np.zeros((4, 32), np.uint8)),
            "encoders",
            "mask",
            "recipe",
            to=recipe("mask", factor=0),
        ),
        "cannot be made",
    ),
    "masks of a whole disk": (
        lambda tree: changed(
            changed(tree, "picture_keys", "mask", to=np.zeros((4, 32), np.uint8)),
            "pictures",
            "size",
            to=tree["pictures"]["size"] << 24,
        ),
        "cannot be made",
    ),
    "latents that are none": (
        lambda tree: changed(tree, "encoders", "pixels", "recipe", to=recipe("diffusers-vae", posterior="moments")),
        "mean and variance",
    ),
    "tokens that do not fit": (
        lambda tree: changed(
            changed(tree, "encoders", "words", "recipe", to=recipe("transformers-tokens")),
            "encoders",
            "words",
            "pad",
            to=2**40,
        ),
        "does not fit",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_snapshot_that_cannot_be_fed_says_why(store: precook.Store, kind: str) -> None:
    """Neither a number too many nor another's picture: an error that names the dataset or the encoder."""
    change, reason = UNFIT[kind]
    good = next(file for file in store.snapshots() if file.number == 1)
    tree = precook.store.snapshot.read_snapshot(good).content.tree()
    put(store, change(tree))
    pad = {"words": 100} if "tokens" in kind else None
    with pytest.raises(precook.FeedError, match=reason):
        shown(store, pad=pad)


@pytest.mark.parametrize("eos", [{"id": 2**31, "before": 9, "after": 9, "limit": 0}, None], ids=["odd", "none"])
def test_rows_of_what_are_no_tokens_are_refused(store: precook.Store, eos: Any) -> None:
    """A snapshot may call any entries token ids, and say anything of how they end."""
    pytest.importorskip("datasets", reason="datasets is not installed")
    good = next(file for file in store.snapshots() if file.number == 1)
    tree = precook.store.snapshot.read_snapshot(good).content.tree()
    tree["encoders"]["words"] = {"input": "text", "recipe": recipe("transformers-tokens")}
    if eos is not None:
        tree["encoders"]["words"]["eos"] = eos
    tree["lines"]["order"] = np.zeros(len(tree["lines"]["sample"]), np.int32)
    put(store, tree)
    with store.snapshot("test").feed(tensors="numpy", batch_size=2) as feed, pytest.raises(precook.FeedError):
        feed.as_hf_dataset("words")
