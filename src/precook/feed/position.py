"""The position: how many batches of an epoch were handed out, as far as those who take them say it."""

from __future__ import annotations

from collections.abc import Sequence

from precook.errors import FeedError

Reached = tuple[int, int]
"""An epoch, and how many batches of it were handed out."""


class Position:
    """Where a feed stands, or one of its loaders.

    Whoever gives batches to a training loop says so here. A sampler only names them: a DataLoader without workers
    reads each at once, in this process, and worker processes read some ahead, of which nobody here is told.
    """

    def __init__(self) -> None:
        self.last: Reached = (0, 0)
        """After the last batch that was handed out, or named by a sampler."""
        self.resumed: Reached | None = None
        """The position that was loaded, until somebody goes on from there."""
        self.offered: tuple[int, int, Sequence[int]] | None = None
        """The batch that a sampler has named, until it is taken: its epoch, its number from 1 on, its indices."""

    @property
    def reached(self) -> Reached:
        """The last; refused while others take batches who do not tell how many they have handed out."""
        if self.offered is not None:
            hint = "train with feed.loader(), whose state follows it, with worker processes and without"
            reason = "a feed cannot tell how many of the batches were handed out that a DataLoader takes"
            raise FeedError(reason, hint=hint)
        return self.last

    def load(self, epoch: int, batch: int) -> None:
        """Go on from here."""
        self.reach(epoch, batch)
        self.resumed = (epoch, batch)

    def reach(self, epoch: int, batch: int) -> None:
        """Stand after so many batches of an epoch."""
        self.last = (epoch, batch)
        self.resumed = self.offered = None

    def offer(self, epoch: int, batch: int, indices: Sequence[int]) -> None:
        """A sampler names a batch."""
        self.last = (epoch, batch)
        self.offered = (epoch, batch, indices)
        self.resumed = None

    def take(self, indices: Sequence[int]) -> None:
        """A batch was read in this process; it is handed out at once if a sampler has just named it."""
        if self.offered is not None and self.offered[2] == indices:
            self.reach(*self.offered[:2])
