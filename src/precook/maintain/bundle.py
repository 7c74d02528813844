"""Bundles: a dataset as one archive, its snapshot and exactly the entries that it names.

The archive is written beside its final name, member by member, each durable before the manifest's line says so. An
export that was interrupted goes on after the last such member. docs/guides/share.md describes the archive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from precook.errors import LockedError, NoSnapshotError, PrecookError, SnapshotEntriesError, printable
from precook.identity.digest import derived_digest
from precook.maintain.manifest import MAX_MEMBERS, Manifest, Member, Sheet, manifest_name
from precook.maintain.rows import PackRow, RowReader, find_rows, protected
from precook.maintain.tar import BLOCK, END, make_header, padding
from precook.report import SILENT, Reporter, Task
from precook.store import files
from precook.store.format.build import Entry, PackImage, build_pack, make_entry
from precook.store.keysets import split
from precook.store.snapshot import Snapshot, SnapshotFile, read_snapshot
from precook.store.store import Store
from precook.store.tree import take_apart
from precook.values import Key

KEEPS = ("captions", "paths")
"""What a snapshot may hold beyond what training needs."""
PACK_BYTES = 64 << 20
"""About what a pack of an archive holds."""
_PACK_ROWS = 100_000
_PIECE = 4 << 20
_CONTEXT = "precook bundle 1"


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


def choose_snapshot(store: Store, dataset: str, wanted: str | None = None) -> Snapshot:
    """The latest snapshot of a dataset, or the one with this number or these first digits of its id."""
    found = [file for file in store.snapshots() if file.dataset == dataset]
    if not found:
        raise NoSnapshotError(store.path, dataset)
    if wanted is None:
        return read_snapshot(found[-1])
    chosen = [file for file in found if is_meant(file, wanted)]
    if len(chosen) != 1:
        many = "more than one snapshot" if chosen else "no snapshot"
        names = ", ".join(f"{file.number} ({file.id[:8]})" for file in found[-5:])
        raise PrecookError(
            f"{many} of {printable(dataset)!r} is meant by {printable(wanted)!r}",
            hint=f"give its number or the first digits of its id; there are {names}",
        )
    return read_snapshot(chosen[0])


def is_meant(file: SnapshotFile, wanted: str) -> bool:
    """Whether a snapshot is named by its number, or by at least four digits of its id."""
    if wanted.isdigit() and int(wanted) == file.number:
        return True
    return len(wanted) >= 4 and file.id.startswith(wanted.lower())  # noqa: PLR2004 - fewer are a number


FOREIGN = "precook did not write it: move it away, or export to another name"


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
        raise taken(path, FOREIGN)
    if path.exists() and not force:
        raise taken(path)
    if not path.parent.is_dir():
        raise _wrong_place(f"{printable(path.parent)}: no such directory", "create it first")
    chosen = choose_snapshot(store, dataset, snapshot)
    content = _stripped(chosen, keep)
    keys = chosen.entry_keys()
    with protected(store, f"export of {dataset}", keys):
        rows, lost = find_rows(store.internals(), split(keys))
        if lost:
            raise _lost(store, dataset, lost)
        groups = _grouped(rows, pack_bytes)
        entry = _snapshot_entry(content)
        contents = _contents(entry, groups)
        manifest = Manifest(dataset, chosen.samples, tuple(sorted(set(keep))), contents, ())
        image = build_pack([entry], created=chosen.created, salt=contents[:16])
        with (
            files.explained(path.parent),
            _partial(path) as descriptor,
            report.task("export", total=sum(row.nbytes for row in rows), unit="bytes") as task,
        ):
            draft = _Draft(descriptor, manifest, 1 + len(groups))
            resumed = draft.resume()
            if not resumed:
                draft.add(image, "snapshot", 1)
            for group in groups[: max(0, resumed - 1)]:
                task.advance(sum(row.nbytes for row in group))
            _copy(store, chosen, groups, draft, task)
            size = draft.finish()
            os.rename(_partial_path(path), path)  # noqa: PTH104 - each step of the order of writes stands here by name
            files.sync_directory(path.parent)
    return Exported(path, dataset, chosen.file.id, chosen.samples, len(rows), len(groups), size, resumed)


def taken(path: Path, hint: str = "--force replaces it") -> PrecookError:
    """The error for a name that is taken."""
    return _wrong_place(f"{printable(path)} exists already", hint)


def _wrong_place(message: str, hint: str) -> PrecookError:
    error = PrecookError(message, hint=hint)
    error.exit_code = 2
    return error


def _copy(store: Store, snapshot: Snapshot, groups: list[list[PackRow]], draft: _Draft, task: Task) -> None:
    """Add the packs that are still to be written; once an entry is lost, the rest is only looked at, for the list."""
    reader = RowReader(store)
    for number in range(draft.done - 1, len(groups)):
        entries = reader.read(groups[number])
        if not reader.lost:
            salt = f"{draft.manifest.contents[:16]}-{number}"
            draft.add(build_pack(entries, created=snapshot.created, salt=salt), "packs", len(entries))
        task.advance(sum(row.nbytes for row in groups[number]))
    if reader.lost:
        raise _lost(store, snapshot.file.dataset, reader.lost)


def _lost(store: Store, dataset: str, lost: dict[bytes, str]) -> SnapshotEntriesError:
    return SnapshotEntriesError(store.path, dataset, tuple((Key(key), reason) for key, reason in sorted(lost.items())))


def _stripped(snapshot: Snapshot, keep: Sequence[str]) -> dict[str, Any]:
    """The snapshot's tree without what is not to leave this machine."""
    for name in keep:
        if name not in KEEPS:
            raise PrecookError(f"{printable(name)!r} cannot be kept", hint=f"what can is {' and '.join(KEEPS)}")
        if name not in snapshot.content:
            hint = f"write `keep: [{name}]` into the config and build once more"
            raise PrecookError(f"the snapshot of {snapshot.file.dataset} has no {name}", hint=hint)
    return {name: part for name, part in snapshot.content.items() if name not in KEEPS or name in keep}


def _snapshot_entry(content: dict[str, Any]) -> Entry:
    parts = take_apart(content)
    unnamed = make_entry(bytes(32), parts)
    return make_entry(derived_digest(_CONTEXT, unnamed.checksum), parts)


def _grouped(rows: list[PackRow], pack_bytes: int) -> list[list[PackRow]]:
    """Rows as they go into packs; more into each where there would be too many packs."""
    total = sum(row.nbytes for row in rows)
    most = max(pack_bytes, 2 * total // (MAX_MEMBERS - 1))
    longest = max(_PACK_ROWS, 2 * len(rows) // (MAX_MEMBERS - 1))
    groups: list[list[PackRow]] = []
    size = most
    for row in rows:
        if size >= most or len(groups[-1]) >= longest:
            groups.append([])
            size = 0
        groups[-1].append(row)
        size += row.nbytes
    return groups


def _contents(entry: Entry, groups: list[list[PackRow]]) -> str:
    keys = [b"".join(row.key for row in group) for group in groups]
    lengths = np.array([len(group) for group in groups], "<u8").tobytes()
    return derived_digest(_CONTEXT, b"".join([entry.checksum, entry.parts.skeleton, lengths, *keys])).hex()


class _Draft:
    """An archive in the making."""

    def __init__(self, descriptor: int, manifest: Manifest, members: int) -> None:
        self.manifest = manifest
        self._descriptor = descriptor
        self._sheet = Sheet(manifest, members)
        self._members: list[Member] = []
        self._end = BLOCK + self._sheet.nbytes

    @property
    def done(self) -> int:
        """Members that are finished."""
        return len(self._members)

    def resume(self) -> int:
        """Take over the members that an interrupted export of the same contents had finished; how many they are."""
        sheet = os.pread(self._descriptor, self._sheet.nbytes, BLOCK)
        number = 0
        if sheet.startswith(self._sheet.start):
            while (member := self._finished(sheet, number)) is not None:
                self._members.append(member)
                self._end += BLOCK + member.nbytes + padding(member.nbytes)
                number += 1
        os.ftruncate(self._descriptor, self._end if number else 0)
        if not number:
            self._write(bytes(BLOCK) + self._sheet.start, 0)
        return number

    def add(self, image: PackImage, folder: str, entries: int) -> None:
        """Write a member, and its line when every byte of it is durable."""
        hasher = blake3()
        for buffer in (image.head, *image.body):
            hasher.update(memoryview(buffer))
        member = Member(image.id, folder, image.nbytes, entries, hasher.hexdigest())
        os.lseek(self._descriptor, self._end, os.SEEK_SET)
        header = make_header(member.name, member.nbytes)
        files.write_all(self._descriptor, [header, image.head, *image.body, bytes(padding(member.nbytes))])
        files.sync_file(self._descriptor)
        self._write(self._sheet.line(self.done, member), BLOCK + self._sheet.slot(self.done))
        self._members.append(member)
        self._end = os.lseek(self._descriptor, self._end + BLOCK + member.nbytes + padding(member.nbytes), os.SEEK_SET)

    def finish(self) -> int:
        """Write the manifest and the archive's end: durable when it returns. The size of the archive."""
        whole = Manifest(
            self.manifest.dataset,
            self.manifest.samples,
            self.manifest.keep,
            self.manifest.contents,
            tuple(self._members),
        )
        content = self._sheet.whole(whole)
        self._write(END, self._end)
        self._write(make_header(manifest_name(content), len(content)) + content, 0)
        files.sync_file(self._descriptor)
        return self._end + len(END)

    def _finished(self, sheet: bytes, number: int) -> Member | None:
        """A member that is there, byte for byte; its line may be durable where its end is not."""
        at = self._sheet.slot(number)
        if number == self._sheet.members:
            return None
        member = self._sheet.read_line(number, sheet[at : self._sheet.slot(number + 1)])
        if member is None or os.pread(self._descriptor, BLOCK, self._end) != make_header(member.name, member.nbytes):
            return None
        hasher = blake3()
        start = self._end + BLOCK
        for offset in range(start, start + member.nbytes, _PIECE):
            hasher.update(os.pread(self._descriptor, min(_PIECE, start + member.nbytes - offset), offset))
        return member if hasher.hexdigest() == member.digest else None

    def _write(self, content: bytes, offset: int) -> None:
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        files.write_all(self._descriptor, [content])


def _partial_path(path: Path) -> Path:
    return path.with_name(path.name + files.PARTIAL)


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[int]:
    """The file that is being written, whoever began it; locked, so that nobody else goes on with it meanwhile."""
    partial = _partial_path(path)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(partial, "another export writes this file") from None
        # Whoever held the lock may just have given the file its final name: it must not be written to any more.
        if not os.path.samestat(os.fstat(descriptor), os.stat(partial)):  # noqa: PTH116
            raise LockedError(partial, "another export has just finished this file")
        first = os.pread(descriptor, BLOCK, 0)
        if any(first) and not first.startswith(b"manifest-"):
            raise taken(partial, FOREIGN)
        yield descriptor
    finally:
        os.close(descriptor)
