"""Ctrl-C and SIGTERM stop a build."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Ended, change_config, events, report, run, spawn, words

ANSWER = "finishing the batch in flight; again to stop at once"


class Gated:
    """A build in a process of its own that waits inside its first batch of texts until it is let go."""

    def __init__(self, folder: Path, *args: object, **options: Any) -> None:
        gate = folder / "gate"
        os.mkfifo(gate)
        self._gate = os.open(gate, os.O_RDWR)
        change_config("batch_size: 2", f"batch_size: 2, gate: {gate}")
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": hear_ctrl_c, **options}
        self.process = spawn("build", *args, **options)
        self.err = ""

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._gate)
        change_config(", gate: ", ", bad: ")

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


def hear_ctrl_c() -> None:
    """Whatever started the tests may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore_ctrl_c() -> None:
    """As a job in the background of a script does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class TestStopping:
    """Ctrl-C and SIGTERM."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_one_signal_finishes_the_batch(self, things: Path, number: int) -> None:
        """The batch in flight is kept, the next is not begun, and the command that is named goes on with the rest."""
        with Gated(things, "--encoder", "words", "--threads", 1) as build:
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
    def test_two_signals_end_it_at_once(self, things: Path, first: int, second: int) -> None:
        """The batch in flight is not waited for; what was done before it is kept, and the store is in order."""
        with Gated(things) as build:
            build.wait_for("inside")
            build.stop(first)
            build.process.send_signal(second)
            ended = build.wait()
        assert ended.code == 130
        assert "Traceback" not in ended.err
        assert run("verify").code == 0
        planned = run("plan", "--json").document["encoders"]
        assert [(one["name"], one["ready"], one["missing"]) for one in planned] == [("pixels", 6, 0), ("words", 0, 6)]

    def test_programs_see_that_it_was_stopped(self, things: Path) -> None:
        """The report says so, and has no snapshot."""
        with Gated(things, "--json") as build:
            build.wait_for("inside")
            build.stop(signal.SIGTERM)
            ended = build.end()
        last = events(ended)[-1]
        assert (ended.code, last["exit_code"], last["stopped"], last["snapshot"]) == (130, 130, True, None)
        assert (last["encoded"], last["left"]) == ({"pixels": 6, "words": 2}, 4)

    def test_the_terminal_is_left_in_order(self, things: Path) -> None:
        """A build that ends at once between two bars gives the cursor back."""
        master, slave = pty.openpty()
        with Gated(things, stdin=slave, stdout=slave, stderr=slave) as build:
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

    def test_what_is_ignored_stays_ignored(self, things: Path) -> None:
        """A build in the background of a script goes on when somebody presses Ctrl-C at the script."""
        with Gated(things, preexec_fn=ignore_ctrl_c) as build:
            build.wait_for("inside")
            build.process.send_signal(signal.SIGINT)
            ended = build.end()
        assert ended.code == 0
        assert ANSWER not in ended.err

    def test_signals_mean_afterwards_what_they_meant_before(self, things: Path) -> None:
        """The handlers and the wakeup descriptor of the process are put back."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.getsignal(number) for number in numbers]
        assert run("build").code == 0
        assert [signal.getsignal(number) for number in numbers] == before
        assert signal.set_wakeup_fd(-1) == -1

    def test_a_plan_can_be_interrupted(self, things: Path) -> None:
        """Before anything is encoded SIGTERM ends it as Ctrl-C does: with exit code 130 and no traceback."""
        os.mkfifo(things / "gate")
        gate = os.open(things / "gate", os.O_RDWR)
        encoders = (things / "encoders.py").read_text()
        source = "import sys\nsys.__stderr__.write('inside\\n')\nsys.__stderr__.flush()\n"
        source += f"with open({str(things / 'gate')!r}, 'rb', buffering=0) as gate:\n    gate.read(1)\n"
        (things / "encoders.py").write_text(source + encoders)
        with spawn("build", stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "inside\n"
            process.send_signal(signal.SIGTERM)
            assert process.stderr.read() == "interrupted\n"
        os.close(gate)
        assert process.returncode == 130
