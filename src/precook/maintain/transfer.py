"""Push and pull: a dataset, or all of a store, from a folder to a bucket and back, without encoding anything again.

What the other side lacks is found by key. A pack all of whose entries are wanted goes as it is, byte for byte; of
another one the wanted entries go in packs of their own. The snapshot goes last: it is only there when everything that
it names is. Both go on after an interruption, because what was brought is found again by its key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.errors import DamagedPackError, PrecookError, ReadOnlyError, StoreReadError, printable
from precook.identity.digest import derived_digest
from precook.maintain.bundle import KEEPS
from precook.maintain.export import EntryList, EntryReader, hold_snapshot
from precook.maintain.verify import check_pack
from precook.report import SILENT, Reporter, Task
from precook.store import files
from precook.store.commit import commit, publishing
from precook.store.format.build import build_pack
from precook.store.format.pack import Head
from precook.store.index.scan import read_pages
from precook.store.packfile import Guard, PackFile
from precook.store.remote.leaves import read_head
from precook.store.remote.store import BucketInternals, BucketStore
from precook.store.snapshot import Snapshot
from precook.store.store import Store
from precook.values import Bytes, Numbers

PACK_BYTES = 64 << 20
"""About what a pack of entries takes that do not go with their whole pack."""
STAGING = "imports"
"""The folder of a store in which packs wait that are on their way into it."""
_PIECE = 1 << 20
_ROWS = 10_000
"""Entries of such a pack at most: each may have a recipe of its own."""
_CONTEXT = "precook transfer 1"
_NO_LABELS = b"null"


@dataclass(frozen=True, slots=True)
class Transferred:
    """What was brought from one store to another."""

    datasets: tuple[str, ...]
    snapshots: tuple[str, ...]
    """The id of each dataset's latest snapshot there."""
    samples: int
    entries: int
    new: int
    """Entries that the other store did not have."""
    packs: int
    """Packs that were written for them."""
    nbytes: int
    """Their bytes."""

    @property
    def reused(self) -> int:
        """Entries that it had."""
        return self.entries - self.new


def push(
    store: Store, target: Store, dataset: str | None = None, *, keep: Sequence[str] = (), report: Reporter = SILENT
) -> Transferred:
    """Bring a dataset, or everything, from a store to one in a bucket.

    Labels of entries stay here, and so do `captions` and `paths` of a snapshot unless `keep` names them.
    """
    if not isinstance(target, BucketStore):
        raise PrecookError(f"{printable(target.location)} is not in a bucket", hint="give a URL, such as s3://bucket/x")
    if target.exists:
        # What an earlier push had brought when it was cut off counts, also where its leaf is still missing.
        internals = target.internals()
        assert isinstance(internals, BucketInternals)
        internals.sender.adopt()
        internals.index.refresh()
    return _transfer(store, target, dataset, keep=keep, doing="push", report=report)


def pull(store: Store, source: Store, dataset: str | None = None, *, report: Reporter = SILENT) -> Transferred:
    """Bring a dataset, or everything, from a store in a bucket to one in a folder; each byte is checked on the way."""
    if isinstance(store, BucketStore):
        raise PrecookError(f"{printable(store.location)} is in a bucket", hint="pull into a store in a folder")
    if not isinstance(source, BucketStore):
        raise PrecookError(f"{printable(source.location)} is not in a bucket", hint="give a URL, such as s3://bucket/x")
    return _transfer(source, store, dataset, keep=KEEPS, doing="pull", report=report)


@contextlib.contextmanager
def staging_cache(store: Store) -> Iterator[Path]:
    """Where a pull keeps what it has fetched: on the disk of the store, and each pull for itself.

    What one that was killed leaves there is removed as what imports leave: what it had brought is in the store.
    """
    folder = store.path / STAGING / f"pull-{secrets.token_hex(4)}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # an import may be at work in it


def _transfer(
    source: Store, target: Store, dataset: str | None, *, keep: Sequence[str], doing: str, report: Reporter
) -> Transferred:
    if target.read_only:
        raise ReadOnlyError(target.location, "opened read-only")
    for name in keep:
        if name not in KEEPS:
            raise PrecookError(f"{printable(name)!r} cannot be kept", hint=f"what can is {' and '.join(KEEPS)}")
    names = [dataset] if dataset is not None else list(dict.fromkeys(file.dataset for file in source.snapshots()))
    with contextlib.ExitStack() as held:
        snapshots = [held.enter_context(hold_snapshot(source, name)) for name in names]
        keys = _wanted(source, held, snapshots, everything=dataset is None)
        lease = held.enter_context(target.lease(f"{doing} of {dataset or 'everything'}"))
        # Protected first and looked up after, there as here.
        lease.protect(keys)
        carrier = _Carrier(source, target, dataset or "the store")
        new, packs, nbytes = carrier.carry(keys[~target.present(keys)], report=report, doing=doing)
        written = [_bring_snapshot(target, snapshot, keep) for snapshot in snapshots]
    return Transferred(
        datasets=tuple(names),
        snapshots=tuple(snapshot.file.id for snapshot in written),
        samples=sum(snapshot.samples for snapshot in snapshots),
        entries=len(keys),
        new=new,
        packs=packs,
        nbytes=nbytes,
    )


def _wanted(source: Store, held: contextlib.ExitStack, snapshots: Sequence[Snapshot], *, everything: bool) -> Bytes:
    """The keys of what is brought, each once: what the snapshots name, or all that there is."""
    columns = [np.zeros((0, 32), np.uint8), *(snapshot.entry_keys() for snapshot in snapshots)]
    if everything:
        index = source.internals(create=False).index
        columns += [page.keys for page in read_pages(index)]
    keys = np.unique(np.concatenate(columns), axis=0)
    if everything:
        held.enter_context(source.lease("push of everything", optional=True)).protect(keys)
    return keys


def _bring_snapshot(target: Store, snapshot: Snapshot, keep: Sequence[str]) -> Snapshot:
    """Make a snapshot the latest of its dataset there, byte for byte if nothing of it is to stay here."""
    content, name = snapshot.content, snapshot.file.dataset
    if set(content.kept) <= set(keep):
        return target.adopt_snapshot(snapshot)
    stripped = dataclasses.replace(
        content,
        paths=content.paths if "paths" in keep else None,
        captions=content.captions if "captions" in keep else None,
    )
    return target.freeze(name, stripped, needs=snapshot.entry_keys())


class _Carrier:
    """Brings entries from one store to another, pack by pack."""

    def __init__(self, source: Store, target: Store, named: str) -> None:
        self._source = source
        self._target = target
        self._reader = EntryReader(source, named)

    def carry(self, keys: Bytes, *, report: Reporter, doing: str) -> tuple[int, int, int]:
        """Bring the entries of these keys; how many there were, and in how many packs and bytes."""
        if not len(keys):
            return 0, 0, 0
        entries = self._reader.find(keys)
        self._reader.check()
        packs = nbytes = 0
        with report.task(doing, total=int(entries.nbytes.sum()), unit="bytes") as task:
            rest: list[Numbers] = []
            # One that lies there, and of which entries are missing all the same, has lost them.
            known = self._target.internals().index.pack_ids()
            for head, some in _by_pack(entries):
                whole = len(some) == head.rows and _has_no_labels(head) and head.id not in known
                if whole and self._carry_whole(head):
                    packs, nbytes = packs + 1, nbytes + head.file_bytes
                    task.advance(int(entries.nbytes[some].sum()))
                else:
                    rest.append(some)
            for some in _divide(entries, rest):
                self._carry_some(entries, some, task)
                packs, nbytes = packs + 1, nbytes + int(entries.nbytes[some].sum())
        return len(entries), packs, nbytes

    def _carry_whole(self, head: Head) -> bool:
        """Bring a pack as it is; whether it is whole. Of one that is not, each entry is looked for elsewhere, too."""
        target = self._target.internals()
        try:
            pack = self._open(head.id)
        except DamagedPackError:
            return False
        if any(True for _ in check_pack(pack)):
            return False
        if isinstance(target, BucketInternals):
            with pack.open() as descriptor:
                raw = pack.read_bytes(descriptor, 0, head.nbytes)
            target.check_leases()
            target.sender.send_file(head.id, pack.path, raw)
            target.index.add([head])
            return True
        target.check_leases()
        with target.room(head.file_bytes):
            with publishing(target, head.id) as path, pack.path.open("rb") as file:
                files.publish(path, iter(lambda: file.read(_PIECE), b""))
            target.index.add([head])
        if isinstance(self._source, BucketStore):
            with contextlib.suppress(OSError):
                pack.path.unlink()  # a copy of what lies in the bucket, and here now
        return True

    def _open(self, name: str) -> PackFile:
        """A pack that lies on this disk."""
        internals = self._source.internals(create=False)
        path = internals.layout.pack(name)
        try:
            if isinstance(internals, BucketInternals):
                internals.home.fetch(name)
            return PackFile(path, name, Guard())
        except FileNotFoundError as error:
            raise StoreReadError(path, "it was removed meanwhile", hint="start again") from error

    def _carry_some(self, entries: EntryList, some: Numbers, task: Task) -> None:
        """Bring some entries in a pack of their own, without their labels."""
        chosen = dataclasses.replace(entries, numbers=entries.numbers[some], nbytes=entries.nbytes[some])
        read = self._reader.read(chosen, slice(0, len(some)))
        self._reader.check()
        target = self._target.internals()
        if target.send is None:
            commit(target, read)
        else:
            # Not salted by chance: after an interruption the same entries make the same pack.
            salt = derived_digest(_CONTEXT, chosen.keys.tobytes()).hex()[:16]
            image = build_pack(read, created=self._created(chosen), salt=salt)
            target.check_leases()
            target.send(image)
            target.index.add([read_head(image.head, image.id, target.layout.pack(image.id))])
        task.advance(int(chosen.nbytes.sum()))

    @staticmethod
    def _created(entries: EntryList) -> int:
        tables, _ = entries.places.locate(entries.numbers)
        return max(entries.places.tables[number].pack.head.created for number in np.unique(tables).tolist())


def _by_pack(entries: EntryList) -> Iterator[tuple[Head, Numbers]]:
    """Each pack that holds some of the entries, and the numbers of those in the list."""
    tables, _ = entries.places.locate(entries.numbers)
    heads = {number: table.pack.head for number, table in entries.places.tables.items()}
    names = np.array([heads[number].id for number in tables.tolist()])
    # They are in the order of packs already.
    edges = np.flatnonzero(names[1:] != names[:-1]) + 1
    for some in np.split(np.arange(len(names)), edges):
        yield heads[int(tables[some[0]])], some


def _has_no_labels(head: Head) -> bool:
    return all(table.labels.offsets is None and table.labels.text == _NO_LABELS for table in head.tables)


def _divide(entries: EntryList, parts: Sequence[Numbers]) -> Iterator[Numbers]:
    """The entries of each new pack."""
    numbers = np.concatenate([np.zeros(0, np.int64), *parts])
    sizes = np.cumsum(entries.nbytes[numbers])
    edges = np.flatnonzero(np.diff(sizes // PACK_BYTES)) + 1
    for some in np.split(numbers, edges):
        for start in range(0, len(some), _ROWS):
            yield some[start : start + _ROWS]
