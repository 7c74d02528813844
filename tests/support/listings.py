"""Folders to walk, and what a listing says."""

from __future__ import annotations

import os
from pathlib import Path

from precook.sources.walk import Listing

ROLES = {"jpg": 1, "png": 1, "txt": 2}


def make(root: Path, *names: str) -> None:
    """Files with a few bytes each."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))


def paths(listing: Listing) -> list[str]:
    return sorted(listing.path(row) for row in range(len(listing.names)))


def usable(listing: Listing) -> list[str]:
    return sorted(listing.path(row) for row, good in enumerate(listing.regular()) if good)


def the_same(one: Listing, other: Listing) -> bool:
    return (
        (one.names, one.roles, one.folders, one.problems) == (other.names, other.roles, other.folders, other.problems)
        and (one.modes == other.modes).all()
        and (one.stamps == other.stamps).all()
    )
