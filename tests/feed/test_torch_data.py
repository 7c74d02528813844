"""A plain DataLoader over a feed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import precook
from tests.support.feeds import equal, everything, images

torch = pytest.importorskip("torch", reason="batches are torch tensors")
from torch.utils.data import DataLoader  # noqa: E402


class TestDataLoader:
    """What a DataLoader gives is what the feed gives."""

    @pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
    def test_a_data_loader_gives_the_same_batches(self, tmp_path: Path, workers: int, context: str | None) -> None:
        """`DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(e))` needs no collate function."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = precook.open(owner.store_path).snapshot("test").feed(batch_size=2)
        data = feed.dataset()
        for epoch in (0, 2):
            loader = DataLoader(
                data, batch_sampler=feed.batch_sampler(epoch), num_workers=workers, multiprocessing_context=context
            )
            assert len(loader) == len(list(feed.epoch(epoch)))
            assert equal(loader, feed.epoch(epoch))
        table = torch.utils.data._utils.collate.default_collate_fn_map
        assert not [kind for kind in table if getattr(kind, "__module__", "").startswith("precook")]

    def test_an_item_alone_is_unbatched(self, tmp_path: Path) -> None:
        """`dataset[i]` is one item, as it stands in a batch."""
        owner = everything(images(tmp_path))
        owner.build()
        data = owner.feed(batch_size=2).dataset()
        assert len(data) == 6
        item = data[0]
        assert item["pixels"].shape == (*item["size"], 3)
        assert item["concept"] == "things"
        with pytest.raises(IndexError):
            data[6]

    def test_a_loader_that_mixes_sizes_is_refused_and_nothing_is_called_damaged(self, tmp_path: Path) -> None:
        """Batches that somebody else has drawn name what is wrong with them; sound entries stay what they are."""
        owner = everything(
            images(images(tmp_path).joinpath("unmasked")).parent,
            encoders={"mask": {"uses": "mask", "factor": 8}, "pixels": {"uses": "image"}},
            concepts=[
                {"name": "masked", "path": "data", "masks": "{stem}-mask.png"},
                {"name": "plain", "path": "unmasked/data", "captions": {"text": "plain"}},
            ],
        )
        owner.build()
        feed = owner.feed(batch_size=4)
        with pytest.raises(precook.FeedError, match="different sizes") as caught:
            list(DataLoader(feed.dataset(), batch_size=12))
        assert "batch_sampler" in str(caught.value.hint)
        assert owner.store.damaged() == {}


class TestWrongUse:
    """What would lose, repeat or mix up data is told."""

    @pytest.fixture
    def owner(self, tmp_path: Path) -> precook.Project:
        owner = everything(images(tmp_path, 12), encoders={"pixels": {"uses": "image"}})
        owner.build()
        return owner

    def test_batches_of_a_rank_are_not_shared_out_again(self, owner: precook.Project) -> None:
        """Each rank would get a part of its part: accelerate asks for the batch size first, and is refused."""
        data_loader = pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed")
        feed = owner.feed(batch_size=2, rank=0, world_size=2)
        for sampler in (feed.batch_sampler(0), feed.loader().batch_sampler):
            with pytest.raises(precook.FeedError, match="shared out") as caught:
                data_loader.BatchSamplerShard(sampler, num_processes=2, process_index=0)
            assert "feed.loader()" in caught.value.hint
        assert owner.feed(batch_size=2).batch_sampler(0).batch_size == 2

    def test_one_of_several_processes_is_not_fed_as_if_alone(
        self, owner: precook.Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A feed that is told to be alone, in a process that is not, does not let its batches be shared out either."""
        feed = owner.feed(batch_size=2, rank=0, world_size=1)
        monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)  # as other tests have set it up
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(precook.FeedError, match="shared out"):
            feed.batch_sampler(0).batch_size  # noqa: B018

    def test_an_epoch_that_is_shown_again_is_told_once(
        self, owner: precook.Project, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A DataLoader over `batch_sampler(0)` shows epoch 0 for ever."""
        feed = owner.feed(batch_size=2)
        loader = DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(0))
        list(loader)
        assert not caplog.records
        list(loader)
        list(loader)
        (record,) = caplog.records
        assert "epoch 0 again" in record.getMessage()
        assert "feed.loader()" in record.getMessage()

    def test_plain_numbers_are_told_once(self, owner: precook.Project, caplog: pytest.LogCaptureFixture) -> None:
        """A DataLoader with a sampler of its own sees the draws of the first epoch in every epoch."""
        data = owner.feed(batch_size=2).dataset()
        wide = [number for number in range(12) if data[number]["size"] == data[0]["size"]]
        assert not caplog.records
        for _ in range(2):
            list(DataLoader(data, batch_size=2, sampler=wide))
        (record,) = caplog.records
        assert "epoch 0" in record.getMessage()
        assert "feed.loader()" in record.getMessage()


class TestState:
    """Where a feed stands while a DataLoader takes its batches."""

    @pytest.fixture
    def feed(self, tmp_path: Path) -> precook.Feed:
        owner = everything(images(tmp_path, 12), encoders={"pixels": {"uses": "image"}})
        owner.build()
        return owner.feed(batch_size=2)

    def test_it_follows_a_data_loader_without_workers(self, feed: precook.Feed) -> None:
        """After each batch, and after the last."""
        expected = list(feed.epoch(1))
        loader = DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(1, start=1))
        for taken, _ in enumerate(loader, 2):
            state = feed.state_dict()
            assert (state["epoch"], state["batch"]) == ((1, taken) if taken < 6 else (2, 0))
            if taken == 3:
                kept = state
        assert feed.state_dict()["epoch"] == 2
        feed.load_state_dict(kept)
        assert equal(feed.epoch(1), expected[3:])

    def test_it_is_not_known_while_workers_take_batches(self, feed: precook.Feed) -> None:
        """They take more than were handed out: no state, rather than one that leaves batches out."""
        loader = DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(0), num_workers=1)
        for _ in loader:
            with pytest.raises(precook.FeedError, match="cannot tell") as caught:
                feed.state_dict()
            assert "feed.loader()" in caught.value.hint
        list(feed.epoch(0))
        assert feed.state_dict()["epoch"] == 1

    def test_it_is_not_known_while_accelerate_reads_ahead(self, feed: precook.Feed) -> None:
        """What accelerate makes of a DataLoader takes a batch more than it hands out."""
        accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
        loader = DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(0))
        for _ in accelerate.Accelerator(cpu=True).prepare(loader):
            with pytest.raises(precook.FeedError, match="cannot tell"):
                feed.state_dict()
