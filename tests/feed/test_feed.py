"""The feed: options, order, resume and snapshots."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import precook
from tests.support.feeds import equal, everything, images
from tests.support.projects import Watched, picture

torch = pytest.importorskip("torch", reason="batches are torch tensors")


class TestFeed:
    """What a feed refuses, and what it holds."""

    def test_numpy_arrays_go_to_no_device(self, tmp_path: Path) -> None:
        """A device is for torch tensors; asking for both is an error, not arrays that lie elsewhere."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2, tensors="numpy")
        for device in ("cpu", "cuda"):
            with pytest.raises(precook.FeedError, match=f"numpy arrays cannot lie on {device}"):
                feed.epoch(0, device=device)

    def test_an_epoch_without_batches_is_refused(self, tmp_path: Path) -> None:
        """A training loop that would never turn is an error that says why, not a run that ends at once."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=12, last="drop")
        for ask in (feed.epoch, feed.batch_sampler):
            with pytest.raises(precook.FeedError, match="epoch 0 of test has no batches"):
                ask(0)

    @pytest.mark.parametrize("threads", [0, 2])
    def test_a_batch_that_was_let_go_takes_no_memory(self, tmp_path: Path, threads: int) -> None:
        """Only the trainer decides how long a batch lives, also while the epoch goes on."""
        owner = everything(images(tmp_path))
        owner.build()
        epoch = owner.feed(batch_size=2, threads=threads).epoch(0)
        coming = iter(epoch)
        batch = next(coming)
        seen = weakref.ref(batch["pixels"])
        del batch
        assert seen() is None
        assert len(list(coming)) == len(epoch) - 1

    def test_wrong_options_are_refused(self, tmp_path: Path) -> None:
        """Each option that makes no sense is named."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2)
        for start in (-1, len(feed) + 1):
            with pytest.raises(precook.FeedError, match=f"none to start at {start}"):
                feed.batch_sampler(0, start=start)
        for device in ("nowhere", *(() if torch.cuda.is_available() else ("cuda:0",))):
            with pytest.raises(precook.FeedError, match=device):
                feed.epoch(0, device=device)
        for epoch in (-1, 1.0):
            with pytest.raises(precook.FeedError, match="epochs count from 0"):
                feed.epoch(epoch)  # type: ignore[arg-type]
        for options in (
            {"batch_size": 0},
            {"batch_size": 2.5},
            {"batch_size": 1, "seed": "one"},
            {"batch_size": 1, "rank": 2, "world_size": 2},
            {"batch_size": 1, "last": "some"},
            {"batch_size": 1, "caption_dropout": 2.0},
            {"batch_size": 1, "on_missing": "ignore"},
            {"batch_size": 1, "pad": {"words": 0}},
        ):
            with pytest.raises(precook.FeedError):
                owner.feed(**options)

    def test_the_lease_of_a_feed_keeps_each_entry_once_and_ends_it_when_broken(self, tmp_path: Path) -> None:
        """`precook leases` counts entries, however many samples share one; without the lease no epoch begins."""
        owner = everything(
            images(tmp_path), concepts=[{"name": "things", "path": "data", "captions": {"text": "same"}}]
        )
        owner.build()
        feed = owner.feed(batch_size=4)
        (holder,) = owner.store.leases()
        assert holder.keys == len(owner.store)
        list(feed.epoch(0))
        owner.store.break_lease(holder.id)
        with pytest.raises(precook.LostLeaseError):
            feed.epoch(1)


def test_an_epoch_that_is_left_open_ends_quietly_with_the_process(tmp_path: Path) -> None:
    """A script that ends in the middle of an epoch says nothing on the way out."""
    everything(images(tmp_path)).build()
    script = f"""
import precook, torch
feed = precook.open({str(tmp_path / "cache")!r}).snapshot("test").feed(batch_size=2)
a = iter(feed.epoch(0))
next(a)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


class TestOrder:
    """The same batches in the same order, whoever reads them."""

    @pytest.mark.parametrize("threads", [0, 3])
    def test_threads_do_not_matter(self, tmp_path: Path, threads: int) -> None:
        """However batches are made ahead, they come in the same order."""
        owner = everything(images(tmp_path))
        owner.build()
        expected = list(owner.feed(batch_size=2).epoch(1))
        assert equal(expected, owner.feed(batch_size=2, threads=threads, prefetch=2).epoch(1))

    def test_batches_of_small_entries_are_made_by_one_thread(self, tmp_path: Path) -> None:
        """Several would pass Python to and fro for every entry, and be slower than one, however many are asked for."""
        owner = everything(images(tmp_path))
        owner.build()
        epoch = owner.feed(batch_size=2, threads=3, prefetch=3).epoch(0)
        coming = iter(epoch)
        next(coming)
        assert sum(thread.name.startswith("precook-feed") for thread in threading.enumerate()) == 1
        assert len(list(coming)) == len(epoch) - 1

    @pytest.mark.parametrize("ranks", [2, 3])
    def test_ranks_get_disjoint_batches(self, tmp_path: Path, ranks: int) -> None:
        """Each rank has as many batches, of the same size at each step; together they show every sample once."""
        owner = everything(images(tmp_path, 12))
        owner.build()
        each = [list(owner.feed(batch_size=2, rank=rank, world_size=ranks).epoch(0)) for rank in range(ranks)]
        assert len({len(batches) for batches in each}) == 1
        for step in zip(*each, strict=True):
            assert len({batch["size"] for batch in step}) == 1
        shown = [name for batches in each for batch in batches for name in batch["sample"]]
        assert len(shown) == len(set(shown)) == 12


class TestResume:
    """Going on after a stop."""

    @pytest.mark.parametrize("taken", [0, 1, 2, 3])
    def test_the_rest_of_an_epoch_is_identical(self, tmp_path: Path, taken: int) -> None:
        """SCENARIOS D7: a state taken after any batch resumes at the very next one, in another process's feed."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2, seed=5)
        expected = list(feed.epoch(1))
        running = iter(owner.feed(batch_size=2, seed=5).epoch(1))
        stopped = owner.feed(batch_size=2, seed=5)
        running = iter(stopped.epoch(1))
        for _ in range(taken):
            next(running)
        state = json.loads(json.dumps(stopped.state_dict()))
        if not taken:
            state |= {"epoch": 1}
        resumed = owner.feed(batch_size=2, seed=5)
        resumed.load_state_dict(state)
        rest = resumed.epoch(1)
        assert len(rest) == len(expected) - taken
        assert len(resumed.epoch(1)) == len(rest), "asking how many are left changes nothing"
        rest = resumed.epoch(1)
        assert equal(expected[taken:], rest)
        assert equal(expected, resumed.epoch(1)), "only once"

    def test_a_finished_epoch_resumes_at_the_next(self, tmp_path: Path) -> None:
        """After the last batch the state is the start of the next epoch, and any number of ranks may take it up."""
        owner = everything(images(tmp_path, 12))
        owner.build()
        feed = owner.feed(batch_size=2)
        for _ in feed.epoch(0):
            pass
        state = feed.state_dict()
        assert (state["epoch"], state["batch"]) == (1, 0)
        wider = owner.feed(batch_size=2, rank=1, world_size=2)
        wider.load_state_dict(state)
        assert equal(wider.epoch(1), owner.feed(batch_size=2, rank=1, world_size=2).epoch(1))

    def test_after_the_last_batch_ranks_may_be_others(self, tmp_path: Path) -> None:
        """A checkpoint is taken while the last batch is trained on: for any feed it is the start of the next epoch."""
        owner = everything(images(tmp_path, 12))
        owner.build()
        feed = owner.feed(batch_size=2)
        running = iter(feed.epoch(0))
        for _ in range(len(feed)):
            next(running)
        state = json.loads(json.dumps(feed.state_dict()))
        list(running)
        assert (state["epoch"], state["batch"]) == (1, 0)
        resumed = owner.feed(batch_size=2)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert equal(resumed.epoch(1), feed.epoch(1))
        wider = owner.feed(batch_size=1, rank=1, world_size=2)
        wider.load_state_dict(state)
        assert list(wider.epoch(0)) == []
        loader = owner.feed(batch_size=1, rank=1, world_size=2).loader()
        loader.load_state_dict(state)
        assert equal(loader, wider.epoch(1))

    def test_another_feeds_state_is_refused(self, tmp_path: Path) -> None:
        """Inside an epoch, other ranks, batch sizes, seeds or samples would go on with other data: refused."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2)
        next(iter(feed.epoch(0)))
        state = feed.state_dict()
        for options, other in (
            ({"batch_size": 3}, "batch_size 2, not 3"),
            ({"batch_size": 2, "rank": 0, "world_size": 2}, "ranks 1, not 2"),
        ):
            with pytest.raises(precook.FeedError, match=f"inside epoch 0 of another feed: with {other}"):
                owner.feed(**options).load_state_dict(state)
        with pytest.raises(precook.FeedError, match="seed 0, this feed 1"):
            owner.feed(batch_size=2, seed=1).load_state_dict(state)
        with pytest.raises(precook.FeedError, match="not the state of a feed"):
            feed.load_state_dict({"epoch": 1})
        picture(tmp_path / "data" / "new.png", 99)
        owner.build()
        with pytest.raises(precook.FeedError, match="another feed"):
            owner.feed(batch_size=2).load_state_dict(state)

    def test_a_caption_edited_to_as_many_lines_is_noticed(self, tmp_path: Path) -> None:
        """The order is the same and the texts are not: inside an epoch that is refused, at its start it is not."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2)
        next(iter(feed.epoch(0)))
        state = json.loads(json.dumps(feed.state_dict()))
        caption = tmp_path / "data" / "p3.txt"
        before = caption.read_text()
        caption.write_text(before.replace("line 1", "line one"))
        owner.build()
        edited = owner.feed(batch_size=2)
        with pytest.raises(precook.FeedError, match="inside epoch 0 of test with other entries of words") as caught:
            edited.load_state_dict(state)
        assert '"batch": 0' in caught.value.hint
        with pytest.raises(precook.FeedError, match="entries of words"):
            owner.store.snapshot("test").feed(batch_size=2).load_state_dict(state)
        edited.load_state_dict({**state, "batch": 0})
        assert len(edited.epoch(0)) == len(feed)
        caption.write_text(before)
        again = owner.feed(batch_size=2)
        again.load_state_dict(state)
        assert len(again.epoch(0)) == len(feed) - 1

    def test_an_edited_caption_is_noticed_without_a_text_encoder(self, tmp_path: Path) -> None:
        """Whoever encodes texts in training gets them from the feed, and would train on with others."""
        owner = everything(images(tmp_path), encoders={"pixels": {"uses": "image"}})
        owner.build()
        feed = owner.feed(batch_size=2)
        next(iter(feed.epoch(0)))
        caption = tmp_path / "data" / "p3.txt"
        caption.write_text(caption.read_text().replace("line 1", "line one"))
        with pytest.raises(precook.FeedError, match="inside epoch 0 of test with other captions"):
            owner.feed(batch_size=2).load_state_dict(feed.state_dict())

    def test_another_encoder_is_noticed(self, tmp_path: Path) -> None:
        """An encoder that was changed or added meanwhile is named."""
        owner = everything(images(tmp_path), encoders={"words": Watched("text")})
        owner.build()
        feed = owner.feed(batch_size=2)
        next(iter(feed.epoch(0)))
        encoders = {"words": Watched("text", identity=2), "more": Watched("text")}
        other = everything(tmp_path, encoders=encoders)
        other.build()
        with pytest.raises(precook.FeedError, match="with other entries of more and other entries of words"):
            other.feed(batch_size=2).load_state_dict(feed.state_dict())

    def test_a_state_of_an_older_precook_loads_and_says_what_it_cannot_tell(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It has no word about entries: the feed goes on, with a warning that names what was not compared."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2)
        expected = list(feed.epoch(0))
        next(iter(feed.epoch(0)))
        old = {name: feed.state_dict()[name] for name in ("version", "epoch", "batch", "seed", "fingerprint")}
        resumed = owner.feed(batch_size=2)
        resumed.load_state_dict(old)
        assert equal(expected[1:], resumed.epoch(0))
        assert "whether captions, encoders or settings of test were changed since cannot be seen" in caplog.text


class TestSnapshots:
    """Training without sources."""

    def test_a_copied_store_feeds_without_sources(self, tmp_path: Path) -> None:
        """SCENARIOS D6: the store alone, elsewhere, gives the same batches bit for bit."""
        owner = everything(images(tmp_path / "here"), keep=["captions"])
        owner.build()
        expected = [list(owner.feed(batch_size=2, seed=7).epoch(epoch)) for epoch in range(2)]
        owner.close()
        shutil.copytree(owner.store_path, tmp_path / "there")
        shutil.rmtree(tmp_path / "here")
        for read_only in (False, True):
            with precook.open(tmp_path / "there", read_only=read_only) as store:
                feed = store.snapshot("test").feed(batch_size=2, seed=7)
                for epoch in range(2):
                    assert equal(expected[epoch], feed.epoch(epoch))

    def test_what_was_frozen_just_now_is_fed_at_once(self, tmp_path: Path) -> None:
        """The snapshot that `freeze` returns feeds as the one that is read from the store, also one that was there."""
        owner = everything(images(tmp_path))
        owner.build()
        expected = list(owner.store.snapshot("test").feed(batch_size=2).epoch(0))
        content = owner.store.snapshot("test").content
        assert equal(expected, owner.store.freeze("test", content).feed(batch_size=2).epoch(0))
        again = dataclasses.replace(content, dataset="again")
        assert equal(expected, owner.store.freeze("again", again).feed(batch_size=2).epoch(0))
        with precook.open(owner.store_path, read_only=True) as store:
            assert equal(expected, store.freeze("again", again).feed(batch_size=2).epoch(0))
            with pytest.raises(precook.ReadOnlyError, match="the snapshot of new cannot be written here"):
                store.freeze("new", dataclasses.replace(content, dataset="new"))

    def test_captions_stay_at_home_unless_they_are_kept(self, tmp_path: Path) -> None:
        """A snapshot holds no texts unless the config says so; its batches then have no captions."""
        owner = everything(images(tmp_path))
        owner.build()
        assert "caption" in next(iter(owner.feed(batch_size=2).epoch(0)))
        assert "caption" not in next(iter(owner.feed(batch_size=2, captions=False).epoch(0)))
        assert "caption" not in next(iter(owner.store.snapshot("test").feed(batch_size=2).epoch(0)))

    def test_missing_entries_are_listed_at_once(self, tmp_path: Path) -> None:
        """A snapshot whose entries are gone says which, before the first batch; sources cannot be asked."""
        owner = everything(images(tmp_path))
        owner.build()
        owner.close()
        for pack in owner.store_path.glob("packs/*/*.safetensors"):
            pack.unlink()
        with precook.open(owner.store_path) as store:
            with pytest.raises(precook.FeedError, match=r"6 of pixels .*6 of mask .*1[23] of words") as caught:
                store.snapshot("test").feed(batch_size=2)
            assert "precook build" in caught.value.hint
            with pytest.raises(precook.FeedError, match="no sources"):
                store.snapshot("test").feed(batch_size=2, on_missing="encode")
            assert list(store.snapshot("test").feed(batch_size=2, on_missing="skip").epoch(0)) == []
