"""Forked children that say what they do, line by line, and may die at any moment."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .library import Library

# A child that takes this long hangs. Generous: it is there to end the run, not to measure anything.
_PATIENCE = 120.0
_FRAMES = 8


class Journal:
    """What a scenario reports while it runs: commits acknowledged, errors met.

    Every line goes straight into a pipe, so that it outlives the process.
    """

    def __init__(self, fd: int, tolerated: tuple[type[Exception], ...] = (), library: Library | None = None) -> None:
        self.fd = fd
        self._tolerated = tolerated
        self._library = library

    def say(self, word: str, value: Any = None) -> None:
        """One line: a word and a JSON value."""
        os.write(self.fd, f"{word} {json.dumps(value)}\n".encode())

    def acknowledge(self, *numbers: int) -> None:
        """The store has promised that these entries are durable."""
        for number in numbers:
            if self._library is not None:
                self._library.mark(number)
            self.say("ack", number)

    def error(self, error: Exception) -> None:
        """The store has raised an error of its own kind."""
        self.say("error", [type(error).__name__, str(error)])

    def commit(self, step: Callable[[], object], *numbers: int) -> bool:
        """Take a step that, if it raises nothing, has made these entries durable; whether it did.

        An error of the store's own kind is reported, and the scenario may go on, as a careless caller would; any other
        error ends the scenario and is a finding.
        """
        try:
            step()
        except self._tolerated as error:
            self.error(error)
            return False
        self.acknowledge(*numbers)
        return True


@dataclass
class Outcome:
    """How a child ended and what it had said by then."""

    acked: set[int] = field(default_factory=set)
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Errors of the store's own kind: (type, message)."""
    fired: str = ""
    """The call at which the fault struck, with its number; empty when it did not."""
    crash: str = ""
    """Why the child did not end as it should: a traceback, a signal, a hang. Being killed on purpose is no crash."""
    said: dict[str, Any] = field(default_factory=dict)
    """The last value said under any other word."""
    killed: bool = False


class Child:
    """A forked child at work."""

    def __init__(
        self,
        work: Callable[[Journal], None],
        tolerated: tuple[type[Exception], ...] = (),
        library: Library | None = None,
    ) -> None:
        self._reading, writing = os.pipe()
        self._heard = b""
        self._hung = self._killed = False
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.close(self._reading)
                journal = Journal(writing, tolerated, library)
                try:
                    work(journal)
                    status = 0
                except BaseException as error:  # noqa: BLE001 - whatever it was, the parent has to hear of it
                    journal.say("crash", _describe(error))
            finally:
                # Not sys.exit: the driver's own clean-up handlers belong to the driver.
                os._exit(status)
        os.close(writing)

    def listen(self, lines: int) -> bool:
        """Wait until the child has said so many lines; False when it ends, or hangs, before."""
        return self._hear(lambda: self._heard.count(b"\n") >= lines)

    def says(self, word: str) -> bool:
        """Wait until the child has said a line that begins so; False when it ends, or hangs, before."""
        return self._hear(lambda: f"\n{word} ".encode() in b"\n" + self._heard)

    def _hear(self, enough: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _PATIENCE
        while not enough():
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._hung = True
                self.kill()
                return False
            chunk = os.read(self._reading, 65536)
            if not chunk:
                return False
            self._heard += chunk
        return True

    def kill(self) -> None:
        """Kill -9."""
        self._killed = True
        os.kill(self._pid, signal.SIGKILL)

    def finish(self) -> Outcome:
        """Wait for the end."""
        endless = 1 << 62
        self.listen(endless)
        os.close(self._reading)
        _, status = os.waitpid(self._pid, 0)
        outcome = _read(self._heard)
        outcome.killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if self._hung:
            outcome.crash = f"hung for {_PATIENCE:.0f} s"
        elif os.WIFSIGNALED(status) and not (outcome.killed and (outcome.fired or self._killed)):
            outcome.crash = outcome.crash or f"died of signal {os.WTERMSIG(status)}"
        return outcome


def in_child(
    work: Callable[[Journal], None],
    tolerated: tuple[type[Exception], ...] = (),
    library: Library | None = None,
) -> Outcome:
    """Run `work` in a forked child and wait for it."""
    return Child(work, tolerated, library).finish()


def _describe(error: BaseException) -> str:
    """An unexpected error in one line: what it is and where it comes from, innermost first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return f"{type(error).__name__}: {error} ({' < '.join(places[:_FRAMES])})"


def _read(text: bytes) -> Outcome:
    outcome = Outcome()
    # The last line may be half a line: the child may have been killed while it spoke.
    for line in text.decode(errors="replace").split("\n")[:-1]:
        word, _, rest = line.partition(" ")
        if word == "fired":
            outcome.fired = rest
            continue
        if word == "waits":
            continue
        value = json.loads(rest)
        if word == "ack":
            outcome.acked.add(value)
        elif word == "error":
            outcome.errors.append((value[0], value[1]))
        elif word == "crash":
            outcome.crash = value
        else:
            outcome.said[word] = value
    return outcome
