"""Batches: right, the same again, and each part of an item from the same sample."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import precook
from tests.support.feeds import equal, everything, frozen, images
from tests.support.projects import dataset, project

torch = pytest.importorskip("torch", reason="batches are torch tensors")


class TestBatches:
    """What is in a batch."""

    def test_a_batch_is_what_the_interface_says(self, tmp_path: Path) -> None:
        """Stacked tensors by encoder; lists of sample ids, concepts and captions; weights and the size."""
        owner = everything(images(tmp_path))
        owner.build()
        batch = next(iter(owner.feed(batch_size=3).epoch(0)))
        count = len(batch["sample"])
        height, width = batch["size"]
        assert batch["pixels"].shape == (count, height, width, 3)
        assert batch["pixels"].dtype == torch.uint8
        assert batch["mask"].shape == (count, 1, height // 8, width // 8)
        assert batch["words"].shape[:1] == batch["words_mask"].shape[:1] == (count,)
        assert batch["concept"] == ["things"] * count
        assert all(len(name) == 64 for name in batch["sample"])
        assert torch.equal(batch["loss_weight"], torch.full((count,), 0.5))
        assert len(batch["caption"]) == count

    def test_picture_mask_and_caption_belong_to_one_sample(self, tmp_path: Path) -> None:
        """SCENARIOS A9: what is in a batch is compared with the files, by content, over several epochs and crops."""
        owner = everything(
            images(tmp_path, 9, lines=3),
            image={"resolutions": [64, 96], "step": 16, "crop": "random", "flip": "random", "variations": 3},
        )
        owner.build()
        feed = owner.feed(batch_size=4, seed=3)
        captions: Counter[str] = Counter()
        for epoch in range(4):
            for batch in feed.epoch(epoch):
                for at, caption in enumerate(batch["caption"]):
                    captions[caption] += 1
                    number = int(caption.split()[1])
                    text = bytes(batch["words"][at][batch["words_mask"][at]].tolist()).decode()
                    assert text == caption
                    assert torch.allclose(batch["mask"][at], torch.tensor(10 * number / 255))
                    colours = set(
                        map(tuple, np.array(Image.open(tmp_path / f"data/p{number}.png")).reshape(-1, 3).tolist())
                    )
                    corner = tuple(batch["pixels"][at, 0, 0].tolist())
                    assert min(sum(abs(a - b) for a, b in zip(corner, other, strict=True)) for other in colours) < 60
        assert sum(captions.values()) == 36
        assert len(captions) > 15, "captions are drawn"

    def test_caption_dropout_swaps_in_the_empty_prompt(self, tmp_path: Path) -> None:
        """A dropped caption is the empty prompt's own entry, and the batch says so."""
        owner = everything(images(tmp_path))
        owner.build()
        for batch in owner.feed(batch_size=2, caption_dropout=1.0).epoch(0):
            assert batch["caption"] == [""] * len(batch["sample"])
            assert not batch["words_mask"].any()
        bare = everything(tmp_path, store="bare", text={"empty_prompt": False})
        bare.build()
        with pytest.raises(precook.FeedError, match="the empty prompt is not among the entries"):
            bare.feed(batch_size=2, caption_dropout=0.1)

    def test_numpy_batches_need_no_torch(self, tmp_path: Path) -> None:
        """`tensors="numpy"` gives arrays with the same numbers."""
        owner = everything(images(tmp_path))
        owner.build()
        for one, other in zip(
            owner.feed(batch_size=2, tensors="numpy").epoch(0), owner.feed(batch_size=2).epoch(0), strict=True
        ):
            assert isinstance(one["pixels"], np.ndarray)
            assert np.array_equal(one["pixels"], other["pixels"].numpy())
            assert np.array_equal(one["words_mask"], other["words_mask"].numpy())

    def test_pictures_alone_make_batches(self, tmp_path: Path) -> None:
        """Without a text encoder and without captions a batch has none, and the same samples."""
        dataset(tmp_path / "data", 5)
        owner = project(tmp_path, encoders={"pixels": {"uses": "image"}})
        owner.build()
        batches = list(owner.feed(batch_size=2, captions=False).epoch(0))
        assert sum(len(batch["sample"]) for batch in batches) == 5
        assert not any("caption" in batch for batch in batches)

    def test_batches_are_the_trainers_own(self, tmp_path: Path) -> None:
        """Writing into a batch changes neither the store nor the next epoch's batches."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2)
        before = list(feed.epoch(0))
        for batch in feed.epoch(0):
            batch["pixels"].zero_()
        assert equal(before, feed.epoch(0))


def test_captions_are_there_without_a_text_encoder(tmp_path: Path) -> None:
    """Who caches pictures alone and encodes texts in training gets the captions; so does a snapshot that keeps them."""
    images(tmp_path, lines=2)
    encoders = {"pixels": {"uses": "image"}}
    bare = everything(tmp_path, encoders=encoders, dataset="bare")
    keeping = everything(tmp_path, encoders=encoders, keep=["captions"])
    bare.build()
    keeping.build()
    plan = bare.plan()
    numbers = {plan.explain(tmp_path / "data" / f"p{at}.png").samples[0].sample: at for at in range(6)}
    feed = bare.feed(batch_size=2)
    seen = set()
    for epoch in range(9):
        for batch in feed.epoch(epoch):
            for sample, caption in zip(batch["sample"], batch["caption"], strict=True):
                assert caption.startswith(f"picture {numbers[sample]} line ")
                seen.add(caption)
    assert len(seen) == 12
    assert equal(feed.epoch(0), keeping.store.snapshot("test").feed(batch_size=2).epoch(0))
    next(iter(feed.epoch(0)))
    frozen = bare.store.snapshot("bare").feed(batch_size=2)
    frozen.load_state_dict(feed.state_dict())
    assert all("caption" not in batch for batch in frozen.epoch(0))


class TestMoments:
    """Latents that are drawn from what the VAE said."""

    def test_posteriors_are_sampled_anew_each_epoch(self, tmp_path: Path) -> None:
        """SCENARIOS D5: latents follow mean and variance, differ between epochs, and are the same after a resume."""
        shape = (4, 32, 32)
        recipe = precook.Recipe("diffusers-vae", {"posterior": "moments"})
        with precook.open(tmp_path / "cache") as store:
            moments = {"mean": torch.full(shape, 3.0), "logvar": torch.full(shape, np.log(4.0))}
            made = frozen(store, recipe, [moments] * 4)
            feed = made.feed(batch_size=4)
            first, second = ([batch["latent"] for batch in feed.epoch(epoch)] for epoch in (0, 1))
            again = [batch["latent"] for batch in made.feed(batch_size=1).epoch(0)]
            latents = torch.cat(first)
            assert latents.shape == (4, *shape)
            assert abs(float(latents.mean()) - 3) < 0.1
            assert abs(float(latents.std()) - 2) < 0.1
            assert not torch.equal(latents, torch.cat(second))
            assert {one.sum().item() for one in latents} == {one.sum().item() for one in torch.cat(again)}
            (listed,) = (batch["latent"] for batch in made.feed(batch_size=4, pad={"latent": "list"}).epoch(0))
            assert isinstance(listed, list)
            assert torch.equal(torch.stack(listed), latents)
