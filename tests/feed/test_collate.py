"""One encoder's part of a batch: stacked, padded, masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.feed.collate import find_axes
from precook.feed.content import EntryColumn
from tests.support.feeds import everything, frozen, images
from tests.support.projects import Watched, content, dataset, picture, project
from tests.support.snapshots import columns

torch = pytest.importorskip("torch", reason="batches are torch tensors")


class TestPadding:
    """What entries of different lengths and nesting become."""

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

    @pytest.mark.parametrize("settings", [{"keep_padding": True}, {"attention_mask": False}])
    def test_places_that_a_model_has_seen_get_no_mask(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        """The entry's own mask tells them apart; another one, of ones, would be taken for it."""
        recipe = precook.Recipe("transformers-text", settings)
        trees = [{"hidden": np.ones((4, 2)), "mask": np.arange(4) < length} for length in (1, 3)]
        with precook.open(tmp_path / "cache") as store:
            (batch,) = frozen(store, recipe, trees).feed(batch_size=2).epoch(0)
        assert set(batch["latent"]) == {"hidden", "mask"}

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

    def test_plain_values_come_as_lists(self, tmp_path: Path) -> None:
        """Parts of a tree without tensors are lists with one value for each item."""
        words = Watched("text", lambda item: {"n": len(item.text or ""), "x": np.ones(2)})
        owner = project(images(tmp_path), encoders={"words": words})
        owner.build()
        batch = next(iter(owner.feed(batch_size=3).epoch(0)))
        assert batch["words"]["n"] == [len(caption) for caption in batch["caption"]]

    def test_entries_of_different_nesting_meet_only_alone(self, tmp_path: Path) -> None:
        """Trees of two kinds are fed one at a time; a batch that would mix them is refused by name."""
        recipe = precook.Recipe("mixed", {})
        trees = [{"x": np.arange(3), "more": [np.zeros(2), np.ones(4)]}, {"x": np.arange(3)}] * 2
        with precook.open(tmp_path / "cache") as store:
            made = frozen(store, recipe, trees)
            found = [batch["latent"] for batch in made.feed(batch_size=1).epoch(0)]
            assert sorted("more" in latent for latent in found) == [False, False, True, True]
            assert all(latent["x"].tolist() == [[0, 1, 2]] for latent in found)
            with pytest.raises(precook.FeedError, match="latent: entries of one batch differ in nesting"):
                list(made.feed(batch_size=4).epoch(0))

    def test_a_length_for_what_has_none_is_refused(self, tmp_path: Path) -> None:
        """An option that could do nothing is not taken in silence."""
        owner = everything(images(tmp_path))
        owner.build()
        with pytest.raises(precook.FeedError, match="pixels: pad is 64, but those of a batch have one shape"):
            owner.feed(batch_size=2, pad={"pixels": 64})


class TestPrompts:
    """Leaves of prompts stand in a batch as their recipe says it of their pipeline."""

    def batch(self, base: Path, forms: object, trees: list[Any], **options: Any) -> Any:
        """Trees in one batch, in the order in which they were given."""
        recipe = precook.Recipe("diffusers-prompt", {"leaves": forms})
        numbered = [{**tree, "number": np.array([number])} for number, tree in enumerate(trees)]
        with precook.open(base / "cache") as store:
            (batch,) = frozen(store, recipe, numbered).feed(batch_size=len(trees), **options).epoch(0)
            latent = batch["latent"]
            return latent, [int(number) for number in latent["number"]]

    def test_each_form_is_what_the_pipeline_has(self, tmp_path: Path) -> None:
        """Zeros are put back, one tensor is shared, the batch may be another dimension, and a list stays one."""
        forms = {
            "filled": {"pad_to": 5},
            "own": {"mask": "own_mask"},
            "shared": {"shared": True},
            "second": {"axis": 1},
            "listed": {"listed": True},
        }
        trees = [
            {
                "filled": np.full((length, 2), 1 + length, np.float32),
                "own": np.full((length, 3), 1 + length, np.float32),
                "shared": np.arange(4),
                "second": np.full((2, 3), length),
                "listed": np.full((length, 1), length),
                "common": np.full(2, length),
            }
            for length in (1, 3)
        ]
        latent, order = self.batch(tmp_path, forms, trees)
        lengths = [(1, 3)[number] for number in order]
        assert latent.keys() == {*trees[0], "own_mask", "number"}
        assert latent["filled"].shape == (2, 5, 2)
        assert (latent["filled"] > 0).sum((1, 2)).tolist() == [2 * length for length in lengths]
        assert latent["own"].shape == (2, 3, 3)
        assert latent["own_mask"].dtype == torch.int64
        assert latent["own_mask"].tolist() == [[int(place < length) for place in range(3)] for length in lengths]
        assert latent["shared"].tolist() == [0, 1, 2, 3]
        assert latent["second"].tolist() == [[[length] * 3 for length in lengths]] * 2
        assert [one.tolist() for one in latent["listed"]] == [[[length]] * length for length in lengths]
        assert latent["common"].tolist() == [[length] * 2 for length in lengths]

    def test_the_pipelines_mask_is_there_also_when_all_lengths_are_equal(self, tmp_path: Path) -> None:
        """Whether a batch has a mask does not depend on who meets in it."""
        latent, _ = self.batch(tmp_path, {"own": {"mask": "own_mask"}}, [{"own": np.ones((2, 3))}] * 2)
        assert latent["own_mask"].tolist() == [[1, 1], [1, 1]]

    def test_as_they_are_stored_on_request(self, tmp_path: Path) -> None:
        """`pad="list"` gives each leaf without what a batch puts back."""
        trees = [{"filled": np.ones((length, 2))} for length in (1, 3)]
        latent, order = self.batch(tmp_path, {"filled": {"pad_to": 5}}, trees, pad={"latent": "list"})
        assert [len(one) for one in latent["filled"]] == [(1, 3)[number] for number in order]

    @pytest.mark.parametrize(
        ("forms", "message"),
        [
            (None, "does not say how a batch of it looks"),
            ({"x": {"pads_to": 5}}, "does not say how a batch of it looks"),
            ({"x": {"pad_to": "5"}}, "does not say how a batch of it looks"),
            ({"x": {"pad_to": 10**9}}, "does not say how a batch of it looks"),
            ({"x": {"shared": 1}}, "does not say how a batch of it looks"),
            ({"x": {"axis": 3}}, "x has too few dimensions"),
            ({"x": {"pad_to": 1}}, "an entry is 2 long, and its pipeline has 1 places"),
        ],
    )
    def test_a_recipe_that_says_something_else_is_refused(self, tmp_path: Path, forms: object, message: str) -> None:
        """A snapshot may come from anybody."""
        with pytest.raises(precook.FeedError, match=message):
            self.batch(tmp_path, forms, [{"x": np.ones((2, 3))}] * 2)


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
    column = EntryColumn("words", "line", "text", "test", {}, columns(keys), empty=-1, pad=None, eos=None)
    assert list(find_axes(column, places, np.zeros(3, np.int64)).values()) == [[0]]
