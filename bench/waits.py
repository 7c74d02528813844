"""What threads do: how much each kind computes, how much it waits, and where.

A thread of its own looks at the main thread and at precook's many times a second. What a thread has computed since the
last look is what its processor clock says; the rest of the time it waited, and that is put down to the place in
precook's code where it is now. In a place that calls nothing which waits a thread wanted to go on: it waited for
Python's lock, or for a core. Inside of torch it may have waited for the device as well.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from bench.table import Cell, Column, Section

_EVERY = 0.02
"""Seconds between two looks: with thirty threads a look takes less than half a millisecond of Python's lock."""
_NUMBER = re.compile(r"[-_]\d+$")
"""What tells the threads of one kind apart."""
_CALLS = re.compile(
    r"\b(wait|acquire|get|join|result|synchronize|fsync|fdatasync|write|writev|pwritev|sendfile|read|readinto|select)\("
    r"|with .*_lock\b|with .*_turn\b"
)
"""Lines that may wait for something else than Python's lock."""
_WAITING = ("threading.py", "queue.py", "_base.py", "interrupt.py", "streams.py")
"""Files of Python, torch and ours whose functions are there to wait."""
_LOCK = "Python's lock or a core"
_IDLE = "something to do"
_SHOWN = 4
_LEAST = 0.02
"""Share of the time below which a place is not shown."""


@dataclass(slots=True)
class _Kind:
    """Threads that do the same."""

    threads: set[int] = field(default_factory=set)
    seconds: float = 0.0
    computed: float = 0.0
    waited: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds, by place."""


class Waits:
    """Looks at threads while it is entered: at the main one, and at those whose names begin with `ours`."""

    def __init__(self, ours: str = "precook") -> None:
        self._ours = ours
        """What names of our threads and modules begin with."""
        self._kinds: dict[str, _Kind] = {}
        self._clocks: dict[int, tuple[float, float]] = {}
        """When each thread was seen last, and what its processor clock said then."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="bench-waits", daemon=True)
        self._passed = 0.0

    def __enter__(self) -> Waits:
        self._passed = -time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._passed += time.perf_counter()
        self._over.set()
        self._thread.join()

    def section(self, title: str, *, device: float | None = None) -> Section:
        """The table; `device` is how busy that was, in percent, if somebody knows."""
        columns = [
            Column("threads"),
            Column("of them"),
            Column("there, s", ".1f"),
            Column("computes, %", ".0f"),
            Column("waits, %", ".0f"),
            Column("for, or in"),
        ]
        section = Section("waits", title, columns)
        if device is not None:
            section.rows.append(["the device", None, self._passed, device, 100 - device, ""])
        for name, kind in sorted(self._kinds.items(), key=lambda item: -item[1].computed):
            waited = sum(kind.waited.values())
            if kind.seconds < _LEAST * self._passed:
                continue
            places = [
                f"{place} {share:.0%}"
                for place, seconds in sorted(kind.waited.items(), key=lambda item: -item[1])[:_SHOWN]
                if (share := seconds / kind.seconds) >= _LEAST
            ]
            shares: list[Cell] = [100 * part / kind.seconds for part in (kind.computed, waited)]
            section.rows.append([name, len(kind.threads), kind.seconds, *shares, "; ".join(places)])
        computed = sum(kind.computed for kind in self._kinds.values())
        section.notes.append(f"all threads together computed {computed:.1f} s in {self._passed:.1f} s.")
        return section

    def _look_on(self) -> None:
        while not self._over.wait(_EVERY):
            frames = sys._current_frames()
            for thread in threading.enumerate():
                frame = frames.get(thread.ident or 0)
                ours = thread is threading.main_thread() or thread.name.startswith(self._ours)
                if ours and frame is not None:
                    self._look_at(thread, frame)
            del frames

    def _look_at(self, thread: threading.Thread, frame: FrameType) -> None:
        native = thread.native_id or 0
        try:
            # As Linux numbers the processor clocks of threads. By the thread's number, not by pthread's handle of it:
            # a thread that has ended is then an error.
            computed = time.clock_gettime(~native << 3 | 6)
        except OSError:
            return
        now = time.perf_counter()
        before, last = self._clocks.get(native, (now, computed))
        self._clocks[native] = now, computed
        kind = self._kinds.setdefault(_NUMBER.sub("", thread.name), _Kind())
        kind.threads.add(native)
        passed, did = now - before, min(computed - last, now - before)
        kind.seconds += passed
        kind.computed += did
        if passed - did > 0:
            kind.waited[self._place(frame)] += passed - did

    def _place(self, frame: FrameType) -> str:
        """The function of ours that a thread is in, if something there waits."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        waits = frame.f_code.co_filename.endswith(_WAITING) or _CALLS.search(line) is not None
        if not waits and self._is_ours(frame):
            return _LOCK
        at: FrameType | None = frame
        while at is not None and not (self._is_ours(at) and not at.f_code.co_filename.endswith(_WAITING)):
            at = at.f_back
        if at is None:
            return _IDLE
        code: Any = at.f_code
        place = f"{_module(at).rpartition('.')[2]}.{getattr(code, 'co_qualname', code.co_name)}"
        # Of other libraries nobody knows what their calls wait for.
        return place if waits else f"{_module(frame).partition('.')[0]}, from {place}"

    def _is_ours(self, frame: FrameType) -> bool:
        return _module(frame).startswith(self._ours)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
