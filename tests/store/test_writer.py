"""Writers: entries in groups, one at a time or many in one go."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.store import files
from precook.store import writer as writer_module
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


def test_the_next_group_is_written_while_the_last_one_is_synced(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two syncs meet, which they only can if neither group waits for the other."""
    store.put(recipe.key(-1), 0)
    both, sync = threading.Barrier(2, timeout=60), files.sync_file

    def meet(descriptor: int) -> None:
        both.wait()
        sync(descriptor)

    monkeypatch.setattr(files, "sync_file", meet)
    with store.writer(flush_bytes=SIZE, flush_seconds=600) as writer:
        writer.put_entries(entries(recipe, range(4)))
    assert store.missing([recipe.key(number) for number in range(4)]) == []


class HeldCommits:
    """Commits of a writer that wait until they are let go, and how many there were at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._publish = files.publish
        self._begun: dict[int, threading.Event] = defaultdict(threading.Event)
        self._released: dict[int, threading.Event] = defaultdict(threading.Event)
        self._lock = threading.Lock()
        self._now = self._count = self.most = self.done = 0
        self.fails: set[int] = set()
        monkeypatch.setattr(files, "publish", self._held)

    def _held(self, *args: Any, **options: Any) -> None:
        with self._lock:
            number, self._count = self._count, self._count + 1
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            self._begun[number].set()
            assert self._released[number].wait(60)
            if number in self.fails:
                raise OSError(28, f"No space left on device for {number}")
            self._publish(*args, **options)
        finally:
            with self._lock:
                self._now -= 1
                self.done += 1

    def wait_for(self, number: int) -> None:
        """Wait until so many commits have begun before this one, and it."""
        assert self._begun[number].wait(60)

    def release(self, *numbers: int) -> None:
        for number in numbers:
            self._released[number].set()


@pytest.fixture
def held(store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch) -> HeldCommits:
    store.put(recipe.key(-1), 0)
    return HeldCommits(monkeypatch)


def test_a_group_is_not_durable_before_those_that_came_earlier(
    store: precook.Store, recipe: precook.Recipe, held: HeldCommits
) -> None:
    """The second is on the disk first: claims on it are given up when the first is there, too."""
    with store.writer(flush_bytes=SIZE, flush_seconds=600) as writer:
        first = writer.put_entries(entries(recipe, range(1)))
        held.wait_for(0)
        second = writer.put_entries(entries(recipe, range(1, 2)))
        held.wait_for(1)
        held.release(1)
        third = writer.put_entries(entries(recipe, range(2, 3)))
        held.wait_for(2)  # begun by the thread that has ended the second
        assert recipe.key(1) in store
        assert recipe.key(0) not in store
        assert writer.durable < first < second < third
        held.release(0, 2)
        writer.flush()
        assert writer.durable == third


def test_no_more_than_two_groups_are_written_and_one_is_filled(
    store: precook.Store, recipe: precook.Recipe, held: HeldCommits
) -> None:
    """That is all that a slow disk makes a writer hold: whoever puts more waits."""
    put: queue.Queue[int] = queue.Queue()
    ahead: list[int] = []

    def put_all() -> None:
        for number in range(10):
            writer.put_entries(entries(recipe, range(number, number + 1)))
            put.put(number)
            ahead.append(number + 1 - held.done)

    with store.writer(flush_bytes=SIZE, flush_seconds=600) as writer:
        thread = threading.Thread(target=put_all)
        thread.start()
        for _ in range(3):
            put.get(timeout=60)
        held.wait_for(1)
        assert put.empty()
        held.release(*range(10))
        thread.join(60)
    assert held.most == 2
    assert max(ahead) <= 3
    assert len(store) == 11


def test_what_is_durable_is_let_go(store: precook.Store, recipe: precook.Recipe, held: HeldCommits) -> None:
    """A thread that waits for the next group does not hold on to the one that it has committed."""
    with store.writer(flush_bytes=1 << 30, flush_seconds=600) as writer:
        (entry,) = entries(recipe, range(1))
        data = weakref.ref(entry.parts.leaves[0].data)
        group = writer.put_entries([entry])
        del entry
        writer.flush_soon()
        held.wait_for(0)
        writer.put_entries(entries(recipe, range(1, 2)))
        assert data() is not None
        held.release(0, 1)
        with writer._lock:
            while writer.durable < group:
                assert writer._changed.wait(60)
        assert data() is None


def test_to_ask_for_a_commit_waits_for_nothing(store: precook.Store, recipe: precook.Recipe, held: HeldCommits) -> None:
    """Whoever lands results goes on, and sees later that they are durable."""
    with store.writer(flush_bytes=1 << 30, flush_seconds=600) as writer:
        assert writer.flush_soon() == writer.durable  # nothing was put
        group = writer.put_entries(entries(recipe, range(3)))
        assert writer.flush_soon() == group
        held.wait_for(0)
        assert writer.durable < group
        later = writer.put_entries(entries(recipe, range(3, 5)))
        assert writer.flush_soon() == later > group
        held.wait_for(1)
        held.release(0, 1)
        writer.flush()
        assert writer.durable == later


@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}])
def test_whichever_group_fails_the_caller_is_told(
    store: precook.Store, recipe: precook.Recipe, held: HeldCommits, failing: set[int]
) -> None:
    """Each call from then on says so, none of what failed counts as durable, and no thread is left."""
    held.fails = failing
    writer = store.writer(flush_bytes=SIZE, flush_seconds=600)
    for number in range(2):
        writer.put_entries(entries(recipe, range(number, number + 1)))
        held.wait_for(number)
    held.release(0, 1)
    with pytest.raises(precook.NoSpaceError):
        writer.flush()
    for call in (writer.flush, writer.flush_soon, lambda: writer.put(recipe.key(5), 5), writer.close):
        with pytest.raises(precook.NoSpaceError):
            call()
    assert writer.durable < min(failing)
    assert not any(thread.name == "precook-writer" for thread in threading.enumerate())
    assert {number for number in range(2) if recipe.key(number) in store} == {0, 1} - failing


def test_of_two_groups_with_one_key_the_first_is_stored(
    store: precook.Store, recipe: precook.Recipe, held: HeldCommits
) -> None:
    """A key that comes again while its entry is being written is stored once."""
    with store.writer(flush_bytes=SIZE, flush_seconds=600) as writer:
        writer.put_entries(entries(recipe, range(1)))
        held.wait_for(0)
        again = ready_entry(recipe.key(0).bytes, take_apart(np.full(SIZE, 9, np.uint8)), recipe=recipe)
        writer.put_entries([again])
        assert not held._begun[1].wait(0.3)  # it waits for the first; a thread that does not has long begun by then
        held.release(*range(3))
        writer.put_entries(entries(recipe, range(1, 2)))
    assert store.get(recipe.key(0))[0] == 0
    assert sum(rows(store.path)) == 3  # with the one that was there


def test_two_groups_are_not_given_the_same_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store that is bounded, packs are counted before there is room for another: it never takes more."""
    recipe = precook.Recipe("test", 1)
    with precook.open(tmp_path / "store", max_bytes=10 * SIZE) as store:
        store.put(recipe.key(-1), 0)
        held = HeldCommits(monkeypatch)
        writer = store.writer(flush_bytes=4 * SIZE, flush_seconds=600)
        writer.put_entries(entries(recipe, range(12)))
        held.wait_for(0)
        assert not held._begun[1].wait(0.3)  # as above
        held.release(*range(3))
        with pytest.raises(precook.StoreFullError):
            writer.close()
        assert held.most == 1
        assert store.stats().pack_bytes <= 10 * SIZE


def test_many_entries_at_the_very_end_of_a_process_are_stored(tmp_path: Path) -> None:
    """More than a group of them, from what runs after everybody was asked to finish: no thread may be started."""
    script = f"""
import atexit, precook
recipe, store = precook.Recipe("test", 1), precook.open({str(tmp_path)!r}, flush_bytes=1000)

def last():
    from tests.store.test_writer import entries
    store.writer().put_entries(entries(recipe, range(5)))

atexit.register(last)
store.writer().put(recipe.key(-1), 0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    with precook.open(tmp_path) as store:
        assert len(store) == 6


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


def test_a_writer_with_one_thread_commits_all_with_it(
    store: precook.Store, recipe: precook.Recipe, held: HeldCommits
) -> None:
    """Where the system gives no second thread, groups are committed one after the other, and no put is refused."""
    with store.writer(flush_bytes=SIZE, flush_seconds=600) as writer:
        writer.put_entries(entries(recipe, range(1)))
        held.wait_for(0)
        before = threading.stack_size(1 << 47)  # more than any address space has: the system refuses the thread
        try:
            writer.put_entries(entries(recipe, range(1, 2)))
            writer.put_entries(entries(recipe, range(2, 3)))
            held.release(0, 1, 2)
            writer.flush()
        finally:
            threading.stack_size(before)
    assert held.most == 1
    assert [int(store.get(recipe.key(number))[0]) for number in range(3)] == list(range(3))


class AtLine:
    """Presses Ctrl-C as this thread comes to the n-th line of what makes room in a writer, under its lock.

    Not of what takes the lock: at the end of a `with` a trace can raise where Python itself never would.
    """

    FUNCTIONS = ("_open_group", "_has_turn", "_hand_over")

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: Any, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != writer_module.__file__:
            return None
        if frame.f_code.co_name not in self.FUNCTIONS:
            return self
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def test_ctrl_c_while_a_put_makes_room_leaves_a_writer_that_goes_on(tmp_path: Path) -> None:
    """What was put before it is stored, and what is put after it; nobody waits for a group that no thread knows of."""
    recipe = precook.Recipe("test", 1)
    for line in range(1, 1000):
        press = AtLine(line)
        with precook.open(tmp_path / str(line)) as store:
            # Full at every second entry: the third hands a group over.
            with store.writer(flush_bytes=2 * SIZE, flush_seconds=600) as writer:
                writer.put_entries(entries(recipe, range(2)))
                third = entries(recipe, range(2, 3))
                sys.settrace(press)
                try:
                    writer.put_entries(third)
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(None)
                writer.put_entries(entries(recipe, range(3, 6)))
                closing = threading.Thread(target=writer.close, daemon=True)
                closing.start()
                closing.join(60)
                assert not closing.is_alive(), f"line {line}"
            assert [number for number in (0, 1, 3, 4, 5) if recipe.key(number) not in store] == []
        if press.left > 0:
            break
    assert line > 5
