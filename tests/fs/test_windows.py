"""The Windows half: used by a process from which everything of POSIX is hidden, over a stand-in for Windows' own calls.

Not on Windows. What a stand-in cannot show is whether Windows does what its documentation says.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in asks /proc who has a file open or mapped")

BEGINNING = """
from tests.support.windows import install
install()
import logging, os, sys
from pathlib import Path
import numpy as np
import precook
from precook.fs.system import calls, system
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.compact import plan_compact
from precook.maintain.doctor import examine
from precook.maintain.gc import plan_gc
from tests.support.snapshots import columns, freeze, packs, put_packs
logging.basicConfig(level=logging.WARNING, format="%(message)s")
path, recipe = Path(sys.argv[1]), precook.Recipe("test", {})
"""


def start(path: Path, script: str) -> subprocess.Popen[str]:
    """A process on Windows, as it were, that runs a script."""
    code = BEGINNING + textwrap.dedent(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def windows(path: Path, script: str) -> str:
    """What a script printed that ran to its end, then what was logged."""
    out, err = start(path, script).communicate(timeout=120)
    assert out.endswith("done\n"), err
    return out + err


@contextmanager
def another(path: Path, script: str) -> Iterator[None]:
    """Another process that has run a script and then does nothing; it is killed at the end."""
    process = start(path, textwrap.dedent(script) + "\nprint('ready', flush=True)\nsys.stdin.read()\n")
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            pytest.fail(process.communicate()[1])
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_store_works_where_there_is_nothing_of_posix(path: Path) -> None:
    """Put, get, list, verify, freeze, collect, compact, export, import, index anew: all of it, by the Windows half."""
    windows(
        path,
        """
        for name in ("fcntl", "resource", "pwd"):
            try:
                __import__(name)
            except ImportError:
                continue
            raise AssertionError(name)
        assert not hasattr(os, "preadv") and system.peak_memory() > 0
        with precook.open(path) as store:
            put_packs(store, recipe, [range(4), range(4, 8), [8]], size=50_000)
            keys = [recipe.key(number) for number in range(9)]
            before = [store.get(key) for key in keys]  # copied, then mapped
            assert all(np.array_equal(store.get(key)["x"], tree["x"]) for key, tree in zip(keys, before))
            store.get(keys[0])["x"][:] = 1  # a private mapping
            assert np.array_equal(store.get(keys[0])["x"], before[0]["x"])
            freeze(store, "cats", keys[:6])
        with precook.open(path) as store:
            assert store.verify().clean
            assert store.reindex() == 9
            assert store.missing(keys) == []
            removal = plan_gc(store, grace=0).execute()
            assert removal.entries == 3
            plan_compact(store).execute()
            assert len(packs(path)) == 1
            with store.lease("test") as lease:
                lease.protect(columns(keys[:1]))
                assert [holder.purpose for holder in store.leases()] == ["test"]
            assert store.leases() == []
            export_bundle(store, "cats", path.parent / "archive.tar")
        with precook.open(path.parent / "other") as other, open(path.parent / "archive.tar", "rb") as archive:
            assert import_bundle(other, archive).entries == 6
            assert other.verify().clean
        assert sorted(p.name for p in (path.parent / "other").iterdir() if p.name == "imports") == []
        problems = [finding for finding in examine(path) if finding.level == "problem"]
        assert not problems, problems
        print("done")
        """,
    )


def test_what_is_locked_is_kept_from_others_until_its_process_is_gone(path: Path) -> None:
    """Two processes exclude each other, and so do two descriptors of one; a kill lets go, a lease names its holder."""
    held = """
        store = precook.open(path)
        put_packs(store, recipe, [range(4)])
        lease = store.lease("training of cats")
        lease.protect(columns([recipe.key(0)]))
        from precook.store.lock import locked
        lock = locked(path / "maintenance.lock", holder="the other one")
        lock.__enter__()
    """
    with another(path, held):
        windows(
            path,
            """
            from precook.store import files
            from precook.store.lock import locked
            with precook.open(path) as store:
                (holder,) = store.leases()
                assert (holder.purpose, holder.keys) == ("training of cats", 1)
            try:
                with locked(path / "maintenance.lock", patience=0):
                    raise AssertionError
            except precook.LockedError as error:
                assert "the other one holds" in str(error), error
            first, second = (calls.open(path / "own", os.O_RDWR | os.O_CREAT) for _ in range(2))
            assert files.lock(first, path) and not files.lock(second, path, shared=True)
            system.unlock(first)
            assert files.lock(second, path, shared=True) and files.lock(first, path, shared=True)
            os.unlink(path / "own")
            assert not system.has_name(first, path / "own")
            print("done")
            """,
        )
    windows(
        path,
        """
        from precook.store.lock import locked
        with precook.open(path) as store, locked(path / "maintenance.lock", patience=0):
            assert store.leases() == []
        print("done")
        """,
    )


MAPPED = """
store = precook.open(path)
kept = [store.get(recipe.key(0)) for _ in range(2)]
"""


def test_a_pack_that_is_mapped_is_left_for_the_next_time_and_told(path: Path) -> None:
    """Windows removes no mapped file: its entries go, the file stays until nobody uses it."""
    prepare = (
        "with precook.open(path) as store:\n    put_packs(store, recipe, [range(2), [2]], size=50_000)\nprint('done')"
    )
    windows(path, prepare)
    with another(path, MAPPED):
        said = windows(
            path,
            """
            with precook.open(path) as store:
                removal = plan_gc(store, grace=0).execute()
                assert (removal.entries, removal.packs_unlinked) == (3, 1), removal
                assert store.missing([recipe.key(0)])
                assert len(packs(path)) == 1
            with precook.open(path) as store:
                assert store.verify().clean
            print("done")
            """,
        )
        assert "1 pack cannot be removed" in said
        assert said.count("cannot be removed") == 1
    windows(path, "precook.open(path).close(); assert not packs(path); print('done')")


def test_an_index_that_another_process_uses_is_not_replaced(path: Path) -> None:
    """The error says so, and both go on with the index that is there."""
    windows(path, "with precook.open(path) as store:\n    put_packs(store, recipe, [range(2)])\nprint('done')")
    with another(path, "store = precook.open(path); store.get(recipe.key(0))"):
        windows(
            path,
            """
            with precook.open(path) as store:
                try:
                    store.reindex()
                except precook.LockedError as error:
                    assert "another process has the index open" in str(error) and error.hint
                else:
                    raise AssertionError
                assert store.get(recipe.key(1))
            assert not list(path.glob("index.sqlite.*"))
            print("done")
            """,
        )
    windows(path, "with precook.open(path) as store:\n    assert store.reindex() == 2\nprint('done')")


def test_a_file_whose_time_was_put_back_has_another_stamp(tmp_path: Path) -> None:
    """By the time of its last change, which Python does not tell there; on NTFS and ReFS of this machine only."""
    (tmp_path / "cat.txt").write_text("a cat")
    windows(
        tmp_path / "cat.txt",
        """
        from precook.fs.read import open_source
        from precook.fs.stamps import read_stamps, stamp_of
        from precook.fs.stat_many import stat_many
        from precook.fs.trust import FileSystem
        from tests.support.windows import VOLUME

        def stamps():
            with open_source(path) as (descriptor, status):
                by_descriptor = stamp_of(status)
            rows = stat_many([(str(path.parent), ["cat.txt", "gone.txt"])], helpers=3)
            assert rows[1, 0] < 0
            assert by_descriptor == tuple(rows[0, 1:]) == tuple(read_stamps([path])[0])
            return by_descriptor

        before, time = stamps(), path.stat().st_mtime_ns
        for _ in range(2000):  # until the clock has moved
            path.write_text("a dog")
            os.utime(path, ns=(time, time))
            if stamps() != before:
                break
        else:
            raise AssertionError
        assert stamps()[:4] == before[:4]
        assert stat_many([(str(path / "no folder"), ["cat.txt"])])[0, 0] < 0
        for name, drive, trusted in (("NTFS", 3, True), ("ReFS", 2, True), ("NTFS", 4, False), ("exFAT", 3, False)):
            VOLUME[:] = [name, drive]
            assert FileSystem.of(path.parent).trusted is trusted, (name, drive)
        assert FileSystem.of(path.parent, trust=True).trusted
        print("done")
        """,
    )


def test_both_halves_have_the_same_functions() -> None:
    """By name and by parameters: mypy compares each half with its callers, and this one half with the other."""
    halves = [ast.parse((ROOT / "src/precook/fs" / name).read_text("utf-8")) for name in ("posix.py", "windows.py")]
    posix, windows_half = (
        {
            node.name: ast.dump(node.args)
            for node in half.body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        }
        for half in halves
    )
    theirs = {"open", "pread", "preadv", "pwrite", "writev", "stat", "fstat", "volume_type"}
    assert theirs <= set(windows_half)
    assert posix == {name: arguments for name, arguments in windows_half.items() if name not in theirs}


def test_nothing_else_asks_for_what_only_one_system_has() -> None:
    """`fcntl`, `msvcrt` and their like are imported by the two halves and nowhere else."""
    ours = {"fcntl", "msvcrt", "resource", "pwd", "grp", "termios", "winreg", "mmap"}
    for file in sorted((ROOT / "src/precook").rglob("*.py")):
        imported = {
            alias.name.partition(".")[0]
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert file.name in ("posix.py", "windows.py") or not imported & ours, file
