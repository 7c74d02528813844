"""`precook ls`: the entries of a store, chosen and sorted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook import Key
from tests.support.commands import VAE, run
from tests.support.snapshots import packs

HOUR = 3600


def put_aged(path: Path, key: Key, tree: Any, *, age: int) -> None:
    """Put an entry that was written so many seconds ago and not used since."""
    before = set(packs(path))
    with precook.open(path) as opened:
        opened.put(key, tree, recipe=VAE)
    (pack,) = set(packs(path)) - before
    written = pack.stat().st_mtime_ns - age * 10**9
    os.utime(pack, ns=(written, written))


class TestLs:
    """`precook ls`."""

    def test_it_lists_every_entry_in_order_of_keys(self, store: Path) -> None:
        """-q prints whole keys and nothing else."""
        ended = run("ls", "--store", store, "-q")
        with precook.open(store) as opened:
            assert ended.out.split() == [row.key.hex() for row in opened.entries()]
        assert len(ended.out.split()) == 6
        assert ended.err == ""

    def test_people_see_size_age_and_recipe(self, store: Path) -> None:
        """The table has a heading and a line for each entry."""
        heading, *lines = run("ls", "--store", store).out.splitlines()
        assert heading.split() == ["key", "size", "last", "used", "recipe"]
        assert len(lines) == 6
        assert lines[0].startswith("0" * 16)
        assert lines[0].endswith("no recipe")
        assert sum(line.endswith(f"vae {VAE.hex[:8]}") for line in lines) == 3

    def test_programs_see_everything(self, store: Path) -> None:
        """Each entry in the JSON document has its key, bytes, time, recipe and packs."""
        document = run("ls", "--store", store, "--json").document
        assert document["version"] == 1
        found = {item["key"]: item for item in document["entries"]}
        entry = found[VAE.key(0).hex]
        assert entry["recipe"] == {"kind": "vae", "digest": VAE.hex}
        assert entry["bytes"] >= 512
        assert entry["created"].endswith("Z")
        assert entry["used"] >= entry["created"]
        assert [(store / "packs" / pack[:2] / f"{pack}.safetensors").is_file() for pack in entry["packs"]] == [True]
        assert found["0" * 64]["recipe"] is None

    @pytest.mark.parametrize("wanted", ["vae", VAE.hex, VAE.hex[:4], VAE.hex[:9].upper()])
    def test_a_recipe_is_chosen_by_kind_or_digest(self, store: Path, wanted: str) -> None:
        """The whole kind, or the first digits of the digest."""
        assert set(run("ls", "--store", store, "-q", "--recipe", wanted).out.split()) == {
            VAE.key(number).hex for number in range(3)
        }

    def test_an_unknown_recipe_is_an_error_that_names_the_known_ones(self, store: Path) -> None:
        """A misspelt recipe must not look like an empty store."""
        ended = run("ls", "--store", store, "--recipe", "vea")
        assert ended.code == 1
        assert "error: no recipe here has the kind or digest 'vea'" in ended.err
        assert f"vae {VAE.hex[:8]}" in ended.err

    def test_sizes_choose_entries(self, store: Path) -> None:
        """--min-size and --max-size include their ends."""
        sizes = {item["key"]: item["bytes"] for item in run("ls", "--store", store, "--json").document["entries"]}
        for size in sorted(set(sizes.values())):
            large = run("ls", "--store", store, "-q", "--min-size", f"{size}B").out.split()
            small = run("ls", "--store", store, "-q", "--max-size", f"{size}B").out.split()
            assert set(large) == {key for key, nbytes in sizes.items() if nbytes >= size}
            assert set(small) == {key for key, nbytes in sizes.items() if nbytes <= size}
        assert run("ls", "--store", store, "-q", "--min-size", "1MiB").out == ""

    def test_ages_choose_entries(self, store: Path) -> None:
        """--older-than and --newer-than split the store in two."""
        old = VAE.key("old")
        put_aged(store, old, np.zeros(3), age=30 * HOUR)
        assert run("ls", "--store", store, "-q", "--older-than", "1d").out.split() == [old.hex]
        newer = run("ls", "--store", store, "-q", "--newer-than", "1d").out.split()
        assert len(newer) == 6
        assert old.hex not in newer
        assert "30 hours ago" in run("ls", "--store", store, "--older-than", "1d").out

    def test_an_age_is_the_one_that_prune_goes_by(self, store: Path) -> None:
        """What was written long ago and read today is young, for both: ls shows before what prune would take."""
        read, old = VAE.key("read"), VAE.key("old")
        for key in (read, old):
            put_aged(store, key, np.zeros(3), age=30 * HOUR)
        with precook.open(store) as opened:
            opened.get(read)
        assert run("ls", "--store", store, "-q", "--older-than", "1d").out.split() == [old.hex]
        assert run("ls", "--store", store, "-q", "--sort", "age", "--limit", "1").out.split() == [read.hex]
        assert read.hex in run("ls", "--store", store, "-q", "--newer-than", "1d").out.split()
        document = run("ls", "--store", store, "--json", "--sort", "age", "--limit", "1").document
        assert document["entries"][0]["used"] > document["entries"][0]["created"]
        assert run("prune", "--store", store, "--older-than", "1d", "--yes").code == 0
        left = run("ls", "--store", store, "-q").out.split()
        assert read.hex in left
        assert old.hex not in left

    def test_sorting_puts_the_largest_or_newest_first(self, store: Path) -> None:
        """With --limit the first ones of that order are kept."""
        old, oldest = VAE.key("old"), VAE.key("oldest")
        put_aged(store, old, np.zeros(1000), age=30 * HOUR)
        put_aged(store, oldest, np.zeros(1), age=60 * HOUR)
        by_age = run("ls", "--store", store, "-q", "--sort", "age").out.split()
        assert by_age[-2:] == [old.hex, oldest.hex]
        by_size = run("ls", "--store", store, "-q", "--sort", "size").out.split()
        assert by_size[0] == old.hex
        for sort, expected in (("age", by_age), ("size", by_size), ("key", sorted(by_age))):
            assert run("ls", "--store", store, "-q", "--sort", sort, "--limit", "3").out.split() == expected[:3]

    def test_a_key_in_two_packs_is_listed_once(self, store: Path, tmp_path: Path) -> None:
        """What two builders wrote is one entry with two packs."""
        with precook.open(tmp_path / "other") as other:
            other.put(VAE.key(0), np.zeros(3))
        (pack,) = packs(tmp_path / "other")
        (store / "packs" / pack.parent.name).mkdir(exist_ok=True)
        shutil.copy(pack, store / "packs" / pack.parent.name)
        found = [item for item in run("ls", "--store", store, "--json").document["entries"] if len(item["packs"]) > 1]
        assert [item["key"] for item in found] == [VAE.key(0).hex]
        assert len(run("ls", "--store", store, "-q").out.split()) == 6

    def test_nothing_found_is_no_error(self, store: Path) -> None:
        """An empty list is empty on stdout and said on stderr."""
        ended = run("ls", "--store", store, "--older-than", "2w")
        assert (ended.code, ended.out, ended.err) == (0, "", "no entries\n")
        assert run("ls", "--store", store, "--older-than", "2w", "--json").document == {"version": 1, "entries": []}

    @pytest.mark.parametrize(
        "options",
        [
            ("--min-size", "64"),
            ("--max-size", "64mib"),
            ("--older-than", "7"),
            ("--newer-than", "yesterday"),
            ("--sort", "colour"),
            ("--limit", "0"),
            ("--bogus",),
        ],
    )
    def test_wrong_options_are_usage_errors(self, store: Path, options: tuple[str, ...]) -> None:
        """Exit code 2, an explanation, and nothing on stdout."""
        ended = run("ls", "--store", store, *options)
        assert (ended.code, ended.out) == (2, "")
        assert options[0] in ended.err


def test_ls_lists_what_a_dataset_needs(twins: Path) -> None:
    """Only entries that its snapshots name."""
    with precook.open("cache") as store:
        store.put(precook.Recipe("other", {}).key(1), np.arange(10))
    assert len(run("ls", "-q", "--store", "cache").out.split()) == 7
    assert len(run("ls", "-q", "--store", "cache", "--dataset", "pets").out.split()) == 6
    assert run("ls", "--store", "cache", "--dataset", "nothing").code == 1
