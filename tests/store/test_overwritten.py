"""Packs that somebody writes into, or cuts short, after this process has read and checked them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.store import pack_cache
from tests.support.commands import environment
from tests.support.snapshots import freeze, make_older, packs
from tests.support.trees import same

COUNT = 6
SMALL, LARGE = 10, 50_000
"""Numbers in an entry: few are copied, many are handed out as they are mapped."""

Read = Callable[[], list[Any]]


@pytest.fixture(autouse=True)
def look_at_every_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at a pack at each read, not only now and then: what is seen does not depend on how quick a test is."""
    monkeypatch.setattr(pack_cache, "LOOK_EVERY", 0.0)


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def trees(path: Path, recipe: precook.Recipe, request: pytest.FixtureRequest) -> list[Any]:
    """What was put, some time ago, into one pack; a snapshot names all of it."""
    made = [np.full((request.param,), number, np.int64) for number in range(COUNT)]
    with precook.open(path) as store:
        with store.writer() as writer:
            for number, tree in enumerate(made):
                writer.put(recipe.key(number), tree, recipe=recipe)
        freeze(store, "things", [recipe.key(number) for number in range(COUNT)])
    make_older(path, 3600)
    return made


def reads(store: precook.Store, recipe: precook.Recipe, way: str) -> Read:
    """A way to read all entries, in their order: what it gives, or raises."""
    keys = [recipe.key(number) for number in range(COUNT)]
    if way == "feed":
        feed = store.snapshot("things").feed(batch_size=2, tensors="numpy", threads=0)
        return lambda: sorted((row for batch in feed.epoch(0) for row in batch["latent"]), key=lambda row: int(row[-1]))
    ways: dict[str, Read] = {
        "get": lambda: [store.get(key) for key in keys],
        "get_many": lambda: store.get_many(keys),
        "stack": lambda: list(store.stack(keys)),
        "lazy": lambda: [store.get(key, lazy=True).load() for key in keys],
    }
    return ways[way]


WAYS = ("get", "get_many", "stack", "lazy", "feed")


def change(pack: Path, how: str) -> None:
    """Change the last number in a pack, which is one of the last entry."""
    data = bytearray(pack.read_bytes())
    data[-1] ^= 0x40
    if how == "a byte in place":
        with pack.open("r+b") as file:
            file.seek(len(data) - 1)
            file.write(data[-1:])
    elif how == "a copy over it":
        pack.write_bytes(data)
    elif how == "with its times put back":
        times = pack.stat()
        pack.write_bytes(data)
        os.utime(pack, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        other = pack.with_suffix(".other")
        other.write_bytes(data)
        other.replace(pack)


@pytest.mark.parametrize("how", ["a byte in place", "a copy over it", "with its times put back", "another file"])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_overwritten_is_never_served(
    path: Path, recipe: precook.Recipe, trees: list[Any], way: str, how: str
) -> None:
    """Whoever has read an entry before gets an error that names it, and all others as they were put."""
    with precook.open(path) as store:
        read = reads(store, recipe, way)
        for _ in range(2):
            assert same(read(), trees)
        change(packs(path)[0], how)
        with pytest.raises((precook.DamagedEntryError, precook.FeedError), match=recipe.key(COUNT - 1).hex[:16]):
            read()
        good = [recipe.key(number) for number in range(COUNT - 1)]
        for _ in range(2):
            assert same(store.get_many(good), trees[:-1])
        assert store.missing([recipe.key(number) for number in range(COUNT)]) == [recipe.key(COUNT - 1)]


@pytest.mark.parametrize("way", WAYS)
def test_a_pack_that_was_only_touched_is_read_on(
    path: Path, recipe: precook.Recipe, trees: list[Any], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """New times, a second name or another mode: all rows are checked once more, and that is all."""
    with precook.open(path) as store:
        read = reads(store, recipe, way)
        assert same(read(), trees)
        (pack,) = packs(path)
        os.utime(pack)
        for _ in range(2):
            assert same(read(), trees)
        assert caplog.text.count("has changed since it was opened: its entries are checked again") == 1
        pack.chmod(0o400)
        os.link(pack, path.parent / "backup")
        for _ in range(2):
            assert same(read(), trees)
        assert store.damaged() == {}


@pytest.mark.parametrize("way", ["stack", "feed"])
def test_a_pack_that_was_removed_is_read_on(path: Path, recipe: precook.Recipe, trees: list[Any], way: str) -> None:
    """What is mapped stays what it was when the file's name goes, as a compaction in another process makes it go."""
    with precook.open(path) as store:
        read = reads(store, recipe, way)
        for _ in range(2):
            assert same(read(), trees)
        packs(path)[0].unlink()
        assert same(read(), trees)


SCRIPT = """
import os, shutil, sys
import precook
from precook.store import pack_cache
from tests.store.test_overwritten import WAYS, reads
from tests.support.snapshots import packs
from pathlib import Path

def child(path, way, part):
    with precook.open(path) as store:
        read = reads(store, precook.Recipe("recipe", {}), way)
        for _ in range(2):
            [array.sum() for array in read()]
        pack = packs(path)[0]
        os.truncate(pack, int(pack.stat().st_size * part))
        try:
            [array.sum() for array in read()]
        except (precook.MissingEntryError, precook.FeedError):
            os._exit(0)
        os._exit(1)

pack_cache.LOOK_EVERY = 0.0
for way in WAYS:
    for part in (0.0, 0.5, 0.99):
        path = Path(sys.argv[1]).with_name(f"{way} {part}")
        shutil.copytree(sys.argv[1], path)
        pid = os.fork() or child(path, way, part)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if ended:
            print(way, part, "ended with", ended)
"""


def test_a_pack_cut_short_while_it_is_mapped_is_an_error(path: Path) -> None:
    """The process that reads it goes on, where a plain mapping would have ended it by SIGBUS."""
    recipe = precook.Recipe("recipe", {})
    with precook.open(path) as store:
        with store.writer() as writer:
            for number in range(COUNT):
                writer.put(recipe.key(number), np.full(LARGE, number), recipe=recipe)
        freeze(store, "things", [recipe.key(number) for number in range(COUNT)])
    command = [sys.executable, "-c", SCRIPT, path]
    ended = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr[-2000:]


def test_readers_in_several_threads_beside_somebody_who_touches_packs(
    path: Path, recipe: precook.Recipe, trees: list[Any]
) -> None:
    """Each gets what was put, however often the pack is opened anew for it."""
    (pack,) = packs(path)
    with precook.open(path) as store, ThreadPoolExecutor(len(WAYS)) as threads:

        def read(way: str) -> None:
            again = reads(store, recipe, way)
            for _ in range(30):
                assert same(again(), trees)

        under_way = [threads.submit(read, way) for way in WAYS]
        while not all(future.done() for future in under_way):
            os.utime(pack)
            other = pack.with_suffix(".other")
            other.write_bytes(pack.read_bytes())
            other.replace(pack)
            wait(under_way, timeout=0.01)
        for future in under_way:
            future.result()
        assert store.damaged() == {}


def test_without_being_told_to_look_at_each_read_it_is_seen_soon(
    path: Path, recipe: precook.Recipe, trees: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack is looked at again after a moment, so somebody who reads on comes upon the change."""
    monkeypatch.undo()
    with precook.open(path) as store:
        key = recipe.key(COUNT - 1)
        assert same([store.get(key), store.get(key)], [trees[-1]] * 2)
        change(packs(path)[0], "a byte in place")

        def read_on() -> None:
            for _ in range(1_000_000):
                store.get(key)

        with pytest.raises(precook.DamagedEntryError):
            read_on()
