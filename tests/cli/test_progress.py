"""Progress: bars on a terminal, lines off it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from precook.cli.progress import EncoderCount, PacedReporter
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
