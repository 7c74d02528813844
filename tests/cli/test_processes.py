"""`precook build --processes N`: what several processes make together, and that they end together."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.cli.build import BuildArguments, _look_back
from precook.cli.processes import read_report, write_report
from precook.store import claims
from tests.support.commands import run, spawn
from tests.support.projects import dataset, project

PICTURES = 60
ENCODERS = '''\
import hashlib, os

from precook.store import claims

claims.SECONDS = 100.0  # so long no process of a busy machine stands still: what is claimed stays claimed
alive = []  # is closed when the process ends


class Pixels:
    """Logs what it makes; in its first batch it says who it is, and waits until it is let go."""

    input = "image"

    def __init__(self, folder, gated=False, first=0, bad="", sick=False):
        self.folder = folder
        self.gated = gated
        self.is_first = os.getppid() == first
        self.bad = bad
        self.refused = None
        self.sick = sick

    def identity(self):
        return {"encoder": "pixels"}

    def load(self, device):
        if self.gated or self.sick:
            alive.append(open(f"{self.folder}/alive", "wb", buffering=0))
        if not self.is_first:
            print("an encoder may print")
        if self.sick and not self.is_first:
            self.say()
            raise RuntimeError("no room for it")

    def say(self):
        os.mkfifo(f"{self.folder}/gate-{os.getpid()}")
        with open(f"{self.folder}/begun", "ab", buffering=0) as begun:
            begun.write(b"%d\\n" % os.getpid())

    def encode(self, batch):
        if self.gated:
            self.gated = False
            self.say()
            with open(f"{self.folder}/gate-{os.getpid()}", "rb", buffering=0) as gate:
                gate.read(1)
        pictures = [hashlib.sha256(item.image.tobytes()).hexdigest() for item in batch]
        if self.bad == "all" or (self.bad == "others" and not self.is_first):
            self.refused = self.refused or pictures[0]
        if self.refused in pictures:
            raise ValueError("cannot look at it")
        with open(f"{self.folder}/log", "ab", buffering=0) as log:
            cores = os.environ.get("OMP_NUM_THREADS", "-")
            log.write("".join(f"{os.getpid()} {cores} {one}\\n" for one in pictures).encode())
        return [item.image for item in batch]

    def unload(self):
        pass
'''
CONFIG = """\
store: cache
dataset: things
concepts:
  - {name: things, path: data}
image: {resolutions: [64], step: 16}
encoders:
  pixels: {uses: "encoders:Pixels", device: cpu, batch_size: 2, folder: FOLDER, OPTIONS}
"""
ANSWER = b"finishing the batch in flight; again to stop at once\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of sixty pictures and one encoder; the user is in its folder."""
    dataset(tmp_path / "data", PICTURES)
    (tmp_path / "encoders.py").write_text(ENCODERS)
    configure(tmp_path, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(claims, "SECONDS", claims.SECONDS)  # as it was, once the encoders are gone
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "alive")
    yield tmp_path
    sys.modules.pop("encoders", None)


def configure(folder: Path, options: str) -> None:
    """Write the config."""
    (folder / "precook.yaml").write_text(CONFIG.replace("FOLDER", str(folder)).replace("OPTIONS", options))


class Together:
    """A build in two processes of which each waits inside its first batch; a context manager."""

    def __init__(self, folder: Path, *args: object, options: str = "gated: true") -> None:
        self._folder = folder
        configure(folder, f"{options}, first: {os.getpid()}")
        # One end that also writes: the pipe then never ends while nobody has come yet.
        self._begun = open(folder / "begun", "r+b", buffering=0)  # noqa: SIM115 - closed at the end
        self._alive = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self._alive, True)
        self._gates: list[int] = []
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = spawn(
            *("build", "--processes", 2, "--threads", 2, "--json", *args),
            start_new_session=True,
            preexec_fn=_hear_ctrl_c,
            **streams,
        )
        self.other = 0
        self.done: list[int] = []
        self._watch = threading.Thread(target=self._free)
        self._watch.start()

    def arrive(self) -> None:
        """Wait until both are inside."""
        pids = {int(self._begun.readline()) for _ in range(2)}
        assert pids > {self.process.pid}, "it ended before both were inside"
        (self.other,) = pids - {self.process.pid}

    def _free(self) -> None:
        """Nobody is coming any more: whoever waits for two need not."""
        self.process.wait()
        os.write(self._begun.fileno(), b"0\n0\n")

    def release(self, *pids: int) -> None:
        """Let processes go."""
        for pid in pids:
            self._gates.append(os.open(self._folder / f"gate-{pid}", os.O_RDWR))
            os.write(self._gates[-1], b"x")

    def hear_answer(self) -> None:
        """Wait until the first process has answered a signal."""
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == ANSWER

    def wait_for_all(self) -> None:
        """Wait until every process that has loaded its encoder has ended."""
        assert os.read(self._alive, 1) == b""

    def end(self) -> tuple[int, dict[str, Any], str]:
        """The exit code, the report and what was said on stderr."""
        out, err = self.process.communicate()
        _, *progress, last = [json.loads(line) for line in out.splitlines()]
        self.done = [one["done"] for one in progress]
        return self.process.returncode, last, err.decode()

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()
        if self.other:
            self.release(self.other)
        self.wait_for_all()
        self._watch.join()
        self._begun.close()
        for descriptor in (self._alive, *self._gates):
            os.close(descriptor)
        configure(self._folder, "")


def _hear_ctrl_c() -> None:
    """Whatever started the tests may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def log(folder: Path) -> list[list[str]]:
    """Who made what, with how many cores."""
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def stored() -> list[Any]:
    """Everything in the store."""
    with precook.load("precook.yaml") as project:
        return project.store.get_many(project.plan().ready.keys())


def rest() -> dict[str, Any]:
    """The report of a build of what is left."""
    return json.loads(run("build", "--json").out.splitlines()[-1])  # type: ignore[no-any-return]


class TestSharing:
    """What they make."""

    def test_each_entry_is_made_once_and_both_make_some(self, here: Path) -> None:
        """Progress and report count what both make as one build's work, and the cores are divided."""
        with Together(here) as build:
            build.arrive()
            build.release(build.process.pid, build.other)
            code, report, err = build.end()
        assert (code, err) == (0, "")
        assert build.done == sorted(build.done)
        assert build.done[-1] == PICTURES
        assert (report["encoded"], report["reused"], report["failed"]) == ({"pixels": PICTURES}, {"pixels": 0}, [])
        assert (report["lost"], report["left"], report["snapshot"]["number"]) == ([], 0, 1)
        assert report["bytes"] == sum(one.nbytes for one in stored())
        made = log(here)
        assert {int(pid) for pid, *_ in made} == {build.process.pid, build.other}
        assert set(Counter(picture for *_, picture in made).values()) == {1}
        assert len(made) == PICTURES
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        assert {cores for _, cores, _ in made} == {str(max(1, cores // 2))}
        assert "OMP_NUM_THREADS" not in os.environ

    def test_status_shows_them_as_one_build(self, here: Path) -> None:
        """While they run and afterwards there is one build, of two processes, that made everything."""
        with Together(here) as build:
            build.arrive()
            assert re.findall(r"^build of \S+ +2 processes on ", run("status", "--store", "cache").out, re.MULTILINE)
            build.release(build.process.pid, build.other)
            assert build.end()[0] == 0
        status = run("status", "--store", "cache")
        (line,) = [line for line in status.out.splitlines() if line.endswith("2 processes")]
        assert line.split()[0] == "things"
        (one,) = run("status", "--store", "cache", "--json").document["runs"]
        assert (one["processes"], one["encoded"], one["reused"], one["stopped"]) == (2, PICTURES, 0, False)

    def test_a_failure_in_each_is_told_once_and_nobody_waits_for_the_other(self, here: Path) -> None:
        """Two pictures fail, one in each process: exit code 3, both named, and the next build tries neither."""
        with Together(here, options="gated: true, bad: all") as build:
            build.arrive()
            build.release(build.process.pid, build.other)
            code, report, _ = build.end()
        assert (code, report["exit_code"]) == (3, 3)
        assert len({one["path"] for one in report["failed"]}) == len(report["failed"]) == 2
        assert {one["reason"] for one in report["failed"]} == {"ValueError: cannot look at it"}
        assert (report["encoded"], report["reused"]) == ({"pixels": PICTURES - 2}, {"pixels": 0})
        assert len(log(here)) == PICTURES - 2
        again = rest()
        assert (again["encoded"], len(again["failed"]), again["exit_code"]) == ({"pixels": 0}, 2, 3)

    def test_one_that_fails_is_named_and_its_part_is_done(self, here: Path) -> None:
        """A process that cannot load its encoder does not fail the build; its error is told."""
        with Together(here, options="gated: true, sick: true") as build:
            build.arrive()
            build.release(build.process.pid)
            code, report, _ = build.end()
        assert (code, report["encoded"], report["left"]) == (0, {"pixels": PICTURES}, 0)
        (lost,) = report["lost"]
        assert re.fullmatch(
            r"process 2: ended with exit code 1: pixels cannot be loaded on \w+: RuntimeError: no room for it", lost
        )

    def test_the_first_failure_of_any_ends_all(self, here: Path) -> None:
        """With --fail-fast a failure of the other process is an error that names the sample, with exit code 1."""
        with Together(here, "--fail-fast", options="gated: true, bad: others") as build:
            build.arrive()
            build.release(build.other)
            build.release(build.process.pid)
            _, err = build.process.communicate()
        assert build.process.returncode == 1
        # The first may learn why from what the other has left for those who wait for it, before it sees its end.
        told = rb"^error: (process 2: )?.*: data/p\d+.png: ValueError: cannot look at it$"
        assert re.search(told, err, re.MULTILINE)

    def test_one_is_one(self, here: Path) -> None:
        """A build in one process leaves the cores to the libraries, and no process is begun for nothing."""
        assert rest()["encoded"] == {"pixels": PICTURES}
        assert {(int(pid), cores) for pid, cores, _ in log(here)} == {(os.getpid(), "-")}
        assert json.loads(run("build", "--processes", 4, "--json").out.splitlines()[-1])["encoded"] == {"pixels": 0}

    def test_none_is_exit_code_2(self, here: Path) -> None:
        """There is at least one process."""
        ended = run("build", "--processes", 0)
        assert (ended.code, ended.out) == (2, "")
        assert "--processes" in ended.err


class TestEnding:
    """Signals, and the death of the first process."""

    @pytest.mark.parametrize(
        "send", [lambda pid: os.kill(pid, signal.SIGTERM), lambda pid: os.killpg(pid, signal.SIGINT)]
    )
    def test_one_signal_ends_all_and_the_next_build_goes_on(self, here: Path, send: Callable[[int], None]) -> None:
        """Each finishes its batch, also at Ctrl-C, which reaches both; what is left is what the next build makes."""
        with Together(here) as build:
            build.arrive()
            send(build.process.pid)
            build.hear_answer()
            build.release(build.process.pid, build.other)
            code, report, err = build.end()
            build.wait_for_all()
        assert (code, report["stopped"], report["snapshot"]) == (130, True, None)
        made = log(here)
        assert {int(pid) for pid, *_ in made} == {build.process.pid, build.other}
        assert report["encoded"] == {"pixels": len(made)} == {"pixels": len(stored())}
        assert report["left"] == PICTURES - len(made) > 0
        assert report["lost"] == []
        assert "Traceback" not in err
        assert rest()["encoded"] == {"pixels": report["left"]}
        assert len({picture for *_, picture in log(here)}) == len(log(here)) == PICTURES

    def test_a_second_signal_ends_all_at_once(self, here: Path) -> None:
        """Nobody waits for a batch any more, in either process."""
        with Together(here) as build:
            build.arrive()
            build.process.send_signal(signal.SIGTERM)
            build.hear_answer()
            build.process.send_signal(signal.SIGTERM)
            assert build.process.wait() == 130
            build.wait_for_all()
        assert not (here / "log").exists()
        assert run("verify").code == 0

    def test_kill_9_of_the_first_leaves_none_behind(self, here: Path) -> None:
        """The other finishes its batch, keeps it, and ends."""
        with Together(here) as build:
            build.arrive()
            build.process.kill()
            build.process.wait()
            build.release(build.other)
            build.wait_for_all()
        made = log(here)
        assert {int(pid) for pid, *_ in made} == {build.other}
        assert len(stored()) == len(made) < PICTURES - 2

    def test_the_command_that_goes_on_asks_for_the_same(self) -> None:
        """It has as many processes."""
        asked = BuildArguments(
            None, None, (), (), None, None, retry_failed=False, fail_fast=False, crowded=False, processes=3
        )
        assert asked.command == "precook build --processes 3"


def test_the_outcome_is_what_all_processes_have_left(tmp_path: Path) -> None:
    """The first may have ended before another made what it could not, and froze the dataset."""
    dataset(tmp_path / "data", 3)
    with project(tmp_path) as one:
        plan = one.plan()
        report = plan.build()
        assert report.snapshot is not None
        of_the_first = dataclasses.replace(report, missing=3, snapshot=None)
        looked = _look_back(one, plan, of_the_first, [of_the_first])
        assert (looked.missing, looked.snapshot) == (0, report.snapshot)


def test_what_the_processes_tell_is_not_looked_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one has frozen the dataset and none misses anything, the sources are not read once more for the report."""
    dataset(tmp_path / "data", 3)
    with project(tmp_path) as one:
        plan = one.plan()
        report = plan.build()
        other = read_report(write_report(report).encode())
        assert other == report
        monkeypatch.setattr(one, "plan", lambda **_: pytest.fail("it has planned again"))
        looked = _look_back(one, plan, dataclasses.replace(report, snapshot=None), [report, other])
        assert (looked.missing, looked.snapshot) == (0, report.snapshot)
