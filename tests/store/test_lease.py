"""Leases: what a living process needs is not taken away, and what a dead one needed is not kept."""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from precook.maintain.prune import plan_clear, plan_prune
from precook.store import fork as forks
from tests.support.commands import run
from tests.support.descriptors import descriptors
from tests.support.snapshots import columns, put_packs


def test_a_lease_keeps_what_it_was_given_until_it_is_closed(store: precook.Store, recipe: precook.Recipe) -> None:
    """No way to remove entries takes what a lease protects; all of them take it afterwards."""
    put_packs(store, recipe, [range(4), range(4, 8)])
    kept = [recipe.key(number) for number in (1, 6)]
    with store.lease("training of cats") as lease:
        lease.protect(columns(kept[:1]))
        lease.protect(columns(kept[1:]))
        for plan in (
            plan_gc(store, grace=0),
            plan_evict(store, 1),
            plan_prune(store, 0),
            plan_clear(store, everything=True),
            plan_clear(store, recipe="test"),
        ):
            plan.execute()
            assert store.missing(kept) == []
        assert len(store) == 2
        (share,) = plan_gc(store, grace=0).kept
        assert "training of cats" in share.name
        (holder,) = store.leases()
        assert (holder.purpose, holder.pid, holder.keys) == ("training of cats", os.getpid(), 2)
    assert store.leases() == []
    assert plan_gc(store, grace=0).execute().entries == 2


HOLD = """
import os, sys, numpy, precook
store = precook.open(sys.argv[1])
lease = store.lease("held")
lease.protect(numpy.frombuffer(bytes.fromhex(sys.argv[2]), numpy.uint8).reshape(1, 32))
if sys.argv[3:] == ["fork"] and os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())  # in one piece: two processes write to this pipe
    sys.stdin.read()
    os._exit(0)
os.write(1, b"held\\n")
sys.stdin.read()
"""


def hold(path: Path, key: precook.Key, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(path), key.hex, *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_lease_of_a_killed_process_ends_with_it(store: precook.Store, recipe: precook.Recipe) -> None:
    """Kill -9: the kernel lets go of the lock, the next collection of the file and of the entry."""
    put_packs(store, recipe, [[1]])
    with hold(store.path, recipe.key(1)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert plan_gc(store, grace=0).entries == 0
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(list((store.path / "leases").iterdir())) == 1
        assert store.leases() == []
        assert plan_gc(store, grace=0).execute().entries == 1
        assert list((store.path / "leases").iterdir()) == []


def test_a_forked_worker_does_not_keep_the_lease_of_a_dead_builder(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """A child that lives on holds no lease; while the builder lives, the child's end does not end it."""
    put_packs(store, recipe, [[1]])
    with hold(store.path, recipe.key(1), "fork") as builder:
        assert builder.stdout is not None
        lines = sorted([builder.stdout.readline(), builder.stdout.readline()])
        worker = int(lines[0])
        assert len(store.leases()) == 1
        builder.send_signal(signal.SIGKILL)
        builder.wait()
        os.kill(worker, 0)
        assert store.leases() == []
        os.kill(worker, signal.SIGKILL)


def test_a_lease_is_judged_by_its_lock_and_never_by_a_process_number(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """A file that names a living process, as after a reboot, holds nothing; nor does a FIFO or a link hang anybody."""
    put_packs(store, recipe, [[1]])
    with store.lease("to make the folder"):
        pass
    folder = store.path / "leases"
    told = {"purpose": "old", "pid": os.getpid(), "host": "here", "since": 0}
    (folder / secrets.token_hex(16)).write_bytes(json.dumps(told).encode() + b"\n" + recipe.key(1).bytes)
    os.mkfifo(folder / secrets.token_hex(16))
    (folder / secrets.token_hex(16)).symlink_to(store.path / "store.toml")
    assert store.leases() == []
    assert plan_gc(store, grace=0).execute().entries == 1
    assert list(folder.iterdir()) == []
    assert (store.path / "store.toml").exists()


def test_a_lease_that_was_broken_stops_its_holder(store: precook.Store, recipe: precook.Recipe) -> None:
    """After a forced break, as during a suspension, nothing more is protected, written or frozen, and it says why."""
    with store.lease("build of cats") as lease:
        store.put(recipe.key(1), 1)
        with precook.open(store.path) as other:
            with pytest.raises(precook.NoLeaseError):
                other.break_lease("zz")
            assert other.break_lease(lease.id[:8]).purpose == "build of cats"
            assert other.leases() == []
        with pytest.raises(precook.LostLeaseError):
            lease.protect(columns([recipe.key(1)]))
        with pytest.raises(precook.LostLeaseError):
            store.put(recipe.key(2), 2)
    store.put(recipe.key(2), 2)
    assert store.get(recipe.key(2)) == 2


def test_a_lease_on_a_store_that_cannot_be_written_to_protects_nothing(path: Path, recipe: precook.Recipe) -> None:
    """It can be taken and used all the same, and makes no file."""
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
    with precook.open(path, read_only=True) as store, store.lease("feed") as lease:
        lease.protect(columns([recipe.key(1)]))
        assert not lease.protects
        assert store.leases() == []
    assert not (path / "leases").exists()


def test_a_closed_store_holds_no_lease(path: Path, recipe: precook.Recipe) -> None:
    """Closing lets go of leases that nobody closed, and a lease that was forgotten lets go of itself."""
    with precook.open(path) as store:
        lease = store.lease("forgotten")
        lease.protect(np.zeros((3, 32), np.uint8))
        assert len(store.leases()) == 1
    with precook.open(path) as store:
        assert store.leases() == []
        plan_gc(store, grace=0).execute()
        plan_clear(store, everything=True).execute()
    assert "that precook did not write" not in run("doctor", "--store", path).out
    with pytest.raises(precook.ClosedStoreError):
        lease.protect(columns([recipe.key(1)]))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed on Linux")
def test_a_lease_that_nobody_keeps_ends(store: precook.Store, recipe: precook.Recipe) -> None:
    """Who drops a lease without closing it leaves neither it nor an open file behind, while the store stays open."""
    put_packs(store, recipe, [range(4)])
    before = descriptors()
    for _ in range(3):
        store.lease("forgotten").protect(columns([recipe.key(0)]))
    assert store.leases() == []
    assert descriptors() == before


def test_whoever_comes_while_a_fork_waits_is_told_of_it() -> None:
    """A lease that another thread takes while a fork waits for the store's lock is let go by the child."""

    class Told:
        def __init__(self) -> None:
            self.told: list[str] = []

        def before_fork(self) -> None:
            self.told.append("before")

        def after_fork_in_parent(self) -> None:
            self.told.append("parent")

        def after_fork_in_child(self) -> None:
            self.told.append("child")

    class Slow(Told):
        def before_fork(self) -> None:
            forks.remember(late)

    slow, late = Slow(), Told()
    forks.remember(slow)
    child = os.fork()
    if not child:
        os._exit(0 if late.told == ["before", "child"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert late.told == ["before", "parent"]


def test_a_lease_that_nobody_closes_ends_quietly_with_the_process(tmp_path: Path) -> None:
    """A script that ends without closing anything leaves neither a complaint nor a lease behind."""
    code = (
        "import numpy, precook, sys\n"
        "store = precook.open(sys.argv[1])\n"
        "lease = store.lease('a feed')\n"
        "lease.protect(numpy.zeros((1, 32), numpy.uint8))\n"
        "print(len(list((store.path / 'leases').iterdir())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cache")], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert list((tmp_path / "cache/leases").iterdir()) == []


def test_a_lease_that_is_read_in_pieces_keeps_all_that_it_was_given(
    store: precook.Store, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a read gives fewer bytes than were asked for, as on a network disk, no key of a lease is passed over."""
    put_packs(store, recipe, [range(8)])
    whole = os.pread
    with store.lease("training of cats") as lease:
        lease.protect(columns([recipe.key(number) for number in range(8)]))
        monkeypatch.setattr(os, "pread", lambda file, size, offset: whole(file, (size + 1) // 2, offset))
        assert plan_gc(store, grace=0).empty


def test_a_lease_that_cannot_be_opened_is_not_taken_for_one_that_has_ended(
    store: precook.Store, recipe: precook.Recipe
) -> None:
    """With more leases than a process may open files, a collection is refused: it must not pass over some of them."""
    put_packs(store, recipe, [range(12)])
    leases = [store.lease(f"number {number}") for number in range(12)]
    for number, lease in enumerate(leases):
        lease.protect(columns([recipe.key(number)]))
    assert plan_gc(store, grace=0).empty
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 6, hard))
    try:
        with pytest.raises(precook.StoreReadError, match="cannot be read") as caught:
            plan_gc(store, grace=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit" in caught.value.hint
    assert plan_gc(store, grace=0).empty
