"""`precook status`: a store alone, a store with its dataset, and who uses what."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.build_log import KEPT, Run, read_runs, record_run
from tests.support.commands import VAE, cook, encoders, flip, run, steady
from tests.support.projects import Watched, dataset, picture, project
from tests.support.snapshots import packs


class TestStore:
    """`precook status`."""

    def test_it_counts_what_the_store_holds(self, store: Path) -> None:
        """The JSON document has the store's own counts, as integers."""
        with precook.open(store) as opened:
            stats = opened.stats()
        found = run("status", "--store", store, "--json").document
        assert found["version"] == 1
        assert (found["entries"], found["packs"], found["format"]) == (6, 2, 1)
        assert found["logical_bytes"] == stats.payload_bytes
        assert found["disk_bytes"] == sum(pack.stat().st_size for pack in packs(store))
        assert found["overhead_bytes"] == found["disk_bytes"] - found["logical_bytes"]
        assert found["index_bytes"] > 0
        assert found["damaged_entries"] == found["unusable_packs"] == []

    def test_it_counts_by_recipe(self, store: Path) -> None:
        """Each recipe has its kind, digest, entries and newest time; entries without one come under null."""
        found = {item["kind"]: item for item in run("status", "--store", store, "--json").document["recipes"]}
        assert {kind: item["entries"] for kind, item in found.items()} == {"vae": 3, "text encoder": 2, None: 1}
        assert found["vae"]["digest"] == VAE.hex
        assert found["vae"]["bytes"] > 3 * 512
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["vae"]["newest"])

    def test_people_see_the_largest_recipe_first(self, store: Path) -> None:
        """The table has one line for each recipe, by size."""
        ended = run("status", "--store", store)
        assert "entries  6 in 2 packs" in ended.out
        lines = [line.split("  ")[0] for line in ended.out.splitlines()]
        assert lines.index("vae") < lines.index("text encoder") < lines.index("no recipe")
        assert VAE.hex[:8] in ended.out
        assert (ended.code, ended.err) == (0, "")

    def test_it_sees_what_a_builder_at_work_has_stored(self, store: Path) -> None:
        """Entries that were committed by a process that still runs are counted, and it goes on unharmed."""
        with precook.open(store) as opened:
            opened.put(VAE.key("new"), np.zeros(3))
            assert run("status", "--store", store, "--json").document["entries"] == 7
            opened.put(VAE.key("newer"), np.zeros(3))
            assert len(run("ls", "--store", store, "-q").out.split()) == 8

    def test_damaged_entries_are_listed(self, store: Path) -> None:
        """An entry that was found damaged when it was read is named, with the reason."""
        victim = next(pack for pack in packs(store) if b'"vae"' in pack.read_bytes() or b"vae" in pack.read_bytes())
        flip(victim, -1)
        with precook.open(store) as opened:
            missing = [key for key in (VAE.key(i) for i in range(3)) if opened.get(key, None) is None]
        assert len(missing) == 1
        ended = run("status", "--store", store)
        assert "1 damaged entry" in ended.out
        assert missing[0].hex[:16] in ended.out
        assert "hint: `precook verify`" in ended.err
        found = run("status", "--store", store, "--json").document["damaged_entries"]
        assert found == [{"key": missing[0].hex, "reason": "its checksum does not match"}]

    def test_unusable_packs_are_listed_once(self, store: Path) -> None:
        """A pack whose head is damaged is named on stdout, and not again as a warning."""
        victim = packs(store)[0]
        flip(victim, 60)
        (store / "index.sqlite").unlink()
        ended = run("status", "--store", store)
        assert "1 unusable pack\n" in ended.out
        assert victim.stem[:16] in ended.out
        assert victim.stem not in ended.err
        (found,) = run("status", "--store", store, "--json").document["unusable_packs"]
        assert found["pack"] == victim.stem
        assert str(victim) not in found["reason"]


class TestDataset:
    """`precook status` of a project."""

    def test_it_shows_store_snapshots_and_dataset(self, built: Path) -> None:
        """First what is stored, then what is frozen, then what `plan` says."""
        picture(built / "data/cats/new.png", 30)
        out = run("status").out
        store, _, rest = out.partition("\n\ndataset  samples  entries")
        assert store.startswith(f"store    {built / 'cache'}  (format 1)\nentries  11 in 1 pack\n")
        assert re.match(r" +size  shared  snapshots  latest  +made\npets  +4  +11  .*  +1  +1  .*\n\n", rest)
        assert steady(out).endswith(steady(run("plan", "--no-write").out))

    def test_programs_see_the_same(self, built: Path) -> None:
        """Snapshots and the dataset's counts stand beside those of the store."""
        picture(built / "data/cats/new.png", 30)
        cook()
        (built / "data/cats/p0.txt").write_text("another")
        found = run("status", "--json").document
        assert (found["version"], found["entries"]) == (1, 13)
        assert [(one["dataset"], one["number"]) for one in found["snapshots"]] == [("pets", 1), ("pets", 2)]
        files = sorted((built / "cache/snapshots/pets").iterdir())
        assert [one["bytes"] for one in found["snapshots"]] == [path.stat().st_size for path in files]
        assert all(one["id"] in path.name for one, path in zip(found["snapshots"], files, strict=True))
        assert all(re.fullmatch(r"[\d-]+T[\d:]+Z", one["created"]) for one in found["snapshots"])
        dataset = found["dataset"]
        assert (dataset["name"], dataset["samples"], dataset["error"]) == ("pets", 5, None)
        assert encoders(dataset, "ready", "missing")["tokens"] == [4, 1]

    def test_before_the_first_build_there_is_no_store(self, pets: Path) -> None:
        """The dataset is shown all the same, and nothing is made."""
        ended = run("status")
        assert ended.code == 0
        assert ended.out.startswith(f"store  {pets / 'cache'}  (none yet: the first build makes it)\n\npets: 4 samples")
        found = run("status", "--json").document
        assert (found["format"], found["entries"], found["dataset"]["samples"]) == (None, 0, 4)
        assert not (pets / "cache").exists()

    def test_an_absent_drive_does_not_hide_the_store(self, built: Path) -> None:
        """What is stored is shown, then the error; exit code 1."""
        (built / "data").rename(built / "away")
        ended = run("status")
        assert ended.code == 1
        assert "entries  11 in 1 pack\n" in ended.out
        assert ended.err.startswith("error: data/cats: no such folder\nhint: is the drive mounted?")
        ended = run("status", "--json")
        assert ended.code == 1
        assert ended.document["entries"] == 11
        assert ended.document["dataset"] == {"name": "pets", "error": "data/cats: no such folder"}

    def test_a_store_that_is_named_alone_is_shown_alone(self, built: Path) -> None:
        """With --store the config here is not asked; with both, the dataset is held against that store."""
        (built / "data").rename(built / "away")
        assert run("status", "--store", "cache").code == 0
        assert "dataset" not in run("status", "--store", "cache", "--json").document
        (built / "away").rename(built / "data")
        with precook.open("other") as other:
            other.put(precook.Key(bytes(32)), 1)
        found = run("status", "--store", "other", "--config", "precook.yaml", "--json").document
        assert (found["entries"], encoders(found["dataset"], "ready")["pixels"]) == (1, [0])


def test_status_tells_who_uses_what(twins: Path) -> None:
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


def test_status_tells_what_the_last_builds_did(twins: Path) -> None:
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


def test_status_tells_who_holds_a_lease_and_when_it_was_verified(twins: Path) -> None:
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


def test_status_survives_a_damaged_snapshot(twins: Path) -> None:
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
