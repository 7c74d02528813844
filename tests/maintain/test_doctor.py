"""The doctor: what it looks at, what it finds, and that it leaves everything as it was."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.doctor import Finding, _examine_sqlite, examine
from tests.support.commands import run

PROBES = {"flock", "fsync", "rename", "file times", "mmap", "sqlite wal"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A store with one entry."""
    path = tmp_path / "cache"
    with precook.open(path) as store:
        store.put(precook.Recipe("test", 1).key(1), np.zeros(3))
    return path


def by_topic(findings: list[Finding]) -> dict[str, Finding]:
    """Findings by topic, of which there is one each."""
    found = {finding.topic: finding for finding in findings}
    assert len(found) == len(findings)
    return found


def names(path: Path) -> set[str]:
    """Everything below a directory."""
    return {str(place.relative_to(path)) for place in path.rglob("*")}


def test_a_healthy_store_has_no_problems(cache: Path) -> None:
    """Every probe is tried and passes, and what there is to know is told."""
    found = by_topic(examine(cache))
    assert found.keys() >= PROBES | {"store", "file system", "space", "sqlite", "python", "numpy", "torch"}
    assert {topic for topic, finding in found.items() if finding.level == "problem"} == set()
    assert {found[topic].level for topic in PROBES - {"file times"}} == {"ok"}
    assert found["store"].message.startswith("format 1, made 2")
    assert found["store"].message.endswith("packs: 1")
    assert re.search(r"\d [MGT]iB free of", found["space"].message)


def test_it_leaves_nothing_behind(cache: Path) -> None:
    """The files of the store are the same afterwards, and there is none beside them."""
    before = {place: place.read_bytes() for place in cache.rglob("*") if place.is_file()}
    examine(cache)
    assert {place: place.read_bytes() for place in cache.rglob("*") if place.is_file()} == before
    assert names(cache.parent) == {"cache", *(f"cache/{name}" for name in names(cache))}


def test_a_place_without_a_store_can_be_examined(tmp_path: Path) -> None:
    """The directory that a store would be made in is probed, and none is made."""
    found = by_topic(examine(tmp_path / "not" / "yet"))
    assert found["store"].level == "note"
    assert found.keys() >= PROBES
    assert names(tmp_path) == set()


@pytest.mark.parametrize("marker", ["nonsense", "format = 99", ""])
def test_a_store_that_cannot_be_opened_is_a_problem(cache: Path, marker: str) -> None:
    """A marker that is damaged or newer is told as a finding, and the rest is examined all the same."""
    (cache / "store.toml").write_text(marker)
    found = by_topic(examine(cache))
    assert found["store"].level == "problem"
    assert found["store"].hint
    assert found.keys() >= PROBES


def test_a_place_that_is_something_else_is_a_problem(tmp_path: Path) -> None:
    """Neither a directory of pictures nor a file is a store."""
    picture = tmp_path / "pictures" / "cat.jpg"
    picture.parent.mkdir()
    picture.touch()
    for place in (picture.parent, picture):
        assert by_topic(examine(place))["store"].level == "problem"


def test_unknown_and_partial_files_are_listed_and_left(cache: Path) -> None:
    """What precook did not write, or did not finish, is named wherever it lies in the store."""
    (pack,) = cache.glob("packs/*/*.safetensors")
    unknown = [
        cache / "notes.txt",
        cache / "folder" / "inside.txt",
        cache / "packs" / "zz",
        cache / "packs" / "README",
        pack.with_name("0" * 64 + ".safetensors.bak"),
        pack.with_name(("0" if pack.name[0] != "0" else "1") * 64 + ".safetensors"),
    ]
    partial = [pack.with_name(f"{pack.name}.abcd.partial"), cache / "index.sqlite.abcd.partial"]
    for place in [*unknown, *partial]:
        place.parent.mkdir(exist_ok=True)
        place.touch()
    found = by_topic(examine(cache))
    assert found["unknown files"].level == found["partial files"].level == "note"
    listed = [cache / "folder" if place.name == "inside.txt" else place for place in unknown]
    assert set(found["unknown files"].paths) == set(listed)
    assert set(found["partial files"].paths) == set(partial)
    assert all(place.exists() for place in [*unknown, *partial])
    ended = run("doctor", "--store", cache)
    assert ended.code == 0
    assert "packs/zz" in ended.out


def test_a_tidy_store_has_no_unknown_files(cache: Path) -> None:
    """Everything that precook writes is known, while a writer is at work too."""
    with precook.open(cache) as store, store.writer() as writer:
        writer.put(precook.Recipe("test", 1).key(2), np.zeros(3))
        writer.flush()
        assert by_topic(examine(cache)).keys().isdisjoint({"unknown files", "partial files"})


def test_a_missing_index_is_noted(cache: Path) -> None:
    """It can be made again, so it is no problem."""
    (cache / "index.sqlite").unlink()
    assert by_topic(examine(cache))["index"].level == "note"


def test_a_full_file_system_is_a_problem(small_disk: Path) -> None:
    """Less than one pack's worth of space is too little; a file system in memory is worth a note."""
    found = by_topic(examine(small_disk / "cache"))
    assert found["space"].level == "problem"
    assert found["file system"].level == "note"
    assert f"tmpfs at {small_disk} " in found["file system"].message
    ended = run("doctor", "--store", small_disk / "cache", "--json")
    assert (ended.code, ended.document["healthy"]) == (1, False)


def test_a_read_only_place_is_not_probed(small_disk: Path) -> None:
    """Nothing is written where nothing can be, and that is no problem in itself."""
    with precook.open(small_disk / "cache") as store:
        store.put(precook.Recipe("test", 1).key(1), np.zeros(3))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    found = by_topic(examine(small_disk / "cache"))
    assert found["probes"].level == "note"
    assert found.keys().isdisjoint(PROBES)
    assert found["store"].level == "ok"


def test_the_race_in_sqlite_is_covered_by_locks_only() -> None:
    """An SQLite with the WAL-reset race is a note while locks work, and a problem where they do not."""
    raced = (3, 7, 0) <= sqlite3.sqlite_version_info <= (3, 51, 2)
    assert _examine_sqlite(lock_works=True).level == ("note" if raced else "ok")
    assert _examine_sqlite(lock_works=False).level == ("problem" if raced else "ok")
    assert sqlite3.sqlite_version in _examine_sqlite(lock_works=True).message


def test_versions_are_those_installed(tmp_path: Path) -> None:
    """Each library is named with its version; what is optional may be missing."""
    found = by_topic(examine(tmp_path))
    assert found["numpy"].message == np.__version__
    for name in ("torch", "ml_dtypes"):
        try:
            assert found[name].message == metadata.version(name)
        except metadata.PackageNotFoundError:
            assert found[name].level == "note"


def test_people_see_levels_and_programs_see_everything(cache: Path) -> None:
    """A line for each finding, or one JSON document."""
    ended = run("doctor", "--store", cache)
    assert ended.code == 0
    assert {line.split()[0] for line in ended.out.splitlines()} <= {"ok", "note"}
    ended = run("doctor", "--store", cache, "--json")
    document = ended.document
    assert (ended.code, document["version"], document["healthy"]) == (0, 1, True)
    assert document["path"] == str(cache.resolve())
    assert {finding["topic"] for finding in document["findings"]} >= PROBES
    assert {"level", "topic", "message", "hint", "paths"} == document["findings"][0].keys()


def test_problems_are_exit_code_1(cache: Path) -> None:
    """A problem shows in the exit code, and its hint on stderr."""
    (cache / "store.toml").write_text("format = 99")
    ended = run("doctor", "--store", cache)
    assert ended.code == 1
    assert "problem  store" in ended.out
    assert "hint: store: upgrade precook" in ended.err


def test_without_a_store_the_place_here_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor may be asked before there is a store."""
    monkeypatch.chdir(tmp_path)
    ended = run("doctor")
    assert ended.code == 0
    assert "there is no store at cache yet" in ended.out
    assert names(tmp_path) == set()
