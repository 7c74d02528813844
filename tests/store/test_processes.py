"""One store, many processes: forks, spawns, DataLoader workers, writers side by side, mounts nobody may write to."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.store import files
from tests.support.trees import same


def in_child(work: Any) -> None:
    """Run `work` in a forked child and expect it to succeed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_store_opened_before_a_fork_works_on_both_sides(store: precook.Store, recipe: precook.Recipe) -> None:
    """Child and parent read, write and see each other's entries."""
    store.put(recipe.key(0), np.arange(10_000))
    assert same(store.get(recipe.key(0)), np.arange(10_000))

    def work() -> None:
        # SQLite's own rule: a connection must not be carried across a fork.
        assert store.internals().index._connection is None
        assert same(store.get(recipe.key(0)), np.arange(10_000))
        assert recipe.key(1) not in store
        store.put(recipe.key(1), "child")
        assert store.get(recipe.key(1)) == "child"

    in_child(work)
    assert store.get(recipe.key(1)) == "child"
    store.put(recipe.key(2), "parent")
    in_child(lambda: store.get(recipe.key(2)))
    assert store.verify().clean


def test_a_writer_does_not_cross_a_fork(store: precook.Store, recipe: precook.Recipe) -> None:
    """A child that inherited a writer is told so; the parent's entries are stored once, by the parent."""
    with store.writer(flush_seconds=3600) as writer:
        writer.put(recipe.key(1), 1)

        def work() -> None:
            with pytest.raises(precook.ClosedStoreError, match="forked"):
                writer.put(recipe.key(2), 2)
            with pytest.raises(precook.ClosedStoreError, match="forked"):
                writer.close()

        in_child(work)
    assert store.missing([recipe.key(1), recipe.key(2)]) == [recipe.key(2)]


def test_forking_while_threads_use_the_store_never_hangs_the_child(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """Locks that other threads hold at the moment of the fork do not stay locked in the child."""
    import threading  # noqa: PLC0415

    keys = [recipe.key(i) for i in range(20)]
    with store.writer() as writer:
        for i, key in enumerate(keys):
            writer.put(key, np.full(20_000, i))
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            for key in keys:
                store.get(key)
                store.missing([key])

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            in_child(lambda: [store.get(key) for key in keys] + store.missing(keys))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_file_is_hashed_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    """The threads that hashed a large file for the parent are not there in the child, which does without."""
    (tmp_path / "weights").write_bytes(bytes(16 << 20))
    found = precook.digest(tmp_path / "weights")

    def work() -> None:
        signal.alarm(20)  # ends what would hang
        assert precook.digest(tmp_path / "weights") == found

    in_child(work)


def put_some(store: precook.Store, recipe: precook.Recipe, number: int) -> None:
    with store.writer(flush_bytes=50_000) as writer:
        for i in range(number * 20, number * 20 + 60):
            writer.put(recipe.key(i), {"x": np.full(1000, i), "i": i}, recipe=recipe)
    assert store.missing([recipe.key(i) for i in range(number * 20, number * 20 + 60)]) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_write_overlapping_keys_at_once(path: Path, recipe: precook.Recipe, method: str) -> None:
    """Four writers with shared keys, the store not even created yet: all entries there, verify clean."""
    context = multiprocessing.get_context(method)
    with precook.open(path) as store:
        workers = [context.Process(target=put_some, args=(store, recipe, number)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    with precook.open(path) as store:
        keys = [recipe.key(i) for i in range(120)]
        assert same(store.get_many(keys), [{"x": np.full(1000, i), "i": i} for i in range(120)])
        assert store.verify().clean
        assert len(store) == 120


def test_a_file_is_its_writers_until_it_has_its_name(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens the store, and sweeps it, at the last moment of a write takes nothing away."""
    rename, swept = os.rename, []

    def late(partial: Path, path: Path) -> None:
        if not Path(partial).name.startswith("index."):  # which is swept under the store's lock only
            swept.append(files.sweep_partial(Path(partial)))
        rename(partial, path)

    monkeypatch.setattr(os, "rename", late)
    store.put(recipe.key(1), {"x": 1}, recipe=recipe)
    assert store.get(recipe.key(1)) == {"x": 1}
    assert swept
    assert not any(swept)


class Samples:
    """A map-style dataset over a store."""

    def __init__(self, store: precook.Store, keys: list[precook.Key]) -> None:
        self.store = store
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Any:
        return self.store.get(self.keys[i])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataloader_reads_through_its_workers(path: Path, recipe: precook.Recipe, method: str) -> None:
    """Torch's DataLoader gives equal batches with workers of both start methods, from a store already in use."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    keys = [recipe.key(i) for i in range(12)]
    with precook.open(path) as store:
        with store.writer() as writer:
            for i, key in enumerate(keys):
                writer.put(key, {"x": torch.full((3, 5000), i), "b": torch.full((2,), i).bfloat16()})
        store.get(keys[0])
        dataset = Samples(store, keys)
        options: dict[str, Any] = {"batch_size": 4}
        plain = list(torch.utils.data.DataLoader(dataset, **options))
        loader = torch.utils.data.DataLoader(dataset, num_workers=2, multiprocessing_context=method, **options)
        assert all(torch.equal(a[k], b[k]) for a, b in zip(plain, loader, strict=True) for k in a)
        assert len(plain) == 3


def test_a_reader_sees_what_others_commit_after_it_opened(path: Path, recipe: precook.Recipe) -> None:
    """Also when the store did not exist yet when the reader opened it."""
    with precook.open(path) as reader, precook.open(path) as counter, precook.open(path) as writer:
        assert recipe.key(1) not in reader
        assert len(counter) == 0
        writer.put(recipe.key(1), 1)
        assert recipe.key(1) in reader
        assert len(counter) == 1
        assert reader.get(recipe.key(1)) == 1
        assert reader.missing([recipe.key(1), recipe.key(2)]) == [recipe.key(2)]
        writer.put(recipe.key(2), 2)
        assert reader.get(recipe.key(2)) == 2
        writer.reindex()
        writer.put(recipe.key(3), 3)
        assert reader.get(recipe.key(3)) == 3
        assert reader.get(recipe.key(1)) == 1


def test_a_reader_follows_when_packs_move(path: Path, recipe: precook.Recipe) -> None:
    """A pack that vanished is a miss, and an entry that another pack has is found there."""
    with precook.open(path) as reader, precook.open(path) as writer:
        writer.put(recipe.key(1), np.arange(9000))
        assert same(reader.get(recipe.key(1)), np.arange(9000))
        for pack in path.glob("packs/*/*"):
            pack.unlink()
        assert reader.get(recipe.key(1), None) is None
        assert reader.missing([recipe.key(1)]) == [recipe.key(1)]
        with precook.open(path) as again:
            again.put(recipe.key(1), np.arange(9000))
        assert same(reader.get(recipe.key(1)), np.arange(9000))


def test_a_live_index_can_be_read_read_only(path: Path, recipe: precook.Recipe) -> None:
    """While a writer has the store open, a read-only reader sees its commits, log and all, and creates no file."""
    with precook.open(path) as writer:
        writer.put(recipe.key(1), 1)
        before = sorted(file.name for file in path.iterdir())
        with precook.open(path, read_only=True) as reader:
            assert reader.get(recipe.key(1)) == 1
            writer.put(recipe.key(2), 2)
            assert reader.get(recipe.key(2)) == 2
        assert sorted(file.name for file in path.iterdir()) == before


SCRIPT = """
import sys, numpy
import precook
store = precook.open(sys.argv[1])
recipe = precook.Recipe("test", {"version": 1})
for i in range(int(sys.argv[2]), 10**9):
    store.put(recipe.key(i), numpy.full(100, i))
    print(i, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_reported(path: Path, recipe: precook.Recipe) -> None:
    """Kill -9 in the middle of a loop of puts, a few times: every acknowledged entry is there, verify is clean."""
    last = 0
    for round_number in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), str(path), str(last)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(3 + 2 * round_number):
            line = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        last = max([int(line), *map(int, rest)]) + 1
        with precook.open(path) as store:
            assert store.missing([recipe.key(i) for i in range(last)]) == []
            assert store.verify().clean


@pytest.fixture
def read_only_mount(path: Path, recipe: precook.Recipe) -> Any:
    """A store on a mount that nobody may write to, in a mount namespace of its own child processes."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with precook.open(path) as store:
        store.put(recipe.key(1), np.arange(5000))
        store.put(recipe.key(2), "two")
    libc = ctypes.CDLL(None, use_errno=True)
    target = path.parent / "mounted"
    target.mkdir()
    bind, remount, read_only = 4096, 32, 1
    if libc.mount(bytes(path), bytes(target), None, bind, None) != 0:
        pytest.skip(f"no permission to mount here: {os.strerror(ctypes.get_errno())}")
    try:
        assert libc.mount(None, bytes(target), None, bind | remount | read_only, None) == 0
        yield target
    finally:
        libc.umount2(bytes(target), 2)


def test_a_store_on_a_read_only_mount_is_read_and_refuses_writes(
    read_only_mount: Path, path: Path, recipe: precook.Recipe
) -> None:
    """Opened either way it reads, creates nothing, and names the reason when asked to write."""
    for options in ({}, {"read_only": True}):
        with precook.open(read_only_mount, **options) as store:
            assert store.read_only
            assert same(store.get(recipe.key(1)), np.arange(5000))
            assert store.missing([recipe.key(2), recipe.key(3)]) == [recipe.key(3)]
            assert store.verify().clean
            with pytest.raises(precook.ReadOnlyError) as caught:
                store.put(recipe.key(3), 3)
            assert caught.value.exit_code == 13
    (path / "index.sqlite").unlink()
    with precook.open(read_only_mount) as store:
        assert store.get(recipe.key(2)) == "two"
    assert not (path / "index.sqlite").exists()
