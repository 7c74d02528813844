"""Progress: bars on a terminal, lines off it."""

from __future__ import annotations

import io
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from precook.cli import output
from precook.cli.progress import EncoderCount, PacedReporter, ProgressBars
from tests.support.commands import on_terminal, plain, run


class TestBars:
    """On a terminal."""

    @pytest.mark.parametrize("command", [["plan"], ["explain", "data/cats/p0.png"], ["status"], ["init", "data"]])
    def test_bars_are_for_the_terminal_under_stderr(self, pets: Path, command: list[str]) -> None:
        """Progress is drawn while a person looks at stderr, wherever stdout goes, and nowhere else."""
        bar = "looking at pictures" if command[0] == "init" else "reading pictures"
        force = ["--force"] if command[0] == "init" else []
        with (pets / "out").open("w+") as out:
            assert bar in on_terminal(*command, *force, stdout=out.fileno())
            out.seek(0)
            assert bar not in out.read()
        shutil.rmtree(pets / "cache", ignore_errors=True)
        with (pets / "err").open("w+") as err:
            assert bar not in on_terminal(*command, *force, stderr=err.fileno())
            err.seek(0)
            assert bar not in err.read()
        shutil.rmtree(pets / "cache", ignore_errors=True)
        assert bar not in run(*command, *force).err

    def test_people_on_a_terminal_see_bars(self, things: Path) -> None:
        """Each encoder's bar stays when it is done, those of the plan go, and the cursor comes back."""
        written = on_terminal("build")
        seen = [line.rpartition("\r")[2] for line in plain(written).splitlines()]
        for encoder in ("pixels", "words"):
            assert any(re.match(rf"{encoder} ━+ 6 of 6 entries", line) for line in seen)
            # A bar that goes is wiped out as soon as the cursor is back.
            assert not re.search(rf"{encoder} [^\n]* 6 of 6 entries[^\n]*\n\x1b\[\?25h\r\x1b\[1A", written)
        assert "complete: snapshot 1 of things" in seen
        assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") > 0


class TestLines:
    """Off a terminal."""

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
        count = EncoderCount("words", None, PacedReporter(print, every=5.0, clock=lambda: now[0]))
        count.done, now[0] = 1, 2.0
        assert str(count) == "words: 1 entry, 0.5/s"

    def test_a_line_tells_what_limits_the_build(self) -> None:
        """Each stage with its share of the time, the busiest first."""
        now = [0.0]
        told: list[str] = []
        paced = PacedReporter(lambda count: told.append(str(count)), every=5.0, clock=lambda: now[0])
        with paced.task("vae", total=20, unit="entries") as task:
            assert isinstance(task, EncoderCount)
            task.busy({"reading": 0.04, "decoding": 0.31, "device": 0.96, "disk": 0.1})
            now[0] = 5.0
            task.advance(10)
        assert told[0] == (
            "vae: 10 of 20 entries, 2/s, about 5 s left; "
            "limited by the device: busy device 96%, decoding 31%, disk 10%, reading 4%"
        )

    def test_a_moment_is_too_short_to_tell(self) -> None:
        """What was done at once was limited by nothing."""
        count = EncoderCount("words", 1, PacedReporter(print, every=5.0, clock=lambda: 0.0))
        count.busy({"device": 1.0})
        count.advance()
        assert str(count) == "words: 1 of 1 entry"


class TestOverlap:
    """Tasks at the same time, as of encoders on two devices."""

    def test_bars_share_one_display(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each has a line from its start to its end and after it; the cursor comes back once, at the last end."""
        written = io.StringIO()
        shown = Console(file=written, force_terminal=True, width=120)
        monkeypatch.setattr(output, "console", lambda _: shown)
        bars = ProgressBars(stays=lambda unit: unit == "entries")
        with ExitStack() as first, ExitStack() as second:
            a = first.enter_context(bars.task("a", total=2, unit="entries"))
            b = second.enter_context(bars.task("b", total=4, unit="entries"))
            with bars.task("reading", total=1, unit="files") as files:
                files.advance()
            a.advance(2)
            first.close()
            b.advance(3)
            b.advance(1, failed=1)
        last = plain(written.getvalue()).rstrip("\n").splitlines()[-2:]
        assert re.match(r"a ━+ 2 of 2 entries", last[0])
        assert re.match(r"b ━+ 4 of 4 entries[^\n]*, 1 failed", last[1])
        assert written.getvalue().count("\x1b[?25h") == 1
