"""Which project and which store a command means, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import precook
from tests.support.commands import Ended, change_config, everything, run


class TestFinding:
    """Which store a command means."""

    def test_the_store_here_or_in_cache_is_found(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without --store, the current directory and ./cache are tried."""
        for place in (store, store.parent):
            monkeypatch.chdir(place)
            assert run("status", "--json").document["path"] == str(store.resolve())

    def test_no_store_is_exit_code_10_with_a_hint(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The hint says how to name one."""
        monkeypatch.chdir(tmp_path)
        for command in (("status",), ("ls",), ("show", "abcd"), ("verify",), ("reindex",)):
            ended = run(*command)
            assert (ended.code, ended.out) == (10, "")
            assert re.fullmatch(r"error: .*: no store there\nhint: .*--store DIR.*\n", ended.err)

    def test_a_place_that_is_something_else_is_exit_code_10(self, tmp_path: Path) -> None:
        """A directory of pictures is no store, and neither is a file."""
        (tmp_path / "cat.jpg").touch()
        for place in (tmp_path, tmp_path / "cat.jpg", tmp_path / "nothing"):
            ended = run("status", "--store", place)
            assert ended.code == 10
            assert "empty" not in ended.err  # advice for whoever makes a store

    def test_a_newer_store_is_exit_code_12(self, store: Path) -> None:
        """What a newer precook made is left alone."""
        marker = store / "store.toml"
        marker.write_text(marker.read_text().replace("format = 1", "format = 99"))
        ended = run("status", "--store", store)
        assert ended.code == 12
        assert "hint: upgrade precook" in ended.err


class TestStoreOfAConfig:
    """Commands about stores, in a project."""

    @pytest.mark.parametrize("command", ["ls --json", "verify --json", "reindex --json", "status --json"])
    def test_the_config_names_the_store(self, built: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        """The config here or the one that is named says where the store lies, from any directory."""
        (built / "cache").rename(built / "kept")
        change_config("store: cache", "store: kept")
        assert count(run(*command.split())) == 11
        (built / "sub").mkdir()
        monkeypatch.chdir(built / "sub")
        assert count(run(*command.split(), "--config", "../precook.yaml")) == 11

    @pytest.mark.parametrize("command", ["ls --json", "verify --json", "reindex --json", "status --json"])
    def test_a_store_that_is_named_wins(self, built: Path, command: str) -> None:
        """--store is taken before the config's, even where the config is broken."""
        with precook.open("other") as other:
            other.put(precook.Key(bytes(32)), 1)
        assert count(run(*command.split(), "--store", "other")) == 1
        change_config("store:", "stoer:")
        assert count(run(*command.split(), "--store", "other")) == 1

    def test_show_and_doctor_look_there_too(self, built: Path) -> None:
        """They need no other words to find it."""
        (built / "cache").rename(built / "kept")
        change_config("store: cache", "store: kept")
        key = run("ls", "-q", "--limit", "1").out.strip()
        assert run("show", key, "--json").document["key"] == key
        assert run("doctor", "--json").document["path"] == str(built / "kept")

    def test_no_store_yet_is_exit_code_10(self, pets: Path) -> None:
        """The hint says what makes one."""
        ended = run("ls")
        assert (ended.code, ended.out) == (10, "")
        assert ended.err == "error: cache: no store there\nhint: check the path; a store is made by its first build\n"


def count(ended: Ended) -> int:
    """Entries that a command tells of."""
    assert ended.code == 0, ended.err
    found = ended.document["entries"]
    return len(found) if isinstance(found, list) else int(found)


class TestMistakes:
    """What a user does wrong, and what is said about it."""

    @pytest.mark.parametrize("command", [["plan"], ["explain", "data/cats/p0.png"]])
    def test_no_config_is_exit_code_2(self, here: Path, command: list[str]) -> None:
        """The hint says how to get one."""
        ended = run(*command)
        assert (ended.code, ended.out) == (2, "")
        assert re.fullmatch(r"error: there is no precook.yaml here\nhint: `precook init FOLDER` .*\n", ended.err)

    @pytest.mark.parametrize(
        "command", ["plan", "explain x", "status", "ls", "show abcd", "verify", "doctor", "reindex"]
    )
    def test_everything_wrong_with_a_config_is_told(self, pets: Path, command: str) -> None:
        """Exit code 2 from every command, one error for each problem, with file, line and the name that was meant."""
        change_config("store: cache", "stoer: cache")
        change_config("resolutions:", "resolution:")
        change_config("uses: mask", "uses: msak")
        ended = run(*command.split())
        assert (ended.code, ended.out) == (2, "")
        errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        assert [re.match(r"error: precook\.yaml:(\d+): ([\w.]+): ", line).groups() for line in errors] == [
            ("1", "stoer"),
            ("11", "image.resolution"),
            ("18", "encoders.mask.uses"),
        ]
        assert "did you mean 'resolutions'?" in ended.err

    @pytest.mark.parametrize("content", [b"", b"a: [1\n", b"\xff\xfe\x00", b"- 1\n", b"a: &b 1\n"])
    def test_what_is_no_config_is_exit_code_2(self, here: Path, content: bytes) -> None:
        """No traceback for an empty file, broken YAML or bytes."""
        (here / "precook.yaml").write_bytes(content)
        ended = run("plan")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("error: precook.yaml")

    @pytest.mark.parametrize("name", ["nowhere.yaml", "folder"])
    def test_a_config_that_is_not_there_is_exit_code_2(self, here: Path, name: str) -> None:
        """--config must name a file, for commands about stores, too."""
        (here / "folder").mkdir()
        for command in ("plan", "ls"):
            ended = run(command, "--config", name)
            assert (ended.code, ended.out) == (2, "")
            assert re.match(rf"error: {name}: .*\nhint: ", ended.err)

    def test_a_model_that_is_not_there_is_exit_code_2(self, pets: Path) -> None:
        """The line of the encoder that needs it is told, and what to do."""
        change_config("models/text", "models/nothing")
        ended = run("plan")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("error: precook.yaml:17: encoders.tokens.model: no such model: models/nothing\n")
        assert "hint: relative paths start at the config file's folder" in ended.err
        assert run("plan", "--encoder", "pixels").code == 0

    def test_a_drive_that_is_not_mounted_is_exit_code_1(self, built: Path) -> None:
        """An absent folder is an error with a hint, not an empty dataset, and nothing is forgotten."""
        (built / "data").rename(built / "away")
        before = everything(built / "cache" / "packs")
        for command in (["plan"], ["plan", "--json"], ["explain", "data/cats/p0.png"]):
            ended = run(*command)
            assert (ended.code, ended.out) == (1, "")
            assert ended.err.startswith("error: data/cats: no such folder\nhint: is the drive mounted?")
        assert everything(built / "cache" / "packs") == before
        (built / "away").rename(built / "data")
        assert "to build: nothing" in run("plan").out
