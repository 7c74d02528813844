"""What a store promises to one process: put, get, miss, refuse."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.fs import posix
from precook.fs.read import read_small
from precook.store import files, reader
from precook.store.index.index import Place
from tests.support.trees import same, trees


def keys(recipe: precook.Recipe, count: int) -> list[precook.Key]:
    return [recipe.key(i) for i in range(count)]


def packs(path: Path) -> list[Path]:
    return sorted(path.glob("packs/*/*.safetensors"))


@settings(max_examples=40)
@given(st.lists(trees, min_size=1, max_size=5))
def test_trees_round_trip_through_the_disk(tmp_path_factory: pytest.TempPathFactory, group: list[Any]) -> None:
    """What one process puts, a later one gets, bit for bit, in one commit or several."""
    path = tmp_path_factory.mktemp("store") / "cache"
    recipe = precook.Recipe("test", {})
    with precook.open(path) as store, store.writer() as writer:
        for i, tree in enumerate(group):
            writer.put(recipe.key(i), tree, recipe=recipe, labels={"i": i})
    with precook.open(path) as store:
        for _ in range(3):
            for i, tree in enumerate(group):
                assert same(store.get(recipe.key(i)), tree)
        assert store.verify().clean


def test_opening_creates_nothing(path: Path, recipe: precook.Recipe) -> None:
    """A store appears with its first write, not before."""
    with precook.open(path) as store:
        assert recipe.key(1) not in store
        assert len(store) == 0
        assert store.get(recipe.key(1), None) is None
        assert store.missing([recipe.key(1)]) == [recipe.key(1)]
    assert not path.exists()


def test_a_missing_entry_is_a_key_error_that_names_the_key(store: precook.Store, recipe: precook.Recipe) -> None:
    """Without a default a miss raises, and the message carries the key."""
    with pytest.raises(KeyError) as caught:
        store.get(recipe.key(1))
    assert isinstance(caught.value, precook.MissingEntryError)
    assert recipe.key(1).hex in str(caught.value)


def test_a_key_must_be_a_key(store: precook.Store) -> None:
    """A text that looks like a key is refused, in every call that takes one."""
    for call in (store.get, store.put):
        with pytest.raises(TypeError, match=r"precook\.Key"):
            call("ab" * 32, *([{}] if call == store.put else []))


def test_missing_keeps_the_order_and_says_each_once(store: precook.Store, recipe: precook.Recipe) -> None:
    """Repeated and present keys are left out, the rest stays in the order asked."""
    a, b, c, d = keys(recipe, 4)
    store.put(b, 1)
    assert store.missing([d, b, a, d, c, b]) == [d, a, c]


def test_the_first_tree_under_a_key_stays(
    store: precook.Store, recipe: precook.Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    """Putting again leaves the first entry and its pack untouched; a different result is told, not stored."""
    key = recipe.key(1)
    store.put(key, np.zeros(3))
    before = packs(store.path)
    store.put(key, np.zeros(3))
    assert not caplog.records
    store.put(key, np.ones(3))
    assert "different result" in caplog.text
    assert packs(store.path) == before
    assert same(store.get(key), np.zeros(3))


def test_a_put_takes_a_copy(store: precook.Store, recipe: precook.Recipe) -> None:
    """What happens to a tensor after `writer.put` does not reach the store."""
    array = np.zeros(5)
    with store.writer() as writer:
        writer.put(recipe.key(1), array)
        array[:] = 1
    assert same(store.get(recipe.key(1)), np.zeros(5))


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("verify", [True, False, "always"])
def test_tensors_that_come_out_can_be_written_to(path: Path, recipe: precook.Recipe, size: int, verify: Any) -> None:
    """Writes stay with the tensor that was handed out: other reads, live or later, never see them."""
    key, other = keys(recipe, 2)
    tree = {"a": np.arange(size, dtype=np.float32), "b": np.arange(size * 2)}
    with precook.open(path, verify_reads=verify) as store:
        with store.writer() as writer:
            writer.put(key, tree)
            writer.put(other, tree)
        alive = []
        for _ in range(4):
            got = store.get(key)
            assert same(got, tree)
            got["a"][:] = -1
            got["b"][:] = -1
            alive.append(got)
            lazy = store.get(key, lazy=True)["a"].load()
            assert same(lazy, tree["a"])
            lazy[:] = -2
            assert same(store.get(other), tree)
        assert all((got["a"] == -1).all() for got in alive)
        assert same(store.stack([key, other])["a"][0], tree["a"])
        assert store.verify().clean


@pytest.mark.parametrize("written", [(), (1,), (0, 2, 3), (0, 1, 2, 3)])
def test_memory_that_is_used_again_never_shows_what_was_written(
    path: Path, recipe: precook.Recipe, written: tuple[int, ...]
) -> None:
    """Rounds over large entries of one pack, some of which are written to and let go: each round reads what was put."""
    wanted = keys(recipe, 4)
    trees = [np.arange(20_000) + number for number in range(4)]
    with precook.open(path) as store:
        with store.writer() as writer:
            for key, tree in zip(wanted, trees, strict=True):
                writer.put(key, tree)
        for turn in range(6):
            for number, (key, tree) in enumerate(zip(wanted, trees, strict=True)):
                got = store.get(key)
                assert same(got, tree)
                if number in written and turn % 2:
                    got[number * 4000] = -1
                part = got[5:]  # a part of it keeps it, too
                del got
                assert same(part, tree[5:]) or number in written
        assert store.verify().clean


def test_tensors_outlive_their_store(path: Path, recipe: precook.Recipe) -> None:
    """A tensor stays valid after the store is closed and its pack deleted."""
    array = np.arange(100_000)
    with precook.open(path) as store:
        store.put(recipe.key(1), array)
        first, second = store.get(recipe.key(1)), store.get(recipe.key(1))
    for pack in packs(path):
        pack.unlink()
    assert same(first, array)
    assert same(second, array)


def test_lazy_leaves_know_their_shape_and_read_nothing(store: precook.Store, recipe: precook.Recipe) -> None:
    """Shape, type and size are known without the bytes: they answer even when the bytes are damaged."""
    key = recipe.key(1)
    store.put(key, {"a": np.zeros((3, 1000), np.float32), "n": 5})
    tree = store.get(key, lazy=True)
    leaf = tree["a"]
    assert isinstance(leaf, precook.LazyTensor)
    assert (leaf.shape, leaf.dtype, leaf.nbytes, tree["n"]) == ((3, 1000), np.dtype("float32"), 12000, 5)
    assert same(leaf.load(), np.zeros((3, 1000), np.float32))
    (pack,) = packs(store.path)
    pack.write_bytes(pack.read_bytes()[:-1] + b"x")
    with precook.open(store.path) as reopened:
        lazy = reopened.get(key, lazy=True)
        assert lazy["a"].shape == (3, 1000)
        with pytest.raises(precook.DamagedEntryError):
            lazy["a"].load()


def test_stack_puts_entries_of_one_shape_into_one_buffer(store: precook.Store, recipe: precook.Recipe) -> None:
    """Tensors gain a first dimension, plain parts become lists, across packs and in the order asked."""
    wanted = keys(recipe, 6)
    trees = [{"x": np.full((2, 3), i, np.float16), "s": np.array(i), "caption": f"c{i}"} for i in range(6)]
    for key, tree in zip(wanted, trees, strict=True):
        store.put(key, tree)
    order = [5, 0, 3, 3]
    for _ in range(2):
        batch = store.stack([wanted[i] for i in order])
        assert same(batch["x"], np.stack([trees[i]["x"] for i in order]))
        assert same(batch["s"], np.array(order))
        assert batch["caption"] == ["c5", "c0", "c3", "c3"]
    store.put(recipe.key("other"), {"x": np.zeros((3, 3), np.float16), "s": np.array(0), "caption": ""})
    with pytest.raises(precook.TreeError, match="shape"):
        store.stack([wanted[0], recipe.key("other")])
    store.put(recipe.key("third"), [1])
    with pytest.raises(precook.TreeError, match="nesting"):
        store.stack([wanted[0], recipe.key("third")])
    with pytest.raises(precook.MissingEntryError):
        store.stack([wanted[0], recipe.key("nothing")])


@pytest.mark.parametrize("plain", [False, True])
def test_a_stack_is_checked_at_every_read_if_asked(path: Path, recipe: precook.Recipe, *, plain: bool) -> None:
    """With verify_reads="always" a byte that changed is noticed before the file is looked at again, and named."""
    wanted = keys(recipe, 4)
    with precook.open(path) as store:
        for number, key in enumerate(wanted):
            leaf = np.full(1000, number)
            store.put(key, {"x": leaf, "caption": f"c{number}"} if plain else leaf, recipe=recipe)
    with precook.open(path, verify_reads="always") as store:
        for _ in range(2):
            batch = store.stack(wanted)
            assert same(batch["x"] if plain else batch, np.stack([np.full(1000, number) for number in range(4)]))
        pack = store.locate(wanted[2]).table.pack
        pack.look_at = float("inf")
        with pack.path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        with pytest.raises(precook.DamagedEntryError, match=wanted[2].hex[:16]):
            store.stack(wanted)
        batch = store.stack([wanted[3], wanted[0]])
        assert same(batch["x"] if plain else batch, np.stack([np.full(1000, 3), np.full(1000, 0)]))


def test_leaves_can_be_asked_for_in_another_library(store: precook.Store, recipe: precook.Recipe) -> None:
    """`tensors=` overrides what went in; without it each leaf comes back as it was."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tree = {"n": np.arange(3), "t": torch.arange(3)}
    store.put(recipe.key(1), tree)
    assert same(store.get(recipe.key(1)), tree)
    assert same(store.get(recipe.key(1), tensors="numpy"), {"n": np.arange(3), "t": np.arange(3)})
    assert same(store.get_many([recipe.key(1)], tensors="torch"), [{"n": torch.arange(3), "t": torch.arange(3)}])
    for ask in (store.get_many, store.stack):
        with pytest.raises(ValueError, match='"numpy" or "torch", not \'jax\''):
            ask([recipe.key(1)], tensors="jax")


def test_a_group_is_committed_by_size_by_time_and_by_flush(path: Path, recipe: precook.Recipe) -> None:
    """Whichever comes first makes entries visible; nothing else does."""
    a, b, c = keys(recipe, 3)
    with precook.open(path) as store:
        with store.writer(flush_bytes=1, flush_seconds=3600) as by_size:
            by_size.put(a, np.zeros(10))
            until(lambda: a in store)
        with store.writer(flush_bytes=1 << 30, flush_seconds=0.01) as by_time:
            by_time.put(b, np.zeros(10))
            until(lambda: b in store)
        with store.writer(flush_bytes=1 << 30, flush_seconds=3600) as by_flush:
            by_flush.put(c, np.zeros(10))
            assert c not in store
            by_flush.flush()
            assert c in store


def until(condition: Any) -> None:
    """Wait for another thread's work: a test that never gets there is ended by the runner, not passed."""
    while not condition():
        threading.Event().wait(0.001)


def test_one_commit_is_one_pack(store: precook.Store, recipe: precook.Recipe) -> None:
    """A thousand small entries make one file, a standard safetensors file with their numbers in columns."""
    with store.writer() as writer:
        for i, key in enumerate(keys(recipe, 1000)):
            writer.put(key, {"fixed": np.full(3, i), "varies": np.arange(i % 5)})
    (pack,) = packs(store.path)
    columns = safetensors.numpy.load_file(pack)
    stored = {bytes(row): i for i, row in enumerate(columns["t0/keys"])}
    assert set(stored) == {key.bytes for key in keys(recipe, 1000)}
    for i, key in enumerate(keys(recipe, 1000)):
        assert (columns["t0/leaf.fixed"][stored[key.bytes]] == i).all()
    flat = np.concatenate([np.arange(i % 5) for i in range(1000)])
    assert (columns["t0/leaf.varies"] == flat).all()


def test_many_different_trees_fit_into_one_writer(store: precook.Store, recipe: precook.Recipe) -> None:
    """A header's limits split a group into packs instead of failing it."""
    wanted = keys(recipe, 60)
    with store.writer() as writer:
        for i, key in enumerate(wanted):
            writer.put(key, {f"{i}-{j}": np.zeros(1, np.uint8) for j in range(300)})
    assert len(packs(store.path)) > 1
    assert store.missing(wanted) == []
    assert store.verify().clean
    with pytest.raises(precook.TreeError, match="too many"):
        store.put(recipe.key("monster"), [np.zeros(1)] * 20_000)


def test_a_closed_store_says_so(store: precook.Store, recipe: precook.Recipe) -> None:
    """Every call after close is refused, and closing twice is fine."""
    store.put(recipe.key(1), 1)
    writer = store.writer()
    writer.close()
    with pytest.raises(precook.ClosedStoreError):
        writer.put(recipe.key(2), 2)
    store.close()
    store.close()
    for call in (lambda: store.get(recipe.key(1)), lambda: store.put(recipe.key(1), 1), lambda: len(store)):
        with pytest.raises(precook.ClosedStoreError):
            call()


def test_closing_waits_for_a_put_under_way(path: Path, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that meets an entry not yet committed lets it be, and neither waits for the other for ever."""
    store = precook.open(path)
    published, closing = threading.Event(), threading.Event()

    def wait(_: str) -> None:
        published.set()
        closing.wait(5)

    monkeypatch.setattr(files, "reached", wait)
    putting = threading.Thread(target=store.put, args=(recipe.key(1), 1))
    putting.start()
    assert published.wait(5)
    close = threading.Thread(target=store.close)
    close.start()
    close.join(0.1)
    assert close.is_alive(), "it closed a store whose put is under way"
    closing.set()
    putting.join()
    close.join()
    with precook.open(path) as again:
        assert again.get(recipe.key(1)) == 1


def test_threads_that_put_at_once_keep_each_entry_once(store: precook.Store, recipe: precook.Recipe) -> None:
    """Every put is durable when it returns; of two that put the same key the second finds the first's entry."""
    start = threading.Barrier(4)

    def put(first: int) -> None:
        start.wait()
        for number in (first, 100, 101):
            store.put(recipe.key(number), {"x": np.full(3, number)}, recipe=recipe)
            assert recipe.key(number) in store

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store) == len(list(store.entries())) == 6
    assert [store.get(recipe.key(number))["x"][0] for number in (0, 1, 2, 3, 100, 101)] == [0, 1, 2, 3, 100, 101]


def test_a_put_that_cannot_be_stored_says_why_and_the_next_one_goes_on(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error reaches whoever puts, in the same thread; nothing stays behind that would refuse the next entry."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(files, "publish", fail)
        with pytest.raises(precook.NoSpaceError):
            store.put(recipe.key(1), 1)
    store.put(recipe.key(1), 1)
    assert store.get(recipe.key(1)) == 1


def test_a_writer_keeps_what_was_put_before_an_error(store: precook.Store, recipe: precook.Recipe) -> None:
    """Leaving the `with` block by an exception still commits finished work."""
    with pytest.raises(RuntimeError), store.writer() as writer:  # noqa: PT012
        writer.put(recipe.key(1), 1)
        raise RuntimeError
    assert store.get(recipe.key(1)) == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, precook.NoSpaceError),
        (errno.EDQUOT, precook.NoSpaceError),
        (errno.EROFS, precook.ReadOnlyError),
        (errno.EIO, precook.StoreWriteError),
        (errno.EMFILE, precook.StoreWriteError),
    ],
)
def test_a_refused_write_is_a_named_error_and_harms_nothing(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    """The failed group is not stored, says why, and leaves no file; the store goes on."""
    store.put(recipe.key(1), 1)
    before = packs(store.path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_file", lambda _: (_ for _ in ()).throw(OSError(code, os.strerror(code))))
        with pytest.raises(error), store.writer() as writer:  # noqa: PT012
            writer.put(recipe.key(2), 2)
            writer.flush()
    assert packs(store.path) == before
    assert not list(store.path.rglob("*.partial"))
    assert store.get(recipe.key(1)) == 1
    assert recipe.key(2) not in store
    store.put(recipe.key(2), 2)
    assert store.get(recipe.key(2)) == 2


def test_a_failed_writer_stays_failed(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can go on putting into a writer that has lost a group."""
    writer = store.writer()
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_file", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        writer.put(recipe.key(1), 1)
        with pytest.raises(precook.StoreWriteError):
            writer.flush()
    with pytest.raises(precook.StoreWriteError):
        writer.put(recipe.key(2), 2)
    with pytest.raises(precook.StoreWriteError):
        writer.close()


def test_two_stores_are_not_mixed_up(tmp_path: Path, recipe: precook.Recipe) -> None:
    """An index copied from another store is thrown away, what it knew of damage included."""
    with precook.open(tmp_path / "a") as a, precook.open(tmp_path / "b") as b:
        a.put(recipe.key(1), "a")
        b.put(recipe.key(2), "b")
        a.internals().index.mark_damaged(Place(recipe.key(9).bytes, "00" * 32, 0), "a's own damage")  # type: ignore[union-attr]
        assert a.stats().damaged
    (tmp_path / "a" / "index.sqlite").replace(tmp_path / "b" / "index.sqlite")
    with precook.open(tmp_path / "b") as b:
        assert b.get(recipe.key(2)) == "b"
        assert recipe.key(1) not in b
        assert not b.stats().damaged


@pytest.mark.parametrize(
    "what", ["file", "folder with files", "newer", "no format", "not text", "a folder", "a dead link"]
)
def test_what_is_not_our_store_is_refused(path: Path, recipe: precook.Recipe, what: str) -> None:
    """A foreign directory, a newer format and a broken marker each give a typed error, and nothing is written."""
    expected: type[precook.StoreError] = precook.NotAStoreError
    if what == "file":
        path.write_text("hello")
    else:
        path.mkdir()
    if what == "folder with files":
        (path / "thesis.docx").write_text("hello")
    elif what == "newer":
        (path / "store.toml").write_text('format = 99\nid = "x"\n')
        expected = precook.NewerFormatError
    elif what == "no format":
        (path / "store.toml").write_text('id = "x"\n')
    elif what == "not text":
        (path / "store.toml").write_bytes(b"\xff\xfe\x00")
    elif what == "a folder":
        (path / "store.toml").mkdir()
    elif what == "a dead link":
        (path / "store.toml").symlink_to("nowhere")
    before = sorted(path.rglob("*")) if path.is_dir() else path.read_text()
    with pytest.raises(expected) as caught:
        precook.open(path).put(recipe.key(1), 1)
    assert caught.value.hint
    assert (sorted(path.rglob("*")) if path.is_dir() else path.read_text()) == before


def test_a_store_that_appears_while_it_is_looked_for_is_opened(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at a directory another process may have made it a store."""
    store.put(recipe.key(1), 1)
    looks = []

    def look(path: Path, limit: int) -> bytes:
        looks.append(path)
        if len(looks) == 1:
            raise FileNotFoundError(path)
        return read_small(path, limit)

    monkeypatch.setattr("precook.store.layout.read_small", look)
    with precook.open(store.path) as again:
        assert again.get(recipe.key(1)) == 1


def test_an_empty_directory_may_become_a_store(path: Path, recipe: precook.Recipe) -> None:
    """So may one that holds only what a creation cut short leaves behind."""
    path.mkdir()
    (path / "index.lock").touch()
    (path / "store.toml.ab12.partial").write_text("form")
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
    with precook.open(path, read_only=True) as store:
        assert store.get(recipe.key(1)) == 1


def test_a_read_only_store_refuses_writes_and_creates_nothing(path: Path, recipe: precook.Recipe) -> None:
    """Reading leaves the directory as it was, to the byte."""
    with precook.open(path) as store:
        store.put(recipe.key(1), np.arange(10))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with precook.open(path, read_only=True) as store:
        assert same(store.get(recipe.key(1)), np.arange(10))
        assert recipe.key(2) not in store
        assert store.verify().clean
        with pytest.raises(precook.ReadOnlyError):
            store.put(recipe.key(2), 1)
        with pytest.raises(precook.ReadOnlyError):
            store.writer()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    with pytest.raises(precook.NoStoreError):
        precook.open(path.parent / "nowhere", read_only=True)


def test_threads_share_a_store(path: Path, recipe: precook.Recipe) -> None:
    """Eight threads putting and getting the same and different keys end with everything in place."""
    problems: list[object] = []

    def work(number: int) -> None:
        for i in range(20):
            mine, ours = recipe.key(number, i), recipe.key("shared", i)
            store.put(mine, np.full(5000, number))
            store.put(ours, np.full(5000, i))
            if not same(store.get(mine), np.full(5000, number)) or not same(store.get(ours), np.full(5000, i)):
                problems.append((number, i))

    with precook.open(path) as store:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        assert len(store) == 8 * 20 + 20
        assert store.verify().clean


def test_a_partial_file_swept_before_it_was_locked_is_made_anew(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep between a writer's open and its lock costs the writer a second try, not its entries."""
    real, swept = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.endswith(".safetensors.partial") or (".safetensors." in name and not swept):
            swept.append(name)
            os.unlink(name)
        real(descriptor, operation)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to know a descriptor's name")
    store.put(recipe.key(0), 0)
    monkeypatch.setattr(fcntl, "flock", flock)
    store.put(recipe.key(1), 1)
    assert swept
    with precook.open(store.path) as again:
        assert again.get(recipe.key(1)) == 1


def test_a_key_in_two_packs_counts_once(tmp_path: Path, recipe: precook.Recipe) -> None:
    """Copies of an entry take space on disk but are one entry in every count."""
    for name in "ab":
        with precook.open(tmp_path / name) as store:
            store.put(recipe.key(1), np.zeros(10), recipe=recipe)
    (copy,) = packs(tmp_path / "b")
    target = tmp_path / "a" / copy.relative_to(tmp_path / "b")
    target.parent.mkdir(exist_ok=True)
    copy.replace(target)
    with precook.open(tmp_path / "a") as store:
        stats = store.stats()
        assert (len(store), stats.entries, stats.packs, stats.payload_bytes) == (1, 1, 2, 80)
        assert [part.entries for part in stats.recipes] == [1]
        assert store.locate(recipe.key(1)).copies == 2


def test_an_entry_tells_where_it_lies(store: precook.Store, recipe: precook.Recipe) -> None:
    """Pack, row, size, recipe and labels are known without reading tensors."""
    with store.writer() as writer:
        writer.put(recipe.key(1), "plain")
        writer.put(recipe.key(2), np.zeros(10), recipe=recipe, labels={"file": "a.jpg"})
    found = store.locate(recipe.key(2))
    assert (found.pack, found.pack_row, found.copies, found.nbytes) == (packs(store.path)[0], 1, 1, 80)
    assert (found.recipe, found.labels) == (recipe.form, b'{"file":"a.jpg"}')
    assert store.locate(recipe.key(1)).labels == b"null"
    with pytest.raises(precook.MissingEntryError):
        store.locate(recipe.key(3))


def test_stats_count_what_is_there(store: precook.Store, recipe: precook.Recipe) -> None:
    """Entries, bytes and recipes add up."""
    with store.writer() as writer:
        for key in keys(recipe, 10):
            writer.put(key, np.zeros(100), recipe=recipe)
        writer.put(recipe.key("bare"), np.zeros(1))
    stats = store.stats()
    assert (stats.entries, stats.packs, stats.payload_bytes) == (11, 1, 10 * 800 + 8)
    assert stats.pack_bytes == sum(pack.stat().st_size for pack in packs(store.path))
    assert {part.form: part.entries for part in stats.recipes} == {recipe.form: 10, b"": 1}
    rows = list(store.entries())
    assert sorted(row.key for row in rows) == sorted(key.bytes for key in [*keys(recipe, 10), recipe.key("bare")])


def test_a_store_is_closed_in_the_middle_of_its_own_put_without_a_hang(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal handler does; the put under way ends by itself, and nothing is taken after it."""
    real = files.publish

    def close(*arguments: Any, **options: Any) -> None:
        store.close()
        real(*arguments, **options)

    store.put(recipe.key(0), np.arange(3))
    monkeypatch.setattr(files, "publish", close)
    with contextlib.suppress(precook.PrecookError):
        store.put(recipe.key(1), np.arange(3))
    monkeypatch.undo()
    with pytest.raises(precook.ClosedStoreError):
        store.put(recipe.key(2), np.arange(3))


def test_what_nobody_expected_in_a_put_is_an_error_of_ours(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever catches `PrecookError` around a put catches all that storing can end with."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("boom")

    store.put(recipe.key(0), np.arange(3))
    monkeypatch.setattr(files, "publish", fail)
    with pytest.raises(precook.PrecookError, match="boom"):
        store.put(recipe.key(1), np.arange(3))


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="this system does not tell what was written to")
@pytest.mark.parametrize(("spares", "kept"), [(8, True), (3, False)])
def test_mappings_that_nobody_wrote_to_are_used_again_after_much_was_read(
    store: precook.Store, recipe: precook.Recipe, spares: int, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    """Going through large entries again and again, a few packs are mapped no more often; of too many none is kept.

    Whatever was written into a tensor stays there, and is never read again.
    """
    monkeypatch.setattr(reader, "_GIVEN", 1 << 20)
    monkeypatch.setattr(reader, "_SPARES", spares)
    for number in range(8):
        store.put(recipe.key(number), np.full(1 << 15, number))
    mapped = []
    make = posix._Mapping
    monkeypatch.setattr(posix, "_Mapping", lambda *args, **options: mapped.append(args) or make(*args, **options))
    for _ in range(20):
        assert [int(store.get(recipe.key(number))[-1]) for number in range(8)] == list(range(8))
    assert (len(mapped) == 8) == kept
    for _ in range(3):
        for number in range(8):
            array = store.get(recipe.key(number))
            assert (array == number).all()
            array[...] = 77
