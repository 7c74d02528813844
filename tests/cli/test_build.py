"""`precook build`: what it encodes, tells and leaves behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import precook
from precook.cli import progress
from precook.cli.build import BuildArguments
from precook.plan.forecast import record_rate
from tests.support.commands import change_config, events, read_only, report, run, words
from tests.support.projects import picture


class TestBuilding:
    """What a build does."""

    def test_it_encodes_what_is_missing_once(self, things: Path) -> None:
        """The first build encodes everything, the second nothing, and a third what was added."""
        assert report()["encoded"] == {"pixels": 6, "words": 6}
        again = report()
        assert (again["encoded"], again["reused"]) == ({"pixels": 0, "words": 0}, {"pixels": 6, "words": 6})
        picture(things / "data" / "new.png", 99)
        (things / "data" / "new.txt").write_text("picture 0, line 0\n")
        assert report()["encoded"] == {"pixels": 1, "words": 0}
        assert sorted(one["text"] for one in words()) == [f"picture {number}, line 0" for number in range(6)]

    def test_encoders_can_be_chosen(self, things: Path) -> None:
        """--encoder builds that one alone, and the dataset is not complete by it."""
        found = report("--encoder", "words")
        assert found["encoded"] == {"words": 6}
        assert found["snapshot"] is None
        assert report()["snapshot"]["number"] == 1

    def test_an_unknown_encoder_is_exit_code_2(self, things: Path) -> None:
        """Nothing is built, and the encoders that there are are named."""
        ended = run("build", "--encoder", "wrods")
        assert (ended.code, ended.out) == (2, "")
        assert "hint: there are pixels, words" in ended.err

    def test_devices_are_for_encoders_that_leave_it_open(self, things: Path) -> None:
        """--device decides where the config says auto, and nowhere else."""
        assert run("build", "--device", "left", "--device", "right").code == 0
        assert {one["device"] for one in words()} <= {"left", "right"}
        change_config("batch_size: 2", "batch_size: 2, device: mine")
        assert run("build", "--store", "other", "--device", "left").code == 0
        change_config("store: cache", "store: other")
        assert {one["device"] for one in words()} == {"mine"}

    def test_another_store_can_be_named(self, things: Path) -> None:
        """--store leaves that of the config alone."""
        assert run("build", "--store", "other").code == 0
        assert not (things / "cache").exists()
        with precook.open("other", read_only=True) as store:
            assert len(store) == 12

    def test_little_memory_and_one_thread_are_enough(self, things: Path) -> None:
        """The result does not depend on them."""
        assert report("--memory", "1B", "--threads", 1)["encoded"] == {"pixels": 6, "words": 6}

    @pytest.mark.parametrize("option", [["--memory", "100"], ["--threads", "0"], ["--frobnicate"]])
    def test_wrong_options_are_exit_code_2(self, things: Path, option: list[str]) -> None:
        """A size without a unit, no thread at all, an option that there is not."""
        ended = run("build", *option)
        assert (ended.code, ended.out) == (2, "")
        assert option[0] in ended.err

    def test_a_wrong_config_is_exit_code_2(self, things: Path) -> None:
        """As for every command."""
        change_config("encoders:Words", "encoders:Wrods")
        ended = run("build")
        assert (ended.code, ended.out) == (2, "")
        assert "encoders has no Wrods" in ended.err

    def test_a_store_that_cannot_be_written_is_exit_code_13(self, things: Path) -> None:
        """The build does not begin."""
        assert run("build", "--encoder", "pixels").code == 0
        with read_only(things / "cache"):
            assert run("build").code == 13

    def test_a_store_that_cannot_be_written_is_no_trouble_where_nothing_is_to_be_done(self, things: Path) -> None:
        """A script that builds before it trains runs on a mounted store, too: the snapshot is the one that is there."""
        before = report()["snapshot"]
        with read_only(things / "cache"):
            ended = run("build")
            assert (ended.code, ended.err) == (0, "things: nothing to encode\n")
            assert "complete: snapshot 1 of things" in ended.out
            assert report("--processes", 2)["snapshot"] == before
            assert report("--encoder", "words")["snapshot"] is None

    def test_a_snapshot_that_cannot_be_written_is_exit_code_13(self, things: Path) -> None:
        """Nothing is to be encoded, but the dataset would be frozen anew: that is refused, and named."""
        report()
        change_config("dataset: things", "dataset: others")
        with read_only(things / "cache"):
            ended = run("build")
        assert ended.code == 13
        assert "the snapshot of others cannot be written here" in ended.err

    def test_a_disk_that_is_too_small_is_exit_code_14(self, things: Path) -> None:
        """Where earlier builds say that it will not fit it does not begin, unless with --crowded."""
        with precook.load("precook.yaml") as project:
            recipe = project.plan().encoders["words"].wants.encoding.recipe
            memory = project.store.memory()
            record_rate(memory, recipe, entries=1, nbytes=1 << 60, seconds=1.0)
            project.store.remember(memory)
        ended = run("build", "--encoder", "words")
        assert (ended.code, ended.out) == (14, "")
        assert re.search(r"^error: .* are free$\n^hint: .*--crowded", ended.err, re.MULTILINE)
        assert words() == []
        assert run("build", "--encoder", "words", "--crowded").code == 0
        assert len(words()) == 6

    def test_the_command_that_goes_on_asks_for_the_same(self) -> None:
        """Every option is in it, and names with spaces are one word."""
        asked = BuildArguments(
            config=Path("my config.yaml"),
            store=Path("other"),
            encoders=("a", "b"),
            devices=("cuda:0",),
            memory=1 << 20,
            threads=2,
            retry_failed=True,
            fail_fast=True,
            crowded=True,
        )
        assert asked.command == (
            "precook build --config 'my config.yaml' --store other --encoder a --encoder b --device cuda:0"
            " --memory 1048576B --threads 2 --retry-failed --fail-fast --crowded"
        )


class TestFailures:
    """Samples that cannot be encoded, and files that cannot be used."""

    @pytest.fixture
    def failing(self, things: Path) -> Path:
        """An encoder that fails at one text."""
        change_config("batch_size: 2", 'batch_size: 2, bad: "picture 3"')
        return things

    def test_the_others_go_on_and_the_exit_code_is_3(self, failing: Path) -> None:
        """One text fails, five are kept, and the report names the file, the encoder and the reason, all escaped."""
        ended = run("build")
        assert ended.code == 3
        assert "\nleft out:\n  data/p3.png: words: ValueError: \\x1b[31mcannot read\\nthis\n" in ended.out
        assert re.search(r"^words +5 +0 +1$", ended.out, re.MULTILINE)
        assert re.search(r"^words: 6 of 6 entries, .*, 1 failed$", ended.err, re.MULTILINE)
        assert ended.out.endswith("complete, without what is left out: snapshot 1 of things\n")
        assert "--retry-failed" in ended.err
        assert len(words()) == 5

    def test_what_failed_is_not_forgotten(self, failing: Path) -> None:
        """The next build does not try it again, says so, and is no plain success either; --retry-failed tries it."""
        assert run("build").code == 3
        change_config(', bad: "picture 3"', "")
        ended = run("build")
        assert ended.code == 3
        assert ended.err.startswith("things: nothing to encode\n")
        assert "data/p3.png: words: ValueError" in ended.out
        ended = run("build", "--retry-failed")
        assert (ended.code, ended.err.splitlines()[0]) == (0, "things: encoding 1 entry: 1 of words")
        assert len(words()) == 6

    def test_the_first_failure_can_be_the_end(self, failing: Path) -> None:
        """With --fail-fast the error is that of the sample, and the exit code that of errors."""
        ended = run("build", "--fail-fast", "--encoder", "words")
        assert (ended.code, ended.out) == (1, "")
        assert r"data/p3.png: ValueError: \x1b[31mcannot read\nthis" in ended.err

    def test_files_that_are_left_out_are_exit_code_3(self, things: Path) -> None:
        """A picture that is cut off is named, with a path that `explain` takes, although no encoder saw it."""
        file = things / "data" / "p1.png"
        file.write_bytes(file.read_bytes()[:-20])
        ended = run("build")
        assert ended.code == 3
        assert "\nleft out:\n  data/p1.png: cut off" in ended.out
        assert run("explain", "data/p1.png").code == 0
        (failure,) = report()["failed"]
        assert (failure["path"], failure["encoder"]) == ("data/p1.png", None)

    def test_sources_that_grow_all_the_time_are_exit_code_3(self, things: Path) -> None:
        """A dataset to which somebody adds faster than it is built is not complete: that is told, and no snapshot."""
        change_config("batch_size: 2", "batch_size: 2, grows: data/p0.txt")
        ended = run("build")
        assert ended.code == 3
        assert re.search(r"^  1 entry missing of files that came or changed meanwhile", ended.out, re.MULTILINE)
        assert "snapshot" not in ended.out
        found = report()
        assert (found["missing"], found["failed"], found["snapshot"], found["exit_code"]) == (1, [], None, 3)
        change_config(", grows: data/p0.txt", "")
        assert report()["snapshot"]["number"] == 1

    def test_ten_failures_are_shown_and_all_are_counted(self, things: Path) -> None:
        """The rest is a number for people and a list for programs."""
        for number in range(12):
            (things / "data" / f"bad{number}.png").write_bytes(b"no picture")
        ended = run("build")
        assert ended.out.count("data/bad") == 10
        assert "… and 2 more; `precook plan --json` lists them all" in ended.out
        assert len(report()["failed"]) == 12


class TestTelling:
    """What people and programs see."""

    def test_people_off_a_terminal_see_lines(self, things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One line before, one for each encoder at its end, and the report on stdout."""
        monkeypatch.setattr(progress, "LINES_EVERY", 3600.0)  # a slow machine has more to tell
        ended = run("build")
        intention, pixels, texts = ended.err.splitlines()
        assert intention == "things: encoding 12 entries: 6 of pixels, 6 of words"
        assert re.match(r"pixels: 6 of 6 entries\b", pixels)
        assert re.match(r"words: 6 of 6 entries\b", texts)
        assert re.fullmatch(
            r"encoder  encoded  reused  failed\n"
            r"pixels         6       0       0\n"
            r"words          6       0       0\n"
            r"\n"
            r"encoded 12 entries, [\d.]+ KiB in .* \([\d.,]+ entries/s\), at most [\d.]+ [MG]iB of memory\n"
            r"complete: snapshot 1 of things\n",
            ended.out,
        )
        assert "\x1b" not in ended.out + ended.err
        ended = run("build")
        assert ended.err == "things: nothing to encode\n"
        assert ended.out.endswith("\nencoded nothing\ncomplete: snapshot 1 of things\n")

    def test_the_line_before_has_the_forecast(self, things: Path) -> None:
        """Once an encoder was timed, what it will take is told."""
        run("build")
        picture(things / "data" / "new.png", 99)
        ended = run("build", "--encoder", "pixels")
        assert re.match(r"things: encoding 1 entry: 1 of pixels; about [\d.]+ KiB, about .* s\n", ended.err)

    def test_programs_see_events(self, things: Path) -> None:
        """One JSON document in a line: the plan, the progress of each encoder, the report; nothing on stderr."""
        picture(things / "data" / "bare.png", 50)
        (things / "data" / "cut.png").write_bytes(b"no picture")
        ended = run("build", "--json")
        plan, *progress, last = events(ended)
        assert (ended.code, ended.err) == (3, "")
        assert {one["version"] for one in events(ended)} == {1}
        assert (plan["event"], plan["dataset"], plan["samples"], plan["left_out"]) == ("plan", "things", 7, 1)
        assert [(one["name"], one["missing"]) for one in plan["encoders"]] == [("pixels", 7), ("words", 7)]
        assert plan["forecast"]["bytes"] is None
        assert {one["event"] for one in progress} == {"progress"}
        ends = {one["encoder"]: (one["done"], one["total"], one["failed"], one["bytes"] > 0) for one in progress}
        assert ends == {"pixels": (7, 7, 0, True), "words": (7, 7, 0, False)}
        with precook.load("precook.yaml") as project:
            (snapshot,) = project.store.snapshots()
        assert last.pop("seconds") > 0
        assert last.pop("peak_memory") > 1 << 20
        busy = last.pop("busy")
        assert set(busy) == {"reading", "decoding", "device", "disk"} == set(progress[-1]["busy"])
        assert all(0 <= share <= 1 for share in busy.values())
        assert last.pop("limit") in (None, *busy)
        assert last.pop("bytes") > 7 * 64 * 64 * 3 // 2
        (failure,) = last.pop("failed")
        assert (failure["path"], failure["concept"], failure["key"]) == ("data/cut.png", "things", None)
        assert last == {
            "version": 1,
            "event": "report",
            "dataset": "things",
            "stopped": False,
            "encoded": {"pixels": 7, "words": 7},
            "reused": {"pixels": 0, "words": 0},
            "changed": 0,
            "left": 0,
            "missing": 0,
            "truncated": {"pixels": 0, "words": 0},
            "lost": [],
            "snapshot": {"number": 1, "id": snapshot.id},
            "exit_code": 3,
        }
