"""Stopping a build: the first Ctrl-C or SIGTERM lets it finish what it is at, a second one ends it at once."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from precook.cli import bars, output
from precook.cli.codes import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what is in here as Ctrl-C does."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """A signal sets `stop` in here, and a second one ends the process; afterwards everything is as it was.

    A thread of its own waits for signals: a handler would run inside whatever the main thread does, and that may hold
    the event's lock or be half through a line, or not come back from a library for a long time.
    """
    # What is ignored stays ignored: a job in the background of a script is not meant when its terminal is.
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    receiver, sender = socket.socketpair()
    sender.settimeout(0)  # as set_wakeup_fd wants it
    watch = threading.Thread(target=_watch, args=(receiver, stop), name="precook-signals", daemon=True)
    watch.start()
    earlier = signal.set_wakeup_fd(sender.fileno())
    handlers = {number: signal.signal(number, _nothing) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier)
        sender.close()
        watch.join()
        receiver.close()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Python writes a signal's number to the wakeup descriptor only where it has a handler for it."""


def _watch(receiver: socket.socket, stop: threading.Event) -> None:
    told = False
    while number := receiver.recv(1):
        if number[0] not in _SIGNALS:
            continue
        if told:
            # Nothing is tidied up: whatever a store holds is valid at every moment.
            bars.restore_terminal()
            os._exit(INTERRUPTED)
        told = True
        stop.set()
        output.tell("finishing the batch in flight; again to stop at once")
