"""Bundles: a dataset as one archive, its snapshot and exactly the entries that it names.

An export writes the archive beside its final name, member by member, each durable before its line in the manifest says
so. An import reads an archive once, from a file or a pipe, and believes nothing it says: every member has to be the one
that the manifest announces next, every pack passes the checks of a pack and every entry its checksum, before anything
of it can be seen in the store. Then the packs are moved in, and the snapshot is written last: a snapshot is only there
when everything it names is. Both go on after an interruption. docs/guides/share.md describes the archive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from blake3 import blake3

from precook.errors import (
    BundleError,
    DamagedEntryError,
    DamagedPackError,
    LockedError,
    MissingEntryError,
    NewerFormatError,
    NoSpaceError,
    PrecookError,
    ReadOnlyError,
    StoreError,
    StoreReadError,
    printable,
)
from precook.fs.system import calls, system
from precook.fs.trust import file_system_time
from precook.identity.digest import derived_digest
from precook.maintain.archive import (
    BLOCK,
    MAX_MEMBERS,
    ArchiveReader,
    ArchiveWriter,
    EndedEarlyError,
    Manifest,
    Member,
)
from precook.maintain.export import (
    FOREIGN,
    EntryList,
    EntryReader,
    hold_snapshot,
    name_taken,
    stored_entry,
    wrong_place,
)
from precook.maintain.verify import check_pack
from precook.report import SILENT, Reporter, Task
from precook.store import files
from precook.store.commit import commit, commit_pack
from precook.store.entry_table import EntryTable
from precook.store.format.build import Entry, build_pack, make_entry
from precook.store.format.pack import MAX_RECIPES
from precook.store.internals import StoreInternals
from precook.store.packfile import Guard, PackFile, RowDamagedError
from precook.store.snapshot import Snapshot, SnapshotFile, check_dataset, read_snapshot
from precook.store.snapshot_content import is_dataset
from precook.store.store import Store
from precook.store.tree import take_apart
from precook.units import format_size
from precook.values import Bytes, Key, Numbers

KEEPS = ("captions", "paths")
"""What a snapshot may hold beyond what training needs."""
PACK_BYTES = 64 << 20
"""About what a pack of an archive holds."""
_PACK_ROWS = MAX_RECIPES
"""Each row may have a recipe of its own."""
_CONTEXT = "precook bundle 1"
_STAGING = "imports"
"""The folder of a store in which packs wait until their whole archive has passed."""
_STAGED_SECONDS = 7 * 86400
"""How long they wait for an import that was interrupted to go on."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An archive that was written."""

    path: Path
    dataset: str
    snapshot: str
    """The id of the snapshot it was made from."""
    samples: int
    entries: int
    packs: int
    nbytes: int
    """Size of the archive."""
    resumed: int
    """Members that an interrupted export had finished."""


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


def export_bundle(
    store: Store,
    dataset: str,
    path: Path,
    *,
    snapshot: str | None = None,
    keep: Sequence[str] = (),
    force: bool = False,
    pack_bytes: int = PACK_BYTES,
    report: Reporter = SILENT,
) -> Exported:
    """Write a dataset's snapshot and the entries that it needs to an archive.

    `keep` names what else goes with it, `captions` and `paths`, if the snapshot has them; labels of entries never do.
    A file that is there stays unless `force` is given. `SnapshotEntriesError` lists what is damaged or missing.
    """
    if path.is_dir():
        raise name_taken(path, FOREIGN)
    if path.exists() and not force:
        raise name_taken(path)
    if not path.parent.is_dir():
        raise wrong_place(f"{printable(path.parent)}: no such directory", "create it first")
    with hold_snapshot(store, dataset, snapshot) as chosen:
        entry = _snapshot_entry(chosen, keep)
        reader = EntryReader(store, dataset)
        entries = reader.find(chosen.entry_keys())
        reader.check()
        packs = _divide(entries.nbytes, pack_bytes)
        contents = _contents(entry, entries, packs)
        manifest = Manifest(dataset, chosen.samples, tuple(sorted(set(keep))), contents)
        with (
            files.explained(path.parent),
            _open_partial(path) as (partial, descriptor),
            report.task("export", total=int(entries.nbytes.sum()), unit="bytes") as task,
        ):
            writer = ArchiveWriter(descriptor, manifest, 1 + len(packs))
            writer.resume()
            resumed = len(writer.members)
            if not resumed:
                writer.add(build_pack([entry], created=chosen.created, salt=contents[:16]), "snapshot", 1)
            for number, some in enumerate(packs):
                if number >= resumed - 1:  # the snapshot is the first member
                    read = reader.read(entries, some)
                    # Once an entry is lost there will be no archive: the rest is only looked at, for the list.
                    if reader.complete:
                        salt = f"{contents[:16]}-{number}"
                        writer.add(build_pack(read, created=chosen.created, salt=salt), "packs", len(read))
                task.advance(int(entries.nbytes[some].sum()))
            reader.check()
            nbytes = writer.finish()
            files.publish_file(partial, path)
    return Exported(path, dataset, chosen.file.id, chosen.samples, len(entries), len(packs), nbytes, resumed)


def _snapshot_entry(snapshot: Snapshot, keep: Sequence[str]) -> Entry:
    """The snapshot as the entry of a pack, without what is not to leave this machine."""
    for name in keep:
        if name not in KEEPS:
            raise PrecookError(f"{printable(name)!r} cannot be kept", hint=f"what can is {' and '.join(KEEPS)}")
        if name not in snapshot.content.kept:
            hint = f"write `keep: [{name}]` into the config and build once more"
            raise PrecookError(f"the snapshot of {snapshot.file.dataset} has no {name}", hint=hint)
    content = dataclasses.replace(
        snapshot.content,
        paths=snapshot.content.paths if "paths" in keep else None,
        captions=snapshot.content.captions if "captions" in keep else None,
    )
    parts = take_apart(content.tree())
    return make_entry(derived_digest(_CONTEXT, make_entry(bytes(32), parts).checksum), parts)


def _divide(nbytes: Numbers, pack_bytes: int) -> list[slice]:
    """The entries of each pack; more in each where there would be too many packs."""
    most = max(pack_bytes, 2 * int(nbytes.sum()) // (MAX_MEMBERS - 1))
    longest = max(_PACK_ROWS, 2 * len(nbytes) // (MAX_MEMBERS - 1))
    packs, first, size = [], 0, 0
    for number, more in enumerate(nbytes.tolist()):
        if number > first and (size >= most or number - first >= longest):
            packs.append(slice(first, number))
            first, size = number, 0
        size += more
    return [*packs, slice(first, len(nbytes))] if len(nbytes) else []


def _contents(entry: Entry, entries: EntryList, packs: Sequence[slice]) -> str:
    """A digest of all that decides an archive's bytes."""
    lengths = np.array([some.stop - some.start for some in packs], "<u8").tobytes()
    keys = entries.keys.tobytes()
    return derived_digest(_CONTEXT, b"".join([entry.checksum, entry.parts.skeleton, lengths, keys])).hex()


@contextlib.contextmanager
def _open_partial(path: Path) -> Iterator[tuple[Path, int]]:
    """The file that is being written, whoever began it; locked, so that nobody else goes on with it meanwhile."""
    partial = path.with_name(path.name + files.PARTIAL)
    descriptor = calls.open(partial, os.O_RDWR | os.O_CREAT | calls.O_CLOEXEC | calls.O_NOFOLLOW, 0o666)
    try:
        if not files.lock(descriptor, partial):
            raise LockedError(partial, "another export writes this file")
        # Whoever held the lock may just have given the file its final name: it must not be written to any more.
        if not os.path.samestat(os.fstat(descriptor), os.stat(partial)):  # noqa: PTH116
            raise LockedError(partial, "another export has just finished this file")
        first = calls.pread(descriptor, BLOCK, 0)
        if any(first) and not first.startswith(b"manifest-"):
            raise name_taken(partial, FOREIGN)
        yield partial, descriptor
    finally:
        os.close(descriptor)


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
    archive = ArchiveReader(stream, name)
    manifest, digest = archive.read_manifest()
    place = next(folder for folder in (store.path, *store.path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if manifest.nbytes > free:
        needed = f"the archive holds {format_size(manifest.nbytes)} and {format_size(free)} are free"
        raise NoSpaceError(store.path, needed)
    store.check_removable("import")
    internals = store.internals()
    target = dataset or manifest.dataset
    check_dataset(internals.layout, target)
    with (
        files.reading(store.path),
        Staging(internals, digest) as staging,
        report.task("import", total=manifest.nbytes, unit="bytes") as task,
    ):
        try:
            resumed = _receive(archive, manifest, staging, task)
            snapshot, keys = _check_whole(archive, manifest, staging)
        except EndedEarlyError:
            raise  # what has passed is kept: the rest may still come
        except BundleError:
            staging.remove()
            raise
        with store.lease(f"import of {target}") as lease:
            # Before anything is moved in: until the snapshot is there, nothing else keeps the entries.
            lease.protect(keys)
            new = sum(_move_in(internals, staging, member) for member in manifest.members[1:])
            written = store.freeze(target, dataclasses.replace(snapshot.content, dataset=target), needs=keys)
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


class Staging:
    """Where the packs of an archive wait, unused, until the whole of it has passed; a context manager.

    The folder is named after the archive's manifest, so that an import that was interrupted finds what had passed. One
    import at a time holds it. One that failed its checks leaves nothing, one that nobody goes on with is removed after
    a week.
    """

    def __init__(self, internals: StoreInternals, digest: str) -> None:
        self.root = internals.layout.root
        self._home = self.root / _STAGING
        self.folder = self._home / digest
        self._descriptor = -1

    def __enter__(self) -> Staging:
        with files.explained(self.root):
            if self._home.is_symlink():
                # What lies behind it is not ours to remove.
                raise StoreError(self.root, f"{_STAGING} is a link", hint=f"remove it: rm {printable(self._home)}")
            self._remove_old()
            while self._descriptor < 0:
                # Made anew where somebody has removed it since: what another import has finished or refused.
                files.make_directory(self._home)
                with contextlib.suppress(FileNotFoundError):
                    files.make_directory(self.folder)
                    self._hold()
            try:
                files.sync_directory(self.root)
                files.sync_directory(self._home)
                for left in self.folder.glob(f"*{files.PARTIAL}"):
                    left.unlink()
            except BaseException:
                os.close(self._descriptor)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def path(self, member: Member) -> Path:
        """Where a pack waits that has passed."""
        return self.folder / f"{member.pack}.safetensors"

    def pack(self, member: Member) -> PackFile:
        """A pack that has passed."""
        return PackFile(self.path(member), member.pack, Guard())

    def has(self, member: Member) -> bool:
        """Whether a pack has passed before and still does; one that a disk has torn since makes way for another."""
        path = self.path(member)
        try:
            damage = next(check_pack(self.pack(member)), None)
        except FileNotFoundError:
            return False
        except DamagedPackError:
            whole = False
        else:
            if damage is not None and damage.refused:
                raise StoreReadError(path, damage.reason)
            whole = damage is None and path.stat().st_size == member.nbytes
        if not whole:
            with files.explained(self.root):
                path.unlink()
        return whole

    def remove(self) -> None:
        """Remove everything that waits here."""
        with files.explained(self.root):
            shutil.rmtree(self.folder)
            with contextlib.suppress(OSError):
                self._home.rmdir()  # another import may be at work in it

    def _hold(self) -> None:
        """Lock the folder, unless it was removed meanwhile."""
        try:
            descriptor = system.open_folder_to_lock(self.folder)
        except FileNotFoundError:
            return
        try:
            if not files.lock(descriptor, self.folder):
                raise LockedError(self.folder, "another process imports this archive")
            # Another import may have removed the folder between our look and our lock: then nobody else would find it.
            if system.has_name(descriptor, self.folder):
                self._descriptor = descriptor
        finally:
            if self._descriptor < 0:
                os.close(descriptor)

    def _remove_old(self) -> None:
        """Remove what imports that nobody went on with have left."""
        now = file_system_time(self.root) / 1e9
        # Each of them, and the folder that they lie in, may be removed at any moment by the import that it belongs to.
        with contextlib.suppress(FileNotFoundError):
            for folder in sorted(self._home.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    self._remove_if_old(folder, now)

    def _remove_if_old(self, folder: Path, now: float) -> None:
        if folder == self.folder or folder.is_symlink() or now - folder.stat().st_mtime < _STAGED_SECONDS:
            return
        descriptor = system.open_folder_to_lock(folder)
        try:
            if files.lock(descriptor, folder):
                shutil.rmtree(folder)
        finally:
            os.close(descriptor)


def _receive(archive: ArchiveReader, manifest: Manifest, staging: Staging, task: Task) -> int:
    """Stage every member that has not passed before; how many packs had."""
    resumed = 0
    for member in manifest.members:
        archive.begin_member(member)
        if staging.has(member):
            archive.skip(member.nbytes)
            task.advance(member.nbytes)
            resumed += member.folder == "packs"
        else:
            _receive_pack(archive, member, staging, task)
        archive.end_member(member.nbytes)
    archive.end()
    return resumed


def _receive_pack(archive: ArchiveReader, member: Member, staging: Staging, task: Task) -> None:
    """Write a pack to the staging folder; it gets its name when it is durable and has passed every check."""
    partial = staging.folder / f"{member.pack}.{secrets.token_hex(4)}{files.PARTIAL}"
    hasher = blake3()
    with files.explained(staging.root):
        descriptor = files.create(partial)
    try:
        try:
            for piece in archive.pieces(member.nbytes):
                task.advance(len(piece))
                hasher.update(piece)
                with files.explained(staging.root):
                    files.write_all(descriptor, [piece])
            with files.explained(staging.root):
                files.sync_file(descriptor)
        finally:
            os.close(descriptor)
        _check_pack(archive, member, partial, hasher.hexdigest())
        with files.explained(staging.root):
            files.publish_file(partial, staging.path(member))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)  # noqa: PTH108
        raise


def _check_pack(archive: ArchiveReader, member: Member, path: Path, digest: str) -> None:
    """Refuse the archive unless a file is the pack that it should be and every entry in it is whole."""
    if digest != member.digest:
        raise archive.refuse(f"{member.name} is not what its manifest says")
    try:
        pack = PackFile(path, member.pack, Guard())
        if pack.head.rows != member.entries:
            raise archive.refuse(f"{member.name} has {pack.head.rows:,} entries, not {member.entries:,}")
        for damage in check_pack(pack):
            if damage.refused:
                raise StoreReadError(path, damage.reason)
            place = f"entry {damage.key.hex}" if damage.key else "the pack"
            raise archive.refuse(f"{place} in {member.name} is damaged: {damage.reason}")
    except DamagedPackError as error:
        raise archive.refuse(f"{member.name} cannot be accepted: {error.reason}") from error


def _check_whole(archive: ArchiveReader, manifest: Manifest, staging: Staging) -> tuple[Snapshot, Bytes]:
    """The snapshot, and the keys that it and the packs have in common: all of them, each once."""
    member = manifest.members[0]
    try:
        snapshot = read_snapshot(SnapshotFile(manifest.dataset, 0, member.pack, staging.path(member)))
    except (DamagedPackError, NewerFormatError) as error:
        raise archive.refuse(f"its snapshot cannot be accepted: {error.reason}") from error
    content = snapshot.content
    if content.extra or content.kept != set(manifest.keep):
        raise archive.refuse("its snapshot cannot be accepted: it has other parts than its manifest says")
    if content.dataset != manifest.dataset or snapshot.samples != manifest.samples:
        raise archive.refuse("its snapshot cannot be accepted: it is of another dataset")
    columns = [table.keys for member in manifest.members[1:] for table in staging.pack(member).head.tables]
    keys = np.concatenate([np.zeros((0, 32), np.uint8), *columns])
    wanted = snapshot.entry_keys()
    distinct = np.unique(keys, axis=0)
    if len(distinct) != len(keys):
        raise archive.refuse("its packs have an entry twice")
    if not np.array_equal(distinct, wanted):
        raise archive.refuse("its packs do not have the entries that its snapshot names, and no others")
    return snapshot, wanted


def _move_in(internals: StoreInternals, staging: Staging, member: Member) -> int:
    """Make a staged pack part of the store; how many entries that added.

    A pack whose entries are all new is moved as it is. Of another, the new ones are written to a pack of their own.
    """
    pack = staging.pack(member)
    keys = [table.key(row) for table in pack.tables for row in range(table.table.rows)]
    column = np.concatenate([np.zeros((0, 32), np.uint8), *(table.table.keys for table in pack.tables)])
    (places,) = EntryTable.find_all(internals.lookup, [column], verify=True)
    absent = {keys[number] for number in places.missing.tolist()}
    for number in np.flatnonzero(places.there(np.arange(len(keys)))).tolist():
        # One that the store has is read and checked: nobody will bring it again.
        try:
            places.read(number)
        except MissingEntryError:
            absent.add(keys[number])
    added = len(absent)
    if added == len(keys) and not internals.layout.pack(member.pack).exists():
        commit_pack(internals, staging.path(member), pack)
        # What a pack of this name lost before may count as removed: it is written to another one.
        absent -= internals.index.present(keys)
        pack = internals.open_pack(member.pack) if absent else pack
    if absent:
        entries = []
        with pack.open() as descriptor:
            for number, key in enumerate(keys):
                if key in absent:
                    table, row = pack.locate(number)
                    try:
                        entries.append(stored_entry(table, row, table.verify(descriptor, row)))
                    except RowDamagedError as error:
                        # It was whole when it was staged, as far as the disk said.
                        raise DamagedEntryError(Key(key), pack.path, str(error)) from error
        commit(internals, entries)
    return added
