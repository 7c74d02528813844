"""What every encoder does: one test for each promise that builds rely on, to be run over an encoder of your own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from precook.encode.encoder import Encoder, Item, read_inputs
from precook.identity.recipe import Recipe
from precook.open_store import open_store
from precook.store.dtypes import loaded_torch
from precook.testing.trees import same


class EncoderTests:
    """Subclass it and say how the encoder is made; pytest then runs every test below over it.

        class TestMyEncoder(precook.testing.EncoderTests):
            def make_encoder(self):
                return MyEncoder(strength=0.5)

    Override `items` where the default ones, small pictures, masks or texts, are nothing for your encoder.
    """

    device = "cpu"
    """Where the encoder is loaded."""
    rtol = 1e-3
    atol = 1e-4
    """How far results of one item may lie apart when it stands in another batch; whole numbers must be equal."""

    def make_encoder(self) -> Encoder:
        """A new encoder, not loaded; every call with the same settings."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its encoder is made")

    def items(self) -> list[Item]:
        """What to encode: at least three items, of which at least two can stand in one batch."""
        return example_items(read_inputs(self.make_encoder()))

    def identity(self, encoder: Encoder) -> object:
        """What decides the encoder's results, as plain data."""
        return encoder.identity()

    def test_it_says_what_it_takes(self) -> None:
        """`input` or `inputs` name parts of a sample, and what a build calls is there."""
        encoder = self.make_encoder()
        read_inputs(encoder)
        for name in ("load", "encode", "unload"):
            assert callable(getattr(encoder, name, None)), f"it has no method {name}"

    def test_its_identity_is_plain_data(self) -> None:
        """It is known before anything is loaded, and a recipe can be made of it."""
        Recipe("test", {"identity": self.identity(self.make_encoder())})

    def test_its_identity_is_stable(self) -> None:
        """Two encoders of equal settings have one identity, which neither loading nor encoding changes."""
        encoder = self.make_encoder()
        first = _digest(self.identity(encoder))
        assert _digest(self.identity(self.make_encoder())) == first, "another encoder of equal settings is another"
        with self._loaded(encoder):
            assert _digest(self.identity(encoder)) == first, "loading changes its identity"
            self._encode(encoder, self.items())
            assert _digest(self.identity(encoder)) == first, "encoding changes its identity"

    def test_there_is_one_tree_for_each_item(self) -> None:
        """A batch of any size gives as many trees as it has items."""
        with self._loaded(self.make_encoder()) as encoder:
            for batch in _batches(self.items()):
                for size in range(1, len(batch) + 1):
                    trees = encoder.encode([item for _, item in batch[:size]])
                    assert len(trees) == size, f"{len(trees)} trees for {size} items"

    def test_a_result_does_not_depend_on_its_batch(self) -> None:
        """Alone, together and in another order an item gives the same tree, within `rtol` and `atol`."""
        items = self.items()
        with self._loaded(self.make_encoder()) as encoder:
            alone = [encoder.encode([item])[0] for item in items]
            together = self._encode(encoder, items)
            backwards = self._encode(encoder, items[::-1])[::-1]
            again = [encoder.encode([item])[0] for item in items]
        for number, tree in enumerate(alone):
            self._close(together[number], tree, f"item {number} in a batch, and alone")
            self._close(backwards[number], tree, f"item {number} in a batch of another order, and alone")
            self._close(again[number], tree, f"item {number}, alone a second time")

    def test_a_later_batch_leaves_results_alone(self) -> None:
        """A build may hold a result while the next batch is encoded: it must not be a buffer that is used again."""
        items = self.items()
        with self._loaded(self.make_encoder()) as encoder:
            first = encoder.encode([items[0]])[0]
            before = _copied(first)
            for item in items[1:]:
                encoder.encode([item])
            assert same(first, before), "a later batch has changed an earlier result"

    def test_it_leaves_its_items_alone(self) -> None:
        """Other encoders get the same pictures: nobody writes to them."""
        items = self.items()
        before = [_copied([item.image, item.mask, item.text]) for item in items]
        with self._loaded(self.make_encoder()) as encoder:
            self._encode(encoder, items)
        for number, (item, copy) in enumerate(zip(items, before, strict=True)):
            assert same([item.image, item.mask, item.text], copy), f"item {number} was changed"

    def test_its_numbers_are_finite(self) -> None:
        """A build refuses NaN and infinity, because training on them ruins a model."""
        with self._loaded(self.make_encoder()) as encoder:
            for number, tree in enumerate(self._encode(encoder, self.items())):
                for path, leaf in _leaves(tree):
                    assert np.isfinite(_numbers(leaf)).all(), f"item {number}: {path} holds NaN or infinity"

    def test_its_trees_can_be_stored(self, tmp_path: Path) -> None:
        """Each comes back from a store bit for bit."""
        recipe = Recipe("test", {"identity": self.identity(self.make_encoder())})
        with self._loaded(self.make_encoder()) as encoder, open_store(tmp_path / "cache") as store:
            for number, tree in enumerate(self._encode(encoder, self.items())):
                store.put(recipe.key(number), tree, recipe=recipe)
                assert same(store.get(recipe.key(number)), tree), f"item {number} is stored as something else"

    def test_it_can_be_loaded_again(self) -> None:
        """After `unload` and another `load` the results are the same."""
        encoder, items = self.make_encoder(), self.items()
        with self._loaded(encoder):
            first = self._encode(encoder, items)
        with self._loaded(encoder):
            second = self._encode(encoder, items)
        for number, (left, right) in enumerate(zip(second, first, strict=True)):
            self._close(left, right, f"item {number}, loaded again and before")

    @contextmanager
    def _loaded(self, encoder: Encoder) -> Iterator[Encoder]:
        encoder.load(self.device)
        try:
            yield encoder
        finally:
            encoder.unload()

    def _encode(self, encoder: Encoder, items: Sequence[Item]) -> list[Any]:
        """One tree for each item, encoded in batches as a build makes them."""
        trees: dict[int, Any] = {}
        for batch in _batches(items):
            made = encoder.encode([item for _, item in batch])
            trees.update(zip([number for number, _ in batch], made, strict=True))
        return [trees[number] for number in range(len(items))]

    def _close(self, left: Any, right: Any, situation: str) -> None:
        left_leaves, right_leaves = dict(_leaves(left)), dict(_leaves(right))
        assert list(left_leaves) == list(right_leaves), f"{situation}: {list(left_leaves)} and {list(right_leaves)}"
        for path, leaf in left_leaves.items():
            other = right_leaves[path]
            where = f"{situation}: {path}"
            assert type(leaf) is type(other), f"{where} is a {type(leaf).__name__} and a {type(other).__name__}"
            if not hasattr(leaf, "dtype"):
                assert same(leaf, other), f"{where} is {leaf!r} and {other!r}"
                continue
            assert leaf.dtype == other.dtype, f"{where} has types {leaf.dtype} and {other.dtype}"
            assert leaf.shape == other.shape, f"{where} has shapes {tuple(leaf.shape)} and {tuple(other.shape)}"
            numbers, others = _numbers(leaf), _numbers(other)
            if numbers.dtype.kind not in "fc":
                assert np.array_equal(numbers, others), f"{where} differs"
            elif numbers.size:
                apart = float(np.abs(numbers - others).max())
                assert np.allclose(numbers, others, self.rtol, self.atol), f"{where} differs by up to {apart:.3g}"


def example_items(inputs: Sequence[str]) -> list[Item]:
    """Small items of these inputs: pictures, masks and clips of two sizes, texts of several lengths."""
    texts = ("a cat", "a dog on a mat", "", "two birds, far away, over the sea", "a cat")
    if tuple(inputs) == ("text",):
        return [Item(text=text) for text in texts]
    random = np.random.default_rng(0)
    items = []
    for text, (height, width) in zip(texts, ((64, 64), (64, 64), (64, 96), (64, 64), (64, 96)), strict=True):
        forms: dict[str, tuple[int, ...]] = {"mask": (height, width), "video": (5, height, width, 3)}
        shapes = {name: forms.get(name, (height, width, 3)) for name in inputs if name != "text"}
        pixels = {name: random.integers(0, 256, shape, np.uint8) for name, shape in shapes.items()}
        items.append(
            Item(
                image=pixels.pop("image", None),
                mask=pixels.pop("mask", None),
                video=pixels.pop("video", None),
                text=text if "text" in inputs else None,
                original_size=(2 * height + 8, 2 * width),
                crop=(4, 0),
                target_size=(height, width),
                images=pixels,
            )
        )
    return items


def _batches(items: Sequence[Item]) -> list[list[tuple[int, Item]]]:
    """Items with their numbers, in the batches of a build: pictures, masks and clips of equal size stand together."""
    batches: dict[object, list[tuple[int, Item]]] = {}
    for number, item in enumerate(items):
        sizes = tuple(array.shape for array in item.pixels)
        batches.setdefault(sizes, []).append((number, item))
    return list(batches.values())


def _digest(identity: object) -> str:
    return Recipe("test", {"identity": identity}).hex


def _leaves(tree: Any, path: str = "tree") -> Iterator[tuple[str, Any]]:
    """Whatever holds nothing else, with its path: arrays, tensors and plain values."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}[{key!r}]")
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{path}[{number}]")
    else:
        yield path, tree


def _numbers(leaf: Any) -> np.ndarray[Any, Any]:
    """The numbers of a leaf; floats of every kind as float64, so that they can be compared."""
    torch = loaded_torch()
    if torch is not None and isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().cpu()
        return np.asarray((leaf.double() if leaf.is_floating_point() else leaf).numpy())
    if isinstance(leaf, np.ndarray):
        # Types of ml_dtypes are of kind V: numpy cannot compare them as they are.
        return leaf.astype(np.float64) if leaf.dtype.kind in "fV" else leaf
    return np.asarray(leaf if isinstance(leaf, (int, float)) else 0.0)


def _copied(tree: Any) -> Any:
    """A copy that no later write reaches."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_copied(value) for value in tree)
    if isinstance(tree, np.ndarray):
        return tree.copy()
    return tree.clone() if hasattr(tree, "clone") else tree
