"""`precook export` and `precook import`: a dataset goes to another store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import precook
from tests.support.commands import run


def test_a_dataset_goes_to_another_store_and_trains_there(twins: Path) -> None:
    """Exported, imported and fed without sources it gives the same batches."""
    assert run("export", "pets", "pets.tar").code == 0
    ended = run("import", "pets.tar", "--store", "there", "--json")
    assert ended.code == 0
    assert (ended.document["samples"], ended.document["new"], ended.document["reused"]) == (3, 6, 0)
    batches = []
    for store in ("cache", "there"):
        with precook.open(store) as opened, opened.snapshot("pets").feed(batch_size=2, seed=7) as feed:
            batches.append([batch for epoch in range(2) for batch in feed.epoch(epoch)])
    assert len(batches[0]) == len(batches[1]) > 0
    for ours, theirs in zip(*batches, strict=True):
        assert ours["sample"] == theirs["sample"]
        assert np.array_equal(np.asarray(ours["pixels"]), np.asarray(theirs["pixels"]))


def test_an_archive_comes_through_stdin(twins: Path) -> None:
    """`precook import -` reads a pipe; another name is given with --as."""
    assert run("export", "pets", "pets.tar").code == 0
    command = [sys.executable, "-m", "precook", "import", "-", "--store", "there", "--as", "cats", "--json"]
    with Path("pets.tar").open("rb") as archive:
        done = subprocess.run(command, stdin=archive, capture_output=True, check=True)
    assert json.loads(done.stdout)["dataset"] == "cats"


def test_export_says_what_leaves(twins: Path) -> None:
    """JSON for programs, a remark about what was left out for people, and errors that name the way out."""
    ended = run("export", "pets", "pets.tar")
    assert (ended.code, ended.err) == (0, "without captions and paths\n")
    assert run("export", "pets", "pets.tar").code == 2
    document = run("export", "pets", "pets.tar", "--force", "--json").document
    assert (document["samples"], document["entries"], document["keep"]) == (3, 6, [])
    assert document["bytes"] == Path("pets.tar").stat().st_size
    ended = run("export", "pets", "more.tar", "--with", "captions")
    assert (ended.code, "keep: [captions]" in ended.err) == (1, True)
    assert run("export", "nothing", "more.tar").code == 1
    assert run("export", "pets", "more.tar", "--store", "nowhere").code == 10
    assert run("export", "pets", "shards", "--as", "safetensors", "--json").document["entries"] == 6
    assert not Path("more.tar").exists()


def test_an_archive_that_is_none_is_exit_code_4(twins: Path) -> None:
    """The message names the file and says that the store is as it was."""
    Path("junk.tar").write_bytes(b"junk" * 1000)
    ended = run("import", "junk.tar")
    assert ended.code == 4
    assert ended.err.startswith("error: junk.tar: not an archive of precook\nhint: ")
    assert run("import", "absent.tar").code == 1
