"""Commits: a pack becomes durable on the disk, then visible in the index."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from precook.errors import StoreError, TreeError
from precook.identity.canonical import canonical
from precook.store import files
from precook.store.format.build import Entry, build_pack, make_entry
from precook.store.format.header import header_length
from precook.store.format.pack import MAX_SKELETON, pack_id, parse_head, parse_pack_header
from precook.store.internals import StoreInternals
from precook.store.packfile import PackFile
from precook.store.tree import Parts
from precook.values import Key

if TYPE_CHECKING:
    from precook.identity.recipe import Recipe

_log = logging.getLogger("precook")

MAX_ROWS = 1_000_000
MAX_TEXT = 256 << 20
"""Most bytes of plain values and labels in one pack."""
_PATIENCE = 5.0
"""Seconds to wait for the lock to take a pack back."""
_COLUMN_FORM = 400
"""Bytes of header a leaf can take, generously."""


def commit(store: StoreInternals, entries: Iterable[Entry]) -> None:
    """Make entries durable and visible, except those that are there already: the first result for a key stays."""
    entries = list(entries)
    store.record_uses()
    store.check_leases()
    known = store.index.present([entry.key for entry in entries])
    stored = {entry.key for entry in entries if entry.key in known and _is_stored(store, entry)}
    if stored:
        # Durable when it returns: in use, under the lock of whoever may be about to remove it, or written again.
        with store.index.exclusive():
            stored = store.index.present(list(stored))
            store.keep_uses()
    entries = [entry for entry in entries if entry.key not in stored]
    if not entries:
        return
    image = build_pack(entries, created=int(time.time()), salt=secrets.token_hex(8))
    # Read back what is about to be written: nothing that our own limits refuse is ever published.
    head = parse_head(parse_pack_header(image.head[: header_length(image.head)]), image.head)
    assert head.id == pack_id(image.head) == image.id
    with store.room(image.nbytes):
        if store.send is not None:
            store.send(image)
        else:
            with publishing(store, image.id) as path:
                files.publish(path, [image.head, *image.body])
        files.reached("commit.published")
        store.index.add([head])
    store.packs.touch(np.concatenate([table.keys for table in head.tables]))


def _is_stored(store: StoreInternals, entry: Entry) -> bool:
    """Whether the pack that the index names really has the entry."""
    key = Key(entry.key)
    stored = store.reader.checksum(key)
    if stored is not None and stored != entry.checksum:
        _log.warning("entry %s was made again with a different result; the first one stays", key.hex)
    return stored is not None


def commit_pack(store: StoreInternals, staged: Path, pack: PackFile) -> None:
    """Make a pack that lies durable on the same disk part of the store; nobody else may know of it yet."""
    store.check_leases()
    # Under the lock, because its name is not ours alone: another archive may bring the same pack at the same time.
    with store.room(pack.nbytes), store.index.exclusive():
        with publishing(store, pack.head.id) as path:
            files.publish_file(staged, path)
        store.index.add([pack.head])


@contextlib.contextmanager
def publishing(store: StoreInternals, name: str) -> Iterator[Path]:
    """Around the publishing of a new pack, with its path; one whose name cannot be made durable goes again.

    Not where the index has it: another process has then found the name and made it durable, and may have promised its
    entries to somebody. Whoever adopts a pack does so under the store's lock, too.
    """
    path = store.layout.pack(name)
    with files.explained(store.layout.root):
        store.directories.make(store.layout.packs)
        store.directories.make(path.parent)
        try:
            yield path
        except BaseException:
            # What cannot be taken back now does no harm: the next one who opens the store adopts it.
            with contextlib.suppress(StoreError, OSError):
                if path.exists():
                    with store.index.exclusive(patience=_PATIENCE):
                        if name not in store.index.pack_ids():
                            files.unlink_inside(store.layout.root, path)
            raise


def ready_entry(
    key: bytes, parts: Parts, *, recipe: Recipe | None = None, labels: bytes = b"null", made: bytes = b""
) -> Entry:
    """An entry ready to be written, or a `TreeError` for what no pack could hold."""
    entry = make_entry(key, parts, recipe=recipe, labels=labels, made=made)
    # Twice each limit still fits, so one entry over it does too.
    if text_bytes(entry) > MAX_TEXT:
        raise TreeError("tree", f"its plain values take {text_bytes(entry)} bytes; at most {MAX_TEXT} can be stored")
    if header_bytes(entry) > MAX_SKELETON:
        raise TreeError("tree", f"it has {len(parts.leaves)} tensors, too many for one entry")
    return entry


def labelled_entry(
    key: Key, parts: Parts, *, recipe: Recipe | None = None, labels: Mapping[str, object] | None = None
) -> Entry:
    """An entry of what a user gave, ready to be written."""
    if not isinstance(key, Key):
        message = f"a key is a precook.Key, not a {type(key).__name__}"
        raise TypeError(message)
    return ready_entry(key.bytes, parts, recipe=recipe, labels=canonical(dict(labels)) if labels else b"null")


def text_bytes(entry: Entry) -> int:
    """Bytes of an entry's plain values and labels in the head of its pack."""
    return len(entry.parts.values) + len(entry.labels)


def header_bytes(entry: Entry) -> int:
    """Bytes of header that an entry of a new nesting can take."""
    return len(entry.parts.skeleton) + _COLUMN_FORM * (len(entry.parts.leaves) + 4)
