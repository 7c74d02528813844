"""`store.cached`: only what is new is computed, each once, and answered in order."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from tests.support.trees import same


class Encoder:
    """A small encoder that remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def __call__(self, items: list[Any]) -> list[Any]:
        self.calls.append(items)
        return [{"size": np.array([len(str(item))]), "item": str(item)} for item in items]


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


def test_only_misses_are_encoded_each_once_and_answers_keep_the_order(
    store: precook.Store, recipe: precook.Recipe, encoder: Encoder
) -> None:
    """Repeated inputs and stored ones are not encoded again, also by another store object later."""
    embed = store.cached(encoder, recipe)
    first = embed(["a cat", "a dog", "a cat"])
    assert encoder.calls == [["a cat", "a dog"]]
    assert [tree["item"] for tree in first] == ["a cat", "a dog", "a cat"]
    assert (embed.hits, embed.misses) == (1, 2)
    second = embed(["a bird", "a dog"])
    assert encoder.calls[1:] == [["a bird"]]
    assert [tree["item"] for tree in second] == ["a bird", "a dog"]
    assert (embed.hits, embed.misses) == (2, 3)
    with precook.open(store.path) as again:
        assert same(again.cached(encoder, recipe)(["a cat"]), [first[0]])
    assert len(encoder.calls) == 2


def test_misses_come_in_batches(store: precook.Store, recipe: precook.Recipe, encoder: Encoder) -> None:
    """No call gets more than `batch_size` inputs, and an empty list calls nothing."""
    embed = store.cached(encoder, recipe, batch_size=4)
    assert embed([]) == []
    embed([str(i) for i in range(10)])
    assert [len(call) for call in encoder.calls] == [4, 4, 2]


def test_another_recipe_serves_nothing_old(store: precook.Store, encoder: Encoder) -> None:
    """The same inputs under other settings are misses; going back is all hits."""
    one, two = (precook.Recipe("text", {"max_length": n}) for n in (77, 512))
    store.cached(encoder, one)(["a"])
    store.cached(encoder, two)(["a"])
    store.cached(encoder, one)(["a"])
    assert encoder.calls == [["a"], ["a"]]


def test_paths_are_known_by_their_content(
    store: precook.Store, recipe: precook.Recipe, encoder: Encoder, tmp_path: Path
) -> None:
    """A moved or copied file is a hit, an edited one is a miss, a missing one is named."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("same")
    b.write_text("same")
    embed = store.cached(encoder, recipe)
    embed([a, b])
    assert encoder.calls in ([[b]], [[a]])
    a.write_text("edit")
    embed([a, b])
    assert encoder.calls[1:] == [[a]]
    with pytest.raises(precook.SourceError, match="gone"):
        embed([tmp_path / "gone"])


def test_a_source_that_changes_while_it_is_encoded_is_not_stored(
    store: precook.Store, recipe: precook.Recipe, tmp_path: Path
) -> None:
    """Old bytes must not end up under a new digest, nor the reverse."""
    file = tmp_path / "a"
    file.write_text("old")

    def edit(items: list[Path]) -> list[str]:
        text = items[0].read_text()
        items[0].write_text("newer")
        return [text]

    with pytest.raises(precook.SourceChangedError):
        store.cached(edit, recipe)([file])
    assert len(store) == 0


def test_kinds_of_inputs_are_told_apart(store: precook.Store, recipe: precook.Recipe, encoder: Encoder) -> None:
    """Text, bytes, numbers and tuples never share an entry, even where Python calls them equal."""
    items = ["1", b"1", 1, 1.0, True, None, (1,), (1, 2), ("1", b"1"), 0.0, -0.0]
    store.cached(encoder, recipe)(items)
    assert len(store) == len(items)
    for bad in ([1], {"a": 1}, object(), np.zeros(2)):
        with pytest.raises(precook.IdentityError, match="input 1"):
            store.cached(encoder, recipe)(["fine", bad])
    with pytest.raises(TypeError, match="list"):
        store.cached(encoder, recipe)("a single text")


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (lambda items: [1] * (len(items) - 1), "returned 1 for 2"),
        (lambda items: [1] * (len(items) + 1), "returned 3 for 2"),
        (lambda items: None, "NoneType"),
        (lambda items: [np.array([1.0]), np.array([math.nan])], "NaN for 'b'"),
        (lambda items: [1, object()], "cannot be stored"),
    ],
)
def test_an_encoder_that_breaks_its_promise_stores_nothing_of_that_batch(
    store: precook.Store, recipe: precook.Recipe, result: Any, error: str
) -> None:
    """The batch is refused with its reason; batches before it are kept."""
    embed = store.cached(lambda items: [1.0] if items == ["first"] else result(items), recipe, batch_size=2)
    embed(["first"])
    with pytest.raises(precook.PrecookError, match=error):
        embed(["a", "b"])
    assert len(store) == 1


def test_nan_is_stored_when_it_is_allowed(store: precook.Store, recipe: precook.Recipe) -> None:
    """`allow_nan=True` keeps what the encoder returned."""
    (tree,) = store.cached(lambda items: [np.array([math.nan])] * len(items), recipe, allow_nan=True)(["x"])
    assert np.isnan(tree).all()


def test_two_threads_asking_for_the_same_miss_encode_it_once(store: precook.Store, recipe: precook.Recipe) -> None:
    """The second waits for the first, whoever that is."""
    asked: list[list[str]] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow(items: list[str]) -> list[str]:
        asked.append(items)
        entered.set()
        go_on.wait(60)
        return items

    embed = store.cached(slow, recipe)
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(embed(["x", "y"])))
    first.start()
    assert entered.wait(60)
    second = threading.Thread(target=lambda: answers.append(embed(["y", "x"])))
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert asked == [["x", "y"]]
    assert sorted(answers) == [["x", "y"], ["y", "x"]]
    assert (embed.hits, embed.misses) == (2, 2)


def test_a_thread_takes_over_when_the_one_it_waits_for_fails(store: precook.Store, recipe: precook.Recipe) -> None:
    """An error belongs to the caller that got it; the other one encodes for itself."""
    entered, go_on = threading.Event(), threading.Event()
    calls = iter(range(2))

    def fails_once(items: list[str]) -> list[str]:
        if next(calls) == 0:
            entered.set()
            go_on.wait(60)
            raise RuntimeError
        return items

    embed = store.cached(fails_once, recipe)
    errors: list[BaseException] = []
    answers: list[Any] = []

    def failing() -> None:
        try:
            embed(["x"])
        except RuntimeError as error:
            errors.append(error)

    first = threading.Thread(target=failing)
    first.start()
    assert entered.wait(60)
    second = threading.Thread(target=lambda: answers.append(embed(["x"])))
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert len(errors) == 1
    assert answers == [["x"]]
