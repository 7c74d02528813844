"""A plain DataLoader over a feed."""

from __future__ import annotations

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
