"""Reading sources again and making entries again: what cannot be seen from outside is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.fs.stamps import FILES, read_stamps, stamp_keys
from precook.maintain.gc import plan_gc
from tests.support.commands import run
from tests.support.projects import Watched, dataset, picture, project
from tests.support.stores import state


@pytest.fixture
def made(tmp_path: Path) -> Iterator[precook.Project]:
    """A project over four pictures, built, that believes stamps."""
    dataset(tmp_path / "data", 4)
    with project(tmp_path, stamps="trust", encoders={"pixels": {"uses": "image"}, "words": Watched()}) as opened:
        assert not opened.build().failed
        yield opened


def edit_unnoticed(store: precook.Store, path: Path, content: bytes) -> None:
    """Change a file and make the store believe that its stamp stands for the old content."""
    old = precook.digest(path)
    path.write_bytes(content)
    memory = store.memory()
    memory.remember(FILES, stamp_keys(read_stamps([path])), np.frombuffer(old.bytes, np.uint8).reshape(1, 32))
    store.remember(memory)


def test_an_edit_without_a_new_stamp_is_found(made: precook.Project, tmp_path: Path) -> None:
    """Plans do not see it; reading everything again does, names it, and then plans see it too."""
    other = picture(tmp_path / "other.png", 99).read_bytes()
    edit_unnoticed(made.store, tmp_path / "data" / "p1.png", other)
    edit_unnoticed(made.store, tmp_path / "data" / "p2.txt", b"another caption\n")
    assert not len(made.plan().missing)
    found = made.verify_sources()
    assert sorted(Path(path).name for path in found.changed) == ["p1.png", "p2.png"]
    assert found.files >= 2
    assert sorted(entry.encoder for entry in made.plan().missing) == ["pixels", "words"]
    made.build()
    assert made.verify_sources().clean


def test_sources_that_are_as_remembered_are_clean(made: precook.Project) -> None:
    """Nothing is found, nothing is to be made, and a plan afterwards is as warm as before."""
    found = made.verify_sources()
    assert (found.clean, found.changed, found.encoders) == (True, (), ())
    assert not len(made.plan().missing)


def test_entries_made_again_are_compared(made: precook.Project) -> None:
    """An encoder that always gives the same is equal bit for bit; the store is not changed."""
    made.close()
    with precook.open(made.store_path, read_only=True) as store:
        before = state(store)
    for one in made.recompute(0.5):
        assert one.checked == one.equal == (2 if one.encoder == "pixels" else 3)
        assert (one.max_abs, one.unlike, one.failed) == (0.0, 0, 0)
    made.close()
    with precook.open(made.store_path, read_only=True) as store:
        assert state(store) == before


def test_the_difference_is_told_by_encoder(tmp_path: Path) -> None:
    """The largest difference, absolute and relative, entries of another shape, and entries that fail."""
    dataset(tmp_path / "data", 4)
    made: list[str] = []

    def drifting(item: precook.Item) -> Any:
        made.append(item.text or "")
        return np.array([1.0, 4.0]) + (0.5 if len(made) > 5 else 0.0)

    def growing(item: precook.Item) -> Any:
        assert item.image is not None
        return np.zeros(3 if len(made) <= 5 else 4)

    encoders = {"pixels": Watched("image", growing), "words": Watched("text", drifting)}
    with project(tmp_path, encoders=encoders) as opened:
        assert opened.build().encoded == {"pixels": 4, "words": 5}
        found = {one.encoder: one for one in opened.recompute(1.0)}
        words = found["words"]
        assert (words.checked, words.equal, words.max_abs) == (5, 0, 0.5)
        assert words.max_rel == pytest.approx(0.5 / 1.5)
        again = {one.encoder: one for one in opened.recompute(1.0)}
        assert again["pixels"].unlike == 4


def test_rounding_is_told_from_other_results(tmp_path: Path) -> None:
    """By the digits that the type has: another batch or compiled code may change the last ones, and a number near zero.

    Whole numbers are not rounded: another one is another result.
    """
    dataset(tmp_path / "data", 4)
    exact = np.array([100.0, -3.0, 1e-9], np.float32)
    tokens = np.array([100_000, 1])
    changes: dict[str, Any] = {"numbers": 0, "moved": 0, "words": 0}
    encoders = {
        "numbers": Watched("text", lambda _: exact + np.float32(changes["numbers"]), identity=1),
        "moved": Watched("text", lambda _: exact + np.float32(changes["moved"]), identity=2),
        "words": Watched("text", lambda _: tokens + changes["words"], identity=3),
    }
    with project(tmp_path, encoders=encoders) as opened:
        opened.build()
        changes.update(numbers=1e-4, moved=1.0, words=1)
        found = {one.encoder: (one.equal, one.rounded) for one in opened.recompute(1.0)}
    assert found == {"numbers": (0, 5), "moved": (0, 0), "words": (0, 0)}


def test_a_collection_beside_takes_nothing_that_is_compared(tmp_path: Path) -> None:
    """A lease keeps what is made again until it was compared, although no snapshot names it any more."""
    dataset(tmp_path / "data", 4)
    freed: list[int] = []

    def collect(batch: list[precook.Item]) -> None:
        with precook.open(tmp_path / "cache") as store:
            for file in store.snapshots():
                store.remove_snapshot(file)
            freed.append(plan_gc(store, grace=0).execute().entries)

    watched = Watched()
    with project(tmp_path, encoders={"words": watched}) as opened:
        opened.build()
        watched.on_batch = collect
        (found,) = opened.recompute(1.0)
        assert (found.checked, found.equal) == (5, 5)
        assert opened.store.leases() == []
        assert plan_gc(opened.store, grace=0).entries == 5
    assert set(freed) == {0}


def test_before_the_first_build_there_is_nothing_to_compare(tmp_path: Path) -> None:
    """Nor is a store made."""
    dataset(tmp_path / "data", 2)
    with project(tmp_path, encoders={"words": Watched()}) as opened:
        assert [one.checked for one in opened.recompute(1.0)] == [0]
        assert not opened.store_path.exists()


def test_the_same_seed_takes_the_same_entries(made: precook.Project) -> None:
    """Another seed takes others; one entry of each encoder is taken however small the share."""
    taken = []
    for seed in (1, 1, 2, 3, 4):
        watched = Watched()
        with project(made.base, stamps="trust", encoders={"pixels": {"uses": "image"}, "words": watched}) as other:
            assert [one.checked for one in other.recompute(0.001, seed=seed)] == [1, 1]
        taken.append(tuple(item.text for item in watched.items))
    assert taken[0] == taken[1]
    assert len(set(taken)) > 1


CONFIG = """\
dataset: test
stamps: trust
concepts:
  - {name: things, path: data}
image: {resolutions: [64], step: 16}
encoders:
  pixels: {uses: image}
"""


def test_the_command_reads_sources_and_makes_entries_again(tmp_path: Path) -> None:
    """Exit code 4 and the file's name for an unnoticed edit; a table of differences for --recompute."""
    dataset(tmp_path / "data", 2)
    config = tmp_path / "precook.yaml"
    config.write_text(CONFIG)
    assert run("build", "--config", config).code == 0
    assert run("verify", "--config", config, "--sources").code == 0
    ended = run("verify", "--config", config, "--recompute", "100%")
    assert ended.code == 0
    assert ended.out.splitlines()[1].split() == ["pixels", "2", "2", "0", "0"]
    (one,) = run("verify", "--config", config, "--recompute", "1%", "--json").document["encoders"]
    assert (one["encoder"], one["checked"], one["equal"]) == ("pixels", 1, 1)
    other = picture(tmp_path / "other.png", 99).read_bytes()
    with precook.open(tmp_path / "cache") as store:
        edit_unnoticed(store, tmp_path / "data" / "p1.png", other)
    ended = run("verify", "--config", config, "--sources", "--json")
    assert (ended.code, [Path(path).name for path in ended.document["changed"]]) == (4, ["p1.png"])
    assert run("verify", "--config", config, "--recompute", "0%").code == 2
    assert run("verify", "--config", config, "--recompute", "1%", "--sources").code == 2
