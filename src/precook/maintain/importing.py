"""Importing: an archive from anywhere into a store, believing nothing it says.

The archive is read once, from a file or a pipe. Every member has to be the one that the manifest announces next, every
pack passes the checks of a pack and every entry its checksum, before anything of it can be seen in the store. Then the
packs are moved in, and the snapshot is written last: a snapshot is only there when everything it names is.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from precook.errors import BundleError, DamagedPackError, NewerFormatError, NoSpaceError, PrecookError, ReadOnlyError
from precook.maintain.manifest import (
    MAX_MANIFEST,
    Manifest,
    ManifestError,
    Member,
    manifest_digest,
    read_manifest,
)
from precook.maintain.rows import protected, read_rows, sound_keys
from precook.maintain.staging import Staging
from precook.maintain.tar import BLOCK, END, FrameError, padding, read_header
from precook.maintain.verify import check_pack
from precook.report import SILENT, Reporter, Task
from precook.store.internals import StoreInternals
from precook.store.packfile import Guard, PackFile
from precook.store.snapshot import Snapshot, SnapshotFile, is_dataset, read_snapshot
from precook.store.store import Store
from precook.units import format_size

_PIECE = 1 << 20
_PARTS = {
    "format",
    "dataset",
    "image",
    "concepts",
    "encoders",
    "samples",
    "pictures",
    "picture_keys",
    "lines",
    "line_keys",
    "empty_keys",
}


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    dataset: str
    """The name it got here."""
    snapshot: str
    """The id of its snapshot here."""
    samples: int
    entries: int
    new: int
    """Entries that the store did not have."""
    reused: int
    """Entries that it had."""
    nbytes: int
    """Bytes of the archive's members."""
    resumed: int
    """Packs that an interrupted import had checked."""


def import_bundle(
    store: Store, stream: BinaryIO, *, name: str = "archive", dataset: str | None = None, report: Reporter = SILENT
) -> Imported:
    """Bring a dataset that `export_bundle` wrote into a store; it becomes the latest snapshot of its dataset.

    `name` is what messages call the archive, `dataset` another name for the dataset. An archive that does not pass
    every check is refused with a `BundleError`, and the store is as it was. After an interruption a second run goes on.
    """
    if store.read_only:
        raise ReadOnlyError(store.path, "opened read-only")
    if dataset is not None and not is_dataset(dataset):
        error = PrecookError(f"{dataset!a:.80} is no name of a dataset", hint="use letters, digits, dot, - and _")
        error.exit_code = 2
        raise error
    source = _Source(stream, name)
    manifest, digest = _read_manifest(source)
    _check_space(store, manifest)
    internals = store.internals()
    with Staging(internals, digest) as staging, report.task("import", total=manifest.nbytes, unit="bytes") as task:
        try:
            resumed = _receive(source, manifest, staging, task)
            snapshot, keys = _check_whole(source, manifest, staging)
        except _EndedEarlyError:
            raise  # what has passed is kept: the rest may still come
        except BundleError:
            staging.remove()
            raise
        target = dataset or manifest.dataset
        with protected(store, f"import of {target}", keys):
            new = _move_in(internals, manifest, staging)
            written = store.freeze(target, {**snapshot.content, "dataset": target}, needs=keys)
        staging.remove()
    return Imported(
        dataset=target,
        snapshot=written.file.id,
        samples=written.samples,
        entries=manifest.entries,
        new=new,
        reused=manifest.entries - new,
        nbytes=manifest.nbytes,
        resumed=resumed,
    )


class _EndedEarlyError(BundleError):
    """The archive stops before its end: cut off, or not all here yet."""

    hint = "get the rest of it and import it again: what was checked is kept for a week"

    def __init__(self, archive: str) -> None:
        super().__init__(archive, "ends early", hint=self.hint)


class _Source:
    """An archive as it is read: from the beginning to the end, once."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._seekable = stream.seekable()
        self.name = name

    def refuse(self, reason: str) -> BundleError:
        """The error for something that is wrong with the archive."""
        return BundleError(self.name, reason)

    def read(self, size: int) -> bytes:
        """Exactly so many bytes; few, by our own limits."""
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Exactly so many bytes, some at a time: memory is taken for what is there, never for what is announced."""
        while size:
            piece = self._stream.read(min(size, _PIECE))
            if not piece:
                raise _EndedEarlyError(self.name)
            size -= len(piece)
            yield piece

    def skip(self, size: int) -> None:
        """Pass over so many bytes."""
        if self._seekable:
            self._stream.seek(size, os.SEEK_CUR)
        else:
            for _ in self.pieces(size):
                pass

    def header(self) -> tuple[str, int]:
        """Name and size of the next member."""
        try:
            return read_header(self.read(BLOCK))
        except FrameError as error:
            raise self.refuse(str(error)) from error

    def pad(self, size: int) -> None:
        """Read the zeros that follow a member of this size."""
        if any(self.read(padding(size))):
            raise self.refuse("there is something between its members")

    def end(self) -> None:
        """Read the end, after which nothing may follow."""
        if self.read(len(END)) != END or self._stream.read(1):
            raise self.refuse("something follows its last member")


def _read_manifest(source: _Source) -> tuple[Manifest, str]:
    try:
        name, size = read_header(source.read(BLOCK))
        digest = manifest_digest(name)
    except (FrameError, ManifestError) as error:
        raise source.refuse("not an archive of precook") from error
    if size > MAX_MANIFEST:
        raise source.refuse(f"its manifest has {size:,} bytes; at most {MAX_MANIFEST:,} are accepted")
    content = source.read(size)
    if blake3(content).hexdigest() != digest:
        raise source.refuse("its manifest does not match its name")
    source.pad(size)
    try:
        return read_manifest(content), digest
    except ManifestError as error:
        raise source.refuse(str(error)) from error


def _check_space(store: Store, manifest: Manifest) -> None:
    place = next(folder for folder in (store.path, *store.path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if manifest.nbytes > free:
        needed = f"the archive holds {format_size(manifest.nbytes)} and {format_size(free)} are free"
        raise NoSpaceError(store.path, needed)


def _receive(source: _Source, manifest: Manifest, staging: Staging, task: Task) -> int:
    """Stage every member that has not passed before; how many packs had."""
    resumed = 0
    for member in manifest.members:
        name, size = source.header()
        if (name, size) != (member.name, member.nbytes):
            announced = f"{member.name} with {member.nbytes:,} bytes"
            raise source.refuse(f"it has a member {name!a} with {size:,} bytes where {announced} should come")
        if staging.has(member.pack, member.nbytes):
            source.skip(size)
            task.advance(size)
            resumed += member.folder == "packs"
        else:
            _stage(source, member, staging, task)
        source.pad(size)
    source.end()
    return resumed


def _stage(source: _Source, member: Member, staging: Staging, task: Task) -> None:
    def pieces() -> Iterator[bytes]:
        for piece in source.pieces(member.nbytes):
            task.advance(len(piece))
            yield piece

    def check(pack: PackFile, digest: str) -> None:
        if digest != member.digest:
            raise source.refuse(f"{member.name} is not what its manifest says")
        if pack.head.rows != member.entries:
            raise source.refuse(f"{member.name} has {pack.head.rows:,} entries, not {member.entries:,}")
        for damage in check_pack(pack):
            what = f"entry {damage.key.hex}" if damage.key else "the pack"
            raise source.refuse(f"{what} in {member.name} is damaged: {damage.reason}")

    try:
        staging.receive(member.pack, pieces(), check)
    except DamagedPackError as error:
        raise source.refuse(f"{member.name} cannot be accepted: {error.reason}") from error


def _check_whole(source: _Source, manifest: Manifest, staging: Staging) -> tuple[Snapshot, npt.NDArray[np.uint8]]:
    """The snapshot, and the keys that it and the packs have in common: all of them, each once."""
    member = manifest.members[0]
    file = SnapshotFile(manifest.dataset, 0, member.pack, staging.pack(member.pack))
    try:
        snapshot = read_snapshot(file)
    except (DamagedPackError, NewerFormatError) as error:
        raise source.refuse(f"its snapshot cannot be accepted: {error.reason}") from error
    if why := _why_odd(snapshot.content, manifest):
        raise source.refuse(f"its snapshot cannot be accepted: {why}")
    columns = [np.zeros((0, 32), np.uint8)]
    for one in manifest.members[1:]:
        pack = PackFile(staging.pack(one.pack), one.pack, Guard())
        columns += [table.keys for table in pack.head.tables]
    keys = np.concatenate(columns)
    wanted = snapshot.entry_keys()
    once = np.unique(keys, axis=0)
    if len(once) != len(keys):
        raise source.refuse("its packs have an entry twice")
    if not np.array_equal(once, wanted):
        raise source.refuse("its packs do not have the entries that its snapshot names, and no others")
    return snapshot, wanted


def _why_odd(content: dict[str, Any], manifest: Manifest) -> str:
    """What of a snapshot's tree is not as `precook export` writes it; what its columns are, reading it has checked."""
    if set(content) != _PARTS | set(manifest.keep):
        return "it has other parts than its manifest says"
    if content["dataset"] != manifest.dataset or len(content["samples"]["id"]) != manifest.samples:
        return "it is of another dataset"
    if not isinstance(content["concepts"], list) or not all(map(_is_concept, content["concepts"])):
        return "one of its concepts has no name or no weights"
    if not isinstance(content["encoders"], dict) or not all(map(_is_encoder, content["encoders"].values())):
        return "one of its encoders has no input or no recipe"
    return ""


def _is_concept(form: object) -> bool:
    if not isinstance(form, dict) or not isinstance(form.get("name"), str):
        return False
    numbers = [form.get("loss_weight"), form.get("repeats")]
    return all(isinstance(number, int | float) and math.isfinite(number) and number >= 0 for number in numbers)


def _is_encoder(form: object) -> bool:
    if not isinstance(form, dict) or form.get("input") not in ("image", "text", "mask"):
        return False
    return isinstance(form.get("recipe"), str)


def _move_in(internals: StoreInternals, manifest: Manifest, staging: Staging) -> int:
    """Make the staged packs part of the store; how many entries that added.

    A pack whose entries are all new is moved as it is. Of another, the new ones are written to a pack of their own.
    """
    added = 0
    for member in manifest.members[1:]:
        path = staging.pack(member.pack)
        pack = PackFile(path, member.pack, Guard())
        keys = [table.key(row) for table in pack.tables for row in range(table.table.rows)]
        # One that it has is read and checked: nobody will bring it again.
        absent = set(keys) - sound_keys(internals, keys)
        added += len(absent)
        if len(absent) == len(keys) and not internals.layout.pack(member.pack).exists():
            internals.take_in(path, pack)
            # What a pack of this name lost before may count as removed: it is written to another one.
            absent = set(keys) - internals.index.present(keys)
            pack = PackFile(internals.layout.pack(member.pack), member.pack, Guard()) if absent else pack
        if absent:
            internals.commit(list(read_rows(pack, [row for row, key in enumerate(keys) if key in absent])))
    return added
