"""What a store holds, counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precook.values import Key


@dataclass(frozen=True, slots=True)
class RecipeStats:
    """What one recipe takes."""

    form: bytes
    """The recipe's canonical form; empty for entries put without one."""
    entries: int
    nbytes: int
    newest: int
    """When its newest entry was written, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds."""

    path: Path
    format: int = 0
    """Version of the format; 0 where there is no store yet."""
    id: str = ""
    read_only: bool = False
    entries: int = 0
    packs: int = 0
    payload_bytes: int = 0
    """Bytes of tensors and plain values."""
    pack_bytes: int = 0
    """Bytes of the pack files."""
    index_bytes: int = 0
    recipes: tuple[RecipeStats, ...] = ()
    damaged: tuple[tuple[Key, str], ...] = ()
    """Entries found damaged, with the reason."""
    bad_packs: tuple[tuple[str, str], ...] = ()
    """Packs that could not be used, with the reason."""
