"""Verifying: what is damaged is found wherever it was asked for, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.verify import Scope, last_full_verification, save_cursor, unfinished_verifications, verify_scope
from tests.support.commands import run
from tests.support.projects import dataset
from tests.support.snapshots import freeze, packs
from tests.support.stores import RECIPE, fill, flip, keys_of, state


def test_a_subset_looks_at_what_is_meant(made: precook.Project) -> None:
    """By key, by recipe and by dataset: damage elsewhere is not found."""
    store = made.store
    pixels, word = keys_of(store), store.snapshot("test").content.line_keys["words"][0]
    flip(store, pixels[0])
    outside = RECIPE.key("outside")
    store.put(outside, np.arange(500))
    flip(store, outside)
    recipe = store.locate(pixels[0]).recipe
    digests = {form: digest.hex() for digest, form in store.recipes().items()}
    cases = [
        (Scope(keys=(pixels[0].hex,)), {pixels[0]}, 1),
        (Scope(keys=(pixels[1].hex, word.tobytes().hex())), set(), 2),
        (Scope(recipes=(digests[recipe],)), {pixels[0]}, 4),
        (Scope(dataset="test"), {pixels[0]}, 9),
        (Scope(), {pixels[0], outside}, 10),
    ]
    for scope, damaged, entries in cases:
        found, _ = verify_scope(store, scope)
        assert ({damage.key for damage in found.damage}, found.entries) == (damaged, entries)
    with pytest.raises(precook.NoSnapshotError):
        verify_scope(store, Scope(dataset="nothing"))


def test_what_a_look_found_damaged_is_missing_from_then_on(tmp_path: Path) -> None:
    """SCENARIOS D3: after `precook verify` a plan counts damaged entries as missing, and one build makes them all."""
    dataset(tmp_path / "data", 4)
    config = tmp_path / "precook.yaml"
    sections = "dataset: test\nconcepts: [{name: things, path: data}]\nencoders: {pixels: {uses: image}}\n"
    config.write_text(sections + "image: {resolutions: [64], step: 16}\n")
    with precook.load(config) as made:
        made.build()
        for key in keys_of(made.store)[:2]:
            flip(made.store, key)
    for _ in range(2):
        assert run("verify", "--config", config).code == 4
        assert "pixels: 2 entry damaged" in run("plan", "--config", config).out
    assert run("build", "--config", config).code == 0
    with precook.load(config) as made:
        assert len(list(made.feed(batch_size=4).epoch(0))) == 1
    assert run("verify", "--config", config, "--repair", "--yes").code == 4
    assert run("verify", "--config", config).code == 0
    assert "to build: nothing" in run("plan", "--config", config).out


def test_what_a_snapshot_needs_and_no_pack_holds_is_told(tmp_path: Path) -> None:
    """A pack that is gone is missed by the datasets that need it, also when the index has forgotten it; a build helps.

    Entries that no latest snapshot needs any more are not.
    """
    dataset(tmp_path / "data", 4)
    config = tmp_path / "precook.yaml"
    sections = "dataset: test\nconcepts: [{name: things, path: data}]\nencoders: {pixels: {uses: image}}\n"
    config.write_text(sections + "image: {resolutions: [64], step: 16}\nkeep: [paths]\n")
    with precook.load(config) as made:
        made.build()
        keys = keys_of(made.store)
        (pack,) = packs(made.store_path)
        store = made.store_path
    pack.unlink()
    for options in ((), (), ("--dataset", "test"), ("--subset", "1/2")):
        ended = run("verify", "--store", store, *options)
        assert ended.code == 4
        assert "4 lost entries" in ended.out
        assert "a snapshot names it and no pack holds it" in ended.out
        assert "test: pixels of" in ended.out
        assert "a build makes the entries again" in ended.err
        precook.open(store).close()  # the index forgets it
    document = run("verify", "--store", store, "--json").document
    assert (document["clean"], sorted(one["key"] for one in document["lost"])) == (False, sorted(k.hex for k in keys))
    assert {one["samples"][0]["dataset"] for one in document["lost"]} == {"test"}
    ended = run("verify", "--store", store, "--repair", "--yes")
    assert ended.code == 4
    assert "repaired: 4 entries to be made again" in ended.out
    assert run("verify", "--store", store, "--key", keys[0].hex[:12]).code == 1  # there is no such entry
    assert run("build", "--config", config).code == 0
    assert run("verify", "--store", store).code == 0


def test_what_only_an_older_snapshot_names_may_be_gone(path: Path) -> None:
    """It is evicted like anything else; a pinned one keeps what it names, and misses it."""
    keys = fill(path, packs=2)
    with precook.open(path) as store:
        old = freeze(store, "cats", keys).file
        freeze(store, "cats", keys[:3])
        located = store.locate(keys[3]).pack
        located.unlink()
    with precook.open(path) as store:
        assert store.verify().clean
        store.pin(old)
        assert set(store.verify().lost) == set(keys[3:])


def test_short_looks_go_on_until_everything_was_seen(path: Path) -> None:
    """With a limit of time each run goes on behind the last one; the pass is complete when all packs were seen."""
    fill(path, packs=5)
    with precook.open(path) as store:
        seen = 0
        for _ in range(20):
            found, done = verify_scope(store, Scope(), max_seconds=0.0)
            seen += found.packs
            save_cursor(store, done)
            if done.finished is not None:
                break
            assert last_full_verification(store) is None
            assert [one.packs for one in unfinished_verifications(store)] == [seen]
        assert seen == 5
        finished = last_full_verification(store)
        assert finished is not None
        assert (finished.packs, finished.damaged) == (5, 0)
        assert verify_scope(store, Scope(), max_seconds=60.0)[0].packs == 5  # the next pass begins anew


def test_the_command_takes_subsets(made: precook.Project) -> None:
    """By the first digits of a key, by a recipe's kind, by dataset; what is not there is an error."""
    keys = keys_of(made.store)
    made.close()
    store = made.store_path
    for option, value, entries in (("--key", keys[0].hex[:12], 1), ("--recipe", "image", 4), ("--dataset", "test", 9)):
        document = run("verify", "--store", store, option, value, "--json").document
        assert (document["entries"], document["clean"]) == (entries, True)
    assert run("verify", "--store", store, "--recipe", "nothing").code == 1
    assert run("verify", "--store", store, "--dataset", "nothing").code == 1


def test_verifying_writes_nothing_but_when_it_was(path: Path) -> None:
    """Packs and snapshots stay byte for byte, and so do the index's entries."""
    fill(path, packs=2)
    with precook.open(path, read_only=True) as store:
        before = state(store)
    assert run("verify", "--store", path).code == 0
    with precook.open(path, read_only=True) as store:
        assert state(store) == before
        assert last_full_verification(store) is not None
