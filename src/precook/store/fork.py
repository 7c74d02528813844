"""Forks: the one labelled home of what a fork has to know.

SQLite must not be carried into a child, and no lock may be held there by a thread that the child does not have. Stores
are remembered weakly; a closed one is harmless.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that has to prepare for a fork."""

    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


_REMEMBERED: set[weakref.ref[Forkable]] = set()
_FORKING: list[Forkable] = []
"""Those prepared for the fork under way, kept alive until it is over."""


def remember(forkable: Forkable) -> None:
    """Call this object's methods around every fork for as long as it lives."""
    _REMEMBERED.add(weakref.ref(forkable, _REMEMBERED.discard))


def _before() -> None:
    # Until nobody is new: while we wait for one, another thread may make another.
    while new := [
        forkable for ref in list(_REMEMBERED) if (forkable := ref()) is not None and forkable not in _FORKING
    ]:
        for forkable in new:
            forkable.before_fork()
            _FORKING.append(forkable)


def _in_parent() -> None:
    while _FORKING:
        _FORKING.pop().after_fork_in_parent()


def _in_child() -> None:
    while _FORKING:
        _FORKING.pop().after_fork_in_child()


if sys.platform != "win32":  # where no process is forked
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
