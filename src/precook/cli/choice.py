"""Which entries of a store are meant: the same words for every command that takes some of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Sort(str, Enum):
    """What entries are sorted by."""

    KEY = "key"
    SIZE = "size"
    AGE = "age"


class SnapshotAction(str, Enum):
    """What to do with snapshots."""

    LIST = "list"
    PIN = "pin"
    UNPIN = "unpin"
    RM = "rm"


class Form(str, Enum):
    """How a dataset is written for somebody else."""

    BUNDLE = "bundle"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which entries are asked for, and in which order."""

    recipe: str | None = None
    """A kind, or the first digits of a digest."""
    dataset: str | None = None
    """What its snapshots name."""
    min_size: int | None = None
    max_size: int | None = None
    older_than: float | None = None
    """Seconds."""
    newer_than: float | None = None
    sort: Sort = Sort.KEY
    limit: int | None = None
