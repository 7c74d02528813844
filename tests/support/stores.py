"""Stores as tests look at them and damage them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.store.packfile import TableFile

RECIPE = precook.Recipe("test", {"version": 1})


def state(store: precook.Store) -> tuple[Any, ...]:
    """Every pack and snapshot of a store, byte for byte, and every row of its index."""
    files = {
        str(path.relative_to(store.path)): path.read_bytes()
        for folder in ("packs", "snapshots")
        for path in sorted((store.path / folder).rglob("*"))
        if path.is_file()
    }
    return files, list(store.entries())


def flip(store: precook.Store, key: precook.Key) -> None:
    """Change a byte of an entry on the disk."""
    located = store.locate(key)
    content = bytearray(located.pack.read_bytes())
    content[located.table.table.leaves[0].span(located.row)[0]] ^= 1
    located.pack.write_bytes(content)


def keys_of(store: precook.Store, encoder: str = "pixels") -> list[precook.Key]:
    """The keys of the pictures of the dataset `test`."""
    return [precook.Key(row.tobytes()) for row in store.snapshot("test").content.picture_keys[encoder]]


def fill(path: Path, packs: int, rows: int = 3) -> list[precook.Key]:
    """A store of so many packs."""
    with precook.open(path) as store:
        for pack in range(packs):
            with store.writer() as writer:
                for row in range(rows):
                    writer.put(RECIPE.key(pack, row), {"x": np.arange(50) + row}, recipe=RECIPE)
    return [RECIPE.key(pack, row) for pack in range(packs) for row in range(rows)]


def watch_reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list of what is read of stores that are opened from now on."""
    done: list[object] = []
    for name in ("read", "read_one", "givers"):
        original = getattr(TableFile, name)

        def watched(*args: Any, _original: Any = original, **options: Any) -> Any:
            done.append(args[1:])
            return _original(*args, **options)

        monkeypatch.setattr(TableFile, name, watched)
    return done
