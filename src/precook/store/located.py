"""What is known about one entry without reading its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precook.store.packfile import TableFile
from precook.values import Key


@dataclass(frozen=True, slots=True)
class Located:
    """One entry and where it lies."""

    key: Key
    table: TableFile
    row: int
    """Its row in the table."""
    copies: int
    """How many packs hold it."""

    @property
    def pack(self) -> Path:
        """The file that holds it."""
        return self.table.pack.path

    @property
    def pack_row(self) -> int:
        """Its row in the pack."""
        return self.table.pack.first_row(self.table) + self.row

    @property
    def created(self) -> int:
        """When its pack was written, in seconds since 1970."""
        return self.table.pack.head.created

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and plain values."""
        return int(self.table.table.row_bytes()[self.row])

    @property
    def recipe(self) -> bytes:
        """The canonical form of what made it, empty where that was not said."""
        number = int(self.table.table.recipes[self.row])
        return self.table.pack.head.recipes[number - 1] if number else b""

    @property
    def labels(self) -> bytes:
        """Its labels: a JSON object, or null."""
        return self.table.table.labels.row(self.row)
