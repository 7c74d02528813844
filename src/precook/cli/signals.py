"""How signals stop a build: the first Ctrl-C or SIGTERM lets it finish its batch, a second one ends it at once."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from precook import threads
from precook.cli import output, progress
from precook.errors import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends what runs in here as Ctrl-C does: with a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_on_signal(stop: threading.Event) -> Iterator[None]:
    """A signal sets `stop` in here, and a second one ends the process; afterwards all handlers are as they were.

    A thread of its own waits for signals: a handler would run inside whatever the main thread does, and that may hold
    the event's lock or be half through a line, or not come back from a library for a long time.
    """
    # What is ignored stays ignored: a job in the background of a script is not meant when its terminal is.
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    receiver, sender = socket.socketpair()
    sender.settimeout(0)  # as set_wakeup_fd wants it
    watch = threading.Thread(target=_watch, args=(receiver, stop), name="precook-signals", daemon=True)
    try:
        threads.start(watch)
    except BaseException:
        sender.close()
        receiver.close()
        raise
    earlier = signal.set_wakeup_fd(sender.fileno())
    handlers = {number: signal.signal(number, _do_nothing) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier)
        sender.close()
        watch.join()
        receiver.close()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Python writes a signal's number to the wakeup descriptor only where the signal has a handler in Python."""


def _watch(receiver: socket.socket, stop: threading.Event) -> None:
    """Wait for signals until the other end of the pair is closed."""
    stopping = False
    while number := receiver.recv(1):
        if number[0] not in _SIGNALS:
            continue
        if stopping:
            # Nothing is cleaned up: whatever a store holds is valid at every moment.
            progress.restore_terminal()
            os._exit(INTERRUPTED)
        stopping = True
        stop.set()
        output.tell("finishing the batch in flight; again to stop at once")
