"""The home of packs: where a store keeps them, which is this disk or a bucket.

What a bucket does otherwise than a disk is said here and nowhere else: which packs there are, how one is opened, and
what can be done about a copy of one that is damaged. How one is committed is `StoreInternals.send`.
"""

from __future__ import annotations

from typing import Protocol

from precook.store.format.pack import Head
from precook.store.layout import Layout, list_packs
from precook.store.packfile import Guard, PackFile


class PackHome(Protocol):
    """Where the packs of one store are kept; safe to use from several threads and after a fork."""

    def names(self) -> set[str]:
        """The packs that are there."""
        ...

    def open(self, name: str, guard: Guard) -> PackFile:
        """A pack to read from; `FileNotFoundError` where it is gone, `DamagedPackError` where it is not one."""
        ...

    def head(self, name: str) -> Head:
        """What a pack says before its leaf columns; errors as above."""
        ...

    def fetch_again(self, pack: PackFile) -> bool:
        """Replace a copy of a pack that turned out to be damaged; False where what we have is all that there is."""
        ...


class DiskHome:
    """Packs that lie in the store's own directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def names(self) -> set[str]:
        """The packs that are there."""
        return list_packs(self._layout)[0]

    def open(self, name: str, guard: Guard) -> PackFile:
        """A pack to read from."""
        return PackFile(self._layout.pack(name), name, guard)

    def head(self, name: str) -> Head:
        """What a pack says before its leaf columns."""
        return self.open(name, Guard()).head

    def fetch_again(self, pack: PackFile) -> bool:  # noqa: ARG002 - as a bucket has it
        """A disk has one copy."""
        return False
