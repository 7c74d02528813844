"""Snapshots: frozen lists of samples with their entry keys, enough to train without sources.

A snapshot is a pack of its own with a single entry, so that everything that is checked about packs is checked about
snapshots. It is written once and never changed; the one with the highest number is a dataset's latest.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from precook.errors import (
    DamagedPackError,
    NewerFormatError,
    NoSnapshotError,
    PinnedError,
    PrecookError,
    StoreError,
    StoreReadError,
)
from precook.identity.digest import derived_digest
from precook.store import files
from precook.store.format.build import build_pack, make_entry
from precook.store.layout import Layout, list_names
from precook.store.packfile import Guard, PackFile
from precook.store.reader import build_tree
from precook.store.snapshot_content import FORMAT, SnapshotContent, as_plain, is_dataset
from precook.store.tree import Parts, take_apart
from precook.values import Bytes

if TYPE_CHECKING:
    from precook.store.store import Store

_Result = TypeVar("_Result")

_CONTEXT = "precook snapshot 1"
_PIECE = 1 << 20
"""Bytes that are copied at a time."""
_MAX_NUMBER = 99_999_999
"""The largest number that a name has digits for: one with more would not be found again."""
_NAME = re.compile(r"([0-9]{8})-([0-9a-f]{64})\.safetensors")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """Where a snapshot lies."""

    dataset: str
    number: int
    """Higher ones are newer."""
    id: str
    path: Path
    pinned: bool = False
    """Whether it is kept although a newer one is there."""

    @property
    def pin(self) -> Path:
        """The file beside it that pins it."""
        return self.path.with_suffix(".pin")

    def status(self) -> os.stat_result | None:
        """Size and times of its file; None where it was removed meanwhile."""
        try:
            with files.reading(self.path):
                return self.path.stat()
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dataset as it was when it was last fully built."""

    file: SnapshotFile
    created: int
    """Unix seconds."""
    content: SnapshotContent
    store: Store | None = field(default=None, compare=False, repr=False)
    """Where its entries lie."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.content.samples.id)

    @property
    def encoders(self) -> dict[str, dict[str, Any]]:
        """Input and recipe of each encoder, by its name in the batch, as plain data."""
        return {name: as_plain(encoder) for name, encoder in self.content.encoders.items()}

    def entry_keys(self) -> Bytes:
        """Every entry that the snapshot needs, each once."""
        return np.unique(self.all_keys(), axis=0)

    def all_keys(self) -> Bytes:
        """The same as they come, some more than once: sorting a million keys takes a while."""
        keys = np.concatenate([np.zeros((0, 32), np.uint8), *self.key_columns()])
        return keys[keys.any(axis=1)]  # zeros stand for a mask that nobody has

    def key_columns(self) -> list[Bytes]:
        """The same where they lie, in the mapped file, with the zeros of masks that nobody has."""
        return self.content.key_columns()


def list_snapshots(layout: Layout) -> list[SnapshotFile]:
    """Every snapshot in a store, by dataset and then from the oldest to the newest."""
    snapshots = []
    for folder in _folders(layout):
        names = set(list_names(folder))
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None:
                path = folder / name
                pinned = path.with_suffix(".pin").name in names
                snapshots.append(SnapshotFile(folder.name, int(match[1]), match[2], path, pinned))
    return sorted(snapshots, key=lambda snapshot: (snapshot.dataset, snapshot.number, snapshot.id))


def pin_snapshot(file: SnapshotFile) -> None:
    """Keep a snapshot, and all it names, for good; the caller holds the store's lock."""
    if not file.path.exists():
        raise NoSnapshotError(file.path.parent, file.dataset)
    with files.explained(file.path.parent):
        files.publish(file.pin, [b"kept by `precook snapshots pin`\n"])


def unpin_snapshot(file: SnapshotFile) -> None:
    """Let a snapshot go when a newer one takes its place; the caller holds the store's lock."""
    with files.explained(file.path.parent):
        file.pin.unlink(missing_ok=True)
        files.sync_directory(file.path.parent)


def remove_snapshot(file: SnapshotFile) -> None:
    """Remove a snapshot; `PinnedError` where it is pinned. The caller holds the store's lock."""
    if file.pin.exists():
        raise PinnedError(file.path, "this snapshot is pinned")
    with files.explained(file.path.parent):
        file.path.unlink(missing_ok=True)
        # Before anything that only it named goes: a name that came back after a power cut would lead nowhere.
        files.sync_directory(file.path.parent)


def check_dataset(layout: Layout, dataset: str) -> None:
    """Refuse a dataset that would share its folder with another one, on a disk that does not tell `Cats` from `cats`.

    Its snapshots would be the other's, and what only the other's own name could go.
    """
    other = _folder_of_another(layout, dataset)
    if other and list_names(layout.snapshots / other):
        hint = "give the dataset another name, or keep the spelling"
        raise StoreError(layout.root, f"this disk does not tell the dataset {dataset} from {other}", hint=hint)


def _folder_of_another(layout: Layout, dataset: str) -> str | None:
    """The folder that the disk takes for this dataset's, though its name is another; None where there is none."""
    # In this order: what another process makes meanwhile has just this name.
    folder = layout.snapshots / dataset
    with files.reading(folder):
        if not folder.is_dir():
            return None
    names = list_names(layout.snapshots)
    return None if dataset in names else next((name for name in names if name.lower() == dataset.lower()), None)


def list_partials(layout: Layout) -> list[Path]:
    """What writers of snapshots that died may have left."""
    return [folder / name for folder in _folders(layout) for name in list_names(folder) if name.endswith(files.PARTIAL)]


def write_snapshot(
    layout: Layout,
    directories: files.Directories,
    exclusive: Callable[[], AbstractContextManager[None]],
    dataset: str,
    content: SnapshotContent,
) -> Snapshot:
    """Write the dataset's latest snapshot: durable when it returns. An equal latest one stays as it is."""
    tree = content.tree()
    try:
        # As whoever reads it will: nothing that our own limits refuse is ever published.
        SnapshotContent.of(tree)
    except ValueError as error:
        hint = "look at the numbers of the config: `repeats`, `samples`, `loss_weight`"
        raise PrecookError(f"{dataset} cannot be frozen: {error}", hint=hint) from error
    parts = take_apart(tree)
    entry = make_entry(_content_key(parts), parts)
    folder = layout.snapshots / dataset
    with exclusive():
        with files.explained(layout.root):
            directories.make(layout.snapshots)
            check_dataset(layout, dataset)
            if _folder_of_another(layout, dataset):
                folder.rmdir()  # an empty one is what a dataset left that is gone
            directories.make(folder)
            latest = _latest_with(layout, dataset, entry.key)
            if latest is not None:
                files.sync_directory(folder)  # whoever wrote it may have died before its name was durable
                return latest
            number = _next_number(layout, dataset)
            image = build_pack([entry], created=int(time.time()), salt=secrets.token_hex(8))
            file = SnapshotFile(dataset, number, image.id, folder / f"{number:08d}-{image.id}.safetensors")
            try:
                files.publish(file.path, [image.head, *image.body])
            except BaseException:
                # Under the lock, so nobody has frozen or removed anything by it: a name that may vanish must not stand
                # for the dataset, or what only the snapshot before it names could go.
                with contextlib.suppress(OSError):
                    file.path.unlink()
                raise
        return read_snapshot(file)


def copy_snapshot(layout: Layout, directories: files.Directories, snapshot: Snapshot) -> Snapshot:
    """Make a snapshot of another store the dataset's latest here: durable when it returns. An equal latest one stays.

    The caller holds the store's lock.
    """
    dataset, folder = snapshot.file.dataset, layout.snapshots / snapshot.file.dataset
    with files.explained(layout.root):
        directories.make(layout.snapshots)
        check_dataset(layout, dataset)
        directories.make(folder)
        latest = _latest_with(layout, dataset, _content_key(take_apart(snapshot.content.tree())))
        if latest is not None:
            return latest
        # Not the number that it had there: a very large one would leave none for the snapshots after it.
        number = _next_number(layout, dataset)
        path = folder / f"{number:08d}-{snapshot.file.id}.safetensors"
        with snapshot.file.path.open("rb") as source:
            files.publish(path, iter(lambda: source.read(_PIECE), b""))
    return read_snapshot(SnapshotFile(dataset, number, snapshot.file.id, path))


def equal_latest(layout: Layout, dataset: str, content: SnapshotContent) -> Snapshot | None:
    """The dataset's latest snapshot where it says just this: then there is nothing to write."""
    return _latest_with(layout, dataset, _content_key(take_apart(content.tree())))


def _latest_with(layout: Layout, dataset: str, key: bytes) -> Snapshot | None:
    def equal(listed: list[SnapshotFile]) -> Snapshot | None:
        earlier = [file for file in listed if file.dataset == dataset]
        # One that is damaged or unreadable, or newer than we are, is no reason not to write another.
        with contextlib.suppress(DamagedPackError, StoreReadError, NewerFormatError):
            if earlier and (latest := _open(earlier[-1]))[1] == key:
                return latest[0]
        return None

    return with_snapshots(layout, equal)


def _content_key(parts: Parts) -> bytes:
    """The key of a snapshot's entry: equal content, equal key."""
    return derived_digest(_CONTEXT, make_entry(bytes(32), parts).checksum + parts.skeleton + parts.values)


def _snapshots_of(layout: Layout, dataset: str) -> list[SnapshotFile]:
    return [snapshot for snapshot in list_snapshots(layout) if snapshot.dataset == dataset]


def _next_number(layout: Layout, dataset: str) -> int:
    """The number of the dataset's next snapshot; refused where a name has no digits left for it."""
    number = max((file.number for file in _snapshots_of(layout, dataset)), default=0) + 1
    if number > _MAX_NUMBER:
        hint = "remove the snapshot with the largest number, or give the dataset another name"
        raise StoreError(layout.root, f"{dataset} has a snapshot {number - 1:,}, and none can come after it", hint=hint)
    return number


def read_snapshot(file: SnapshotFile) -> Snapshot:
    """Read a snapshot whole and check every byte; `DamagedPackError` where it is not what was written.

    `StoreReadError` where the system refuses to read it, `FileNotFoundError` where it was removed since it was listed:
    `with_snapshots` then lists them again. Large columns are mapped, not held: pages of the file, which the system
    takes back when it needs them.
    """
    return _open(file)[0]


def with_snapshots(layout: Layout, use: Callable[[list[SnapshotFile]], _Result]) -> _Result:
    """What `use` makes of all snapshots; called again with a new list where one of them was removed meanwhile."""
    while True:
        listed = list_snapshots(layout)
        files.reached("snapshots.listed")
        try:
            return use(listed)
        except FileNotFoundError as error:
            if list_snapshots(layout) == listed:
                raise files.read_error(layout.snapshots, error) from error


def _open(file: SnapshotFile) -> tuple[Snapshot, bytes]:
    try:
        with files.reading(file.path):
            pack = PackFile(file.path, file.id, Guard())
            (table,) = pack.tables
            with pack.open() as descriptor:
                table.verify_large(descriptor, 0)
            # Of a private mapping: whoever writes to a column changes nothing but its own copy.
            leaves = [convert(give(0)) for give, convert in table.givers(0, "numpy")]
        tree = build_tree(table, 0, leaves)
        key = table.key(0)
        pack.release()  # what nobody has mapped any more can be removed, on Windows too
    except ValueError as error:
        raise DamagedPackError(file.path, f"this snapshot is damaged: {error}") from error
    if pack.head.rows != 1:
        raise DamagedPackError(file.path, "not a snapshot: it has more than one entry")
    if not isinstance(tree, dict) or type(tree.get("format")) is not int or tree["format"] < 1:
        raise DamagedPackError(file.path, "not a snapshot")
    if tree["format"] > FORMAT:
        raise NewerFormatError(file.path, tree["format"], FORMAT)
    try:
        content = SnapshotContent.of(tree)
    except ValueError as error:
        raise DamagedPackError(file.path, str(error)) from error
    return Snapshot(file, pack.head.created, content), key


def _folders(layout: Layout) -> list[Path]:
    return [layout.snapshots / name for name in sorted(list_names(layout.snapshots)) if is_dataset(name)]
