"""Exit: the one labelled home of what a process does before it ends by itself.

Whoever forgot to close a writer loses nothing: what it still gathers is committed after the last line of the program,
after an exception nobody caught, and after `sys.exit`. A kill and `os._exit` ask nobody.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from typing import Any, Protocol

_log = logging.getLogger("precook")


class Finishable(Protocol):
    """Something that has to finish its work before the process ends."""

    def finish(self) -> None: ...


_HELD: set[Finishable] = set()
"""Those that have work to do, whether or not anybody else still knows them."""
_REMEMBERED: set[weakref.ref[Finishable]] = set()
"""Those that have something to write down, if they are there at the end."""
_announced: list[Any] = []
"""What multiprocessing knows of us."""
_ending: list[int] = []
"""The process that is ending."""


def hold(finishable: Finishable) -> None:
    """Keep this object, and have it finish at the end unless it is let go before."""
    _HELD.add(finishable)
    _announce()


def let_go(finishable: Finishable) -> None:
    """This object has no work left."""
    _HELD.discard(finishable)


def remember(finishable: Finishable) -> None:
    """Have this object finish at the end if it is still there, after those that are held."""
    _REMEMBERED.add(weakref.ref(finishable, _REMEMBERED.discard))
    _announce()


def is_ending() -> bool:
    """Whether those that had work have finished it: nobody will be asked again, and no thread may be started."""
    return bool(_ending) and _ending == [os.getpid()]


def _announce() -> None:
    # Again each time, so that we come before what was there already: a temporary folder that a store lies in is removed
    # at the end, too.
    atexit.unregister(_finish)
    atexit.register(_finish)
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None and not any(finalizer.still_active() for finalizer in _announced):
        # A child that multiprocessing has forked ends with `os._exit`, before Python 3.13 without a word to atexit. It
        # forgets what it was told before its work begins, as a module that it imports may have done.
        _announced[:] = [multiprocessing.Finalize(None, _finish, exitpriority=0)]


def _finish() -> None:
    _ending[:] = [os.getpid()]
    remembered = [finishable for reference in list(_REMEMBERED) if (finishable := reference()) is not None]
    for finishable in [*_HELD, *remembered]:
        try:
            finishable.finish()
        except Exception as error:  # noqa: BLE001 - the others have work to finish, too
            _log.error("at the end of the process: %r", error)


def _in_child() -> None:
    # What they gathered is the parent's to store, and no thread of the child would.
    _HELD.clear()


if sys.platform != "win32":  # where no process is forked
    os.register_at_fork(after_in_child=_in_child)
