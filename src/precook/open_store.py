"""Opening a store: the store itself, with those who look after it and those who feed from it.

The store's own package knows nothing of maintenance or feeds; here they come together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from precook.identity.recipe import Recipe
from precook.maintain.evict import make_room
from precook.maintain.lock import keep_reserve
from precook.maintain.repack import sweep_doomed
from precook.maintain.transfer import Transferred, pull, push, staging_cache
from precook.maintain.verify import EVERYTHING, PackSelection, Verification, verify_store
from precook.report import SILENT, Reporter
from precook.store.copy import Verify
from precook.store.internals import StoreInternals
from precook.store.remote.store import BucketStore
from precook.store.remote.url import StoreUrl, default_cache, is_url, parse_url, wrong_url
from precook.store.snapshot import Snapshot
from precook.store.snapshot_content import SnapshotContent
from precook.store.store import FLUSH_BYTES, FLUSH_SECONDS, Store
from precook.store.tree import Tree
from precook.values import Bytes

if TYPE_CHECKING:
    from precook.encode.cached import Cached
    from precook.feed.feed import Feed


_REMOTE_SECONDS = 30.0
"""Seconds after which a writer commits to a bucket what it has gathered: each commit is two requests."""


class FeedSnapshot(Snapshot):
    """A snapshot that can be trained from."""

    __slots__ = ()

    def feed(self, *, batch_size: int, **options: Any) -> Feed:
        """Batches for training, without sources; see `precook.FeedOptions` for the other options.

        `FeedError` lists the entries that are missing.
        """
        # Not before it is asked for: whoever only reads and writes entries need not wait for all that a feed imports.
        from precook.feed.feed import feed_snapshot  # noqa: PLC0415

        return feed_snapshot(self, batch_size=batch_size, **options)


def _with_feed(snapshot: Snapshot) -> FeedSnapshot:
    return FeedSnapshot(snapshot.file, snapshot.created, snapshot.content, snapshot.store)


class LocalStore(Store):
    """A store on a disk of this machine: what `precook.open` returns."""

    def tidy(self, internals: StoreInternals) -> None:
        """Go on with removals that were cut off, and keep the reserve."""
        sweep_doomed(internals.layout, internals.index)
        keep_reserve(internals.layout, internals.index.pack_bytes())

    def make_room(self, nbytes: int) -> None:
        """Evict so that a pack of this size fits."""
        assert self.max_bytes is not None
        make_room(self.internals(), nbytes, self.max_bytes)

    def snapshot(self, dataset: str) -> FeedSnapshot:
        """The latest snapshot of a dataset, read and checked; `NoSnapshotError` where there is none."""
        return _with_feed(super().snapshot(dataset))

    def freeze(
        self, dataset: str, content: SnapshotContent, *, needs: Bytes | None = None, seen: str | None = None
    ) -> FeedSnapshot:
        """Keep samples and their keys as the dataset's latest snapshot: durable when it returns."""
        return _with_feed(super().freeze(dataset, content, needs=needs, seen=seen))

    def cached(
        self,
        function: Callable[[list[Any]], Sequence[Tree]],
        recipe: Recipe,
        *,
        batch_size: int = 64,
        allow_nan: bool = False,
        tensors: Literal["numpy", "torch"] | None = None,
    ) -> Cached:
        """`function`, called only for inputs whose result is not stored yet.

        `function` takes a list of inputs and returns one tree for each; `recipe` must say everything that decides them.
        """
        from precook.encode.cached import Cached  # noqa: PLC0415 - only who computes needs what it imports

        return Cached(self, function, recipe, batch_size=batch_size, allow_nan=allow_nan, tensors=tensors)

    def push(
        self,
        url: str | StoreUrl,
        *,
        dataset: str | None = None,
        keep: Sequence[str] = (),
        cache: str | os.PathLike[str] | None = None,
        report: Reporter = SILENT,
    ) -> Transferred:
        """Bring a dataset, or everything, to a store in a bucket: what is there already is not brought again.

        Labels of entries stay here, and so do `captions` and `paths` of a snapshot unless `keep` names them.
        """
        if not is_url(url):
            raise wrong_url(f"{url!a:.80} is not a URL", "give one, such as s3://bucket/prefix")
        with open_store(url, cache=cache) as target:
            return push(self, target, dataset, keep=keep, report=report)

    def pull(self, url: str | StoreUrl, *, dataset: str | None = None, report: Reporter = SILENT) -> Transferred:
        """Bring a dataset, or everything, from a store in a bucket to this one, which lies in a folder."""
        if not is_url(url):
            raise wrong_url(f"{url!a:.80} is not a URL", "give one, such as s3://bucket/prefix")
        self.internals()
        url = parse_url(url) if isinstance(url, str) else url
        # What is in memory is the memory of one courier, and the folder for what is near tells one from another.
        with (
            staging_cache(self) as folder,
            open_store(url, cache=None if url.scheme == "memory" else folder, read_only=True) as source,
        ):
            return pull(self, source, dataset, report=report)

    def verify(
        self,
        *,
        subset: tuple[int, int] = (1, 1),
        max_seconds: float | None = None,
        selection: PackSelection = EVERYTHING,
        after: str | None = None,
        report: Reporter = SILENT,
    ) -> Verification:
        """Read every pack and snapshot, or the k-th of n parts of the packs, and check every byte. Changes nothing.

        `selection` says which entries are meant, and then snapshots are not; `after` begins behind a pack of this name.
        """
        return verify_store(
            self.internals(create=False),
            subset=subset,
            max_seconds=max_seconds,
            selection=selection,
            after=after,
            report=report,
        )


class RemoteStore(BucketStore, LocalStore):
    """A store in a bucket: what `precook.open` returns for a URL."""

    def tidy(self, internals: StoreInternals) -> None:
        """Nothing: removals from a bucket are nobody's here."""


class RunStore(LocalStore):
    """A bounded store that keeps a run whole: old entries make room as far as they go, and nothing new is refused."""

    def make_room(self, nbytes: int) -> None:
        """Evict so that a pack of this size fits, or all that may go."""
        assert self.max_bytes is not None
        make_room(self.internals(), nbytes, self.max_bytes, strict=False)


def open_store(
    path: str | os.PathLike[str] | StoreUrl,
    *,
    read_only: bool = False,
    verify_reads: Verify = True,
    flush_bytes: int = FLUSH_BYTES,
    flush_seconds: float | None = None,
    max_bytes: int | None = None,
    keep_run: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> LocalStore:
    """Open the store at `path`, a folder or a URL; where there is none, it is created by the first write.

    `verify_reads`: True checks each entry when this process first reads it, and again when its file has changed since,
    "always" at every read, False never.
    `flush_bytes` and `flush_seconds` (2, and 30 in a bucket) say when a writer commits what it has gathered.
    `max_bytes` bounds the packs: before a commit would pass it, the least recently used entries go; where all that is
    left is in use, `StoreFullError`. With `keep_run` that is no error: what this process has written or read may take
    more than the bound, until another one makes room.

    A URL is `s3://bucket/prefix`, or one of gs://, az://, file:// and memory://; it needs `precook[remote]`, and
    credentials come from the environment. `cache` is the folder for what this machine keeps of such stores.
    docs/guides/bucket.md tells more.

    >>> import tempfile, numpy
    >>> from precook import Recipe, open
    >>> with open(tempfile.mkdtemp() + "/cache") as store:
    ...     key = Recipe("example", {"version": 1}).key("a cat")
    ...     store.put(key, {"ids": numpy.arange(3), "text": "a cat"})
    ...     store.get(key)
    {'ids': array([0, 1, 2]), 'text': 'a cat'}
    """
    if flush_bytes < 1 or (flush_seconds is not None and flush_seconds < 0):
        message = "flush_bytes must be positive and flush_seconds must not be negative"
        raise ValueError(message)
    if max_bytes is not None and max_bytes < 1:
        message = "max_bytes must be positive"
        raise ValueError(message)
    if verify_reads not in (True, False, "always"):
        message = f'verify_reads is True, False or "always", not {verify_reads!r}'
        raise ValueError(message)
    if is_url(path):
        if max_bytes is not None or keep_run:
            raise wrong_url("a store in a bucket has no max_bytes", "leave it out, or use a store in a folder")
        url = path if isinstance(path, StoreUrl) else parse_url(path)
        return RemoteStore(
            url,
            cache=Path(cache) if cache is not None else url.cache or default_cache(),
            read_only=read_only,
            verify_reads=verify_reads,
            flush_bytes=flush_bytes,
            flush_seconds=_REMOTE_SECONDS if flush_seconds is None else flush_seconds,
        )
    assert not isinstance(path, StoreUrl)
    kind = RunStore if keep_run else LocalStore
    return kind(
        Path(path),
        read_only=read_only,
        verify_reads=verify_reads,
        flush_bytes=flush_bytes,
        flush_seconds=FLUSH_SECONDS if flush_seconds is None else flush_seconds,
        max_bytes=max_bytes,
    )
