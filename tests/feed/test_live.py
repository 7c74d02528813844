"""Entries that are not there: an error that names them, made on the spot, or left out."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.feed.feed import Feed, FeedOptions, feed_plan
from precook.plan.plan import Plan
from tests.support.feeds import equal, everything, images
from tests.support.projects import Watched, content, picture, project

pytest.importorskip("torch", reason="batches are torch tensors")
from torch.utils.data import DataLoader


def watched(base: Path, words: Any = None, pixels: Any = None, **changes: Any) -> precook.Project:
    """A project whose encoders are watched."""
    encoders = {"pixels": pixels or Watched("image"), "words": words or Watched("text")}
    return everything(base, **{"encoders": encoders, **changes})


def damage(owner: precook.Project, encoder: str, count: int = 1) -> list[precook.Key]:
    """Flip a byte inside some entries of an encoder."""
    keys = [entry.key for entry in owner.plan().ready.of(encoder)][:count]
    for key in keys:
        place = owner.store.locate(key)
        begin, size = place.table.table.leaves[0].span(place.row)
        data = bytearray(place.pack.read_bytes())
        data[begin + size // 2] ^= 1
        place.pack.write_bytes(data)
    owner.close()
    return keys


class TestError:
    """The default: nothing is trained that is not whole."""

    def test_what_is_missing_is_counted_by_encoder(self, tmp_path: Path) -> None:
        """Without a build, feeding says how much is missing, of what, and what to do."""
        with pytest.raises(precook.FeedError, match=r"19 entries missing: 6 of pixels, 13 of words") as caught:
            watched(images(tmp_path)).feed(batch_size=2)
        assert "precook build" in caught.value.hint

    def test_a_damaged_entry_ends_the_epoch_by_name(self, tmp_path: Path) -> None:
        """SCENARIOS D3: a flipped byte is an error that names the entry, never wrong numbers in a batch."""
        owner = watched(images(tmp_path))
        owner.build()
        (key,) = damage(owner, "pixels")
        with pytest.raises(precook.FeedError, match=key.hex[:16]):
            list(owner.feed(batch_size=2).epoch(0))

    def test_an_empty_prompt_that_failed_stops_nobody_who_does_not_need_it(self, tmp_path: Path) -> None:
        """An encoder that makes nothing of the empty text leaves a dataset to feed; only caption dropout is refused."""

        def fail(item: precook.Item) -> Any:
            if not item.text:
                raise ValueError("nothing to encode")
            return content(item)

        owner = watched(images(tmp_path), Watched("text", fail))
        (failure,) = owner.build().failed
        assert failure.path is None
        expected = list(owner.feed(batch_size=2).epoch(0))
        assert sum(len(batch["sample"]) for batch in expected) == 6
        assert sum(len(batch["sample"]) for batch in owner.store.snapshot("test").feed(batch_size=2).epoch(0)) == 6
        for on_missing in ("error", "encode", "skip"):
            with pytest.raises(precook.FeedError, match="words: the empty prompt is not among the entries"):
                owner.feed(batch_size=2, caption_dropout=0.5, on_missing=on_missing)


class TestEncode:
    """A first epoch without a build."""

    def test_a_first_epoch_without_a_build(self, tmp_path: Path) -> None:
        """Over an empty store the first epoch encodes each entry once, the second only reads; both are equal."""
        words, pixels = Watched("text"), Watched("image")
        owner = watched(images(tmp_path, lines=1), words, pixels)
        with owner.feed(batch_size=2, on_missing="encode") as feed:
            first = list(feed.epoch(0))
            made = (len(words.items), len(pixels.items))
            assert made == (7, 6), "with the empty prompt"
            assert equal(first, feed.epoch(0))
            assert (len(words.items), len(pixels.items)) == made
        assert (words.loads, words.unloads) == (1, 1)
        built = watched(tmp_path, store="built")
        built.build()
        assert equal(first, built.feed(batch_size=2).epoch(0))

    def test_nothing_missing_loads_nothing(self, tmp_path: Path) -> None:
        """With everything built, no encoder is loaded."""
        owner = watched(images(tmp_path))
        owner.build()
        words = Watched("text")
        list(watched(tmp_path, words).feed(batch_size=2, on_missing="encode").epoch(0))
        assert words.loads == 0

    def test_a_damaged_entry_is_made_again(self, tmp_path: Path) -> None:
        """A flipped byte costs one encode, and the batches are what they were."""
        owner = watched(images(tmp_path))
        owner.build()
        expected = list(owner.feed(batch_size=2).epoch(0))
        damage(owner, "pixels")
        pixels = Watched("image")
        with watched(tmp_path, pixels=pixels).feed(batch_size=2, on_missing="encode") as feed:
            assert equal(expected, feed.epoch(0))
        assert len(pixels.items) == 1

    def test_a_sample_that_cannot_be_encoded_is_named_and_left_out(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """SCENARIOS A7: its batch is one smaller, the failure is remembered, nothing is put in its place."""

        def fail(item: precook.Item) -> Any:
            if "picture 2 " in (item.text or ""):
                raise ValueError("cannot read this")
            return content(item)

        owner = watched(images(tmp_path, lines=1), Watched("text", fail))
        with caplog.at_level(logging.WARNING, "precook"), owner.feed(batch_size=2, on_missing="encode") as feed:
            shown = [caption for epoch in range(2) for batch in feed.epoch(epoch) for caption in batch["caption"]]
        assert len(shown) == 10
        assert not any("picture 2 " in caption for caption in shown)
        (told,) = [record.message for record in caplog.records if "left out" in record.message]
        assert "words: " in told
        assert "cannot read this" in told
        (failure,) = owner.plan().failed
        assert "cannot read this" in failure.reason

    def test_a_store_that_takes_nothing_is_noticed_before_the_first_batch(self, tmp_path: Path) -> None:
        """Where what is missing could not be stored, the feed does not begin; with nothing missing it does."""
        owner = watched(images(tmp_path))
        owner.build()
        (tmp_path / "data" / "p0.txt").write_text("another caption\n")
        made = owner.plan()
        with precook.open(owner.store_path, read_only=True) as store:
            plan = Plan(made.settings, made.base, store, made.memory, made.samples, made.targets, made.encoders)
            with pytest.raises(precook.ReadOnlyError, match="entries are missing"):
                feed_plan(plan, FeedOptions(2, on_missing="encode"), specs={}, captions=True)
            whole = store.snapshot("test").feed(batch_size=2)
            assert len(Feed(store, whole.content, FeedOptions(2, on_missing="encode"))) == len(whole)

    def test_workers_do_not_encode(self, tmp_path: Path) -> None:
        """A DataLoader's spawned worker reads only: what is missing there is an error."""
        owner = watched(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2, on_missing="encode")
        assert pickle.loads(pickle.dumps(feed)).options.on_missing == "error"

    def test_forked_workers_do_not_encode_either(self, tmp_path: Path) -> None:
        """A worker that was forked while encoders were loaded says what it lacks, and does not wait for ever."""
        owner = watched(images(tmp_path, 12, lines=1))
        with owner.feed(batch_size=1, on_missing="encode", prefetch=1, threads=0) as feed:
            next(iter(feed.epoch(0)))
            sampler = feed.batch_sampler(0)
            loader = DataLoader(feed.dataset(), batch_sampler=sampler, num_workers=1, multiprocessing_context="fork")
            with pytest.raises(precook.FeedError, match="a worker encodes none"):
                list(loader)

    def test_closing_unloads_every_encoder_although_one_has_failed(self, tmp_path: Path) -> None:
        """A device that is lost ends the feed; its end still lets go of the other encoders."""
        given: list[object] = []

        def lose(batch: object) -> None:
            given.append(batch)
            if len(given) > 1:
                raise RuntimeError("CUDA error: lost")

        words = Watched("text")
        owner = watched(images(tmp_path, lines=1), words, Watched("image", on_batch=lose))
        feed = owner.feed(batch_size=1, on_missing="encode", prefetch=1, threads=0)
        with pytest.raises(precook.EncodeError, match="lost"):
            list(feed.epoch(0))
        with pytest.raises(precook.EncodeError, match="lost"):
            feed.close()
        assert (words.loads, words.unloads) == (1, 1)


class TestSkip:
    """Training on what is there."""

    def test_samples_that_lack_something_are_left_out(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """What was built trains, the rest is counted once in a warning."""
        owner = watched(images(tmp_path, 4))
        owner.build()
        images(tmp_path, 6)
        with caplog.at_level(logging.WARNING, "precook"):
            feed = watched(tmp_path).feed(batch_size=2, on_missing="skip")
        assert any("2 of pixels, 4 of words" in record.getMessage() for record in caplog.records)
        assert sum(len(batch["sample"]) for batch in feed.epoch(0)) == 4

    def test_a_damaged_entry_makes_its_batch_smaller(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The others of its batch are trained on, and it is named once, not in every epoch."""
        owner = watched(images(tmp_path))
        owner.build()
        damage(owner, "pixels", 2)
        with caplog.at_level(logging.WARNING, "precook"):
            feed = watched(tmp_path).feed(batch_size=3, on_missing="skip")
            counts = [sum(len(batch["sample"]) for batch in feed.epoch(epoch)) for epoch in range(3)]
        assert counts == [4, 4, 4]
        assert sum("left out" in record.message for record in caplog.records) == 2

    def test_a_caption_that_was_frozen_without_a_key_is_left_out(self, tmp_path: Path) -> None:
        """A snapshot from elsewhere may name no entry for a caption: its sample is left out, and the epoch ends."""
        owner = watched(images(tmp_path, lines=1))
        owner.build()
        snapshot = owner.store.snapshot("test")
        snapshot.content.line_keys["words"][0] = 0
        feed = snapshot.feed(batch_size=2, threads=0, on_missing="skip")
        assert sum(len(batch["sample"]) for batch in feed.epoch(0)) == 5


class TestProtection:
    """What a feed needs stays."""

    def test_a_feed_holds_a_lease(self, tmp_path: Path) -> None:
        """While a feed is open, the store knows who needs its entries; afterwards not."""
        owner = watched(images(tmp_path))
        owner.build()
        with owner.feed(batch_size=2):
            (holder,) = owner.store.leases()
            assert holder.purpose == "feed of test"
            assert holder.keys == 19
        assert owner.store.leases() == []


def test_samples_that_share_an_entry_are_all_in_the_batch(tmp_path: Path) -> None:
    """Two equal pictures in one batch: the entry is made once, and both samples have it."""
    for name in ("a", "b"):
        picture(tmp_path / f"data/{name}.png", 1)
    with (
        project(tmp_path, encoders={"pixels": {"uses": "image"}}) as opened,
        opened.feed(batch_size=2, on_missing="encode") as feed,
    ):
        (batch,) = feed.epoch(0)
    assert len(batch["sample"]) == 2
