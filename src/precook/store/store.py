"""The store: the front of everything that is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from precook.errors import (
    ClosedStoreError,
    IncompleteError,
    MissingEntryError,
    NoSnapshotError,
    NoSpaceError,
    NoStoreError,
    PrecookError,
    ReadOnlyError,
    printable,
)
from precook.identity.recipe import recipe_digest
from precook.memo.memo import Memory
from precook.store import files
from precook.store import fork as forks
from precook.store.claims import Claims
from precook.store.commit import commit, labelled_entry
from precook.store.copy import Verify
from precook.store.entry_table import EntryTable
from precook.store.index.scan import EntryRow, read_entries
from precook.store.internals import Stats, StoreInternals
from precook.store.keysets import split
from precook.store.layout import (
    Layout,
    Marker,
    check_path,
    create_store,
    list_names,
    list_packs,
    read_marker,
    share_store,
)
from precook.store.lease import Holder, Lease, break_lease, live_leases
from precook.store.lock import locked
from precook.store.reader import Located
from precook.store.snapshot import (
    Snapshot,
    SnapshotFile,
    copy_snapshot,
    equal_latest,
    list_partials,
    list_snapshots,
    pin_snapshot,
    read_snapshot,
    remove_snapshot,
    unpin_snapshot,
    with_snapshots,
    write_snapshot,
)
from precook.store.snapshot_content import SnapshotContent
from precook.store.tree import Tree, take_apart
from precook.store.writer import Writer
from precook.values import Bytes, Flags, Key

if TYPE_CHECKING:
    from precook.identity.recipe import Recipe
    from precook.store.format.build import Entry

_log = logging.getLogger("precook")

FLUSH_BYTES = 64 << 20
FLUSH_SECONDS = 2.0

_RAISE: Any = object()


class Store:
    """A directory of entries that any number of threads and processes may read and write.

    Opened with `precook.open`; a context manager. It may be used after a fork, and pickled to another process by path.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        verify_reads: Verify,
        flush_bytes: int,
        flush_seconds: float,
        max_bytes: int | None,
    ) -> None:
        self._layout = Layout(path)
        self.asked_read_only = read_only
        """Whether it was opened read-only; one that cannot be written to is read-only without being asked."""
        self._verify_reads: Verify = verify_reads
        self._flush_bytes = flush_bytes
        self._flush_seconds = flush_seconds
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._closed = False
        self._directories = files.Directories(path)
        self._internals: StoreInternals | None = None
        check_path(self._layout, read_only=read_only)
        marker = self._read_marker()
        if marker is None and read_only:
            raise NoStoreError(self.location)
        self._read_only = read_only
        self._refusal = "opened read-only", ReadOnlyError.hint
        """Why nothing can be written, and what to do."""
        if marker is not None:
            if not read_only:
                self._look_for_rights()
            self._start(marker)
        forks.remember(self)

    @property
    def path(self) -> Path:
        """Where the store lies; of one in a bucket, where this machine keeps what is near of it."""
        return self._layout.root

    @property
    def location(self) -> Path | str:
        """Where the store lies, as people write it: its path, or its URL."""
        return self._layout.root

    @property
    def read_only(self) -> bool:
        """Whether writing is refused."""
        return self._read_only

    @property
    def exists(self) -> bool:
        """Whether it has been made: its first write does that."""
        return self._ready() is not None

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def max_bytes(self) -> int | None:
        """What its packs may take together; None for no bound."""
        return self._max_bytes

    def put(
        self, key: Key, tree: Tree, *, recipe: Recipe | None = None, labels: Mapping[str, object] | None = None
    ) -> None:
        """Store a tree under a key: durable when it returns.

        The first tree under a key stays; a key says what made its entry, so a second one can only be the same.
        """
        self._check_writable()
        entry = labelled_entry(key, take_apart(tree), recipe=recipe, labels=labels)
        internals = self._created()
        # One at a time: of two threads that put the same key, the second finds what the first has put.
        with internals.putting:
            self._ready()  # another thread may have closed the store meanwhile
            try:
                commit(internals, [entry])
            except PrecookError:
                raise
            except Exception as error:
                raise PrecookError(f"storing 1 entries failed: {error!r}") from error

    def writer(self, *, flush_bytes: int | None = None, flush_seconds: float | None = None) -> Writer:
        """A writer that gathers entries into large commits; use it in a `with` block."""
        self._check_writable()
        return Writer(
            self._commit,
            self.path,
            flush_bytes=flush_bytes or self._flush_bytes,
            flush_seconds=self._flush_seconds if flush_seconds is None else flush_seconds,
        )

    def get(
        self,
        key: Key,
        default: Any = _RAISE,
        *,
        lazy: bool = False,
        tensors: Literal["numpy", "torch"] | None = None,
    ) -> Tree:
        """The tree under a key, each leaf as it went in; `tensors` overrides the library.

        Without a `default`, a key that has no entry raises `MissingEntryError`, a damaged entry `DamagedEntryError`.
        With `lazy=True` the leaves are `LazyTensor`s and nothing is read yet.
        """
        internals = self._internals
        try:
            if internals is None or self._closed or type(key) is not Key:
                # Not in each read: two more calls are a twentieth of a small one.
                internals = self._existing(key)
            return internals.reader.get_lazy(key, tensors) if lazy else internals.reader.get(key, tensors)
        except MissingEntryError:
            if default is _RAISE:
                raise
            return default

    def get_many(
        self, keys: Iterable[Key], default: Any = _RAISE, *, tensors: Literal["numpy", "torch"] | None = None
    ) -> list[Tree]:
        """The trees under many keys, in order."""
        keys = list(keys)
        if not keys:
            return []
        internals = self._ready()
        if internals is not None:
            internals.record_uses()
            internals.reader.find_many(keys)
        return [self.get(key, default, tensors=tensors) for key in keys]

    def stack(self, keys: Iterable[Key], *, tensors: Literal["numpy", "torch"] | None = None) -> Tree:
        """One tree for many entries of equal nesting and shapes, in as few copies as there are bytes.

        Each tensor gains a first dimension, each part without tensors becomes a list.
        """
        keys = list(keys)
        if not keys:
            message = "stack needs at least one key"
            raise ValueError(message)
        internals = self._existing(keys[0])
        internals.record_uses()
        return internals.reader.stack(keys, tensors=tensors)

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """The keys that have no entry, in order, each once."""
        wanted = dict.fromkeys(keys)
        internals = self._ready()
        if internals is None:
            return list(wanted)
        present = internals.lookup.present([key.bytes for key in wanted])
        return [key for key in wanted if key.bytes not in present]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and not self.missing([key])

    def __len__(self) -> int:
        internals = self._ready()
        return internals.index.count() if internals is not None else 0

    def entries(self, *, after: bytes = b"") -> Iterator[EntryRow]:
        """Every place of every entry in order of keys, beginning after these bytes; nothing is read but the index."""
        internals = self._ready()
        if internals is not None:
            yield from read_entries(internals.index, after)

    def begins_with(self, digits: str, *, most: int) -> list[Key]:
        """The keys of entries that begin with some hexadecimal digits: so many at most."""
        first, last = (bytes.fromhex(digits.ljust(64, end)) for end in "0f")
        keys: dict[bytes, None] = {}
        # A prefix sorts before every key that begins with it.
        for row in self.entries(after=first[: min(len(digits) // 2, 31)]):
            if row.key > last or len(keys) == most:
                break
            if row.key >= first:
                keys[row.key] = None
        return [Key(key) for key in keys]

    def locate(self, key: Key) -> Located:
        """Where an entry lies and what its pack says about it, without reading its tensors."""
        return self._existing(key).reader.locate(key)

    def stats(self) -> Stats:
        """Counts and sizes."""
        return self.internals(create=False).stats()

    def present(self, keys: Bytes) -> Flags:
        """Which of many keys, one per row of 32 bytes, have an entry."""
        internals = self._ready()
        if internals is None or not len(keys):
            return np.zeros(len(keys), bool)
        wanted = split(keys)
        present = internals.lookup.present(wanted)
        return np.fromiter((key in present for key in wanted), bool, len(wanted))

    def places(self, keys: Bytes) -> EntryTable | None:
        """Where the entries of many keys lie, one key per row of 32 bytes, to read them from; None without a store."""
        tables = self.places_of([keys])
        return tables[0] if tables is not None else None

    def places_of(self, columns: Sequence[Bytes]) -> list[EntryTable] | None:
        """The same for several columns of keys, in little more time than for one."""
        internals = self._ready()
        if internals is None:
            return None
        return EntryTable.find_all(internals.lookup, columns, verify=self._verify_reads)

    def generation(self) -> str:
        """Changes whenever entries may have been removed: what was present stays so until then."""
        internals = self._ready()
        return internals.index.generation() if internals is not None else ""

    def recipes(self) -> dict[bytes, bytes]:
        """The canonical form of each recipe that entries were made with, by its digest."""
        internals = self._ready()
        forms = internals.index.recipes().values() if internals is not None else ()
        return {recipe_digest(form).bytes: form for form in forms}

    def made_with(self) -> dict[bytes, list[dict[str, str]]]:
        """The versions that entries were made with, by the digest of their recipe; not every pack says it."""
        internals = self._ready()
        return internals.index.made_with() if internals is not None else {}

    def totals(self) -> list[tuple[bytes, int, int]]:
        """For each recipe: its canonical form, and how many entries and bytes it made."""
        internals = self._ready()
        totals = internals.index.totals() if internals is not None else ()
        return [(form, entries, nbytes) for form, entries, nbytes, _ in totals]

    def damaged(self) -> dict[bytes, str]:
        """Entries that were found damaged: their keys, and why."""
        internals = self._ready()
        damage = internals.index.damage() if internals is not None else ()
        return {key: reason for key, _, reason in damage}

    def memory(self) -> Memory:
        """What is remembered about sources and keys."""
        internals = self._ready()
        return Memory(internals.index if internals is not None else None)

    def remember(self, memory: Memory) -> None:
        """Keep what a memory has learnt; this creates the store where there is none yet.

        On a full disk that is put off, with a warning: it can be learnt again.
        """
        if memory.changed and not self._read_only:
            try:
                memory.flush(self._created().index)
            except NoSpaceError as error:
                _log.warning("%s; what was learnt is not remembered yet", error.message)

    def claims(self) -> Claims:
        """Claims of one builder, so that two of them do not encode the same; this creates the store if need be."""
        return Claims(self._created().index)

    def lease(self, purpose: str, *, optional: bool = False) -> Lease:
        """A lease, for a builder or a feed: what it is given to protect is not removed while it is open.

        This creates the store if need be. A store that cannot be written to gives one that protects nothing, and so
        does a full disk where the lease is `optional`: whoever only reads can do without.
        """
        self._ready()
        return self._created().lease(purpose, optional=optional)

    def leases(self) -> list[Holder]:
        """Who holds a lease."""
        return [holder for holder, _ in live_leases(self._layout)] if self._ready() is not None else []

    def break_lease(self, prefix: str) -> Holder:
        """Take a lease from its holder, by the first digits of its id; the holder stops with `LostLeaseError`."""
        return break_lease(self._layout, self._created().index, prefix)

    def pin(self, file: SnapshotFile) -> None:
        """Keep a snapshot and all it names, also when a newer one takes its place."""
        with self._created().index.exclusive():
            pin_snapshot(file)

    def unpin(self, file: SnapshotFile) -> None:
        """Keep a snapshot no longer than until a newer one takes its place."""
        with self._created().index.exclusive():
            unpin_snapshot(file)

    def remove_snapshot(self, file: SnapshotFile) -> None:
        """Remove a snapshot, not its entries; `PinnedError` where it is pinned."""
        with self._created().index.exclusive():
            remove_snapshot(file)

    def snapshots(self) -> list[SnapshotFile]:
        """Every snapshot, by dataset and then from the oldest to the newest."""
        if self._ready() is None:
            return []
        self.look_for_snapshots()
        return list_snapshots(self._layout)

    def snapshot(self, dataset: str) -> Snapshot:
        """The latest snapshot of a dataset, read and checked; `NoSnapshotError` where there is none."""
        if self._ready() is not None:
            self.look_for_snapshots()

        def latest(listed: list[SnapshotFile]) -> Snapshot:
            snapshots = [snapshot for snapshot in listed if snapshot.dataset == dataset]
            if not snapshots:
                raise NoSnapshotError(self.location, dataset)
            return self._read_snapshot(snapshots[-1])

        return dataclasses.replace(with_snapshots(self._layout, latest), store=self)

    def freeze(
        self,
        dataset: str,
        content: SnapshotContent,
        *,
        needs: Bytes | None = None,
        seen: str | None = None,
    ) -> Snapshot:
        """Keep samples and their keys as the dataset's latest snapshot: durable when it returns.

        Of the entries it `needs`, all were there at the generation `seen`; where something was removed since, that is
        looked at again, and `IncompleteError` says what is gone. A latest snapshot that is equal stays, and is all
        that a store needs that cannot be written to.
        """
        if self._read_only:
            self._check_needs(dataset, needs, seen)
            self.look_for_snapshots()
            latest = equal_latest(self._layout, dataset, content)
            if latest is None:
                raise ReadOnlyError(self.location, f"the snapshot of {dataset} cannot be written here")
            return dataclasses.replace(latest, store=self)
        internals = self._created()
        index = internals.index
        self.look_for_snapshots()
        # Under the lock that removals take, too: a snapshot never names what is being removed.
        with index.exclusive():
            internals.check_leases()
            self._check_needs(dataset, needs, seen)
            written = write_snapshot(self._layout, self._directories, index.exclusive, dataset, content)
        self._send_snapshot(written.file)
        return dataclasses.replace(written, store=self)

    def adopt_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Make a snapshot of another store the latest of its dataset here, byte for byte; all it names has to be here.

        A latest one that says the same stays.
        """
        self._check_writable()
        internals = self._created()
        self.look_for_snapshots()
        with internals.index.exclusive():
            internals.check_leases()
            self._check_needs(snapshot.file.dataset, snapshot.entry_keys(), None)
            written = copy_snapshot(self._layout, self._directories, snapshot)
        self._send_snapshot(written.file)
        return dataclasses.replace(written, store=self)

    def _check_needs(self, dataset: str, needs: Bytes | None, seen: str | None) -> None:
        """`IncompleteError` where entries that a snapshot needs were removed since they were seen."""
        if needs is not None and self.generation() != seen:
            lost = int((~self.present(needs)).sum())
            if lost:
                hint = "build again; only those are encoded"
                raise IncompleteError(f"{lost:,} entries of {dataset} were removed meanwhile", hint=hint)

    def check_removable(self, doing: str) -> None:
        """Refuse to remove or move what lies there, where nobody can; `doing` is what was asked for."""

    def look_for_snapshots(self) -> None:
        """Called before snapshots are listed: those of a bucket are brought near."""

    def _read_snapshot(self, file: SnapshotFile) -> Snapshot:
        """A snapshot, read and checked: a copy of one of a bucket is fetched again where it is damaged."""
        return read_snapshot(file)

    def _send_snapshot(self, file: SnapshotFile) -> None:
        """Called with the latest snapshot once it lies here: one of a bucket is brought there."""

    def tidy(self, internals: StoreInternals) -> None:
        """Called when the store is opened to be written to; whoever looks after it goes on with what was cut off."""

    def make_room(self, nbytes: int) -> None:
        """Called before a pack of this size is written to a store that may take `max_bytes` only."""

    def internals(self, *, create: bool = True) -> StoreInternals:
        """Its parts, for code that looks after it; where there is no store yet one is made, or `NoStoreError`."""
        if self._ready() is None and not create:
            raise NoStoreError(self.location)
        return self._created()

    def reindex(self) -> int:
        """Make the index anew from the packs; the number of entries found."""
        index = self.internals(create=False).index
        index.rebuild()
        return index.count()

    def record_uses(self) -> None:
        """Write down what was read so far, for those who remove what was used least recently; `close` does it, too."""
        if self._internals is not None and not self._closed:
            self._internals.record_uses(now=True)

    def forget_use(self, key: Key) -> None:
        """Take back that this process has used an entry, as far as it is not written down: another takes its place."""
        internals = self._ready()
        if internals is not None:
            internals.reader.forget_use(key)

    def close(self) -> None:
        """Wait for puts under way, record what was used, close the index. Tensors that were handed out stay valid."""
        if self._closed:
            return
        internals = self._internals
        # Not in the middle of another thread's put.
        with internals.putting if internals is not None else contextlib.nullcontext():
            try:
                if internals is not None:
                    internals.close()
            finally:
                self._closed = True

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Any, ...]]:
        # Another process opens the store anew by its path: nothing of ours can be shared across a spawn.
        options = {
            "read_only": self.asked_read_only,
            "verify_reads": self._verify_reads,
            "flush_bytes": self._flush_bytes,
            "flush_seconds": self._flush_seconds,
            "max_bytes": self.max_bytes,
        }
        return _reopen, (type(self), self.path, options)

    def __repr__(self) -> str:
        return f"Store({str(self.location)!r}{', read_only=True' if self._read_only else ''})"

    def before_fork(self) -> None:
        """Let nobody be in the middle of something, and leave no SQLite state for the child to inherit."""
        self._lock.acquire()
        if self._internals is not None:
            self._internals.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._internals is not None:
            self._internals.after_fork(child=False)
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on with locks that no thread of the parent holds."""
        self._lock = threading.RLock()
        if self._internals is not None:
            self._internals.after_fork(child=True)

    def _start(self, marker: Marker) -> None:
        """Bring the index of an existing store up to date, and clear away what was cut short."""
        internals = StoreInternals(
            self._layout,
            marker,
            self._directories,
            read_only=self._read_only,
            verify=self._verify_reads,
            make_room=self.make_room if self.max_bytes is not None else None,
        )
        with files.reading(self.path):
            packs, partials = list_packs(self._layout)
            internals.index.refresh(packs)
            if not self._read_only:
                internals.index.sweep()
                self.tidy(internals)
                own = [self.path / name for name in list_names(self.path) if name.endswith(files.PARTIAL)]
                for partial in [*own, *partials, *list_partials(self._layout)]:
                    if not partial.name.startswith("index."):
                        files.sweep_partial(partial)
        self._internals = internals

    def _look_for_rights(self) -> None:
        """Be read-only where every write would fail: on a read-only mount, or where another user's files are his alone.

        No file is created then that a reader does not need: SQLite's, if they were ours, would keep their owner out.
        """
        if not os.access(self.path, os.W_OK):
            self._read_only = True
            return
        with files.explained(self.path):
            share_store(self._layout)
        with files.reading(self.path):
            # That it is another user's is looked at, too: what cannot be looked at just now is closed to nobody.
            closed = [file.name for file in self._layout.changed if files.is_closed(file)]
        if closed:
            hint = f"its owner opens the store once, with the directory shared: chmod g+rwxs {printable(self.path)}"
            self._read_only = True
            self._refusal = f"{closed[0]} belongs to another user and is not shared", hint

    def _check_writable(self) -> None:
        self._ready()
        if self._read_only:
            reason, hint = self._refusal
            raise ReadOnlyError(self.location, reason, hint=hint)

    def _existing(self, key: Key) -> StoreInternals:
        """The parts of the store; without one there is nothing under any key."""
        if type(key) is not Key:
            message = f"a key is a precook.Key, not a {type(key).__name__}"
            raise TypeError(message)
        internals = self._ready()
        if internals is None:
            raise MissingEntryError(key)
        return internals

    def _ready(self) -> StoreInternals | None:
        """The parts of the store, also of one that another process has made since; None while there is none."""
        if self._closed:
            raise ClosedStoreError(self.location, "this store is closed")
        if self._internals is None:
            with self._lock:
                marker = self._read_marker()
                if marker is not None and self._internals is None:
                    self._start(marker)
        return self._internals

    def _created(self) -> StoreInternals:
        """The parts of the store, which is made here if it is not there yet."""
        with self._lock:
            if self._internals is None:
                self._start(self._make_store())
            assert self._internals is not None
            return self._internals

    def _read_marker(self) -> Marker | None:
        """What store.toml says; None where there is no store yet."""
        return read_marker(self._layout)

    def _make_store(self) -> Marker:
        """Make the store, unless another process has just done so."""
        with files.explained(self.path):
            self._directories.make(self.path)
        with locked(self._layout.lock), files.explained(self.path):
            return read_marker(self._layout) or create_store(self._layout)

    def _commit(self, entries: list[Entry]) -> None:
        """Commit what a writer has gathered; the store is created here, before its first commit."""
        commit(self._created(), entries)


def _reopen(kind: type[Store], path: Path, options: dict[str, Any]) -> Store:
    return kind(path, **options)
