"""Writers: entries in groups, one at a time or many in one go."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.store import files
from precook.store.commit import ready_entry
from precook.store.format.build import Entry
from precook.store.tree import take_apart

SIZE = 1000


def entries(recipe: precook.Recipe, numbers: range) -> list[Entry]:
    return [
        ready_entry(recipe.key(number).bytes, take_apart(np.full(SIZE, number, np.uint8)), recipe=recipe)
        for number in numbers
    ]


def rows(path: Path) -> list[int]:
    """How many entries each pack holds."""
    return [len(safetensors.numpy.load_file(pack)["t0/keys"]) for pack in path.glob("packs/*/*.safetensors")]


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 30), step=st.integers(1, 30), group=st.integers(1, 12))
def test_many_in_one_go_are_committed_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, count: int, step: int, group: int
) -> None:
    """Every entry comes back, and no group grows beyond the entry that fills it, however many come at once."""
    path, recipe = tmp_path_factory.mktemp("store"), precook.Recipe("test", 1)
    made = entries(recipe, range(count))
    with precook.open(path) as store:
        with store.writer(flush_bytes=group * SIZE, flush_seconds=600) as writer:
            for at in range(0, count, step):
                writer.put_entries(made[at : at + step])
        assert [int(store.get(recipe.key(number))[0]) for number in range(count)] == list(range(count))
    assert sum(rows(path)) == count
    assert max(rows(path)) <= group


def test_a_writer_says_which_groups_are_durable(store: precook.Store, recipe: precook.Recipe) -> None:
    """A group is not called durable before what it holds can be read, and is from then on."""
    with store.writer(flush_bytes=1 << 30, flush_seconds=600) as writer:
        first = writer.put_entries(entries(recipe, range(3)))
        assert writer.durable < first
        assert recipe.key(2) not in store
        writer.flush()
        assert writer.durable == first
        assert recipe.key(2) in store
        second = writer.put_entries(entries(recipe, range(3, 5)))
        assert writer.durable == first < second
    assert writer.durable == second


def test_a_group_that_could_not_be_stored_is_not_durable(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that has failed does not say that its last group is safe."""
    writer = store.writer(flush_bytes=1 << 30, flush_seconds=600)
    group = writer.put_entries(entries(recipe, range(3)))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "publish", fail)
    with pytest.raises(precook.NoSpaceError):
        writer.flush()
    assert writer.durable < group
    with pytest.raises(precook.NoSpaceError):
        writer.close()


def test_each_of_many_entries_may_have_a_recipe_of_its_own(store: precook.Store) -> None:
    """More recipes than one pack can name: another pack is begun."""
    recipes = [precook.Recipe("r", number) for number in range(66_000)]
    with store.writer(flush_bytes=1 << 30, flush_seconds=600) as writer:
        for number, recipe in enumerate(recipes):
            writer.put(recipe.key(0), number, recipe=recipe)
    assert len(store) == len(recipes)
    assert store.get(recipes[-1].key(0)) == 65_999


def test_tens_of_thousands_at_once_are_all_there(store: precook.Store, recipe: precook.Recipe) -> None:
    """More rows than one statement of the index adds: of one pack, in two tables, and among claims."""
    keys = [recipe.key(number) for number in range(20_001)]
    with store.writer(flush_bytes=1 << 40, flush_seconds=600) as writer:
        for number, key in enumerate(keys):
            writer.put(key, number if number % 2 else [number], recipe=recipe)
    assert store.missing(keys) == []
    assert [store.get(keys[number]) for number in (0, 9_999, 10_000, 20_000)] == [[0], 9_999, [10_000], [20_000]]
    (stats,) = store.stats().recipes
    assert stats.entries == len(keys)
    raw = [key.bytes for key in keys]
    with store.claims() as ours, store.claims() as others:
        assert others.take(raw[5:6]) == set(raw[5:6])
        assert ours.take(raw) == set(raw) - {raw[5]}
        assert ours.take([], done=raw) == set()
        assert others.take(raw) == set(raw)


def test_a_writer_whose_thread_cannot_start_says_so_and_can_be_used_again(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """The put is refused with the reason, a flush does not wait for it, and the next put finds a thread."""
    writer = store.writer(flush_bytes=1 << 30, flush_seconds=600)
    before = threading.stack_size(1 << 47)  # more than any address space has: the system refuses the thread
    try:
        with pytest.raises(precook.PrecookError, match="gives no more threads") as caught:
            writer.put(recipe.key(1), 1)
        assert "ulimit -u" in caught.value.hint
        writer.flush()
    finally:
        threading.stack_size(before)
    assert store.missing([recipe.key(1)]) == [recipe.key(1)]
    writer.put(recipe.key(1), 1)
    writer.close()
    assert store.get(recipe.key(1)) == 1
