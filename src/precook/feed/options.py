"""The options of a feed, and what each of them may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from precook.errors import FeedError
from precook.store.leaves import Library

Last = Literal["keep", "drop", "wrap"]
"""What becomes of items that do not fill a batch: a smaller batch, none, or one filled up with others again."""
OnMissing = Literal["error", "encode", "skip"]
Pad = Literal["longest", "list", "join"] | int
"""To the longest of a batch, to so many, or not at all: a list of tensors, or one in which they lie end to end."""
_MOST_PACKED = 1 << 24
"""Tokens of a row, at the most: it is in memory as a whole, whatever is in it."""


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """How batches are made; everything but the last two decides what is in them."""

    batch_size: int
    seed: int = 0
    rank: int | None = None
    """Which of the processes that train together this one is; with `world_size`, or both are found out."""
    world_size: int | None = None
    last: Last = "keep"
    """Items that do not fill a batch: `keep` them in smaller ones, `drop` them, or `wrap` around to fill up."""
    on_missing: OnMissing = "error"
    """An entry that is missing or damaged: an `error`, `encode` it now, or `skip` its sample."""
    caption_dropout: float = 0.0
    """How often the empty prompt stands in for the caption."""
    pad: Mapping[str, Pad] | None = None
    """By encoder: to the `longest` of a batch, to a fixed length, or not at all: `list`, or `join` end to end."""
    pack: int | None = None
    """Of token ids: lay texts into rows of so many tokens, `batch_size` of them in a batch."""
    by_length: bool = False
    """Texts of about the same length stand together in a batch, so that little is padded."""
    validation: bool = False
    """Show the samples of concepts that are for validation, which no other feed shows."""
    tensors: Library = "torch"
    prefetch: int = 4
    """Batches that are made ahead, at the most."""
    threads: int = 2
    """Threads that make them, one at the most where all entries are small; 0 makes each when it is asked for."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "seed", "prefetch", "threads"):
            if not isinstance(getattr(self, name), Integral):
                raise FeedError(f"{name} is a whole number, not {getattr(self, name)!r}")
            object.__setattr__(self, name, int(getattr(self, name)))  # of numpy, too: a state is plain data
        if self.batch_size < 1 or self.prefetch < 1 or self.threads < 0:
            raise FeedError("batch_size and prefetch must be 1 or more, threads 0 or more")
        self._check_pack()
        if not 0 <= self.caption_dropout <= 1:
            raise FeedError(f"caption_dropout is a share from 0 to 1, not {self.caption_dropout}")
        for name, kinds in (("last", Last), ("on_missing", OnMissing), ("tensors", Library)):
            if getattr(self, name) not in get_args(kinds):
                raise FeedError(f"{name} is one of {', '.join(get_args(kinds))}, not {getattr(self, name)!r}")
        for name, pad in (self.pad or {}).items():
            if pad not in ("longest", "list", "join") and (type(pad) is not int or pad < 1):
                raise FeedError(f'pad of {name} is "longest", "list", "join" or a length, not {pad!r}')

    def _check_pack(self) -> None:
        if self.pack is None:
            return
        if not isinstance(self.pack, Integral) or isinstance(self.pack, bool) or not 1 <= self.pack <= _MOST_PACKED:
            raise FeedError(f"pack is a number of tokens, 1 to {_MOST_PACKED}, not {self.pack!r}")
        object.__setattr__(self, "pack", int(self.pack))
        if self.pad or self.by_length:
            raise FeedError("packed texts are not padded", hint="leave out pad and by_length, or pack")
