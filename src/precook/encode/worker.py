"""Workers: what the engine asks of an encoder, and whom it tells what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from precook.encode.encoder import Item
from precook.encode.prepare import Job
from precook.store.tree import Parts, Tree


class Worker(Protocol):
    """The part of an encoder that does the work.

    One for texts may have `length(text)`, what a text costs, or `lengths(texts)` for many at once, so that texts of
    similar cost are encoded together; and `truncated`, how many texts it has cut to fit. One that can hand a GPU the
    next batch before the last is back has `stage(batch)`, see `Flight`; `stage`, `launch`, `land` and `lengths` are
    then called from different threads, for different batches. One that says `gives_away = True` does not touch a tree
    any more once it has returned it, nor the memory under it: so it is kept without a copy.
    """

    def load(self, device: str) -> None:
        """Called before the first batch."""

    def encode(self, batch: list[Item]) -> list[Tree]:
        """One tree for each item."""

    def unload(self) -> None:
        """Let go of the device."""


class Flight(Protocol):
    """A batch on its way through a device."""

    def launch(self) -> None:
        """Tell the device all that it has to do, without waiting for it: `stage` did what may have to wait."""

    def land(self) -> list[Tree]:
        """One tree for each item, when they are there; trees may lie side by side in one piece of memory."""


class Sink(Protocol):
    """Where results go; called from any thread of the crew, once for each job unless the work ends early."""

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
        """Keep results of a batch; those that no pack could hold fail, and no others."""

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made; `lasting` if trying again would give the same."""

    def batch_done(self, seconds: float) -> None:
        """Everything that came of a batch was told; to encode it took so long."""
