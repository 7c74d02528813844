"""The commands around sharing: export, import, snapshots, and what status says about who uses what."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.build_log import KEPT, Run, read_runs, record_run
from tests.support.commands import run
from tests.support.projects import Watched, dataset, picture, project

CONFIG = """\
dataset: {name}
concepts:
  - {{name: things, path: data}}
image: {{resolutions: [64, 32], step: 16}}
encoders:
  pixels: {{uses: image}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three pictures and two configs over them, both built into ./cache."""
    dataset(tmp_path / "data", 3)
    monkeypatch.chdir(tmp_path)
    for name in ("pets", "twins"):
        Path(f"{name}.yaml").write_text(CONFIG.format(name=name))
        assert run("build", "--config", f"{name}.yaml").code == 0
    return tmp_path


def test_a_dataset_goes_to_another_store_and_trains_there(here: Path) -> None:
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


def test_an_archive_comes_through_stdin(here: Path) -> None:
    """`precook import -` reads a pipe; another name is given with --as."""
    assert run("export", "pets", "pets.tar").code == 0
    command = [sys.executable, "-m", "precook", "import", "-", "--store", "there", "--as", "cats", "--json"]
    with Path("pets.tar").open("rb") as archive:
        done = subprocess.run(command, stdin=archive, capture_output=True, check=True)
    assert json.loads(done.stdout)["dataset"] == "cats"


def test_export_says_what_leaves(here: Path) -> None:
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


def test_an_archive_that_is_none_is_exit_code_4(here: Path) -> None:
    """The message names the file and says that the store is as it was."""
    Path("junk.tar").write_bytes(b"junk" * 1000)
    ended = run("import", "junk.tar")
    assert ended.code == 4
    assert ended.err.startswith("error: junk.tar: not an archive of precook\nhint: ")
    assert run("import", "absent.tar").code == 1


def test_snapshots_are_listed_pinned_and_removed(here: Path) -> None:
    """Removing is a preview until --yes, and a pinned one stays."""
    picture(here / "data" / "new.png", 50)
    assert run("build", "--config", "pets.yaml").code == 0
    found = run("snapshots", "--json").document["snapshots"]
    assert [(one["dataset"], one["number"], one["latest"]) for one in found] == [
        ("pets", 1, False),
        ("pets", 2, True),
        ("twins", 1, True),
    ]
    assert [one["samples"] for one in found] == [3, 4, 3]
    assert run("snapshots", "list", "twins").out.count("twins") == 1
    assert run("snapshots", "pin", "pets", "1").code == 0
    assert "pinned" in run("snapshots").out
    assert run("snapshots", "rm", "pets", found[0]["id"][:8], "--yes").code == 1
    assert run("snapshots", "unpin", "pets", "1").code == 0
    ended = run("snapshots", "rm", "pets", "1", "--json")
    assert (ended.code, ended.document["done"]) == (0, False)
    assert len(run("snapshots", "--json").document["snapshots"]) == 3
    assert run("snapshots", "rm", "pets", "1", "--yes").code == 0
    assert [one["number"] for one in run("snapshots", "list", "pets", "--json").document["snapshots"]] == [2]
    assert run("snapshots", "rm", "pets", "9").code == 1
    assert run("snapshots", "rm", "nothing", "1").code == 1
    assert run("snapshots", "rm").code == 2


def test_status_tells_who_uses_what(here: Path) -> None:
    """By dataset with what is shared, by resolution, by age; and what no dataset needs."""
    with precook.open("cache") as store:
        store.put(precook.Recipe("other", {}).key(1), np.arange(10))
    found = run("status", "--json", "--store", "cache").document
    pets, twins = found["datasets"]
    assert (pets["dataset"], pets["samples"], pets["entries"]) == ("pets", 3, 6)
    assert pets["bytes"] == pets["shared_bytes"] == twins["bytes"]
    assert [(part["name"], part["entries"]) for part in pets["resolutions"]] == [("64", 3), ("32", 3)]
    assert sum(part["bytes"] for part in pets["resolutions"]) == pets["bytes"]
    assert found["unnamed"]["entries"] == 1
    assert sum(part["entries"] for part in found["ages"]) == found["entries"] == 7
    assert found["reclaimable_bytes"] == 0  # all of it is young
    out = run("status", "--store", "cache").out
    assert "no dataset" in out
    assert "pets 64" in out


def test_status_tells_what_the_last_builds_did(here: Path) -> None:
    """Hits and misses of each build, the latest last; only so many are remembered."""
    runs = run("status", "--json", "--store", "cache").document["runs"]
    assert [(one["dataset"], one["encoded"], one["reused"], one["failed"]) for one in runs] == [
        ("pets", 6, 0, 0),
        ("twins", 0, 6, 0),
    ]
    assert "hits  misses" in run("status", "--store", "cache").out
    with precook.open("cache") as store:
        for number in range(KEPT + 5):
            record_run(store, Run(number, "many", number, 0, 0, 0, 0.0, stopped=False))
        assert [one.encoded for one in read_runs(store)] == list(range(5, KEPT + 5))


def test_status_tells_who_holds_a_lease_and_when_it_was_verified(here: Path) -> None:
    """A lease is shown with its holder while it is held; verify says when it last came to the end."""
    assert run("status", "--json", "--store", "cache").document["verified"] is None
    assert run("verify", "--store", "cache").code == 0
    with precook.open("cache") as store, store.lease("a long training"):
        found = run("status", "--json", "--store", "cache").document
        assert [one["purpose"] for one in found["leases"]] == ["a long training"]
        assert (found["verified"]["damaged"], found["verified"]["packs"]) == (0, found["packs"])
        out = run("status", "--store", "cache").out
        assert "a long training" in out
        assert "no damage" in out
    assert run("status", "--json", "--store", "cache").document["leases"] == []


def test_status_counts_failures_and_forgets_damage_that_was_mended(tmp_path: Path) -> None:
    """Entries that could not be made are counted; a damaged entry that was made again is no longer listed."""
    dataset(tmp_path / "data", 2)

    def picky(item: precook.Item) -> np.ndarray:
        if item.text == "":
            raise ValueError("nothing to encode")
        return np.arange(9)

    with project(tmp_path, encoders={"words": Watched("text", picky)}) as made:
        assert len(made.build().failed) == 1
        key = made.plan().ready.keys()[0]
        pack = made.store.locate(key).pack
    content = bytearray(pack.read_bytes())
    content[-9 * 8 * 2 :] = bytes(9 * 8 * 2)
    pack.write_bytes(content)
    with precook.open(tmp_path / "cache") as store:
        with pytest.raises(precook.DamagedEntryError):
            store.get(key)
        assert len(run("status", "--store", tmp_path / "cache", "--json").document["damaged_entries"]) == 1
        store.put(key, np.arange(9))
    found = run("status", "--store", tmp_path / "cache", "--json").document
    assert (found["failures"], found["damaged_entries"]) == (1, [])


def test_status_survives_a_damaged_snapshot(here: Path) -> None:
    """It says which dataset cannot be told about, and that nobody knows what could be collected."""
    with precook.open("cache") as store:
        path = next(file.path for file in store.snapshots() if file.dataset == "twins")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    ended = run("status", "--store", "cache")
    assert ended.code == 0
    assert "its latest snapshot cannot be read" in ended.out
    assert "unknown: a snapshot cannot be read" in ended.out
    found = run("status", "--store", "cache", "--json").document
    assert ([one["dataset"] for one in found["datasets"]], found["reclaimable_bytes"]) == (["pets"], None)
    (listed,) = [one for one in run("snapshots", "--json").document["snapshots"] if one["problem"]]
    assert listed["dataset"] == "twins"
    assert "1 damaged snapshot" in run("verify", "--store", "cache").out


def test_ls_lists_what_a_dataset_needs(here: Path) -> None:
    """Only entries that its snapshots name."""
    with precook.open("cache") as store:
        store.put(precook.Recipe("other", {}).key(1), np.arange(10))
    assert len(run("ls", "-q", "--store", "cache").out.split()) == 7
    assert len(run("ls", "-q", "--store", "cache", "--dataset", "pets").out.split()) == 6
    assert run("ls", "--store", "cache", "--dataset", "nothing").code == 1
