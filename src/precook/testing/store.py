"""What every store does: one test for each promise, to be run over a store of your own.

The asserts carry their own messages, because pytest explains bare asserts only in the modules of a test suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np

from precook.errors import ClosedStoreError, MissingEntryError, ReadOnlyError, TreeError
from precook.identity.recipe import Recipe
from precook.store.lazy import LazyTensor
from precook.testing.trees import example_trees, same
from precook.values import Key

RECIPE = Recipe("precook.testing", {"version": 1})


class StoreTests:
    """Subclass it and say how a store is opened; pytest then runs every test below over that store.

    `open_store` is called with a path below pytest's `tmp_path`. Opening the same path again, in the same test, must
    give the same store; a path that was not used before is an empty one.

        class TestMyStore(precook.testing.StoreTests):
            def open_store(self, path, **options):
                return my_package.open(path, **options)
    """

    def open_store(self, path: Path, **options: Any) -> Any:
        """A store at `path`; of the options of `precook.open` only `read_only` is asked for here.

        It need not be a subclass of `precook.Store`: having its methods is enough.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how a store is opened")

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Pytest calls this while it collects: a test that asks for `tree_name` runs once for each example tree."""
        if "tree_name" in metafunc.fixturenames:
            metafunc.parametrize("tree_name", list(example_trees()))

    def test_a_tree_comes_back_as_it_went_in(self, tmp_path: Path, tree_name: str) -> None:
        """Bit for bit, types and order included: at once, and after the store was closed and opened again."""
        tree, key = example_trees()[tree_name], RECIPE.key(tree_name)
        with self.open_store(tmp_path / "cache") as store:
            store.put(key, tree, recipe=RECIPE, labels={"file": "a.png"})
            _equal(store.get(key), tree, "read by the store that wrote it")
        with self.open_store(tmp_path / "cache") as store:
            _equal(store.get(key), tree, "read after reopening")
            _equal(store.get_many([key, key]), [tree, tree], "read with get_many")

    def test_an_empty_store_has_nothing(self, tmp_path: Path) -> None:
        """It has no entry, misses every key and does not raise when it is asked for many."""
        key = RECIPE.key("nothing")
        with self.open_store(tmp_path / "cache") as store:
            assert len(store) == 0, "an empty store has a length of zero"
            assert key not in store, "an empty store contains no key"
            assert store.missing([key]) == [key], "every key is missing in an empty store"
            assert store.get_many([]) == [], "no keys, no trees"

    def test_a_missing_key_is_an_error_or_the_default(self, tmp_path: Path) -> None:
        """`MissingEntryError` is a KeyError; with a default there is no error, not even for a default of None."""
        here, gone = RECIPE.key("here"), RECIPE.key("gone")
        with self.open_store(tmp_path / "cache") as store:
            store.put(here, 1)
            with _raises(MissingEntryError, "get of a missing key"):
                store.get(gone)
            with _raises(KeyError, "get of a missing key"):
                store.get(gone)
            with _raises(MissingEntryError, "get_many with a missing key"):
                store.get_many([here, gone])
            assert store.get(gone, None) is None, "the default is returned"
            assert store.get(here, "default") == 1, "the default is not returned for an entry that is there"
            assert store.get_many([gone, here], "default") == ["default", 1], "get_many has a default for each"

    def test_many_entries_come_in_the_order_asked(self, tmp_path: Path) -> None:
        """`get_many` answers each key where it stands, repeated ones too."""
        keys = _keys(5)
        with self.open_store(tmp_path / "cache") as store:
            _write(store, keys)
            order = [3, 0, 3, 4]
            trees = store.get_many([keys[number] for number in order])
            _equal(trees, [_tree(number) for number in order], "get_many")

    def test_entries_of_one_shape_can_be_stacked(self, tmp_path: Path) -> None:
        """`stack` gives each tensor a first dimension and makes a list of each part without tensors."""
        keys = _keys(4)
        with self.open_store(tmp_path / "cache") as store:
            _write(store, keys)
            stacked = store.stack([keys[2], keys[0]])
            _equal(stacked, {"x": np.stack([_tree(2)["x"], _tree(0)["x"]]), "name": ["2", "0"]}, "stack")

    def test_missing_keeps_the_order_and_says_each_once(self, tmp_path: Path) -> None:
        """Keys with an entry and repetitions are left out; the rest stays in the order asked."""
        keys = _keys(12)
        with self.open_store(tmp_path / "cache") as store:
            store.put(keys[3], 1)
            for order in (keys, keys[::-1]):  # both ways, so that an order of the store's own cannot be right
                wanted = [key for key in order if key != keys[3]]
                assert store.missing([*order, *keys]) == wanted, "missing keys, in the order asked, each once"

    def test_a_key_is_there_once_it_was_put(self, tmp_path: Path) -> None:
        """`in`, `len` and `stats` count each entry once."""
        a, b = _keys(2)
        with self.open_store(tmp_path / "cache") as store:
            store.put(a, 1)
            store.put(a, 1)
            assert a in store, "a key that was put is there"
            assert b not in store, "another key is not"
            assert "a text" not in store, "what is no key is not there"
            assert (len(store), store.stats().entries) == (1, 1), "one entry, put twice, counts once"

    def test_the_first_tree_under_a_key_stays(self, tmp_path: Path) -> None:
        """A key says what made its entry, so a second result can only be the same: it is not stored."""
        key = RECIPE.key("once")
        with self.open_store(tmp_path / "cache") as store:
            store.put(key, np.zeros(3))
            store.put(key, np.ones(3))
            _equal(store.get(key), np.zeros(3), "put twice")
            with store.writer() as writer:
                writer.put(key, np.ones(3))
            _equal(store.get(key), np.zeros(3), "put again by a writer")
        with self.open_store(tmp_path / "cache") as store:
            _equal(store.get(key), np.zeros(3), "put twice, then reopened")

    def test_lazy_leaves_tell_their_shape(self, tmp_path: Path) -> None:
        """With `lazy=True` each leaf is a LazyTensor with shape, type and size; plain values are there at once."""
        key, array = RECIPE.key("lazy"), np.arange(12, dtype=np.float32).reshape(3, 4)
        with self.open_store(tmp_path / "cache") as store:
            store.put(key, {"x": array, "crop": (64, 48)})
            tree = store.get(key, lazy=True)
            leaf = tree["x"]
            assert isinstance(leaf, LazyTensor), "a lazy leaf is a LazyTensor"
            assert tuple(leaf.shape) == (3, 4), "it knows its shape"
            assert leaf.nbytes == array.nbytes, "it knows its size"
            assert leaf.dtype == array.dtype, "it knows its type"
            assert tree["crop"] == (64, 48), "plain values are not lazy"
            _equal(leaf.load(), array, "a lazy leaf, loaded")

    def test_a_flush_makes_entries_durable(self, tmp_path: Path) -> None:
        """What was put before `flush` is seen by a store that is opened afterwards, while the writer is still open."""
        keys = _keys(10)
        with self.open_store(tmp_path / "cache") as store, store.writer() as writer:
            for number, key in enumerate(keys[:5]):
                writer.put(key, _tree(number), recipe=RECIPE)
            writer.flush()
            with self.open_store(tmp_path / "cache") as other:
                assert other.missing(keys[:5]) == [], "everything before the flush is there"
                _equal(other.get(keys[4]), _tree(4), "read by another after a flush")
            for number, key in enumerate(keys[5:], 5):
                writer.put(key, _tree(number), recipe=RECIPE)
        with self.open_store(tmp_path / "cache") as other:
            assert other.missing(keys) == [], "the end of a writer is a flush"

    def test_a_writer_keeps_what_was_put_before_an_error(self, tmp_path: Path) -> None:
        """Leaving the `with` block by an exception still commits finished work."""
        key = RECIPE.key("before")
        with self.open_store(tmp_path / "cache") as store:
            with _raises(ZeroDivisionError, "the error passes through the writer"), store.writer() as writer:
                writer.put(key, 1)
                raise ZeroDivisionError
            assert store.get(key) == 1, "what was put before the error is there"

    def test_a_writer_takes_a_copy(self, tmp_path: Path) -> None:
        """What happens to an array after `put` does not reach the store."""
        key, array = RECIPE.key("copy"), np.zeros(5)
        with self.open_store(tmp_path / "cache") as store:
            with store.writer() as writer:
                writer.put(key, array)
                array[:] = 1
            _equal(store.get(key), np.zeros(5), "an array that was changed after its put")

    def test_tensors_that_come_out_can_be_written_to(self, tmp_path: Path) -> None:
        """Writes stay with the array that was handed out: no other read sees them."""
        key, array = RECIPE.key("mine"), np.arange(5000)
        with self.open_store(tmp_path / "cache") as store:
            store.put(key, array)
            for _ in range(3):
                got = store.get(key)
                _equal(got, array, "read while an earlier result was written to")
                got[:] = -1
        with self.open_store(tmp_path / "cache") as store:
            _equal(store.get(key), array, "reopened after results were written to")

    def test_what_cannot_be_stored_is_refused(self, tmp_path: Path) -> None:
        """`TreeError` names the place inside the tree, and nothing is stored under the key."""
        key = RECIPE.key("odd")
        with self.open_store(tmp_path / "cache") as store:
            with _raises(TreeError, "an object that is no tree") as caught:
                store.put(key, {"a": [1, {"odd": object()}]})
            assert "odd" in str(caught[0]), "the error names the place inside the tree"
            assert key not in store, "nothing is stored of a refused tree"

    def test_a_read_only_store_reads_and_refuses_to_write(self, tmp_path: Path) -> None:
        """Reading works as ever; `put` and `writer` raise ReadOnlyError."""
        key = RECIPE.key("kept")
        with self.open_store(tmp_path / "cache") as store:
            store.put(key, _tree(1))
        with self.open_store(tmp_path / "cache", read_only=True) as store:
            _equal(store.get(key), _tree(1), "read from a read-only store")
            with _raises(ReadOnlyError, "put into a read-only store"):
                store.put(RECIPE.key("new"), 1)
            with _raises(ReadOnlyError, "a writer for a read-only store"):
                store.writer()

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        """Every call after `close` raises ClosedStoreError; closing twice is fine."""
        key = RECIPE.key("closed")
        store = self.open_store(tmp_path / "cache")
        store.put(key, 1)
        store.close()
        store.close()
        with _raises(ClosedStoreError, "get from a closed store"):
            store.get(key)
        with _raises(ClosedStoreError, "put into a closed store"):
            store.put(key, 1)

    def test_cached_calls_a_function_for_what_is_new_only(self, tmp_path: Path) -> None:
        """Each input is computed once, across calls and openings, and answers come in the order asked."""
        asked: list[str] = []

        def lengths(texts: list[str]) -> list[Any]:
            asked.extend(texts)
            return [{"length": np.array(len(text))} for text in texts]

        with self.open_store(tmp_path / "cache") as store:
            cached = store.cached(lengths, RECIPE, batch_size=2)
            trees = cached(["a", "bb", "a", "ccc"])
            assert [int(tree["length"]) for tree in trees] == [1, 2, 1, 3], "answers in the order asked"
            assert sorted(asked) == ["a", "bb", "ccc"], "each input is computed once"
        with self.open_store(tmp_path / "cache") as store:
            cached = store.cached(lengths, RECIPE, batch_size=2)
            trees = cached(["dddd", "bb"])
            assert [int(tree["length"]) for tree in trees] == [4, 2], "answers in the order asked, after reopening"
            assert (cached.hits, cached.misses) == (1, 1), "hits and misses are counted"
        assert sorted(asked) == ["a", "bb", "ccc", "dddd"], "nothing is computed again after reopening"

    def test_what_was_written_is_found_whole(self, tmp_path: Path) -> None:
        """`verify` reads every entry and finds no damage."""
        keys = _keys(20)
        with self.open_store(tmp_path / "cache") as store:
            _write(store, keys)
            assert store.verify().clean, "a store that was only written to is clean"

    def test_the_index_can_be_made_anew(self, tmp_path: Path) -> None:
        """`reindex` finds every entry again."""
        keys = _keys(20)
        with self.open_store(tmp_path / "cache") as store:
            _write(store, keys)
            assert store.reindex() == len(keys), "reindex tells how many entries there are"
            _equal(store.get_many(keys), [_tree(number) for number in range(len(keys))], "read after reindex")

    def test_threads_may_share_a_store(self, tmp_path: Path) -> None:
        """Threads that write and read the same and other keys at once lose nothing and see whole entries."""
        threads, keys = 4, _keys(12)
        start = Barrier(threads)

        def work(thread: int) -> None:
            start.wait()
            for step in range(len(keys)):
                # Each thread begins elsewhere, so that every key is written by one while another reads it.
                number = (step + 3 * thread) % len(keys)
                store.put(keys[number], _tree(number), recipe=RECIPE)
                _equal(store.get(keys[number]), _tree(number), "read by the thread that put it")
                for other, tree in enumerate(store.get_many(keys, None)):
                    assert tree is None or same(tree, _tree(other)), "a thread sees whole entries"

        with self.open_store(tmp_path / "cache") as store:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(threads)))
            assert len(store) == len(keys), "one entry for each key, whoever came first"
            assert store.verify().clean, "a store that several threads wrote to is clean"


def _keys(count: int) -> list[Key]:
    return [RECIPE.key(number) for number in range(count)]


def _tree(number: int) -> dict[str, Any]:
    return {"x": np.full((2, 300), number, np.float32), "name": str(number)}


def _write(store: Any, keys: list[Key]) -> None:
    with store.writer() as writer:
        for number, key in enumerate(keys):
            writer.put(key, _tree(number), recipe=RECIPE)


def _equal(got: Any, wanted: Any, situation: str) -> None:
    assert same(got, wanted), f"{situation}: got {got!r}, wanted {wanted!r}"


@contextmanager
def _raises(kind: type[BaseException], situation: str) -> Iterator[list[BaseException]]:
    """Like `pytest.raises`, without pytest; the list holds the error after the block."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"{situation} raises {kind.__name__}"
