"""The command line builds: what it encodes, tells and leaves behind, stopped or not."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.cli import progress
from precook.cli.build import BuildArguments
from precook.cli.progress import EncoderCount, PacedReporter
from precook.plan.forecast import record_rate
from tests.cli.test_cli import environment, read_only, spawn
from tests.cli.test_plan import on_terminal, plain
from tests.support.commands import Ended, run
from tests.support.pages import ROOT, check_session
from tests.support.projects import dataset, picture

ENCODERS = '''\
import os, sys


class Words:
    """Keeps the device and the text; says when it is inside its first batch and waits there, if it is asked to."""

    input = "text"

    def __init__(self, gate=None, bad=None, grows=None):
        self.gate = gate
        self.grows = grows
        self.bad = bad

    def identity(self):
        return {"encoder": "words"}

    def load(self, device):
        self.device = device

    def encode(self, batch):
        gate, self.gate = self.gate, None
        if gate is not None:
            sys.__stderr__.write("inside\\n")
            sys.__stderr__.flush()
            with open(gate, "rb", buffering=0) as opened:
                opened.read(1)
        if self.grows is not None:
            with open(self.grows, "a") as caption:
                caption.write(f"another line, {os.path.getsize(self.grows)}\\n")
        if any(self.bad and self.bad in item.text for item in batch):
            raise ValueError("\\x1b[31mcannot read\\nthis")
        return [{"device": self.device, "text": item.text} for item in batch]

    def unload(self):
        pass
'''
CONFIG = """\
store: cache
dataset: things
concepts:
  - {name: things, path: data}
image: {resolutions: [64], step: 16}
text: {empty_prompt: false}
encoders:
  pixels: {uses: image}
  words: {uses: "encoders:Words", batch_size: 2}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of six samples and two encoders, one of them a class beside the config; the user is in its folder."""
    dataset(tmp_path / "data", 6)
    (tmp_path / "encoders.py").write_text(ENCODERS)
    (tmp_path / "precook.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("encoders", None)


def configure(old: str, new: str) -> None:
    """Edit the config."""
    text = Path("precook.yaml").read_text()
    assert old in text
    Path("precook.yaml").write_text(text.replace(old, new))


def words() -> list[dict[str, Any]]:
    """What the text encoder has stored."""
    with precook.load("precook.yaml") as project:
        return project.store.get_many(project.plan(encoders=["words"]).ready.keys())


def events(ended: Ended) -> list[dict[str, Any]]:
    """The JSON documents that a command printed, one per line."""
    return [json.loads(line) for line in ended.out.splitlines()]


def report(*args: object) -> dict[str, Any]:
    """The report of a build for programs."""
    *_, last = events(run("build", "--json", *args))
    assert last["event"] == "report"
    return last


class TestBuilding:
    """What a build does."""

    def test_it_encodes_what_is_missing_once(self, here: Path) -> None:
        """The first build encodes everything, the second nothing, and a third what was added."""
        assert report()["encoded"] == {"pixels": 6, "words": 6}
        again = report()
        assert (again["encoded"], again["reused"]) == ({"pixels": 0, "words": 0}, {"pixels": 6, "words": 6})
        picture(here / "data" / "new.png", 99)
        (here / "data" / "new.txt").write_text("picture 0, line 0\n")
        assert report()["encoded"] == {"pixels": 1, "words": 0}
        assert sorted(one["text"] for one in words()) == [f"picture {number}, line 0" for number in range(6)]

    def test_encoders_can_be_chosen(self, here: Path) -> None:
        """--encoder builds that one alone, and the dataset is not complete by it."""
        found = report("--encoder", "words")
        assert found["encoded"] == {"words": 6}
        assert found["snapshot"] is None
        assert report()["snapshot"]["number"] == 1

    def test_an_unknown_encoder_is_exit_code_2(self, here: Path) -> None:
        """Nothing is built, and the encoders that there are are named."""
        ended = run("build", "--encoder", "wrods")
        assert (ended.code, ended.out) == (2, "")
        assert "hint: there are pixels, words" in ended.err

    def test_devices_are_for_encoders_that_leave_it_open(self, here: Path) -> None:
        """--device decides where the config says auto, and nowhere else."""
        assert run("build", "--device", "left", "--device", "right").code == 0
        assert {one["device"] for one in words()} <= {"left", "right"}
        configure("batch_size: 2", "batch_size: 2, device: mine")
        assert run("build", "--store", "other", "--device", "left").code == 0
        configure("store: cache", "store: other")
        assert {one["device"] for one in words()} == {"mine"}

    def test_another_store_can_be_named(self, here: Path) -> None:
        """--store leaves that of the config alone."""
        assert run("build", "--store", "other").code == 0
        assert not (here / "cache").exists()
        with precook.open("other", read_only=True) as store:
            assert len(store) == 12

    def test_little_memory_and_one_thread_are_enough(self, here: Path) -> None:
        """The result does not depend on them."""
        assert report("--memory", "1B", "--threads", 1)["encoded"] == {"pixels": 6, "words": 6}

    @pytest.mark.parametrize("option", [["--memory", "100"], ["--threads", "0"], ["--frobnicate"]])
    def test_wrong_options_are_exit_code_2(self, here: Path, option: list[str]) -> None:
        """A size without a unit, no thread at all, an option that there is not."""
        ended = run("build", *option)
        assert (ended.code, ended.out) == (2, "")
        assert option[0] in ended.err

    def test_a_wrong_config_is_exit_code_2(self, here: Path) -> None:
        """As for every command."""
        configure("encoders:Words", "encoders:Wrods")
        ended = run("build")
        assert (ended.code, ended.out) == (2, "")
        assert "encoders has no Wrods" in ended.err

    def test_a_store_that_cannot_be_written_is_exit_code_13(self, here: Path) -> None:
        """The build does not begin."""
        assert run("build", "--encoder", "pixels").code == 0
        with read_only(here / "cache"):
            assert run("build").code == 13

    def test_a_disk_that_is_too_small_is_exit_code_14(self, here: Path) -> None:
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


class TestFailures:
    """Samples that cannot be encoded, and files that cannot be used."""

    @pytest.fixture
    def failing(self, here: Path) -> Path:
        """An encoder that fails at one text."""
        configure("batch_size: 2", 'batch_size: 2, bad: "picture 3"')
        return here

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
        configure(', bad: "picture 3"', "")
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

    def test_files_that_are_left_out_are_exit_code_3(self, here: Path) -> None:
        """A picture that is cut off is named, with a path that `explain` takes, although no encoder saw it."""
        file = here / "data" / "p1.png"
        file.write_bytes(file.read_bytes()[:-20])
        ended = run("build")
        assert ended.code == 3
        assert "\nleft out:\n  data/p1.png: cut off" in ended.out
        assert run("explain", "data/p1.png").code == 0
        (failure,) = report()["failed"]
        assert (failure["path"], failure["encoder"]) == ("data/p1.png", None)

    def test_sources_that_grow_all_the_time_are_exit_code_3(self, here: Path) -> None:
        """A dataset to which somebody adds faster than it is built is not complete: that is told, and no snapshot."""
        configure("batch_size: 2", "batch_size: 2, grows: data/p0.txt")
        ended = run("build")
        assert ended.code == 3
        assert re.search(r"^  1 entry missing of files that came or changed meanwhile", ended.out, re.MULTILINE)
        assert "snapshot" not in ended.out
        found = report()
        assert (found["missing"], found["failed"], found["snapshot"], found["exit_code"]) == (1, [], None, 3)
        configure(", grows: data/p0.txt", "")
        assert report()["snapshot"]["number"] == 1

    def test_ten_failures_are_shown_and_all_are_counted(self, here: Path) -> None:
        """The rest is a number for people and a list for programs."""
        for number in range(12):
            (here / "data" / f"bad{number}.png").write_bytes(b"no picture")
        ended = run("build")
        assert ended.out.count("data/bad") == 10
        assert "… and 2 more; `precook plan --json` lists them all" in ended.out
        assert len(report()["failed"]) == 12


class TestTelling:
    """What people and programs see."""

    def test_people_off_a_terminal_see_lines(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_the_line_before_has_the_forecast(self, here: Path) -> None:
        """Once an encoder was timed, what it will take is told."""
        run("build")
        picture(here / "data" / "new.png", 99)
        ended = run("build", "--encoder", "pixels")
        assert re.match(r"things: encoding 1 entry: 1 of pixels; about [\d.]+ KiB, about .* s\n", ended.err)

    def test_people_on_a_terminal_see_bars(self, here: Path) -> None:
        """Each encoder's bar stays when it is done, those of the plan go, and the cursor comes back."""
        written = on_terminal("build")
        seen = [line.rpartition("\r")[2] for line in plain(written).splitlines()]
        for encoder in ("pixels", "words"):
            assert any(re.match(rf"{encoder} ━+ 6 of 6 entries", line) for line in seen)
            # A bar that goes is wiped out as soon as the cursor is back.
            assert not re.search(rf"{encoder} [^\n]* 6 of 6 entries[^\n]*\n\x1b\[\?25h\r\x1b\[1A", written)
        assert "complete: snapshot 1 of things" in seen
        assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") > 0

    def test_programs_see_events(self, here: Path) -> None:
        """One JSON document in a line: the plan, the progress of each encoder, the report; nothing on stderr."""
        picture(here / "data" / "bare.png", 50)
        (here / "data" / "cut.png").write_bytes(b"no picture")
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

    def test_lines_keep_their_pace(self) -> None:
        """However fast an encoder is, a line comes at most every five seconds, and one at the end."""
        now = [0.0]
        told: list[str] = []
        paced = PacedReporter(lambda count: told.append(str(count)), every=5.0, clock=lambda: now[0])
        with paced.task("words", total=1280, unit="entries") as task:
            for number in range(1280):
                now[0] += 1 / 128
                task.advance(nbytes=512, failed=int(number == 700))
        assert told == [
            "words: 640 of 1,280 entries, 128/s, 320.0 KiB, about 5 s left",
            "words: 1,280 of 1,280 entries, 128/s, 640.0 KiB, 1 failed",
        ]

    def test_a_line_without_a_total_tells_what_is_done(self) -> None:
        """Nothing is guessed about the rest."""
        now = [0.0]
        count = EncoderCount("words", None, lambda: now[0])
        count.done, now[0] = 1, 2.0
        assert str(count) == "words: 1 entry, 0.5/s"


class Gated:
    """A build in a process of its own that waits inside its first batch of texts until it is let go."""

    def __init__(self, folder: Path, *args: object, **options: Any) -> None:
        gate = folder / "gate"
        os.mkfifo(gate)
        self._gate = os.open(gate, os.O_RDWR)
        configure("batch_size: 2", f"batch_size: 2, gate: {gate}")
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": hear_ctrl_c, **options}
        self.process = spawn("build", *args, **options)
        self.err = ""

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._gate)
        configure(", gate: ", ", bad: ")

    def wait_for(self, line: str) -> None:
        """Read stderr up to a line."""
        assert self.process.stderr is not None
        for found in self.process.stderr:
            self.err += found.decode()
            if found.decode() == f"{line}\n":
                return
        raise AssertionError(self.err)

    def stop(self, number: int) -> None:
        """Send a signal and wait until it is answered."""
        self.process.send_signal(number)
        self.wait_for(ANSWER)

    def end(self) -> Ended:
        """Let it go, and wait for its end."""
        os.write(self._gate, b"x")
        return self.wait()

    def wait(self) -> Ended:
        """Wait for its end."""
        out, err = self.process.communicate()
        return Ended(self.process.returncode, out.decode(), self.err + err.decode())


ANSWER = "finishing the batch in flight; again to stop at once"


def hear_ctrl_c() -> None:
    """Whatever started the tests may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore_ctrl_c() -> None:
    """As a job in the background of a script does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class TestStopping:
    """Ctrl-C and SIGTERM."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_one_signal_finishes_the_batch(self, here: Path, number: int) -> None:
        """The batch in flight is kept, the next is not begun, and the command that is named goes on with the rest."""
        with Gated(here, "--encoder", "words", "--threads", 1) as build:
            build.wait_for("inside")
            build.stop(number)
            ended = build.end()
        assert ended.code == 130
        assert re.search(r"^stopped after 2 entries, .*; 4 left$", ended.out, re.MULTILINE)
        assert "Traceback" not in ended.err
        assert len(words()) == 2
        match = re.search(r"hint: what is encoded is kept; `precook (.*)` goes on\n", ended.err)
        assert match is not None
        assert shlex.split(match[1]) == ["build", "--encoder", "words", "--threads", "1"]
        going_on = report(*shlex.split(match[1])[1:])
        assert (going_on["encoded"], going_on["reused"]) == ({"words": 4}, {"words": 2})

    @pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
    def test_two_signals_end_it_at_once(self, here: Path, first: int, second: int) -> None:
        """The batch in flight is not waited for; what was done before it is kept, and the store is in order."""
        with Gated(here) as build:
            build.wait_for("inside")
            build.stop(first)
            build.process.send_signal(second)
            ended = build.wait()
        assert ended.code == 130
        assert "Traceback" not in ended.err
        assert run("verify").code == 0
        planned = run("plan", "--json").document["encoders"]
        assert [(one["name"], one["ready"], one["missing"]) for one in planned] == [("pixels", 6, 0), ("words", 0, 6)]

    def test_programs_see_that_it_was_stopped(self, here: Path) -> None:
        """The report says so, and has no snapshot."""
        with Gated(here, "--json") as build:
            build.wait_for("inside")
            build.stop(signal.SIGTERM)
            ended = build.end()
        last = events(ended)[-1]
        assert (ended.code, last["exit_code"], last["stopped"], last["snapshot"]) == (130, 130, True, None)
        assert (last["encoded"], last["left"]) == ({"pixels": 6, "words": 2}, 4)

    def test_the_terminal_is_left_in_order(self, here: Path) -> None:
        """A build that ends at once between two bars gives the cursor back."""
        master, slave = pty.openpty()
        with Gated(here, stdin=slave, stdout=slave, stderr=slave) as build:
            os.close(slave)
            written = b""
            for awaited in (b"inside", ANSWER.encode()):
                while awaited not in written:
                    written += os.read(master, 4096)
                build.process.send_signal(signal.SIGINT)
            assert build.process.wait() == 130
            while True:
                try:
                    written += os.read(master, 4096)
                except OSError:  # the other end is closed
                    break
        os.close(master)
        assert written.rfind(b"\x1b[?25h") > written.rfind(b"\x1b[?25l") > 0

    def test_what_is_ignored_stays_ignored(self, here: Path) -> None:
        """A build in the background of a script goes on when somebody presses Ctrl-C at the script."""
        with Gated(here, preexec_fn=ignore_ctrl_c) as build:
            build.wait_for("inside")
            build.process.send_signal(signal.SIGINT)
            ended = build.end()
        assert ended.code == 0
        assert ANSWER not in ended.err

    def test_signals_mean_afterwards_what_they_meant_before(self, here: Path) -> None:
        """The handlers and the wakeup descriptor of the process are put back."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.getsignal(number) for number in numbers]
        assert run("build").code == 0
        assert [signal.getsignal(number) for number in numbers] == before
        assert signal.set_wakeup_fd(-1) == -1

    def test_a_plan_can_be_interrupted(self, here: Path) -> None:
        """Before anything is encoded SIGTERM ends it as Ctrl-C does: with exit code 130 and no traceback."""
        os.mkfifo(here / "gate")
        gate = os.open(here / "gate", os.O_RDWR)
        source = "import sys\nsys.__stderr__.write('inside\\n')\nsys.__stderr__.flush()\n"
        source += f"with open({str(here / 'gate')!r}, 'rb', buffering=0) as gate:\n    gate.read(1)\n"
        (here / "encoders.py").write_text(source + ENCODERS)
        with spawn("build", stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "inside\n"
            process.send_signal(signal.SIGTERM)
            assert process.stderr.read() == "interrupted\n"
        os.close(gate)
        assert process.returncode == 130

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


class TestDemo:
    """`precook demo`."""

    def test_its_story_is_true(self, tmp_path: Path) -> None:
        """Each step encodes what its title says and no more, and the weights swapped back cost nothing."""
        for library in ("torch", "diffusers", "transformers"):
            pytest.importorskip(library, reason=f"{library} is not installed")
        with spawn("demo", tmp_path / "demo", "--json", stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            document = json.load(process.stdout)
        assert process.returncode == 0
        encoded = [
            tuple(int(found) for found in re.findall(r"^(?:latent|prompt|mask) +(\d+)", told["output"], re.MULTILINE))
            for step in document["steps"]
            for told in step["commands"]
            if told["command"] == "precook build"
        ]
        assert encoded == [(24, 25, 5), (0, 0, 0), (0, 1, 0), (1, 1, 0), (25, 0, 0), (0, 0, 0)]
        commands = Counter(told["command"] for step in document["steps"] for told in step["commands"])
        assert commands["precook plan"] == 2
        assert "latent: 25 recipe changed" in document["steps"][6]["commands"][1]["output"]
        batches = document["steps"][-2]["commands"][1]["output"]
        assert len(re.findall(r"'latent': \(\d, 4, \d+, \d+\).*'mask': \(\d, 1, \d+, \d+\)", batches)) == 3
        assert re.search(r"^shapes +25 .* 5 +5  ", document["steps"][-1]["commands"][0]["output"], re.MULTILINE)
        assert len(list((tmp_path / "demo" / "pictures").glob("*-masklabel.png"))) == 2
        printed = [(told["command"], told["output"]) for step in document["steps"] for told in step["commands"]]
        check_session(ROOT / "README.md", printed)

    def test_a_folder_with_something_in_it_is_refused(self, here: Path) -> None:
        """Exit code 2, and nothing is touched."""
        before = sorted(here.iterdir())
        for place in (here, here / "precook.yaml"):
            ended = run("demo", place)
            assert (ended.code, ended.out) == (2, "")
            assert re.fullmatch(r"error: .* exists already\nhint: .*`precook demo DIR`\n", ended.err)
        assert sorted(here.iterdir()) == before

    def test_without_the_libraries_it_names_the_extras(self, tmp_path: Path) -> None:
        """The error says what is missing and how to install it, and no folder is made."""
        script = f"""if True:
            import sys
            from importlib.machinery import PathFinder

            class Without:
                @staticmethod
                def find_spec(name, path=None, target=None):
                    return None if name in ("torch", "diffusers") else PathFinder.find_spec(name, path, target)

            sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
            from precook.cli.main import app
            app(["demo", {str(tmp_path / "demo")!r}])
        """
        ended = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
        )
        assert ended.returncode == 1
        assert ended.stderr.startswith("error: the demo runs real models and needs torch")
        assert "hint: pip install 'precook[diffusers,transformers]'" in ended.stderr
        assert not (tmp_path / "demo").exists()
