"""The shipped tests of a store notice a store that is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precook.identity.recipe import Recipe
from precook.open_store import LocalStore
from precook.store.store import FLUSH_BYTES, FLUSH_SECONDS
from precook.testing import StoreTests, example_trees
from precook.values import Key


class Forgetful(LocalStore):
    """Keeps nothing that it is told to keep."""

    def put(self, key: Key, tree: Any, **options: Any) -> None:
        pass


class Rounding(LocalStore):
    """Keeps float64 as float32, and not its numbers either."""

    def put(self, key: Key, tree: Any, **options: Any) -> None:
        if isinstance(tree, dict) and isinstance(tree.get("x"), np.ndarray) and tree["x"].dtype == np.float64:
            tree = {"x": np.zeros(tree["x"].shape, np.float32)}
        super().put(key, tree, **options)


class Unordered(LocalStore):
    """Tells what is missing in an order of its own."""

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        return sorted(super().missing(keys))


class NoDefault(LocalStore):
    """Answers None where there is nothing."""

    def get(self, key: Key, default: Any = None, **options: Any) -> Any:
        return super().get(key, default, **options)


class Shared(LocalStore):
    """Hands out the same arrays to everybody."""

    def get(self, key: Key, *arguments: Any, **options: Any) -> Any:
        known = self.__dict__.setdefault("known", {})
        if key not in known:
            known[key] = super().get(key, *arguments, **options)
        return known[key]


class Writable(LocalStore):
    """Minds no wish to be left alone."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **{**options, "read_only": False})


class Recomputing(LocalStore):
    """Computes everything again."""

    def cached(self, function: Callable[[list[Any]], Any], recipe: Recipe, **options: Any) -> Any:
        return function


class Eager(LocalStore):
    """Reads what it was asked not to read yet."""

    def get(self, key: Key, *arguments: Any, lazy: bool = False, **options: Any) -> Any:
        return super().get(key, *arguments, **options)


def suite(kind: type[LocalStore]) -> StoreTests:
    class Suite(StoreTests):
        def open_store(self, path: Path, **options: Any) -> LocalStore:
            settings = {"flush_bytes": FLUSH_BYTES, "flush_seconds": FLUSH_SECONDS, "max_bytes": None}
            return kind(path, **{"read_only": False, "verify_reads": True, **settings, **options})

    return Suite()


@pytest.mark.parametrize(
    ("kind", "test", "arguments"),
    [
        (Forgetful, "a_key_is_there_once_it_was_put", {}),
        (Rounding, "a_tree_comes_back_as_it_went_in", {"tree_name": "numpy float64"}),
        (Unordered, "missing_keeps_the_order_and_says_each_once", {}),
        (NoDefault, "a_missing_key_is_an_error_or_the_default", {}),
        (Shared, "tensors_that_come_out_can_be_written_to", {}),
        (Writable, "a_read_only_store_reads_and_refuses_to_write", {}),
        (Recomputing, "cached_calls_a_function_for_what_is_new_only", {}),
        (Eager, "lazy_leaves_tell_their_shape", {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_wrong_store_fails(kind: type[LocalStore], test: str, arguments: dict[str, str], tmp_path: Path) -> None:
    """Each of them fails the test that is about its fault, with a sentence that says what was expected."""
    opened = []
    tests = suite(kind)
    open_store = tests.open_store

    def remembered(path: Path, **options: Any) -> LocalStore:
        opened.append(open_store(path, **options))
        return opened[-1]

    tests.open_store = remembered  # type: ignore[method-assign]
    with pytest.raises(AssertionError) as caught:
        getattr(tests, f"test_{test}")(tmp_path=tmp_path, **arguments)
    assert len(str(caught.value).splitlines()[0]) > 10
    for store in opened:
        store.close()


def test_a_suite_without_a_store_says_what_it_needs(tmp_path: Path) -> None:
    """Whoever forgets `open_store` is told."""
    with pytest.raises(NotImplementedError, match="how a store is opened"):
        StoreTests().test_an_empty_store_has_nothing(tmp_path)


def test_there_is_an_example_of_every_kind() -> None:
    """Every element type of the format is among the example trees, and so are all kinds of plain values."""
    trees = example_trees()
    assert {"None", "texts", "bytes", "numpy float64", "numpy bool", "array without elements"} <= set(trees)
    if any(name.startswith("torch") for name in trees):
        assert {"torch bfloat16", "torch float8_e4m3fn", "torch float4_e2m1fn_x2"} <= set(trees)


def test_every_shipped_test_says_what_it_is_about() -> None:
    """A user reads the sentence where the test fails."""
    for name, test in inspect.getmembers(StoreTests, inspect.isfunction):
        if name.startswith("test_"):
            assert inspect.getdoc(test), name
