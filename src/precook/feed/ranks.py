"""Ranks: which of the processes that train together this one is, and how many there are."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from numbers import Integral

from precook.errors import FeedError

_GIVEN = "rank= and world_size="


@dataclass(frozen=True, slots=True)
class Ranks:
    """One of several processes, and who says so."""

    rank: int
    count: int
    said_by: str

    @property
    def given(self) -> bool:
        """Whether the caller has said so."""
        return self.said_by == _GIVEN

    def check(self) -> None:
        """Refuse to begin an epoch where processes came together only after the feed was made.

        Each would show all of the dataset, and none would say so. Whoever has given the ranks is believed: processes
        that share a model need the same batches.
        """
        now = None if self.given else _of_torch()
        if now is not None and (now.rank, now.count) != (self.rank, self.count):
            hint = (
                "make the feed after the processes have met (in Lightning: in train_dataloader), or give it rank= and "
                "world_size="
            )
            was = f"rank {self.rank} of {self.count} when the feed was made ({self.said_by})"
            raise FeedError(f"this process is rank {now.rank} of {now.count} now, and was {was}", hint=hint)


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """The ranks that were given, else what torch.distributed, accelerate or the environment says; else one alone."""
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            lacking, other = ("rank", "world_size") if rank is None else ("world_size", "rank")
            hint = "give both, or neither: torch.distributed, accelerate and RANK and WORLD_SIZE are asked then"
            raise FeedError(f"{other} is given and {lacking} is not", hint=hint)
        return _checked(rank, world_size, _GIVEN)
    return _of_torch() or _of_accelerate() or _of_environment() or Ranks(0, 1, "nobody speaks of others")


def _of_torch() -> Ranks | None:
    # Where nobody has loaded it, nobody has made a process group.
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size(), "torch.distributed")


def _of_accelerate() -> Ranks | None:
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return None
    now = state.PartialState()
    return Ranks(now.process_index, now.num_processes, "accelerate")


def _of_environment() -> Ranks | None:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return None
    hint = "set both, as torchrun does; make the feed after the processes have met; or give it rank= and world_size="
    if rank is None or world_size is None:
        lacking, other = ("RANK", "WORLD_SIZE") if rank is None else ("WORLD_SIZE", "RANK")
        raise FeedError(f"the environment has {other} and no {lacking}", hint=hint)
    try:
        return _checked(int(rank), int(world_size), "RANK and WORLD_SIZE of the environment")
    except ValueError as error:
        raise FeedError(f"RANK is {rank!r} and WORLD_SIZE {world_size!r} in the environment", hint=hint) from error


def _checked(rank: int, count: int, said_by: str) -> Ranks:
    for name, number in (("rank", rank), ("world_size", count)):
        if not isinstance(number, Integral):
            raise FeedError(f"{name} is a whole number, not {number!r}")
    if not 0 <= rank < count:
        raise FeedError(f"rank {rank} is not one of {count}: {said_by}", hint="ranks count from 0")
    return Ranks(int(rank), int(count), said_by)
