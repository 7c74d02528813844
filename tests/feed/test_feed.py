"""Batches: right, the same again, and each part of an item from the same sample."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.feed.collate import find_axes
from precook.feed.content import EntryColumn
from precook.store.snapshot import SnapshotContent
from tests.support.feeds import tree as made_up
from tests.support.projects import Watched, content, dataset, picture, project
from tests.support.snapshots import columns

torch = pytest.importorskip("torch", reason="batches are torch tensors")
from torch.utils.data import DataLoader  # noqa: E402


def images(base: Path, count: int = 6, *, lines: int = 2) -> Path:
    """Pictures of two sizes, each with captions and a mask of its own."""
    for number in range(count):
        size = (96, 64) if number % 3 else (64, 96)
        path = picture(base / "data" / f"p{number}.png", number, size)
        path.with_suffix(".txt").write_text("".join(f"picture {number} line {line}\n" for line in range(lines)))
        # As bright as its number, so that a batch tells whose it is.
        Image.new("L", size, 10 * number).save(path.with_name(f"p{number}-mask.png"))
    return base


def everything(base: Path, **changes: Any) -> precook.Project:
    """A project with pictures, masks and texts, whose entries are their own inputs."""
    return project(
        base,
        **{
            "concepts": [{"name": "things", "path": "data", "masks": "{stem}-mask.png", "loss_weight": 0.5}],
            "encoders": {
                "pixels": {"uses": "image"},
                "mask": {"uses": "mask", "factor": 8},
                "words": Watched("text"),
            },
            **changes,
        },
    )


def same(one: Any, other: Any) -> bool:
    """Whether two batches are equal, tensors bit for bit."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def equal(ones: Any, others: Any) -> bool:
    """Whether two series of batches are equal."""
    ones, others = list(ones), list(others)
    return len(ones) == len(others) and all(same(*pair) for pair in zip(ones, others, strict=True))


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

    def test_lengths_are_padded_and_masked(self, tmp_path: Path) -> None:
        """A leaf whose first dimension varies is padded to the longest of its batch, with a mask beside it."""
        dataset(tmp_path / "data", 4)
        for number, text in enumerate(["a", "bb", "cccc", "dd"]):
            (tmp_path / f"data/p{number}.txt").write_text(text)

        def tree(item: precook.Item) -> Any:
            letters = content(item)
            return {"hidden": np.tile(letters[:, None], (1, 3)).astype(np.float32), "pooled": np.ones(5, np.float16)}

        owner = project(tmp_path, encoders={"prompt": Watched("text", tree)})
        owner.build()
        (batch,) = owner.feed(batch_size=4).epoch(0)
        prompt = batch["prompt"]
        assert list(prompt) == ["hidden", "pooled", "mask"]
        assert prompt["hidden"].shape == (4, 4, 3)
        assert prompt["pooled"].shape == (4, 5)
        assert prompt["mask"].dtype == torch.bool
        for at, caption in enumerate(batch["caption"]):
            assert prompt["mask"][at].tolist() == [place < len(caption) for place in range(4)]
            assert prompt["hidden"][at, : len(caption), 0].tolist() == list(map(ord, caption))
            assert not prompt["hidden"][at, len(caption) :].any()

    def test_padding_can_be_fixed_or_left_out(self, tmp_path: Path) -> None:
        """`pad` gives a length for every batch, or a list of tensors as they are; too long an entry is refused."""
        owner = everything(images(tmp_path))
        owner.build()
        batch = next(iter(owner.feed(batch_size=2, pad={"words": 40}).epoch(0)))
        assert batch["words"].shape == (2, 40)
        assert batch["words_mask"].sum(1).tolist() == [len(caption) for caption in batch["caption"]]
        batch = next(iter(owner.feed(batch_size=2, pad={"words": "list"}).epoch(0)))
        assert "words_mask" not in batch
        assert [bytes(one.tolist()).decode() for one in batch["words"]] == batch["caption"]
        with pytest.raises(precook.FeedError, match="an entry is 16 long, and pad is 5"):
            list(owner.feed(batch_size=2, pad={"words": 5}).epoch(0))
        with pytest.raises(precook.FeedError, match="no encoder 'wrods'"):
            owner.feed(batch_size=2, pad={"wrods": 5})

    def test_a_mask_is_there_also_when_all_lengths_are_equal(self, tmp_path: Path) -> None:
        """Whether a batch has a mask depends on the dataset, never on who meets in the batch."""
        dataset(tmp_path / "data", 3)
        for number, text in enumerate(["aa", "aa", "cccc"]):
            (tmp_path / f"data/p{number}.txt").write_text(text)
        owner = project(tmp_path, encoders={"words": Watched("text")})
        owner.build()
        assert all("words_mask" in batch for batch in owner.feed(batch_size=1).epoch(0))

    def test_concepts_without_masks_count_as_white(self, tmp_path: Path) -> None:
        """A batch that mixes concepts with and without masks trains on all of those without."""
        images(tmp_path, 4)
        for number in range(4):
            picture(tmp_path / "more" / f"m{number}.png", 50 + number, (96, 64))
        concepts = [
            {"name": "masked", "path": "data", "masks": "{stem}-mask.png"},
            {"name": "whole", "path": "more"},
        ]
        owner = everything(tmp_path, concepts=concepts)
        owner.build()
        seen = set()
        for batch in owner.feed(batch_size=8).epoch(0):
            for mask, concept in zip(batch["mask"], batch["concept"], strict=True):
                seen.add(concept)
                assert (mask == 1).all() if concept == "whole" else (mask < 0.2).all()
        assert seen == {"masked", "whole"}

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

    def test_plain_values_come_as_lists(self, tmp_path: Path) -> None:
        """Parts of a tree without tensors are lists with one value for each item."""
        words = Watched("text", lambda item: {"n": len(item.text or ""), "x": np.ones(2)})
        owner = project(images(tmp_path), encoders={"words": words})
        owner.build()
        batch = next(iter(owner.feed(batch_size=3).epoch(0)))
        assert batch["words"]["n"] == [len(caption) for caption in batch["caption"]]

    def test_pictures_alone_make_batches(self, tmp_path: Path) -> None:
        """Without a text encoder and without captions a batch has none, and the same samples."""
        dataset(tmp_path / "data", 5)
        owner = project(tmp_path, encoders={"pixels": {"uses": "image"}})
        owner.build()
        batches = list(owner.feed(batch_size=2, captions=False).epoch(0))
        assert sum(len(batch["sample"]) for batch in batches) == 5
        assert not any("caption" in batch for batch in batches)

    def test_entries_of_different_nesting_meet_only_alone(self, tmp_path: Path) -> None:
        """Trees of two kinds are fed one at a time; a batch that would mix them is refused by name."""
        recipe = precook.Recipe("mixed", {})
        trees = [{"x": np.arange(3), "more": [np.zeros(2), np.ones(4)]}, {"x": np.arange(3)}] * 2
        with precook.open(tmp_path / "cache") as store:
            made = _snapshot(store, recipe, trees)
            found = [batch["latent"] for batch in made.feed(batch_size=1).epoch(0)]
            assert sorted("more" in latent for latent in found) == [False, False, True, True]
            assert all(latent["x"].tolist() == [[0, 1, 2]] for latent in found)
            with pytest.raises(precook.FeedError, match="latent: entries of one batch differ in nesting"):
                list(made.feed(batch_size=4).epoch(0))

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

    def test_a_length_for_what_has_none_is_refused(self, tmp_path: Path) -> None:
        """An option that could do nothing is not taken in silence."""
        owner = everything(images(tmp_path))
        owner.build()
        with pytest.raises(precook.FeedError, match="pixels: pad is 64, but those of a batch have one shape"):
            owner.feed(batch_size=2, pad={"pixels": 64})

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

    def test_batches_are_the_trainers_own(self, tmp_path: Path) -> None:
        """Writing into a batch changes neither the store nor the next epoch's batches."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2)
        before = list(feed.epoch(0))
        for batch in feed.epoch(0):
            batch["pixels"].zero_()
        assert equal(before, feed.epoch(0))

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

    def test_another_feeds_state_is_refused(self, tmp_path: Path) -> None:
        """Inside an epoch, other ranks, batch sizes, seeds or samples would go on with other data: refused."""
        owner = everything(images(tmp_path))
        owner.build()
        feed = owner.feed(batch_size=2)
        next(iter(feed.epoch(0)))
        state = feed.state_dict()
        for options in ({"batch_size": 3}, {"batch_size": 2, "world_size": 2}):
            with pytest.raises(precook.FeedError, match="inside epoch 0 of another feed"):
                owner.feed(**options).load_state_dict(state)
        with pytest.raises(precook.FeedError, match="seed 0, this feed 1"):
            owner.feed(batch_size=2, seed=1).load_state_dict(state)
        with pytest.raises(precook.FeedError, match="not the state of a feed"):
            feed.load_state_dict({"epoch": 1})
        picture(tmp_path / "data" / "new.png", 99)
        owner.build()
        with pytest.raises(precook.FeedError, match="another feed"):
            owner.feed(batch_size=2).load_state_dict(state)


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


def test_entries_may_go_while_their_shapes_are_compared(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread that finds entries gone does not disturb the one that looks which dimension is padded."""
    keys = [recipe.key(number) for number in range(3)]
    for number, key in enumerate(keys):
        store.put(key, {"x": np.zeros(1 + number)}, recipe=recipe)
    places = store.places(columns(keys))
    assert places is not None
    locate = places.locate

    def locate_and_lose(numbers: Any) -> Any:
        found = locate(numbers)
        monkeypatch.setattr(places, "_codes", np.full(len(keys), -1))
        return found

    monkeypatch.setattr(places, "locate", locate_and_lose)
    column = EntryColumn("words", True, "test", {}, columns(keys), empty=-1, pad=None)
    assert list(find_axes(column, places, np.zeros(3, np.int64)).values()) == [[0]]


class TestMoments:
    """Latents that are drawn from what the VAE said."""

    def test_posteriors_are_sampled_anew_each_epoch(self, tmp_path: Path) -> None:
        """SCENARIOS D5: latents follow mean and variance, differ between epochs, and are the same after a resume."""
        shape = (4, 32, 32)
        recipe = precook.Recipe("diffusers-vae", {"posterior": "moments"})
        with precook.open(tmp_path / "cache") as store:
            moments = {"mean": torch.full(shape, 3.0), "logvar": torch.full(shape, np.log(4.0))}
            made = _snapshot(store, recipe, [moments] * 4)
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


def _snapshot(store: precook.Store, recipe: precook.Recipe, trees: list[Any]) -> Any:
    """A snapshot of pictures that have these entries."""
    frozen = made_up([("cats", number) for number in range(len(trees))])
    frozen["encoders"] = {"latent": {"input": "image", "recipe": recipe.form.decode()}}
    frozen["line_keys"], frozen["empty_keys"] = {}, {}
    frozen["lines"] = {"sample": np.zeros(0, np.int32)}
    del frozen["captions"]
    for key, tree in zip(frozen["picture_keys"]["latent"], trees, strict=True):
        store.put(precook.Key(key.tobytes()), tree, recipe=recipe)
    store.freeze("made-up", SnapshotContent.of(frozen))
    return store.snapshot("made-up")
