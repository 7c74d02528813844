"""Which store a command means, and how it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from precook.errors import NoStoreError, NotAStoreError, ReadOnlyError

if TYPE_CHECKING:
    from precook.store.store import Store

_NEW = Path("cache")
"""Where a store is made when none is named and none is found."""
PLACES = (Path(), _NEW)
"""Where a store is looked for when none is named."""
_MARKER = "store.toml"
_NAME_ONE = "name a store with --store DIR"


def find_store(given: Path | None) -> Path:
    """The store that was named, else the one here or in ./cache; `NoStoreError` where there is none."""
    if given is not None:
        return given
    for place in PLACES:
        if (place / _MARKER).is_file():
            return place
    error = NoStoreError(Path.cwd())
    error.hint = f"{_NAME_ONE}; without it, this directory and ./cache are tried"
    raise error


def find_or_new(given: Path | None) -> Path:
    """The same for a command that makes a store, or can do without: where there is none yet, the place for one."""
    try:
        return find_store(given)
    except NoStoreError:
        return _NEW


def open_to_read(given: Path | None) -> Store:
    """The store, read-only: nothing a command does with it can change it."""
    return _open(find_store(given), read_only=True)


def open_to_write(given: Path | None) -> Store:
    """The store, for a command that changes it; `ReadOnlyError` where that is not allowed."""
    store = _open(find_store(given), read_only=False)
    if store.read_only:
        store.close()
        raise ReadOnlyError(store.path, "this directory cannot be written to")
    return store


def open_to_use(given: Path | None) -> Store:
    """The store, for a command that reads it and holds a lease meanwhile where it may write."""
    return _open(find_store(given), read_only=False, exists=True)


def _open(path: Path, *, read_only: bool, exists: bool = False) -> Store:
    from precook.open_store import open_store
    from precook.store.layout import Layout, read_marker

    try:
        return open_store(path, read_only=read_only or (exists and read_marker(Layout(path)) is None))
    except NoStoreError as error:
        error.hint = "check the path; a store is made by its first build"
        raise
    except NotAStoreError as error:
        if error.hint == NotAStoreError.hint:
            error.hint = _NAME_ONE  # its own advice is for whoever makes a store
        raise
