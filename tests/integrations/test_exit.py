"""Programs that put into a front and just end: nobody calls `close`, as no trainer does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.integrations.embedding import EmbeddingCacheManager
from precook.integrations.tokenized import CachedTokens, CacheKey, TokenizedCache
from precook.integrations.vl import VlCache, VlCacheKey
from precook.store.index.scan import EntryScan

PUT = """
import gc, multiprocessing, os, shutil, signal, sys
import numpy as np
from precook.integrations.embedding import EmbeddingCacheManager
from precook.integrations.tokenized import CachedTokens, CacheKey, TokenizedCache
from precook.integrations.vl import VlCache, VlCacheKey

root = sys.argv[1]
waits = {"flush_seconds": 3600}  # only the end of the process makes anything durable

def put(name):
    # In functions of a module, objects live until the interpreter goes.
    global tokenized, pictures, embeddings
    tokenized = TokenizedCache.open(root + "/tokenized", **waits)
    tokenized.put(CacheKey(name, "tokenizer", 8), CachedTokens(np.arange(3), np.ones(3)))
    pictures = VlCache(root + "/vl", **waits)
    pictures.put(VlCacheKey(name, "processor", 8, 8), np.zeros((3, 8, 8)))
    embeddings = EmbeddingCacheManager(root + "/embeddings", **waits)
    embeddings.save_cache("pixel_latent", name, np.ones(4))
"""

NORMAL = "put('a')"
ERROR = "put('a')\nraise ValueError('a bug of the trainer')"
SYS_EXIT = "put('a')\nsys.exit(3)"
CTRL_C = "put('a')\nos.kill(os.getpid(), signal.SIGINT)"
IN_A_FUNCTION = "def main():\n    put('a')\n    raise SystemExit(0)\nmain()"
COLLECTED = "put('a')\ndel tokenized, pictures, embeddings\ngc.collect()"
AT_EXIT = "import atexit\natexit.register(lambda: put('a'))\nput('b')"
CHILD_OF_MULTIPROCESSING = """
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=put, args=("a",))
    child.start()
    child.join()
    assert child.exitcode == 0
"""


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", PUT + script, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def found(folder: Path, name: str = "a") -> tuple[bool, bool, bool]:
    """Which of the three fronts have what was put under a name."""
    with (
        TokenizedCache.open(folder / "tokenized") as tokenized,
        VlCache(folder / "vl") as pictures,
        EmbeddingCacheManager(folder / "embeddings") as embeddings,
    ):
        return (
            tokenized.get(CacheKey(name, "tokenizer", 8)) is not None,
            pictures.exists(VlCacheKey(name, "processor", 8, 8)),
            embeddings.cache_exists("pixel_latent", name),
        )


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param(NORMAL, 0, id="normal end"),
        pytest.param(ERROR, 1, id="exception"),
        pytest.param(SYS_EXIT, 3, id="sys.exit"),
        pytest.param(CTRL_C, -2, id="Ctrl-C"),
        pytest.param(IN_A_FUNCTION, 0, id="SystemExit in a function"),
        pytest.param(COLLECTED, 0, id="collected"),
        pytest.param(AT_EXIT, 0, id="by a function called at the end"),
        pytest.param(CHILD_OF_MULTIPROCESSING, 0, id="child of multiprocessing"),
    ],
)
def test_what_was_put_survives_the_end_of_the_process(tmp_path: Path, script: str, code: int) -> None:
    """However a program ends by itself, all that it has put is there for the next one, and nothing is complained of."""
    ended = run(tmp_path, script)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr == "" or "a bug of the trainer" in ended.stderr or "KeyboardInterrupt" in ended.stderr
    assert "precook" not in ended.stderr
    assert found(tmp_path) == (True, True, True)


def test_a_front_of_a_module_that_a_child_imports(tmp_path: Path) -> None:
    """A server of multiprocessing imports the program in each child before the child's work begins."""
    program = tmp_path / "program.py"
    program.write_text(
        PUT
        + """
tokenized = TokenizedCache.open(root + "/tokenized", **waits)

def work(name):
    tokenized.put(CacheKey(name, "tokenizer", 8), CachedTokens(np.arange(3), np.ones(3)))

if __name__ == "__main__":
    child = multiprocessing.get_context("forkserver").Process(target=work, args=("a",))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, str(program), str(tmp_path)], env=environment, timeout=120, check=True)
    assert found(tmp_path)[0]


def test_a_forked_child_stores_its_own_and_leaves_the_parents_to_the_parent(tmp_path: Path) -> None:
    """A child that ends normally neither writes what the parent has put nor loses what it has put itself."""
    script = """
put('parent')
child = os.fork()
if child == 0:
    tokenized.put(CacheKey('child', 'tokenizer', 8), CachedTokens(np.arange(3), np.ones(3)))
    sys.exit(0)
os.waitpid(child, 0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(tmp_path, script).returncode == -9
    assert found(tmp_path, "child") == (True, False, False)
    assert found(tmp_path, "parent") == (False, False, False)


def test_a_collected_front_stores_at_once(path: Path) -> None:
    """The process goes on for hours: what was put does not wait for its end, nor for the writer's patience."""
    cache = TokenizedCache.open(path, flush_seconds=3600)
    key = CacheKey("section", "tokenizer", 8)
    cache.put(key, CachedTokens(np.arange(3), np.ones(3)))
    writer = cache._writer
    assert writer is not None
    (thread,) = writer._threads
    del cache
    thread.join(timeout=60)
    with TokenizedCache.open(path) as again:
        assert again.get(key) is not None


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_killed_process_loses_what_its_writer_still_gathered(tmp_path: Path, ending: str) -> None:
    """What is documented, and no more: entries that were committed before are there, those that waited are not."""
    run(tmp_path, f"put('before')\nfor front in (tokenized, pictures, embeddings): front.flush()\nput('a')\n{ending}")
    assert found(tmp_path, "before") == (True, True, True)
    assert found(tmp_path) == (False, False, False)


def test_what_cannot_be_stored_at_the_end_is_told(tmp_path: Path) -> None:
    """Nobody asks any more, so the last words of the process say what is lost and why."""
    script = """
put('a')
from precook.store import files
def fail(*_, **__):
    raise OSError(28, "No space left on device")
files.publish = fail
"""
    ended = run(tmp_path, script)
    assert ended.returncode == 0
    assert ended.stderr.count("could not be stored") == 3, ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_failed_in_the_background_is_told_at_the_end(tmp_path: Path) -> None:
    """A commit that failed after the last call has nobody else to tell."""
    script = """
put('before')
for front in (tokenized, pictures, embeddings):
    front.close()
from precook.store import files
def fail(*_, **__):
    raise OSError(28, "No space left on device")
files.publish = fail
waits = {"flush_seconds": 0}
put('a')
for front in (tokenized, pictures, embeddings):
    for thread in list(front._writer._threads):
        thread.join()
"""
    ended = run(tmp_path, script)
    assert ended.stderr.count("could not be stored") == 3, ended.stderr


def test_a_temporary_folder_is_gone_after_the_end(tmp_path: Path) -> None:
    """Entries are stored before the folder is removed, not into a new one of its name after it."""
    script = """
import tempfile
warm = tempfile.TemporaryDirectory()
put('a')
folder = tempfile.TemporaryDirectory(dir=root)
root = folder.name
put('b')
"""
    ended = run(tmp_path, script)
    assert ended.stderr == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["embeddings", "tokenized", "vl"]


def test_a_folder_that_is_gone_is_nobodys_concern(tmp_path: Path) -> None:
    """Whoever removes a cache while the program runs hears nothing of it at the end, if nothing is to be stored."""
    script = """
put('a')
for front in (tokenized, pictures, embeddings): front.flush()
tokenized.get(CacheKey('a', 'tokenizer', 8))
shutil.rmtree(root)
"""
    ended = run(tmp_path / "gone", script)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "gone").exists()


def test_one_that_cannot_finish_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    """A fault of one front is told, and what another has put is stored all the same."""
    script = """
put('a')
from precook.store.writer import Writer
finish = Writer.finish
def fail_once(writer, left=[True]):
    if left and left.pop():
        raise RuntimeError('a fault')
    finish(writer)
Writer.finish = fail_once
"""
    ended = run(tmp_path, script)
    assert "a fault" in ended.stderr
    assert sorted(found(tmp_path)) == [False, True, True]


def last_use(folder: Path) -> int:
    """When an entry of a store was used last, as far as it is recorded."""
    with precook.open(folder) as store:
        internals = store.internals()
        return int(EntryScan(internals.layout, internals.index).moments.max())


def test_reads_count_as_uses_also_when_nobody_closes(tmp_path: Path) -> None:
    """A section that yesterday's program read and did not put is young: pruning and eviction leave it."""
    run(tmp_path, NORMAL)
    before = last_use(tmp_path / "tokenized")
    script = """
cache = TokenizedCache.open(root + "/tokenized")
assert cache.get(CacheKey("a", "tokenizer", 8)) is not None
"""
    assert run(tmp_path, script).returncode == 0
    assert last_use(tmp_path / "tokenized") > before
