"""`precook gc`, `evict`, `prune` and `clear`: previews, deeds, documents and exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import precook
from tests.support.commands import run
from tests.support.projects import picture
from tests.support.snapshots import disk_bytes, packs

COMMANDS = {
    "gc": (["gc"], 7),
    "gc --grace": (["gc", "--grace", "0s"], 7),
    "evict": (["evict", "--max-size", "1B"], 7),
    "prune": (["prune", "--older-than", "1d"], 7),
    "clear": (["clear", "--all"], 10),
    "clear --recipe": (["clear", "--recipe", "test"], 10),
    "clear --dataset": (["clear", "--dataset", "cats"], 3),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_preview_changes_nothing_and_the_run_does_what_it_said(cache: Path, name: str) -> None:
    """Without --yes every file stays as it is; with it, entries and bytes are those of the preview."""
    command, expected = COMMANDS[name]
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()}
    preview = run(*command, "--store", cache, "--json").document
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()} == before
    assert preview["removed"] is None
    assert preview["entries"] == expected
    size = disk_bytes(cache)
    done = run(*command, "--store", cache, "--json", "--yes").document
    assert done["freed_bytes"] == preview["freed_bytes"] == done["removed"]["freed_bytes"]
    assert done["removed"]["entries"] == expected
    assert disk_bytes(cache) == size - preview["freed_bytes"]
    with precook.open(cache) as store:
        assert len(store) == 10 - expected
        verification = store.verify()
        assert not verification.damage
        # What was cleared although the snapshot names it is missed.
        assert len(verification.lost) == (3 if name == "clear --recipe" else 0)


def test_people_see_what_goes_what_stays_and_why(cache: Path) -> None:
    """One line each, with counts, sizes and the protector, and the way to do it."""
    shown = run("gc", "--store", cache)
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[0].startswith("goes 7 entries 54.")
    assert lines[0].endswith("no snapshot names it")
    assert lines[1].startswith("stays 3 entries 23.")
    assert lines[1].endswith("snapshot: cats 1")
    assert lines[3].endswith("1 pack removed, 1 pack rewritten")
    assert "--yes" in shown.err
    done = run("gc", "--store", cache, "--yes")
    assert "removed 7 entries" in done.out
    assert "nothing to remove" in run("gc", "--store", cache).out


def test_what_packs_free_is_a_part_of_what_they_take(cache: Path) -> None:
    """Snapshots that go are counted beside the packs: no more is freed than there is."""
    (line,) = [line for line in run("clear", "--all", "--store", cache).out.splitlines() if line.startswith("frees")]
    told = re.fullmatch(r"frees (.+) of (.+): 2 packs removed, and (.+) of 1 snapshot", line)
    assert told is not None, line
    assert told[1] == told[2]


def test_evict_says_when_it_cannot_reach_the_size(cache: Path) -> None:
    """What may go goes; the exit code is that of a full disk."""
    ended = run("evict", "--max-size", "1B", "--store", cache, "--yes")
    assert ended.code == 14
    assert "protected" in ended.err
    assert run("evict", "--max-size", "1GB", "--store", cache).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["evict"],
        ["evict", "--max-size", "200"],
        ["prune"],
        ["prune", "--older-than", "30"],
        ["clear"],
        ["clear", "--all", "--recipe", "vae"],
        ["gc", "--grace", "soon"],
    ],
)
def test_wrong_usage_is_refused(cache: Path, command: list[str]) -> None:
    """Sizes and ages need units, and nothing is removed by default."""
    assert run(*command, "--store", cache, "--yes").code == 2
    assert len(packs(cache)) == 2


def test_a_folder_that_is_not_there_keeps_everything(tmp_path: Path) -> None:
    """An unmounted drive: gc names the folder, takes nothing, and says what to do; so it does for an empty one."""
    picture(tmp_path / "data" / "cat.png", 1, (64, 64))
    config = tmp_path / "precook.yaml"
    config.write_text(
        "dataset: cats\nconcepts: [{name: cats, path: data}]\nimage: {resolutions: [64]}\n"
        "text: {empty_prompt: false}\nencoders: {pixels: {uses: image}}\n"
    )
    with precook.load(config) as project:
        project.build()
        project.store.remove_snapshot(project.store.snapshots()[0])
    assert run("gc", "--config", config, "--grace", "0s", "--json").document["entries"] == 1
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    for make in (lambda: None, (tmp_path / "data").mkdir):
        make()
        shown = run("gc", "--config", config, "--grace", "0s", "--yes")
        assert "not there: cats (data)" in shown.out
        assert "nothing to remove" in shown.out
        assert "mount" in shown.err
    assert run("gc", "--store", tmp_path / "cache", "--grace", "0s", "--json").document["entries"] == 1
