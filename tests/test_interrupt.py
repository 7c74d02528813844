"""Ctrl-C inside library calls: it comes out as KeyboardInterrupt, and the store can be used as before."""

from __future__ import annotations

import _thread
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.interrupt import Condition
from tests.support.interrupts import OPERATIONS, RECIPE, EveryWait
from tests.support.projects import dataset
from tests.support.stopped import Stopped


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "put"])
def test_ctrl_c_in_any_wait_comes_out_as_itself(tmp_path: Path, name: str) -> None:
    """Also where the wait has let go of its lock and not yet taken it again; asked for again, everything is done."""
    command = [sys.executable, "-m", "tests.support.interrupts", name, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) > 2, "there are waits"
    assert [one for one in told if (one["raised"], one["clean"]) != ("KeyboardInterrupt", True)] == []


def test_a_wait_that_ctrl_c_ends_holds_its_lock_again() -> None:
    """So that whoever waited can let go of it, once: others get it after that, and nobody before."""
    lock = threading.RLock()
    condition = Condition(lock)
    with lock:
        with EveryWait(0), pytest.raises(KeyboardInterrupt):
            condition.wait()
        assert in_another_thread(lambda: lock.acquire(blocking=False)) is False
    assert in_another_thread(lambda: lock.acquire(blocking=False)) is True


def in_another_thread(function: Callable[[], bool]) -> bool:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


class Pressing:
    """A connection at which Ctrl-C is pressed as soon as a transaction has begun."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, *parameters: Any) -> Any:
        found = self._connection.execute(sql, *parameters)
        if sql.startswith("BEGIN"):
            signal.raise_signal(signal.SIGINT)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_ctrl_c_where_a_transaction_has_begun_leaves_none_open(
    store: precook.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one who writes waits for nobody, in this process or another, and the index is not doubted for it."""
    store.put(RECIPE.key(0), np.zeros(3))
    index = store.internals().index
    connected = index._connected
    with monkeypatch.context() as patch:
        patch.setattr(index, "_connected", lambda: Pressing(connected()))
        with pytest.raises(KeyboardInterrupt):
            store.put(RECIPE.key(1), np.zeros(3))
    with precook.open(store.path) as other:
        other.put(RECIPE.key(2), np.zeros(3))
    store.put(RECIPE.key(1), np.zeros(3))
    assert len(store) == 3
    assert "anew" not in caplog.text


def test_ctrl_c_inside_a_long_look_at_the_index_is_not_taken_for_damage(
    store: precook.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes out as itself when the look is over, and no index is made anew for it."""
    store.put(RECIPE.key(0), np.zeros(3))
    index = store.internals().index
    # 200,000 steps, at the first of which it is pressed.
    steps = "SELECT press() IS NULL UNION ALL SELECT i + 1 FROM n LIMIT 200000"

    def look(db: Any) -> Any:
        # No Python code of ours runs in there: as for a real signal, it is only noted.
        db.create_function("press", 0, _thread.interrupt_main)
        return db.execute(f"WITH RECURSIVE n(i) AS ({steps}) SELECT count(*) FROM n").fetchall()

    with pytest.raises(KeyboardInterrupt):
        index._read(look)
    assert store.get(RECIPE.key(0)).tolist() == [0, 0, 0]
    assert "anew" not in caplog.text


PUT = """
import sys, numpy, precook
recipe = precook.Recipe("interrupted", {})
with precook.open(sys.argv[1]) as store:
    print("ready", flush=True)
    try:
        store.put(recipe.key(1), {"x": numpy.full(5, 1)})
    except BaseException as error:
        print(type(error).__name__, flush=True)
    with precook.open(sys.argv[1]) as other:
        print(other.verify().clean, len(other) in (1, 2), flush=True)
    store.put(recipe.key(1), {"x": numpy.full(5, 1)})
    store.put(recipe.key(2), {"x": numpy.full(5, 2)})
    print([int(tree["x"][0]) for tree in store.get_many([recipe.key(number) for number in range(3)])])
"""


def test_ctrl_c_inside_a_put_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Between the pack that has its name and the index: the entry is whole or not there, and the next put goes on."""
    with precook.open(tmp_path / "cache") as store:
        store.put(RECIPE.key(0), {"x": np.full(5, 0)})
    with Stopped(tmp_path, "commit.published", PUT, tmp_path / "cache") as child:
        child.arrive()
        child.process.send_signal(signal.SIGINT)
        # The process is inside a system call that the signal ends: whatever it prints next, it has been told.
        told = read_lines(child, 3)
        assert told == ["ready", "KeyboardInterrupt", "True True"]
        assert child.go().splitlines() == ["[0, 1, 2]"]


WRITER = """
import sys, numpy, precook
recipe = precook.Recipe("interrupted", {})
with precook.open(sys.argv[1]) as store:
    try:
        with store.writer() as writer:
            for number in range(3):
                writer.put(recipe.key(number), {"x": numpy.full(5, number)})
            try:
                writer.flush()
            except KeyboardInterrupt:
                print("inside", flush=True)
                raise
    except BaseException as error:
        print(type(error).__name__, store.missing([recipe.key(number) for number in range(3)]), flush=True)
    with store.writer() as writer:
        writer.put(recipe.key(3), {"x": numpy.full(5, 3)})
    print(len(store), store.verify().clean)
"""


def test_ctrl_c_while_a_writer_flushes_keeps_what_was_put(tmp_path: Path) -> None:
    """The group that is being written is finished work: it is durable when the block ends with KeyboardInterrupt."""
    with Stopped(tmp_path, "commit.published", WRITER, tmp_path / "cache") as child:
        child.arrive()
        child.process.send_signal(signal.SIGINT)
        assert read_lines(child, 1) == ["inside"]
        assert child.go().splitlines() == ["KeyboardInterrupt []", "4 True"]


FEED = """
import sys
from pathlib import Path
from tests.support.projects import project
base, threads = sys.argv[1:]
encoders = {"words": {"uses": "tests.support.projects:Gated", "input": "text", "log": f"{base}/log"}}
with project(Path(base), encoders=encoders, text={"empty_prompt": False}) as one:
    with one.feed(batch_size=2, on_missing="encode", threads=int(threads), tensors="numpy") as feed:
        try:
            list(feed.epoch(0))
        except BaseException as error:
            print(type(error).__name__, flush=True)
        print(sum(len(batch["sample"]) for batch in feed.epoch(0)), one.store.verify().clean, flush=True)
"""


@pytest.mark.parametrize("threads", [0, 1])
def test_ctrl_c_while_a_feed_encodes_lets_the_feed_go_on(tmp_path: Path, threads: int) -> None:
    """The batch that is being encoded when it is pressed is not mistaken for one that is asked for afterwards."""
    dataset(tmp_path / "data", 4)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", FEED, str(tmp_path), str(threads)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("batch")
        child.send_signal(signal.SIGINT)
        # At the end of its input the encoder goes on.
        out, _ = child.communicate()
    assert [line for line in out.splitlines() if not line.startswith("batch")] == ["KeyboardInterrupt", "4 True"]
    assert len(set((tmp_path / "log").read_text().split())) == 4


def read_lines(child: Stopped, count: int) -> list[str]:
    """The next lines that a stopped process prints."""
    assert child.process.stdout is not None
    return [child.process.stdout.readline().rstrip("\n") for _ in range(count)]
